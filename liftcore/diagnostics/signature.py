"""The signature of a trace of a lifted `jit`, as facts that can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax

from ..filters import Nothing, short_form
from ..filters.trees import by_place
from ..pipeline.stages import Layout
from ..runners.arguments import parameter_names
from ..runners.jitting import Program, Signature
from . import facts
from .facts import NOT_COMPARABLE, Facts

__all__ = ["facts_of"]


def facts_of(program: Program, trace: Signature) -> Facts:
    """Return everything that determines which trace serves a call."""
    gone, (variable_groups, rng_groups, kept) = jax.tree.unflatten(trace.treedef, trace.types)
    names = parameter_names(program.fn)
    told = dict(facts.of_function(program.fn))
    told |= _of_layout(program.layout)
    for name, key, value in program.fixed:
        told |= facts.of_value(f"static argument {_shown(names, name)}", value)
        if type(key) is object:
            told[NOT_COMPARABLE] = f"static argument {_shown(names, name)}"
    for name, value in {**gone.arguments, **kept}.items():
        told |= facts.of_tree(f"argument {_shown(names, name)}", value)
    for what, groups in (("variable", gone.joined(variable_groups)), ("stream", rng_groups)):
        for group in groups:
            for index, tree in enumerate(group):
                told |= facts.of_named(_of_scope(what, index), tree)
    for index, path in enumerate(program.paths):
        told[_of_scope("path", index)] = "/".join(path)
    told["donated arguments"] = str([_shown(names, name) for name in gone.arguments])
    given_up = [path for group in gone.variables for _, path in by_place(group)]
    told["donated variables"] = str([*map("/".join, given_up)])
    if program.shardings is not None:
        told["shardings"] = repr(program.shardings)
    return told


def _shown(names: Sequence[str], name: str) -> str:
    """Return the name of an argument, given its name or number."""
    return names[int(name)] if name.isdecimal() and int(name) < len(names) else name


def _of_scope(what: str, index: int) -> str:
    """Add the number of the scope, unless it is the first; most lifts have only one."""
    return f"{what} of scope {index}" if index else what


def _of_layout(layout: Layout) -> Iterator[tuple[str, str]]:
    yield "variables", ", ".join(map(short_form, layout.lift.into))
    yield "rngs", ", ".join(map(short_form, layout.lift.rngs))
    yield "scopes", f"{layout.scopes}, {layout.routes}"
    for index, seen in enumerate(layout.surroundings):
        sown = seen.changes[0] and seen.mutable == Nothing()
        yield _of_scope("mutable", index), "sown values" if sown else short_form(seen.mutable)
        yield _of_scope("creates variables", index), str(seen.changes[1])
        yield _of_scope("initializing", index), str(seen.initializing)
        yield _of_scope("streams given", index), str(seen.given)
        yield _of_scope("empty collections", index), ", ".join(seen.empty)
        yield _of_scope("variables not lifted", index), str([*map("/".join, (*layout.unlifted[index], *seen.unlifted))])
        yield _of_scope("streams that draw from another one", index), ", ".join(map(short_form, seen.rules))
    for index, names in enumerate(layout.names):
        taken = sorted(name if collection is None else f"{collection}/{name}" for name, collection in names.taken)
        yield _of_scope("names taken", index), f"{taken}, numbers {dict(names.numbers)}"
