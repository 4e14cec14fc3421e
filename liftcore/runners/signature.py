"""What a trace of a lifted `jit` was made for: kept with the trace without arrays, told as facts to who asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from ..diagnostics import facts
from ..diagnostics.facts import WITHOUT_KEY, Facts
from ..filters import Nothing, short_form
from ..pipeline.stages import Layout
from ..pipeline.use import Use
from ..scopes.tree import Names
from ..typing import PyTree
from .arguments import parameter_names

if TYPE_CHECKING:
    from .compiled import Program

__all__ = ["Signature", "facts_of"]


class Signature(NamedTuple):
    """What the arguments of one trace were.

    Attributes:
        path: the place of the call, with the name of the lift.
        treedef: the structure of the donated arguments, the groups of variables and of streams, and the arguments.
        types: the types of their leaves.
    """

    path: str
    treedef: Any
    types: tuple[Any, ...]

    @classmethod
    def of(cls, use: Use, gone: PyTree, operands: PyTree) -> Signature:
        """That of a call."""
        leaves, treedef = jax.tree.flatten((gone, operands))
        path = f"{use.place.rstrip('/')}/{use.layout.lift.name}"
        return cls(path, treedef, tuple(map(jax.typeof, leaves)))


def facts_of(program: Program, trace: Signature) -> Facts:
    """All that decides which trace serves a call."""
    gone, (variable_groups, rng_groups, kept) = jax.tree.unflatten(trace.treedef, trace.types)
    names = parameter_names(program.fn)
    told = dict(facts.of_function(program.fn))
    told |= _of_layout(program.layout)
    for name, key, value in program.fixed:
        told |= facts.of_value(f"static argument {_shown(names, name)}", value)
        if type(key) is object:
            told[WITHOUT_KEY] = f"static argument {_shown(names, name)}"
    for name, value in {**gone, **kept}.items():
        told |= facts.of_tree(f"argument {_shown(names, name)}", value)
    for what, groups in (("variable", variable_groups), ("sequence", rng_groups)):
        for group in groups:
            for index, tree in enumerate(group):
                told |= facts.of_named(_of_scope(what, index), tree)
    for index, path in enumerate(program.paths):
        told[_of_scope("path", index)] = "/".join(path)
    told["donated arguments"] = str([_shown(names, name) for name in gone])
    if program.shardings is not None:
        told["shardings"] = repr(program.shardings)
    return told


def _shown(names: Sequence[str], name: str) -> str:
    """The name of an argument that is told by its number."""
    return names[int(name)] if name.isdecimal() and int(name) < len(names) else name


def _of_scope(what: str, index: int) -> str:
    """Tells several scopes apart; most lifts are given one."""
    return f"{what} of scope {index}" if index else what


def _of_layout(layout: Layout) -> Iterator[tuple[str, str]]:
    yield "variables", ", ".join(map(short_form, layout.lift.into))
    yield "rngs", ", ".join(map(short_form, layout.lift.rngs))
    yield "scopes", f"{layout.scopes}, {layout.routes}"
    for index, seen in enumerate(layout.trees):
        sown = seen.changes[0] and seen.mutable == Nothing()
        yield _of_scope("mutable", index), "sown values" if sown else short_form(seen.mutable)
        yield _of_scope("creates variables", index), str(seen.changes[1])
        yield _of_scope("initializing", index), str(seen.initializing)
        yield _of_scope("sequences given", index), str(seen.given)
        yield _of_scope("empty collections", index), ", ".join(seen.empty)
        yield _of_scope("variables not lifted", index), str([*map("/".join, (*layout.unlifted[index], *seen.unlifted))])
        yield _of_scope("rules of other streams", index), ", ".join(map(short_form, seen.rules))
    for index, names in enumerate(layout.names):
        yield _of_scope("names taken", index), _names_text(names)


def _names_text(names: Names) -> str:
    taken = [name if collection is None else f"{collection}/{name}" for name, collection in names.taken]
    return f"{sorted(taken)}, numbers {dict(names.numbers)}"
