"""`cond` and `switch` over objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

import liftcore
from liftcore.calls import boundary, call_user
from liftcore.errors import LiftArgumentError
from liftcore.problems import no_functions
from liftcore.pytrees import is_array_like

from ..crossing.groups import Change, Groups, Plain, Ref
from ..crossing.inside import Inside
from ..crossing.outside import Outside
from ..errors import StructureError
from ..graph.definition import AgainDef, Definition, difference, path_of, path_text
from .base import checked, named
from .uniform import ALL

__all__ = ["cond", "switch"]


@boundary
def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any) -> Any:
    """`jax.lax.cond` for functions of objects: only the branch that runs changes them.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(jnp.ones(2)), calls=nnx.Variable(jnp.array(0)))
        >>> def counted(model, x):
        ...     model.calls += 1
        ...     return model.w * x
        >>> print(nnx.cond(True, counted, lambda model, x: model.w * 0.0, model, 3.0), model.calls.get_value())
        [3. 3.] 1

    Args:
        pred: a bool, or an array of one.
        true_fun: the function to run if `pred` is true, called with the operands.
        false_fun: the function to run if `pred` is false.
        *operands: pytrees of arrays and objects.

    Returns:
        What the function that ran returned. Both functions must return the same structure, and leave the objects with
        the same structure.

    Raises:
        StructureError: if the branches change the structure of an object in different ways.
        LiftArgumentError: if the branches return different structures or types.
    """
    branches = {"true_fun": true_fun, "false_fun": false_fun}
    return _run("cond", lambda bodies: liftcore.cond(*bodies), pred, branches, operands)


@boundary
def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """`jax.lax.switch` for functions of objects: only the branch that runs changes them.

    Example:
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(2.0))
        >>> branches = [lambda model: model.w * 1.0, lambda model: model.w * 10.0]
        >>> print(nnx.switch(1, branches, model))
        20.0

    Args:
        index: which of the branches runs; an index out of range is clamped.
        branches: the functions, called with the operands.
        *operands: pytrees of arrays and objects.

    Returns:
        What the function that ran returned. All functions must return the same structure, and leave the objects with
        the same structure.

    Raises:
        StructureError: if the branches change the structure of an object in different ways.
        LiftArgumentError: if the branches return different structures or types.
    """
    if not branches:
        raise no_functions("switch", "Pass a list: `nnx.switch(index, [f, g], model)`.", branches)
    names = {f"branch {number}": branch for number, branch in enumerate(branches)}
    return _run("switch", liftcore.switch, index, names, operands)


_Traced = tuple[str, str, Inside, Change]
"""What a branch returned, after its name, and how it changed the structure of objects."""


def _run(
    name: str,
    lift: Callable[[Sequence[Callable[..., Any]]], Callable[..., Any]],
    choice: Any,
    branches: Mapping[str, Callable[..., Any]],
    operands: tuple[Any, ...],
) -> Any:
    """Run one of several branches, which have the names that errors use."""
    places = [checked(name, fun) for fun in branches.values()]
    groups, traced = Groups(places[0], "group", groups=[ALL]), list[_Traced]()
    lifted = lift([_branch(groups, traced, fun, branch) for branch, fun in branches.items()])
    outside = Outside(groups, operands, ALL, "operands")
    return outside.call(lifted, choice, *outside.args, mutable=True)


def _branch(groups: Groups, traced: list[_Traced], fun: Callable[..., Any], name: str) -> Callable[..., Any]:
    @named(fun)
    def body(scope: liftcore.Scope, *operands: Any) -> Any:
        inside = Inside(scope, groups)
        result, home, change = inside.encode(call_user(groups.where, fun, *inside.decode(operands)), ALL)
        traced.append((name, _types(result, _definitions(inside, change)), inside, change))
        _check_agrees(groups.where, traced)
        return result, home, change

    return body


def _definitions(inside: Inside, change: Change) -> list[tuple[str, Definition]]:
    """Return the definitions of the operands after a branch, each with its path."""
    befores = [ref.definition for ref, _ in inside.given]
    bases = [ref.base.removesuffix(".") for ref, _ in inside.given]
    return list(zip(bases, change.definitions or befores, strict=False))


def _types(result: Any, known: Sequence[tuple[str, Definition]]) -> str:
    """Describe the structure of a result: a type for each array, and for each object its class or its origin."""

    def one(leaf: Any) -> Any:
        if type(leaf) is Ref and type(leaf.definition) is AgainDef:
            paths = [path_of(definition, leaf.definition.number, (base,)) for base, definition in known]
            return Plain(next((f"what is at {path_text(path)}" for path in paths if path), "an object met before"))
        if type(leaf) is Ref:
            return Plain(f"a new {leaf!r}")
        return Plain(jax.typeof(leaf).str_short(short_dtypes=False) if is_array_like(leaf) else repr(leaf))

    return repr(jax.tree.map(one, result, is_leaf=lambda leaf: type(leaf) is Ref))


def _check_agrees(where: str, traced: Sequence[_Traced]) -> None:
    """Check that the last branch changes the structure of the objects like the first one."""
    (first, expected, _, other), (name, types, inside, change) = traced[0], traced[-1]
    if types != expected:
        what = f"the branches must return the same structure and types; {first} returns {expected}, and {name} {types}."
        fix = "Return the same structure, shapes and dtypes from all branches, with the same or similar objects."
        raise LiftArgumentError(where, what, fix, expected=expected, given=types)
    if change == other:
        return
    before = _definitions(inside, Change(None, ()))
    ones, others = _definitions(inside, other), _definitions(inside, change)
    done, now = _difference(before, ones), _difference(before, others)
    said = f"in {first} {done or 'nothing was changed'}, in {name} {now or 'nothing was changed'}"
    if done == now:
        said = f"from {first} to {name}, {_difference(ones, others) or 'an object differs'}"
    raise StructureError(
        where,
        f"the branches must leave the objects with the same structure; {said}.",
        "Change attributes, references and metadata in the same way in all branches, or before the choice.",
        given=said,
    )


def _difference(ones: Sequence[tuple[str, Definition]], others: Sequence[tuple[str, Definition]]) -> str | None:
    """Describe the first difference between two definitions of the same objects; return None if they are equal."""
    pairs = zip(ones, others, strict=False)
    return next(filter(None, [difference(one, other, (base,)) for (base, one), (_, other) in pairs]), None)
