"""`filter_jvp`: the result of a function of any Python objects, and its tangent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

import liftcore
from liftcore.errors import LiftArgumentError, boundary, check_function, name_of, shown

from .differentiated import Differentiated
from .filters import is_array_like, is_inexact_array
from .parts import SplitResult

__all__ = ["filter_jvp"]


@boundary
def filter_jvp(fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], **kwargs: Any) -> Any:
    """Apply `jax.jvp` to a function of any Python objects. The tangent of a constant leaf is None.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> eqx.filter_jvp(lambda x, scale: (scale * x, "done"), (jnp.float32(3), 2.0), (jnp.float32(1), None))
        ((Array(6., dtype=float32), 'done'), (Array(2., dtype=float32), None))

    Args:
        fn: the function, or any callable pytree.
        primals: the positional arguments of the function. Scopes among them are lifted as in `liftcore.jvp`.
        tangents: a tangent for each positional argument: a pytree like it, with None for leaves that are constant or
            not numbers. The tangent of an array has its shape and dtype.
        **kwargs: further arguments of the function, which are constant.

    Returns:
        The result and its tangent: a pytree like the result, with None for constant leaves. Inside a lift that creates
        variables, and under an outer `filter_jvp`, the tangent of a constant leaf may be zeros instead.

    Raises:
        LiftArgumentError: if `tangents` has another structure, or `fn` returns a scope.
    """
    check_function("filter_jvp", fn)
    where = f"filter_jvp({name_of(fn)})"
    primals, tangents = tuple(primals), tuple(tangents)
    if len(primals) != len(tangents):
        raise LiftArgumentError(
            where, f"expected {len(primals)} tangents, given {len(tangents)}.", "Pass None for constant arguments."
        )
    each = _one_each(where, tangents, primals)
    answers = iter(each)
    call = Differentiated(fn, primals, (), kwargs, lambda leaf: next(answers) is not None)
    result, moved = SplitResult(where), SplitResult(where)

    def body(scopes: Any, arrays: list[Any]) -> tuple[list[Any], list[Any]]:
        found = call.run(scopes, arrays)
        kinds = set(map(type, arrays))  # types of tracers: a leaf of no such type was not computed from a primal
        return moved.arrays(found, lambda leaf: is_inexact_array(leaf) and type(leaf) in kinds), result.arrays(found)

    along = [tangent for tangent in each if tangent is not None]
    lifted = liftcore.jvp(body, has_aux=True, wrt=False)
    _, tangent, arrays = lifted(call.scopes, (call.arrays,), (along,))
    return result.join(arrays), moved.parts.fill(tangent)


def _one_each(where: str, tangents: tuple[Any, ...], primals: tuple[Any, ...]) -> list[Any]:
    """Return the tangent of each leaf of the primals; a None in `tangents` applies to all leaves below it."""
    each: list[Any] = []

    def below(tangent: Any, primal: Any) -> None:
        leaves = jax.tree.leaves(primal)
        if tangent is not None and (len(leaves) != 1 or leaves[0] is not primal or not is_array_like(tangent)):
            raise LiftArgumentError(
                f"tangents of {where}",
                f"expected a tangent for each number in {shown(primal)}, given {shown(tangent)}.",
                "Pass a pytree like the primals, with None for constant leaves.",
            )
        each.extend([tangent] * len(leaves))

    try:
        jax.tree.map(below, tangents, primals, is_leaf=lambda one: one is None)
    except (ValueError, TypeError) as error:
        if isinstance(error, LiftArgumentError):
            raise
        raise LiftArgumentError(
            f"tangents of {where}",
            f"expected the structure {jax.tree.structure(primals)}, given {jax.tree.structure(tangents)}.",
            "Pass a pytree like the primals, with None for constant leaves.",
        ) from error
    return each
