"""`vmap` over objects, and `StateAxes`, which gives each variable an axis."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any

import jax

import liftcore
from liftcore.errors import LoopInvarianceError, boundary, call_user

from ..crossing.groups import ByFilter, Groups, in_axis_words, is_spec, parts_of
from ..crossing.inside import Inside, holds_objects
from ..crossing.metadata import AxisNames
from ..crossing.outside import Outside, still
from .decorating import MISSING, check_axes, checked, named, positional

__all__ = ["StateAxes", "differing", "mapped", "vmap"]


class StateAxes(ByFilter):
    """The axes of an object's variables, chosen by filter. Use it in place of a single axis.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.StateAxes({nnx.Param: 0, ...: None}).axes
        (0, None)

    Args:
        filter_axes: a mapping from filters to axes, or pairs of a filter and an axis. The first filter that matches a
            variable applies. An axis is an int, or None for a value that all elements share, or, in `scan`, `Carry`.
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
    """`jax.vmap` for functions of objects: each element sees its slice of the variables of objects.

    If the function changes an object, the caller's object changes: its variables hold stacked values, new variables
    gain the mapped axis, and attributes and references change as they did inside.

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
        in_axes: the axis to map over, or None for a value that all elements share; a pytree prefix of the arguments.
            For an object, give one axis for all its variables, or a `StateAxes`.
        out_axes: the axis that results gain; a pytree prefix of the result.
        axis_name: a name for the axis, for collectives such as `jax.lax.pmean` inside.
        axis_size: the number of elements; required only if no argument is mapped.
        spmd_axis_name: the mesh axes over which the mapped axis is sharded.
        transform_metadata: the name of the axis in sharding metadata, `{nnx.PARTITION_NAME: "layers"}`.

    Returns:
        The mapped function. It also takes keyword arguments, mapped as if they were positional.

    Raises:
        LiftArgumentError: if `f` is a bound method, or axes do not fit the arguments.
        AliasError: when called, if one variable is given with two axes.
        AxisSizeError: when called, if sizes disagree, or no argument gives a size.
        LoopInvarianceError: when called, if a variable without an axis gets a value that differs between elements.
        TraceContextError: when called, if the function returns or changes an object that is not an argument.
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
    """Return a function of objects under a lift that maps over axes of variables.

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
    groups = Groups(checked(name, f), "axis", in_axis_words)
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    in_prefix, out_prefix = groups.encode(in_axes), groups.encode(out_axes)
    check_axes(groups.where, groups.specs)
    names = AxisNames(groups.specs, transform_metadata or {})

    @named(f)
    def body(scope: liftcore.Scope, *args: Any) -> Any:
        inside = Inside(scope, groups, names)
        return inside.encode(call_user(groups.where, f, *inside.decode(args)), out_prefix)

    lifted = lift(
        body,
        in_axes=groups.plain(in_axes),
        out_axes=(groups.plain(out_axes), dict(groups.specs), None),
        variable_axes=dict(groups.specs),
        **options,
    )

    @functools.wraps(f)
    @boundary
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        args = positional(name, f, args, kwargs)
        if static:
            args = tuple([still(arg, groups.where) if number in static else arg for number, arg in enumerate(args)])
        outside = Outside(groups, args, in_prefix, cached=False)
        try:
            return outside.call(lifted, *outside.args, mutable=True)
        except ValueError as error:
            if "axis spec None but output was batched" not in str(error):
                raise
            raise differing(groups, out_axes, parts_of(groups, args, in_prefix, "", "in_axes")[0]) from error

    return wrapped


def differing(
    groups: Groups, out_axes: Any, parts: Iterable[tuple[str, Any, Any]], among: str = "elements"
) -> LoopInvarianceError:
    """Return the error for a new value without an axis that differs between elements.

    Args:
        groups: the groups of the lift.
        out_axes: the option of the lift.
        parts: the arguments, from `parts_of`.
        among: the name of the mapped elements in errors.
    """
    specs = [each for spec in jax.tree.leaves(out_axes, is_leaf=is_spec) for each in _each(spec)]
    objects = [
        name or "the arguments" for name, group, part in parts if groups.may_be(None, group) and holds_objects(part)
    ]
    found = ["a result with None in `out_axes`"] if None in specs else []
    if objects:
        found.append(f"a new variable of {', '.join(objects)}, with None in `in_axes`,")
    return LoopInvarianceError(
        groups.where,
        f"{' or '.join(found)} differs between {among}.",
        "Give it an axis, such as 0.",
    )


def _each(spec: Any) -> tuple[Any, ...]:
    return spec.specs if isinstance(spec, ByFilter) else (spec,)
