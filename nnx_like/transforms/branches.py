"""`cond` and `switch` over objects."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Any

import jax

import liftcore
from liftcore.errors import LiftArgumentError

from ..crossing.groups import Groups
from ..crossing.inside import Inside
from ..crossing.outside import Outside
from ..crossing.ref import Change, Ref
from ..errors import StructureError
from ..graph.definition import AGAIN
from ..graph.differences import difference
from ..graph.walk import is_traceable
from .caching import kept
from .decorating import Plain, checked, named, title

__all__ = ["cond", "switch"]

_OPERANDS = "operands"


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
        true_fun: the function where it is true, called with the operands.
        false_fun: the function where it is false.
        *operands: pytrees of arrays and objects.

    Returns:
        What the function that ran returned. Both must return the same structure, and leave the objects with the same.

    Raises:
        StructureError: where one branch changes the structure of the objects in another way than the other.
        LiftArgumentError: where the branches return unlike structures or types.
    """
    groups = _groups(checked("cond", true_fun))
    checked("cond", false_fun)
    return _run(_cond(true_fun, false_fun), groups, pred, operands)


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """`jax.lax.switch` for functions of objects: only the branch that runs changes them.

    Example:
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(2.0))
        >>> branches = [lambda model: model.w * 1.0, lambda model: model.w * 10.0]
        >>> print(nnx.switch(1, branches, model))
        20.0

    Args:
        index: which of the branches runs; the first or the last where it is out of range.
        branches: the functions, called with the operands.
        *operands: pytrees of arrays and objects.

    Returns:
        What the function that ran returned. All must return the same structure, and leave the objects with the same.

    Raises:
        StructureError: where one branch changes the structure of the objects in another way than the others.
        LiftArgumentError: where the branches return unlike structures or types.
    """
    if not branches:
        raise LiftArgumentError("switch", "there is no branch.", "Give at least one function.")
    for branch in branches:
        checked("switch", branch)
    return _run(_switch(tuple(branches)), _groups(title("switch", branches[0])), index, operands)


def _groups(where: str) -> Groups:
    groups = Groups(where, "branches")
    groups.name(_OPERANDS)
    return groups


_traced: contextvars.ContextVar[list[tuple[str, str, Inside, Change]]] = contextvars.ContextVar("traced")
"""What the branches of the innermost choice returned and did to the structure of objects, of those traced so far."""


def _run(lifted: Callable[..., Any], groups: Groups, choice: Any, operands: tuple[Any, ...]) -> Any:
    outside = Outside(groups, operands, groups.name(_OPERANDS), "operands")
    before = _traced.set([])
    try:
        return outside.call(lifted, choice, *outside.args, mutable=True)
    finally:
        _traced.reset(before)


@kept
def _cond(true_fun: Callable[..., Any], false_fun: Callable[..., Any]) -> Callable[..., Any]:
    groups = _groups(title("cond", true_fun))
    return liftcore.cond(_branch(groups, true_fun, "cond"), _branch(groups, false_fun, "cond"))


@kept
def _switch(branches: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    groups = _groups(title("switch", branches[0]))
    return liftcore.switch([_branch(groups, branch, "switch") for branch in branches])


def _branch(groups: Groups, fun: Callable[..., Any], name: str) -> Callable[..., Any]:
    @named(fun)
    def body(scope: liftcore.Scope, *operands: Any) -> Any:
        inside = Inside(scope, groups)
        result, home, change = inside.encode(fun(*inside.decode(operands)), groups.name(_OPERANDS))
        _check_agrees(title(name, fun), _types(result), inside, change)
        return result, home, change

    return body


def _types(result: Any) -> str:
    """The structure of a result, with a type or a class for each leaf."""

    def one(leaf: Any) -> Any:
        if type(leaf) is Ref:  # one that came in, or was met before, is known by its number
            again = leaf.definition[0] == AGAIN
            return Plain(f"object {leaf.definition[1]}" if again else repr(leaf))
        return Plain(jax.typeof(leaf).str_short(short_dtypes=False) if is_traceable(leaf) else repr(leaf))

    return repr(jax.tree.map(one, result, is_leaf=lambda leaf: type(leaf) is Ref))


def _check_agrees(where: str, types: str, inside: Inside, change: Change) -> None:
    """Checks that a branch does to the structure of the objects what the first one did."""
    traced = _traced.get([])
    traced.append((where, types, inside, change))
    first, expected, _, other = traced[0]
    if types != expected:
        raise LiftArgumentError(
            where,
            f"the branches must return the same structure and types; {first} returns {expected}, this one {types}.",
            "Return the same structure, shapes and dtypes from all; objects must be the same ones, or alike.",
        )
    if change == other:
        return
    befores = [ref.definition for ref, _ in inside.given]
    ones, others = [one.definitions or befores for one in (other, change)]
    found = [difference(one, two, _at(ref)) for (ref, _), one, two in zip(inside.given, ones, others, strict=False)]
    raise StructureError(
        where,
        f"the branches must leave the objects with the same structure. From what {first} leaves to what this one "
        f"leaves, {next(filter(None, found), 'an object is another one')}.",
        "Do the same to attributes, references and metadata in all branches, or before the choice.",
    )


def _at(ref: Ref) -> tuple[str, ...]:
    return (ref.base.removesuffix("."),)
