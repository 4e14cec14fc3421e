"""Lifted `jax.lax.map`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from ..pipeline.reuse import once
from ..pipeline.splitting import Prologue, trace
from ..runners.axes import NO_AXES, flatten_axes, split_sliced, to_axis, to_front
from ..runners.eager import cached_when_eager
from ..runners.mapping import Mapper, Spread, advice_for, over_elements
from ..typing import PyTree
from ..values import tag

__all__ = ["map"]

_ADVICE = advice_for("for all elements")


@cached_when_eager(numbers=[1])
def map(
    fn: Callable[..., Any],
    *,
    batch_size: int | None = None,
    variable_axes: Mapping[Any, Any] = NO_AXES,
    split_rngs: Mapping[Any, bool] | bool = NO_AXES,
    metadata_params: Mapping[Any, Any] = NO_AXES,
) -> Callable[..., Any]:
    """`jax.lax.map` for a function of scopes: a `vmap` that runs the elements one after another, to save memory.

    Values, variables and draws are the same as in `vmap`, but there is no `axis_name`: `jax.lax.pmean` and other
    collective operations over the elements need `vmap`. Initial values are computed for all elements at once. The
    body is traced once for any `batch_size`.

    Example:
        >>> import liftcore
        >>> import jax.numpy as jnp
        >>> def layer(scope, x):
        ...     return x @ scope.param("w", jax.random.normal, (x.shape[-1], 2))
        >>> experts = map(layer, batch_size=2, variable_axes={"params": 0}, split_rngs={"params": True})
        >>> y, variables = liftcore.init(experts)(jax.random.key(0), jnp.ones((5, 3)))
        >>> y.shape, variables["params"]["w"].shape
        ((5, 2), (5, 3, 2))

    Args:
        fn: called as `fn(scopes, x)`.
        batch_size: the number of elements that run at once, with `vmap`; by default 1.
        variable_axes: maps filters of variables to axes: an int, None (shared by the elements), or `In`, `Out`,
            `InOut`.
        split_rngs: maps filters of RNG streams to bools: whether elements draw different keys. One bool applies to all
            streams.
        metadata_params: passed to boxed metadata (see `liftcore.meta`) that gains the axis, such as the name of the
            axis, `{PARTITION_NAME: "layers"}`. Without a name, the axis is unnamed.

    Returns:
        `lifted(scopes, xs)`.

    Raises:
        AxisSizeError: when called, if sizes disagree or no size is known.
        LoopInvarianceError: when called, if a shared variable gets a value that differs between elements.
    """
    kind = functools.partial(InTurn, batch_size)
    fix = "Give `xs` an array, with one element for each call."
    mapper = Mapper("map", _ADVICE, elements=kind, sized_by="xs", fix=fix, same="")
    return over_elements(mapper, 0, 0, None, 0, variable_axes, split_rngs, metadata_params)(fn)


class InTurn(Spread):
    """One mapping of a body, by `jax.lax.map`.

    Args:
        batch_size: see `map`.
        *args: see `Elements`.
    """

    def __init__(self, batch_size: int | None, *args: Any) -> None:
        super().__init__(*args)
        self._batch_size = batch_size

    def spread(self, fn: Callable[..., Any], operands: tuple[PyTree, ...], in_axes: PyTree, out_axes: PyTree) -> PyTree:
        """Run the function with `jax.lax.map`; it is traced once."""
        sliced, axes, others = split_sliced(operands, flatten_axes("operands", in_axes, operands))
        outputs: list[Any] = []

        def run(slices: Any) -> tuple[Any, Any]:
            results = fn(*others.join(slices))
            found, along, shared = split_sliced(results, flatten_axes("results", out_axes, results))
            outputs[:] = [along, shared._replace(leaves=())]  # without the values, which belong to the trace
            return tag(shared.leaves), found

        xs = jax.tree.map(to_front, sliced, axes)
        split = trace(run, self.types(xs, [0 for _ in xs]))
        prologue = Prologue(split, xs, [0 for _ in xs], self.batch)
        prologue.make()
        shared = prologue.tree()

        remainder = functools.partial(split.remainder, shared)
        stacked = once(functools.partial(jax.lax.map, remainder, batch_size=self._batch_size), xs)
        along, results = outputs
        return results.join(jax.tree.map(to_axis, stacked, along), shared)
