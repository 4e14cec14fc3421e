"""Facts about a function, its arguments and its surroundings, as flat texts that can be compared and kept.

A text contains no arrays, so facts may be kept for any time. They are made only on demand.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax

from ..filters import Nothing, short_form
from ..filters.trees import by_place
from ..pipeline.stages import Layout
from ..pytrees import is_numpy
from ..runners.arguments import parameter_names
from ..runners.jitting import Program, Signature
from ..scopes.scope import Scope
from ..texts import aval_of, path_text, type_text

__all__ = [
    "NOT_COMPARABLE",
    "Facts",
    "differing",
    "facts_of",
    "of_call",
    "of_function",
    "of_named",
    "of_tree",
    "of_value",
]


Facts: TypeAlias = dict[str, str]
"""Maps the name of each fact, such as `argument x`, to its text."""

NOT_COMPARABLE = "not comparable by its contents"
"""The name of the fact about a value that may change unnoticed, which prevents compiled functions from being kept."""

_DEPTH = 8
"""The depth to which a value is described in parts; deeper values are described by their `repr`."""

Told: TypeAlias = Iterator[tuple[str, str]]


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names of the facts that differ, or that exist only once."""
    return [what for what in {**now, **before} if before.get(what) != now.get(what)]


def _type(leaf: Any) -> str:
    """Return the type of a leaf; for JAX, a weak type differs from a strong one."""
    text = type_text(leaf)
    return f"{text} (weak)" if text != type(leaf).__name__ and aval_of(leaf).weak_type else text


def of_tree(what: str, tree: Any) -> Told:
    """Yield the types of the leaves of a pytree, and its static values."""
    for path, leaf in jax.tree.leaves_with_path(tree, is_leaf=_tells):
        place = f"{what}{jax.tree_util.keystr(path)}"
        if _tells(leaf):
            for below, value in leaf.trace_facts().items():
                yield from of_value(f"{place}{below}", value)
        else:
            yield place, _type(leaf)


def _tells(leaf: Any) -> bool:
    """Whether a node has a method `trace_facts` that describes its static part, like a `Rest`."""
    return hasattr(type(leaf), "trace_facts")


def of_named(what: str, tree: Any) -> Told:
    """Yield the types of variables or keys, named by their path: `variable params/w`."""
    for path, leaf in jax.tree.leaves_with_path(tree):
        yield f"{what} {path_text(path)}", _type(leaf)


def of_function(fn: Any) -> Told:
    """Yield the facts about a function: where it is defined, and the values that it holds.

    A function with a method `trace_facts() -> {name: value}` is described by this method.
    """
    if callable(tell := getattr(fn, "trace_facts", None)):
        for name, value in tell().items():
            yield from of_value(name, value)
    elif isinstance(fn, functools.partial):
        yield from of_function(fn.func)
        yield from of_value("partial args", fn.args)
        yield from of_value("partial keywords", fn.keywords)
    elif isinstance(fn, types.MethodType):
        yield from of_function(fn.__func__)
        yield from of_value("self", fn.__self__)
    elif isinstance(fn, types.FunctionType):
        yield "function", f"{fn.__module__}.{fn.__qualname__}"
        yield "line", str(fn.__code__.co_firstlineno)
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            yield from of_value(f"closure {name}", _content(cell))
    else:
        yield "function", type(fn).__qualname__
        yield from of_value(type(fn).__qualname__, fn)


def of_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], skip: int = 0) -> Told:
    """Yield the facts about the arguments of a call, by name; for scopes, the parts that a body can see.

    Args:
        fn: the function; the positional arguments follow its first `skip` parameters.
        args: the positional arguments.
        kwargs: the keyword arguments.
        skip: see `fn`.
    """
    names = parameter_names(fn)[skip:]
    names += [str(number) for number in range(len(names), len(args))]
    for name, value in {**dict(zip(names, args, strict=False)), **kwargs}.items():
        for path, leaf in jax.tree.leaves_with_path(value, is_leaf=lambda leaf: isinstance(leaf, Scope)):
            what = f"argument {name}{jax.tree_util.keystr(path)}"
            yield from _of_scope(what, leaf) if isinstance(leaf, Scope) else of_value(what, leaf)


def _of_scope(what: str, scope: Scope) -> Told:
    tree = scope.tree
    yield f"{what}, path", scope.path_text
    yield f"{what}, mutable", short_form(tree.mutable)
    yield f"{what}, initializing", str(tree.initializing)
    yield f"{what}, streams", str(sorted(tree.rngs))
    yield from of_named(f"{what}, variable", scope.collections_below())


def of_value(what: str, value: Any, depth: int = _DEPTH) -> Told:
    """Yield the facts about a value: containers and dataclasses in parts, arrays by type, functions by name."""
    members = None if depth == 0 else _members(value)
    if members is not None:
        yield what, type(value).__qualname__
        for name, below in members:
            yield from of_value(f"{what}{name}", below, depth - 1)
    elif is_numpy(value) or isinstance(value, jax.Array | jax.ShapeDtypeStruct):
        yield what, _type(value)
    elif callable(value) and hasattr(value, "__qualname__"):
        yield what, value.__qualname__
    else:
        yield what, repr(value)


def _members(value: Any) -> list[tuple[str, Any]] | None:
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", below) for key, below in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", below) for name, below in zip(value._fields, value, strict=True)]
    if isinstance(value, list | tuple):
        return [(f"[{index}]", below) for index, below in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = (field.name for field in dataclasses.fields(value) if field.repr)
        return [(f".{name}", getattr(value, name, None)) for name in shown]
    return None


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


# --- the signature of a trace of a lifted `jit` -----------------------------------------------------------------------


def facts_of(program: Program, trace: Signature) -> Facts:
    """Return everything that determines which trace serves a call."""
    gone, (variable_groups, rng_groups, kept) = jax.tree.unflatten(trace.treedef, trace.types)
    names = parameter_names(program.fn)
    told = dict(of_function(program.fn))
    told |= _of_layout(program.layout)
    for name, key, value in program.fixed:
        told |= of_value(f"static argument {_shown(names, name)}", value)
        if type(key) is object:
            told[NOT_COMPARABLE] = f"static argument {_shown(names, name)}"
    for name, value in {**gone.arguments, **kept}.items():
        told |= of_tree(f"argument {_shown(names, name)}", value)
    for what, groups in (("variable", gone.joined(variable_groups)), ("stream", rng_groups)):
        for group in groups:
            for index, tree in enumerate(group):
                told |= of_named(_numbered(what, index), tree)
    for index, path in enumerate(program.paths):
        told[_numbered("path", index)] = "/".join(path)
    told["donated arguments"] = str([_shown(names, name) for name in gone.arguments])
    given_up = [path for group in gone.variables for _, path in by_place(group)]
    told["donated variables"] = str([*map("/".join, given_up)])
    if program.shardings is not None:
        told["shardings"] = repr(program.shardings)
    return told


def _shown(names: Sequence[str], name: str) -> str:
    """Return the name of an argument, given its name or number."""
    return names[int(name)] if name.isdecimal() and int(name) < len(names) else name


def _numbered(what: str, index: int) -> str:
    """Add the number of the scope, unless it is the first; most lifts have only one."""
    return f"{what} of scope {index}" if index else what


def _of_layout(layout: Layout) -> Iterator[tuple[str, str]]:
    yield "variables", ", ".join(map(short_form, layout.lift.into))
    yield "rngs", ", ".join(map(short_form, layout.lift.rngs))
    yield "scopes", f"{layout.scopes}, {layout.routes}"
    for index, seen in enumerate(layout.surroundings):
        sown = seen.changes[0] and seen.mutable == Nothing()
        yield _numbered("mutable", index), "sown values" if sown else short_form(seen.mutable)
        yield _numbered("creates variables", index), str(seen.changes[1])
        yield _numbered("initializing", index), str(seen.initializing)
        yield _numbered("streams given", index), str(seen.given)
        yield _numbered("empty collections", index), ", ".join(seen.empty)
        yield _numbered("variables not lifted", index), str([*map("/".join, (*layout.unlifted[index], *seen.unlifted))])
        yield _numbered("streams that draw from another one", index), ", ".join(map(short_form, seen.rules))
    for index, names in enumerate(layout.names):
        taken = sorted(name if collection is None else f"{collection}/{name}" for name, collection in names.taken)
        yield _numbered("names taken", index), f"{taken}, numbers {dict(names.numbers)}"
