"""`vmap` over objects, and the prefix that says the axis of each variable."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any

import liftcore
from liftcore.errors import LoopInvarianceError

from ..crossing.groups import ByFilter, Groups
from ..crossing.inside import Inside
from ..crossing.metadata import AxisNames
from ..crossing.outside import Outside, still
from .decorating import MISSING, check_axes, checked, named, positional

__all__ = ["StateAxes", "mapped", "vmap"]


class StateAxes(ByFilter):
    """The axes of an object's variables, filter by filter, where one axis for all of it could stand.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.StateAxes({nnx.Param: 0, ...: None}).axes
        (0, None)

    Args:
        filter_axes: a mapping from filters to axes, or pairs of these; the first filter that matches counts. An axis is
            an int; None for one value in all elements; in a `scan` also `Carry`.
    """

    def __init__(self, filter_axes: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        super().__init__(filter_axes)

    @property
    def axes(self) -> tuple[Any, ...]:
        """The axis for each filter, in order."""
        return self.specs


def vmap(
    f: Callable[..., Any] = MISSING,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Hashable | None = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    transform_metadata: Mapping[str, Any] | None = None,
) -> Any:
    """`jax.vmap` for functions of objects: each element sees objects with its part of their variables.

    What the function does to the objects is done to those that were given: variables get stacked values, new variables
    an axis, attributes and references change as they did inside.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> make = nnx.vmap(lambda rngs: nnx.Linear(2, 3, rngs=rngs))
        >>> ensemble = make(nnx.Rngs(0).split(5))
        >>> ensemble.kernel.shape
        (5, 2, 3)
        >>> forward = nnx.vmap(lambda model, x: model(x), in_axes=(0, None))
        >>> forward(ensemble, jnp.ones(2)).shape
        (5, 3)

    Args:
        f: the function; without it the result is a decorator. Methods may be decorated.
        in_axes: for each argument the axis to map over, or None for the same in all elements; a pytree prefix. For an
            object it is the axis of all its variables, or a `StateAxes`.
        out_axes: likewise for the result; there it is the axis that values gain.
        axis_name: a name for the axis, for collectives such as `jax.lax.pmean` inside.
        axis_size: how many elements there are; needed only where nothing is mapped.
        spmd_axis_name: the axes of a mesh that the mapped axis lies on.
        transform_metadata: the name that sharding metadata gains for the axis, `{nnx.PARTITION_NAME: "layers"}`.

    Returns:
        The function, which takes keyword arguments too, mapped as if they were given by position.

    Raises:
        LiftArgumentError: where `f` is a bound method, or axes do not fit the arguments.
        AliasError: when called, where one variable is given with two axes.
        AxisSizeError: when called, where sizes disagree or there is none.
        LoopInvarianceError: when called, where a variable without an axis gets a value that differs between elements.
        TraceContextError: when called, where an object is returned or changed that is no argument.
    """
    options = {"axis_name": axis_name, "axis_size": axis_size, "spmd_axis_name": spmd_axis_name}
    if f is MISSING:
        return functools.partial(
            vmap, in_axes=in_axes, out_axes=out_axes, transform_metadata=transform_metadata, **options
        )
    return mapped("vmap", liftcore.vmap, f, in_axes, out_axes, transform_metadata, options)


def mapped(
    name: str,
    lift: Callable[..., Any],
    f: Callable[..., Any],
    in_axes: Any,
    out_axes: Any,
    transform_metadata: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    static: Collection[int] = (),
) -> Callable[..., Any]:
    """A function of objects under a lift that maps over axes of variables.

    Args:
        name: what errors call the transformation.
        lift: `liftcore.vmap`, or a lift with the same options.
        f: the function.
        in_axes: see `vmap`.
        out_axes: see `vmap`.
        transform_metadata: see `vmap`.
        options: passed to the lift.
        static: the numbers of arguments that are static.
    """
    groups = Groups(checked(name, f), "axis")
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    in_prefix, out_prefix = groups.encode(in_axes), groups.encode(out_axes)
    check_axes(groups.where, groups.specs)
    names = AxisNames(groups.specs, transform_metadata or {})

    @named(f)
    def body(scope: liftcore.Scope, *args: Any) -> Any:
        inside = Inside(scope, groups, names)
        return inside.encode(f(*inside.decode(args)), out_prefix)

    lifted = lift(
        body,
        in_axes=groups.plain(in_axes),
        out_axes=(groups.plain(out_axes), dict(groups.specs), None),
        variable_axes=dict(groups.specs),
        **options,
    )

    @functools.wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        args = positional(f, args, kwargs)
        if static:
            args = tuple([still(arg, groups.where) if number in static else arg for number, arg in enumerate(args)])
        outside = Outside(groups, args, in_prefix, cached=False)
        try:
            return outside.call(lifted, *outside.args, mutable=True)
        except ValueError as error:
            if "axis spec None but output was batched" not in str(error):
                raise
            raise LoopInvarianceError(
                groups.where,
                f"out_axes={out_axes} has None for a result, or for a new variable, that differs between elements.",
                "Give it an axis.",
            ) from error

    return wrapped
