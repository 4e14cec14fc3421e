"""`DynamicScale`: scale a loss before it is differentiated, so that small gradients do not underflow in float16."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from ..calls import boundary, call_user
from ..errors import Expected, LiftArgumentError
from ..problems import checked_aux
from ..struct import PyTreeNode, field
from ..typing import Array, PyTree

__all__ = ["DynamicScale", "DynamicScaleResult", "paired", "scaled", "unscaled"]

_TINY, _MAX = np.finfo(np.float32).tiny, np.finfo(np.float32).max
"""They have dtype float32, as the scale does after the first step; a Python number would get the dtype of the loss."""


class DynamicScaleResult(NamedTuple):
    """The result of a function that `DynamicScale.value_and_grad` returned.

    Attributes:
        dynamic_scale: the scale for the next step.
        finite: whether all gradients are finite; if not, skip the step.
        aux: the value of the function; with `has_aux`, the pair that it returned.
        grad: the gradients, of dtype float32.
    """

    dynamic_scale: DynamicScale
    finite: Array
    aux: Any
    grad: PyTree


class DynamicScale(PyTreeNode):
    """A factor for the loss that is as large as possible while the gradients stay finite. The object is immutable.

    P. Micikevicius et al., "Mixed Precision Training" (2018).

    Example:
        >>> import jax.numpy as jnp
        >>> scale = DynamicScale(scale=4.0)
        >>> w = jnp.array(3.0, jnp.float16)
        >>> scale, finite, loss, grad = scale.value_and_grad(lambda w: w**2)(w)
        >>> bool(finite), float(loss), grad, float(scale.scale)
        (True, 9.0, Array(6., dtype=float32), 4.0)

    Attributes:
        growth_factor: the scale is multiplied by this after enough finite steps.
        backoff_factor: the scale is multiplied by this after a step whose gradients are not all finite.
        growth_interval: the number of finite steps in a row after which the scale grows.
        fin_steps: the number of finite steps since the scale last changed.
        scale: the factor. Initially it is a Python number, which gets the dtype of the loss. 65536 is infinite in
            float16, so the first step of a float16 loss would be skipped: return losses in float32.
        minimum_scale: a lower limit for the scale, by default the smallest normal float32; None for no limit.
    """

    growth_factor: float = field(pytree_node=False, default=2.0)
    backoff_factor: float = field(pytree_node=False, default=0.5)
    growth_interval: int = field(pytree_node=False, default=2000)
    fin_steps: Any = 0
    scale: Any = 65536.0
    minimum_scale: Any = field(pytree_node=False, default=_TINY)

    def value_and_grad(
        self,
        fun: Callable[..., Any],
        argnums: int | Sequence[int] = 0,
        has_aux: bool = False,
        axis_name: Any = None,
    ) -> Callable[..., DynamicScaleResult]:
        """Apply `jax.value_and_grad` to the scaled function, and divide the value and the gradients by the scale.

        Args:
            fun: a function that returns a number or, with `has_aux`, a pair of a number and anything else.
            argnums: the number of the argument to differentiate with respect to, or several numbers.
            has_aux: whether `fun` returns a pair, of which only the first is differentiated.
            axis_name: a mapped axis over which the gradients are averaged before they are checked. In a `shard_map`,
                the gradients of shared parameters are sums already: average the loss instead.

        Returns:
            A function with the arguments of `fun` that returns a `DynamicScaleResult`.
        """
        fun = paired("DynamicScale.value_and_grad", fun) if has_aux else fun
        differentiated = jax.value_and_grad(scaled(self, fun, has_aux), argnums, has_aux)

        @boundary
        def call(*args: Any, **kwargs: Any) -> DynamicScaleResult:
            return unscaled(self, *differentiated(*args, **kwargs), has_aux, axis_name)

        return call

    def _after(self, finite: Array) -> Self:
        """Return the scale after a step whose gradients were finite or not."""
        full = self.fin_steps == self.growth_interval
        grown = jnp.where(full, jnp.minimum(self.scale * self.growth_factor, _MAX), self.scale)
        shrunk = self.scale * self.backoff_factor
        if self.minimum_scale is not None:
            shrunk = jnp.maximum(shrunk, self.minimum_scale)
        steps = jnp.where(finite & ~jnp.asarray(full), self.fin_steps + 1, 0)
        return self.replace(scale=jnp.where(finite, grown, shrunk), fin_steps=steps)


def paired(where: str, fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that checks that `fun` returns a pair, as `has_aux=True` requires."""

    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        return checked_aux(lambda: where, fun(*args, **kwargs))

    return call


def scaled(scale: DynamicScale, fun: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
    """Return a function whose value, or the first part of it with `has_aux`, is multiplied by the scale.

    Raises:
        LiftArgumentError: if the scale is not a `DynamicScale`.
    """
    if not isinstance(scale, DynamicScale):
        raise LiftArgumentError("scale", Expected("a DynamicScale", given=scale), "Pass `DynamicScale()`.")

    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        out = call_user("DynamicScale.value_and_grad", fun, *args, **kwargs)
        with jax.numpy_dtype_promotion("standard"):  # the scale is float32, the loss may be less
            return (scale.scale * out[0], out[1]) if has_aux else scale.scale * out

    return call


def unscaled(scale: DynamicScale, out: Any, grads: PyTree, has_aux: bool, axis_name: Any = None) -> DynamicScaleResult:
    """Divide the value and the gradients of a scaled function by the scale, and find the scale for the next step."""
    out = (out[0] / scale.scale, out[1]) if has_aux else out / scale.scale
    grads = jax.tree.map(lambda grad: jnp.asarray(grad, jnp.float32) / scale.scale, grads)
    if axis_name is not None:
        grads = jax.lax.pmean(grads, axis_name)  # type: ignore[no-untyped-call]
    finite = functools.reduce(
        jnp.logical_and, [jnp.isfinite(grad).all() for grad in jax.tree.leaves(grads)], jnp.array(True)
    )
    return DynamicScaleResult(scale._after(finite), finite, out, grads)
