"""`associative_scan` over objects."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import liftcore
from liftcore.errors import boundary, call_user

from ..crossing.groups import Groups
from ..crossing.inside import Inside
from ..crossing.outside import Outside
from ..errors import StructureError
from .decorating import MISSING, checked, named

__all__ = ["associative_scan"]

_READ = "read"


def associative_scan(f: Callable[..., Any] = MISSING, *, reverse: bool = False, axis: int = 0) -> Any:
    """`jax.lax.associative_scan` for an operator that reads objects.

    Unlike JAX's, it takes only the operator, and returns a function of the elements.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(scale=nnx.Param(jnp.array(2.0)))
        >>> combine = nnx.associative_scan(lambda model, a, b: a + model.scale * b)
        >>> print(combine(model, jnp.ones(3)))
        [1. 3. 5.]

    Args:
        f: called as `f(*operands, a, b)` with two elements; returns an element. It is traced more than once, and on
            batches of elements. It may read objects but not change them. Without `f`, the result is a decorator.
        reverse: whether to start with the last element.
        axis: the axis of the elements.

    Returns:
        A function `(*operands, elements)`, where `elements` is a pytree of arrays. It returns, for each element, the
        combination of all elements up to it.

    Raises:
        StructureError: when called, if `f` changes an object.
    """
    if f is MISSING:
        return functools.partial(associative_scan, reverse=reverse, axis=axis)
    groups = Groups(checked("associative_scan", f), "group")

    @functools.wraps(f)
    @boundary
    def wrapped(*args: Any) -> Any:
        *operands, elements = args
        outside = Outside(groups, tuple(operands), groups.name(_READ))

        @named(f)
        def operator(scope: liftcore.Scope, a: Any, b: Any) -> Any:
            inside = Inside(scope, groups)
            element = call_user(groups.where, f, *inside.decode(outside.args), a, b)
            _check_unchanged(groups.where, *inside.encode((), groups.name(_READ)))
            return element

        with outside.scope() as scope:
            return liftcore.associative_scan(operator, reverse=reverse, axis=axis)(scope, elements)

    return wrapped


def _check_unchanged(where: str, result: Any, home: Any, change: Any) -> None:
    if change.definitions is not None or any(new or written for new, written in home.values()):
        raise StructureError(
            where,
            "the operator changed an object, but it runs in any order and on many elements at once.",
            "Return the value as part of the element, and change the object afterwards.",
        )
