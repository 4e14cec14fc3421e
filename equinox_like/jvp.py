"""`filter_jvp`: the result, and its tangent, of a function of any Python objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

import liftcore
from liftcore.errors import LiftArgumentError, check_function, name_of, shown

from .differentiated import Differentiated
from .filters import is_array_like, is_inexact_array
from .parts import SplitResult

__all__ = ["filter_jvp"]


def filter_jvp(fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], **kwargs: Any) -> Any:
    """`jax.jvp` of a function of any Python objects; None is the tangent of what does not move.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> eqx.filter_jvp(lambda x, scale: (scale * x, "done"), (jnp.float32(3), 2.0), (jnp.float32(1), None))
        ((Array(6., dtype=float32), 'done'), (Array(2., dtype=float32), None))

    Args:
        fn: the function: any pytree that can be called.
        primals: its positional arguments. Scopes among them are lifted as by `liftcore.jvp`.
        tangents: for each of them its tangent: a pytree like it, with None in the place of what does not move, and of
            all that is no number. An array has the shape and dtype of its primal.
        **kwargs: further arguments of the function, which do not move.

    Returns:
        The result, and its tangent: a pytree like it, with None in the place of what does not move. Inside a lift that
        creates variables, and under an outer `filter_jvp`, what does not move may have zeros.

    Raises:
        LiftArgumentError: where `tangents` has another structure, or `fn` returns a scope.
    """
    check_function("filter_jvp", fn)
    where = f"filter_jvp({name_of(fn)})"
    primals, tangents = tuple(primals), tuple(tangents)
    if len(primals) != len(tangents):
        raise LiftArgumentError(
            where, f"expected {len(primals)} tangents, given {len(tangents)}.", "Give None for what does not move."
        )
    each = _one_each(where, tangents, primals)
    answers = iter(each)
    call = Differentiated(fn, primals, (), kwargs, lambda leaf: next(answers) is not None)
    result, moved = SplitResult(where), SplitResult(where)

    def body(scopes: Any, arrays: list[Any]) -> tuple[list[Any], list[Any]]:
        found = call.run(scopes, arrays)
        kinds = set(map(type, arrays))  # of tracers: what is of none of them was not computed from a primal
        return moved.arrays(found, lambda leaf: is_inexact_array(leaf) and type(leaf) in kinds), result.arrays(found)

    along = [tangent for tangent in each if tangent is not None]
    lifted = liftcore.jvp(body, has_aux=True, wrt=False)
    _, tangent, arrays = lifted(call.scopes, (call.arrays,), (along,))
    return result.join(arrays), moved.parts.fill(tangent)


def _one_each(where: str, tangents: tuple[Any, ...], primals: tuple[Any, ...]) -> list[Any]:
    """The tangent of each leaf of the primals; one None may stand for those of all leaves below."""
    each: list[Any] = []

    def below(tangent: Any, primal: Any) -> None:
        leaves = jax.tree.leaves(primal)
        if tangent is not None and (len(leaves) != 1 or leaves[0] is not primal or not is_array_like(tangent)):
            raise LiftArgumentError(
                f"tangents of {where}",
                f"expected a tangent for each number in {shown(primal)}, given {shown(tangent)}.",
                "Give a pytree like the primals, with None for what does not move.",
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
            "Give a pytree like the primals, with None for what does not move.",
        ) from error
    return each
