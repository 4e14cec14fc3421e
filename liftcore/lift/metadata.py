"""`add_metadata_axis`: boxed metadata that names one more axis outside than inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..filters import subtract
from ..pipeline.body import Body
from ..pipeline.packing import transformation
from ..runners.axes import NO_AXES, VariableAxes, boxes_inside, boxes_outside, check_params
from ..scopes.lifts import Advice, Captured
from ..typing import Axis

__all__ = ["add_metadata_axis"]

_ADVICE = Advice('`variable_axes={{"{}": 0}}`', "nothing: all streams are lifted")


def add_metadata_axis(
    fn: Callable[..., Any],
    *,
    variable_axes: Mapping[Any, Any] = NO_AXES,
    metadata_params: Mapping[Any, Any] = NO_AXES,
) -> Callable[..., Any]:
    """A function of scopes in which boxed metadata lacks an axis that it has outside. Nothing is mapped.

    Use it in code that stacks variables itself. Arrays, keys and names do not change.

    Example:
        >>> import jax, liftcore
        >>> from liftcore.meta import PARTITION_NAME, with_partitioning
        >>> def experts(scope, x):  # four kernels in one array; its box names the axes of one of them
        ...     init = with_partitioning(jax.nn.initializers.lecun_normal(), ("data", "model"))
        ...     return x @ scope.param("kernel", init, (4, x.shape[-1], 2))
        >>> named = add_metadata_axis(experts, variable_axes={"params": 0}, metadata_params={PARTITION_NAME: "expert"})
        >>> _, variables = liftcore.init(named)(jax.random.key(0), jax.numpy.ones(3))
        >>> variables["params"]["kernel"].names
        ('expert', 'data', 'model')

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`.
        variable_axes: maps filters of variables to the position of the axis in their arrays, or to `In`, `Out`,
            `InOut`. Other variables are lifted unchanged.
        metadata_params: passed to the boxed metadata, such as the name of the axis: `{PARTITION_NAME: "layers"}`.

    Returns:
        `lifted(scopes, *args, **kwargs)`.

    Raises:
        LiftArgumentError: when called, if a box calls the axis differently.
    """
    axes = VariableAxes(variable_axes)
    check_params("add_metadata_axis", metadata_params)

    def transform(body: Body, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        groups = boxes_inside(body, variable_groups, [*axes.in_axes, None], metadata_params)
        result, out = body(groups, rng_groups, *args, **kwargs)
        return result, boxes_outside(out, axes.out_axes, metadata_params)

    rest = subtract(True, tuple(variable_axes))
    into, out = [*axes.in_filters, rest], [*axes.out_filters, rest, Captured(all=True)]
    advice = _ADVICE._replace(into=_words(axes.in_axes), out=_words(axes.out_axes), rngs=("passed through",)).listing(
        variable_axes
    )
    return transformation(transform, into, out, [True], "add_metadata_axis", advice=advice)(fn)


def _words(axes: Sequence[Axis]) -> tuple[str, ...]:
    """Describe how each group of variables is treated; the last group is the rest."""
    return (
        *("passed through" if axis is None else f"boxes name axis {axis} outside only" for axis in axes),
        "passed through",
    )
