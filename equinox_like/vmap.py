"""`filter_vmap` and `filter_pmap`: arrays are mapped along axes or over devices, and all other leaves are static."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import liftcore
from liftcore import is_scoped, is_traceable
from liftcore.calls import call_user
from liftcore.errors import Expected, LiftArgumentError, check_function, common_size, name_of
from liftcore.problems import no_new_axis

from .jit import filter_jit
from .methods import MISSING, FilteredFunction, filtered
from .options import OLDER, UNSET, answered_call, given_options, leaf_name
from .split import SplitResult, SplitTree, leafwise

__all__ = ["ARRAYS", "filter_pmap", "filter_vmap", "if_array", "mapped"]


@dataclasses.dataclass(frozen=True)
class if_array:
    """A function from a leaf to its axis: a given axis for arrays, None for all other leaves.

    Example:
        >>> import jax.numpy as jnp
        >>> if_array(1)(jnp.ones((2, 3))), if_array(1)("text")
        (1, None)

    Attributes:
        axis: the axis.
    """

    axis: int

    def __call__(self, leaf: Any) -> int | None:
        """Return the axis of a leaf."""
        return self.axis if is_traceable(leaf) else None


ARRAYS = if_array(0)
AXES = ("in_axes", "out_axes", *OLDER)


def filter_vmap(
    fun: Any = MISSING,
    *,
    in_axes: Any = UNSET,
    out_axes: Any = UNSET,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    variable_axes: Mapping[Any, Any] = MappingProxyType({}),
    split_rngs: Mapping[Any, bool] | bool = MappingProxyType({}),
    default: Any = UNSET,
    fn: Any = UNSET,
    args: Any = UNSET,
    kwargs: Any = UNSET,
    out: Any = UNSET,
) -> Any:
    """Apply `jax.vmap` to a function of any Python objects: arrays are mapped, and all other leaves are static.

    Scopes among the arguments are lifted as in `liftcore.vmap`.

    Example:
        >>> import jax, equinox_like as eqx
        >>> import jax.numpy as jnp
        >>> def call(model, x):
        ...     return model["act"](model["w"] @ x), model["name"]
        >>> ensemble = {"w": jnp.ones((5, 2, 3)), "act": jnp.tanh, "name": "net"}
        >>> y, name = eqx.filter_vmap(call, in_axes=(eqx.if_array(0), None))(ensemble, jnp.ones(3))
        >>> y.shape, name
        ((5, 2), 'net')

    Args:
        fun: the function, or any callable pytree. If it is left out, `filter_vmap(in_axes=…)` is a decorator.
        in_axes: a pytree prefix of the tuple of arguments, of axes: an int, None for a leaf that is the same for all
            elements, or a function from a leaf to one of these. By default axis 0 of all arrays. Or a dict from the
            names of arguments to axes. Arrays that the function holds are the same for all elements.
        out_axes: the same for the result. If a leaf with None differs between elements, JAX raises a ValueError.
        axis_name: the name of the axis, for collectives.
        axis_size: the size of the axis; needed only if no argument has the axis.
        spmd_axis_name: the name of a mesh axis along which the elements are sharded; see `jax.vmap`.
        variable_axes: for scopes: from filters of variables to the axis along which they are stacked, or None for
            variables that all elements share; see `liftcore.vmap`.
        split_rngs: for scopes: from filters of RNG streams to whether elements draw different keys.
        default: the older form of `in_axes`: a pytree prefix of axes for each argument. A bool means the same as None.
        fn: the same for the arrays that the function holds; by default they are the same for all elements.
        args: the same for the first parameters, as a tuple with one prefix for each; it overrides `default`.
        kwargs: the same for parameters by name, as a dict; it holds whether they are passed by name or by position.
        out: the older name of `out_axes`.

    Returns:
        A function with the positional arguments of `fun`. It accepts keyword arguments only if one of `default`, `fn`,
        `args`, `kwargs` and `out` is given.

    Raises:
        LiftArgumentError: if axes are not a prefix, or an argument is passed by name and `in_axes` does not cover it.
        AxisSizeError: if an array lacks its axis, or the sizes of the axes differ.
    """
    axes = given_options(
        "filter_vmap",
        {"in_axes": in_axes, "out_axes": out_axes},
        default=_without_bools(default),
        fn=_without_bools(fn),
        args=_without_bools(args),
        kwargs=_without_bools(kwargs),
        out=_without_bools(out),
    )
    options = {
        **axes,
        "axis_name": axis_name,
        "axis_size": axis_size,
        "spmd_axis_name": spmd_axis_name,
        "variable_axes": dict(variable_axes),
        "split_rngs": dict(split_rngs) if isinstance(split_rngs, Mapping) else split_rngs,
    }
    return filtered(filter_vmap, _call, fun, options)


def _without_bools(spec: Any) -> Any:
    """Replace bools in axes by None."""
    if spec is UNSET:
        return spec
    return jax.tree.map(lambda one: None if isinstance(one, bool) else one, spec, is_leaf=lambda one: one is None)


def _call(fun: Callable[..., Any], options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return mapped(liftcore.vmap, f"filter_vmap({name_of(fun)})", fun, options, args, kwargs)


def mapped(
    lift: Callable[..., Any],
    where: str,
    fun: Callable[..., Any],
    options: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call a function under a mapping.

    Args:
        lift: the mapping of `liftcore`.
        where: the name of the transformation, for errors.
        fun: the function.
        options: the options of the mapping, including the axes of leaves, in the newer or the older form.
        args: the positional arguments.
        kwargs: the keyword arguments; with the newer form, there must be none.
    """
    axes = {name: spec for name, spec in options.items() if name in AXES}
    if any(name in axes for name in OLDER):
        args, kwargs, answers = answered_call(where, axes, ARRAYS, fun, args, dict(kwargs), None)
    elif kwargs:
        what = f"{sorted(kwargs)} was passed by name, which `in_axes` does not cover."
        raise LiftArgumentError(where, what, "Pass it by position.", option=min(kwargs))
    else:
        spec = _by_place(where, axes.get("in_axes", ARRAYS), fun, args)
        answers = leafwise("", None, fun) + leafwise(f"in_axes of {where}", spec, args)
    _check_axes(where, answers)
    in_axes, out_axes = LeafAxes(answers), LeafAxes([])
    given, result = SplitTree((fun, args, kwargs), in_axes.traced), SplitResult(where)
    _check_sizes(where, fun, given, in_axes.along, options["axis_size"])

    def body(scopes: Any, arrays: list[Any]) -> tuple[list[Any], list[Any]]:
        function, inner, named = given.join(arrays, scopes)
        found = call_user(where, function, *inner, **named)
        each = leafwise(f"out_axes of {where}", axes.get("out_axes", axes.get("out", ARRAYS)), found)
        _check_axes(where, each)
        out_axes.begin(each)
        # Only now are the axes of the result known: stack arrays with an axis along axis 0, and move it outside.
        arrays = result.arrays(found, out_axes.traced)
        _check_places(f"out_axes of {where}", arrays, out_axes.along)
        return out_axes.parted(arrays)

    if not given.scopes and options["axis_size"] is None and all(axis is None for axis in in_axes.along):
        stacked, shared = body((), given.arrays)  # no axis: all arrays are the same for all elements
        if not stacked:
            return result.join(shared)
    others = {name: option for name, option in options.items() if name not in AXES}
    body.__name__ = name_of(fun)
    lifted = lift(body, in_axes=(in_axes.along,), out_axes=(0, None), **others)
    stacked, shared = map(iter, lifted(given.scopes, given.arrays))
    each = [next(shared) if axis is None else jnp.moveaxis(next(stacked), 0, axis) for axis in out_axes.along]
    return result.join(each)


def _by_place(where: str, in_axes: Any, fun: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Return axes by position, also if `in_axes` is a dict of names; arguments that it lacks get the default."""
    if not isinstance(in_axes, dict):
        return in_axes
    names = [name for name, _ in zip(inspect.signature(fun).parameters, args, strict=False)]
    unknown = sorted(set(in_axes) - set(inspect.signature(fun).parameters))
    if unknown or len(names) < len(args):
        what = f"it names {unknown or list(in_axes)}, but the arguments are {names}."
        fix = "Pass a tuple with one entry for each argument."
        raise LiftArgumentError(
            f"in_axes of {where}", what, fix, option="in_axes", given=unknown or list(in_axes), available=tuple(names)
        )
    return tuple([in_axes.get(name, ARRAYS) for name in names])


def _check_axes(where: str, answers: Sequence[Any]) -> None:
    for one in answers:
        if one is not None and not isinstance(one, int):
            raise LiftArgumentError(where, Expected("an axis", one), "Write an int, or None.")


def _check_places(where: str, arrays: Sequence[Any], axes: Sequence[int | None]) -> None:
    for array, axis in zip(arrays, axes, strict=True):
        last = jnp.ndim(array)
        if axis is not None and not -last - 1 <= axis <= last:
            raise no_new_axis(where, jnp.shape(array), axis)


def _check_sizes(where: str, fun: Any, given: SplitTree, axes: Sequence[int | None], size: int | None) -> None:
    """Check that arrays have their axes, of one size: the lift would call them by their places in a list."""
    pairs = [(np.shape(array), axis) for array, axis in zip(given.arrays, axes, strict=True)]
    fits = all(axis is None or -len(shape) <= axis < len(shape) for shape, axis in pairs)
    if fits and len({shape[axis] for shape, axis in pairs if axis is not None} | {size} - {None}) < 2:
        return
    named = zip(given.array_paths(), pairs, strict=True)
    common_size(where, [(leaf_name(fun, keys), shape, axis) for keys, (shape, axis) in named if axis is not None], size)


class LeafAxes:
    """The axes of the leaves of a pytree.

    Args:
        answers: the axis of each leaf; None for an array that is the same for all elements; or, for a leaf that is the
            same for all, a bool that says whether it is traced.

    Attributes:
        along: the axes of the traced leaves, in order.
    """

    def __init__(self, answers: Sequence[int | bool | None]) -> None:
        self.begin(answers)

    def begin(self, answers: Sequence[int | bool | None]) -> None:
        """Start again with the axes of another pytree."""
        self._answers, self.along = iter(answers), list[int | None]()

    def traced(self, leaf: Any) -> bool:
        """Return whether the next leaf is traced, because it has an axis or is an array."""
        answer = next(self._answers)
        same = answer is None or isinstance(answer, bool)
        traced = not is_scoped(leaf) and (is_traceable(leaf) if answer is None else answer is not False)
        if traced:
            self.along.append(None if same else answer)
        return traced

    def parted(self, arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Split arrays into those that have an axis and the others."""
        pairs = list(zip(arrays, self.along, strict=True))
        return [one for one, axis in pairs if axis is not None], [one for one, axis in pairs if axis is None]


# --- over devices -----------------------------------------------------------------------------------------------------


def filter_pmap(
    fun: Any = MISSING,
    *,
    in_axes: Any = UNSET,
    out_axes: Any = UNSET,
    axis_name: Any = None,
    axis_size: int | None = None,
    donate: str = "none",
    devices: Sequence[jax.Device] | None = None,
    backend: str | None = None,
    variable_axes: Mapping[Any, Any] = MappingProxyType({}),
    split_rngs: Mapping[Any, bool] | bool = MappingProxyType({}),
    default: Any = UNSET,
    fn: Any = UNSET,
    args: Any = UNSET,
    kwargs: Any = UNSET,
    out: Any = UNSET,
) -> Any:
    """Apply `jax.pmap` to a function of any Python objects, under `filter_jit`, which caches the compiled program.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> eqx.filter_pmap(lambda x, name: (2 * x, name))(jnp.ones((1, 3)), "device")
        (Array([[2., 2., 2.]], dtype=float32), 'device')

    Args:
        fun: the function, or any callable pytree. If it is left out, `filter_pmap(in_axes=…)` is a decorator.
        in_axes: a pytree prefix of the tuple of arguments, of axes, as in `filter_vmap`.
        out_axes: the same for the result.
        axis_name: the name of the axis, for collectives.
        axis_size: the size of the axis; needed only if no argument has the axis.
        donate: which buffers the results may reuse, as in `filter_jit`.
        devices: the devices to map over; by default all.
        backend: the platform to run on, such as `"cpu"`.
        variable_axes: for scopes: from filters of variables to the axis along which they are stacked, or None for
            variables that all devices share; see `liftcore.pmap`.
        split_rngs: for scopes: from filters of RNG streams to whether devices draw different keys.
        default: the older form of `in_axes`: a pytree prefix of axes for each argument. True means traced and the same
            on all devices, False means static.
        fn: the same for the arrays that the function holds; by default they are the same on all devices.
        args: the same for the first parameters, as a tuple with one prefix for each; it overrides `default`.
        kwargs: the same for parameters by name, as a dict; it holds whether they are passed by name or by position.
        out: the older name of `out_axes`.

    Returns:
        A function with the positional arguments of `fun`. It accepts keyword arguments only if one of `default`, `fn`,
        `args`, `kwargs` and `out` is given.

    Raises:
        LiftArgumentError: if axes are not a prefix, or an argument is passed by name and `in_axes` does not cover it.
    """
    axes = given_options(
        "filter_pmap",
        {"in_axes": in_axes, "out_axes": out_axes},
        default=default,
        fn=fn,
        args=args,
        kwargs=kwargs,
        out=out,
    )
    options = {
        **axes,
        "axis_name": axis_name,
        "axis_size": axis_size,
        "devices": None if devices is None else tuple(devices),
        "backend": backend,
        "variable_axes": dict(variable_axes),
        "split_rngs": dict(split_rngs) if isinstance(split_rngs, Mapping) else split_rngs,
    }
    if fun is MISSING:
        return filtered(filter_pmap, _call_on_devices, fun, {**options, "donate": donate})
    check_function("filter_pmap", fun)
    traced = {name: _traced(spec) for name, spec in axes.items() if name in ("default", "args", "kwargs")}
    if "fn" in axes:
        traced["fn"] = FilteredFunction(_call_on_devices, _traced(axes["fn"]), dict.fromkeys(options, is_traceable))
    return filter_jit(FilteredFunction(_call_on_devices, fun, options), donate=donate, **traced)


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function that returns whether a leaf with a given axis is traced.

    Attributes:
        axis: the axis, a bool, or a function from a leaf to one of these.
    """

    axis: Any

    def __call__(self, leaf: Any) -> bool:
        """Return whether a leaf is traced."""
        axis = self.axis(leaf) if callable(self.axis) else self.axis
        return is_traceable(leaf) if axis is None else axis is not False


def _traced(axes: Any) -> Any:
    """Return the options of `filter_jit` that correspond to the axes of `filter_pmap`."""
    return jax.tree.map(Traced, axes, is_leaf=lambda one: one is None)


def _call_on_devices(
    fun: Callable[..., Any], options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return mapped(liftcore.pmap, f"filter_pmap({name_of(fun)})", fun, options, args, kwargs)
