"""`filter_vmap` and `filter_pmap`: arrays are mapped along axes or over devices, and all other leaves are static."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
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

__all__ = ["filter_pmap", "filter_vmap", "if_array"]


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
NEWER = ("in_axes", "out_axes")
AXES = (*NEWER, *OLDER)


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
    options = _options("filter_vmap", locals(), ("axis_name", "axis_size", "spmd_axis_name"))
    options |= {name: _without_bools(options[name]) for name in OLDER if name in options}
    return filtered(filter_vmap, _call, fun, options)


def _options(where: str, given: Mapping[str, Any], others: Iterable[str]) -> dict[str, Any]:
    """Return the options of a mapping: those of the axes that are given, of scopes, and others.

    Args:
        where: the name of the mapping, for errors.
        given: the arguments of the mapping, `locals()` at its start.
        others: the names of its other options.
    """
    axes = given_options(where, {name: given[name] for name in NEWER}, **{name: given[name] for name in OLDER})
    rngs = given["split_rngs"]
    of_scopes = {
        "variable_axes": dict(given["variable_axes"]),
        "split_rngs": dict(rngs) if isinstance(rngs, Mapping) else rngs,
    }
    return {**axes, **{name: given[name] for name in others}, **of_scopes}


def _without_bools(spec: Any) -> Any:
    """Replace bools in axes by None."""
    return jax.tree.map(lambda one: None if isinstance(one, bool) else one, spec, is_leaf=lambda one: one is None)


def _call(fun: Callable[..., Any], options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return mapped(liftcore.vmap, fun, options, args, kwargs)


def mapped(
    lift: Callable[..., Any],
    fun: Callable[..., Any],
    options: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call a function under a mapping.

    Args:
        lift: the mapping of `liftcore`.
        fun: the function.
        options: the options of the mapping, including the axes of leaves, in the newer or the older form.
        args: the positional arguments.
        kwargs: the keyword arguments; with the newer form, there must be none.
    """
    where = f"filter_{lift.__name__}({name_of(fun)})"
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
    traced, in_axes = _traced_axes((fun, args, kwargs), answers)
    out_axes: list[int | None] = []
    given, result = SplitTree((fun, args, kwargs), traced), SplitResult(where)
    _check_sizes(where, fun, given, in_axes, options["axis_size"])

    def body(scopes: Any, arrays: list[Any]) -> tuple[list[Any], list[Any]]:
        function, inner, named = given.join(arrays, scopes)
        found = call_user(where, function, *inner, **named)
        each = leafwise(f"out_axes of {where}", axes.get("out_axes", axes.get("out", ARRAYS)), found)
        _check_axes(where, each)
        # Only now are the axes of the result known: stack arrays with an axis along axis 0, and move it outside.
        traced, out_axes[:] = _traced_axes(found, each)
        pairs = list(zip(result.arrays(found, traced), out_axes, strict=True))
        _check_places(f"out_axes of {where}", pairs)
        return [one for one, axis in pairs if axis is not None], [one for one, axis in pairs if axis is None]

    if not given.scopes and options["axis_size"] is None and all(axis is None for axis in in_axes):
        stacked, shared = body((), given.arrays)  # no axis: all arrays are the same for all elements
        if not stacked:
            return result.join(shared)
    others = {name: option for name, option in options.items() if name not in AXES}
    body.__name__ = name_of(fun)
    lifted = lift(body, in_axes=(in_axes,), out_axes=(0, None), **others)
    stacked, shared = map(iter, lifted(given.scopes, given.arrays))
    each = [next(shared) if axis is None else jnp.moveaxis(next(stacked), 0, axis) for axis in out_axes]
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


def _check_places(where: str, pairs: Iterable[tuple[Any, int | None]]) -> None:
    for array, axis in pairs:
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


def _traced_axes(tree: Any, answers: Sequence[int | bool | None]) -> tuple[list[bool], list[int | None]]:
    """Return whether each leaf of a pytree is traced, and the axes of those that are.

    Args:
        tree: the pytree.
        answers: the axis of each leaf; None for an array that is the same for all elements; or, for a leaf that is the
            same for all, a bool that says whether it is traced.
    """
    leaves = jax.tree.leaves(tree)
    traced = [not is_scoped(leaf) and _is_traced(leaf, answer) for leaf, answer in zip(leaves, answers, strict=True)]
    axes = itertools.compress(answers, traced)
    return traced, [None if isinstance(axis, bool) else axis for axis in axes]


def _is_traced(leaf: Any, answer: int | bool | None) -> bool:
    return is_traceable(leaf) if answer is None else answer is not False


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
    options = _options("filter_pmap", locals(), ("axis_name", "axis_size", "devices", "backend"))
    options["devices"] = None if devices is None else tuple(devices)
    if fun is MISSING:
        return filtered(filter_pmap, _call_on_devices, fun, {**options, "donate": donate})
    check_function("filter_pmap", fun)
    older = ("default", "args", "kwargs")
    traced: dict[str, Any] = {name: _traced(options[name]) for name in older if name in options}
    if "fn" in options:
        traced["fn"] = FilteredFunction(_call_on_devices, _traced(options["fn"]), dict.fromkeys(options, is_traceable))
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
        return _is_traced(leaf, self.axis(leaf) if callable(self.axis) else self.axis)


def _traced(axes: Any) -> Any:
    """Return the options of `filter_jit` that correspond to the axes of `filter_pmap`."""
    return jax.tree.map(Traced, axes, is_leaf=lambda one: one is None)


def _call_on_devices(
    fun: Callable[..., Any], options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return mapped(liftcore.pmap, fun, options, args, kwargs)
