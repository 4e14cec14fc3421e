"""Lifted `jax.pmap`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray

from ..errors import AxisSizeError, Expected, LiftArgumentError
from ..pipeline.body import Body
from ..pipeline.splitting import closure_convert
from ..pytrees import split_leaves
from ..runners.axes import NO_AXES, flatten_axes
from ..runners.eager import cached_when_eager
from ..runners.mapping import Mapper, Spread, advice_for, over_elements
from ..typing import Axis, InOutAxes, PyTree

__all__ = ["pmap"]

_ADVICE = advice_for("on all devices")


def _donated(*args: Any, in_axes: InOutAxes = 0, donate_argnums: int | Iterable[int] = (), **_: Any) -> Collection[int]:
    """Return the numbers of the donated arguments, without those whose axis is None."""
    numbers = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    axes = flatten_axes("in_axes", in_axes, args) if numbers else []
    owners = [number for number, arg in enumerate(args, 1) for _ in jax.tree.leaves(arg)]
    return set(numbers) - {number for number, axis in zip(owners, axes, strict=False) if axis is None}


@cached_when_eager(donated=_donated)
def pmap(
    fn: Callable[..., Any],
    axis_name: Any = None,
    *,
    in_axes: InOutAxes = 0,
    out_axes: InOutAxes = 0,
    devices: Sequence[jax.Device] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: int | Iterable[int] = (),
    kw_axes: InOutAxes = 0,
    variable_axes: Mapping[Any, Any] = NO_AXES,
    split_rngs: Mapping[Any, bool] | bool = NO_AXES,
    metadata_params: Mapping[Any, Any] = NO_AXES,
) -> Callable[..., Any]:
    """`jax.pmap` for a function of scopes: a `vmap` that runs each element on its own device.

    Values, variables and draws are the same as in `vmap`. Initial values are computed outside of the mapped program.
    Equal eager calls compile once, as in a loop (see `scan`).

    Example:
        >>> import liftcore
        >>> import jax.numpy as jnp
        >>> def layer(scope, x):
        ...     return jax.lax.pmean(x @ scope.param("w", jax.random.normal, (x.shape[-1], 2)), "batch")
        >>> shared = {"variable_axes": {"params": None}, "split_rngs": False}
        >>> y, variables = liftcore.init(pmap(layer, "batch", **shared))(jax.random.key(0), jnp.ones((1, 3)))
        >>> y.shape, variables["params"]["w"].shape
        ((1, 2), (3, 2))

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`.
        axis_name: a name for the axis, for collectives such as `jax.lax.pmean` inside.
        in_axes: the axis to map over for each argument after the scopes, or None to pass the same value to all
            devices; a pytree prefix. An argument with axis None may be any Python value, and is passed on unchanged,
            like `static_broadcasted_argnums` of `jax.pmap`.
        out_axes: the axis of each result; a pytree prefix.
        devices: the devices to run on; by default all of the backend.
        backend: the platform to run on, such as `"cpu"`.
        axis_size: the number of elements, one for each device; needed only if nothing is mapped.
        donate_argnums: the positions of arguments whose buffers the results may reuse. The call deletes their arrays.
            Positions count in the signature of `fn`, where the scopes are 0. Arguments with the axis None and
            variables are not donated.
        kw_axes: the axes of keyword arguments, as a pytree prefix of their dict. Values that are not arrays are passed
            on unchanged.
        variable_axes: maps filters of variables to axes: an int, None (shared by the elements), or `In`, `Out`,
            `InOut`.
        split_rngs: maps filters of RNG streams to bools: whether elements draw different keys. One bool applies to all
            streams.
        metadata_params: passed to boxed metadata (see `liftcore.meta`) that gains the axis, such as the name of the
            axis, `{PARTITION_NAME: "layers"}`. Without a name, the axis is unnamed.

    Returns:
        `lifted(scopes, *args, **kwargs)`.

    Raises:
        AxisSizeError: when called, if sizes disagree, no size is known, or there are more elements than devices.
        LiftArgumentError: if `donate_argnums` contains 0, the scopes.
        LoopInvarianceError: when called, if a shared variable gets a value that differs between devices.
    """
    numbers = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    if any(number < 1 for number in numbers):
        raise LiftArgumentError(
            f"donate_argnums={numbers} of pmap",
            "number 0 is the scope (or module) itself, and negative numbers are not allowed.",
            "Count from 1: the first argument after it.",
            option="donate_argnums",
            given=numbers,
        )

    options = {"devices": devices, "backend": backend}
    mapper = Mapper("pmap", _ADVICE, axis_name, elements=functools.partial(OnDevices, numbers, options))
    return over_elements(mapper, in_axes, out_axes, axis_size, kw_axes, variable_axes, split_rngs, metadata_params)(fn)


class OnDevices(Spread):
    """One mapping of a body, by `jax.pmap`.

    Arrays that all elements share are operands too, without their meshes: inside, each element is on its own
    device.

    Args:
        donated: the numbers of the donated arguments, from 1.
        options: the other options of `jax.pmap`.
        *args: see `Elements`.
    """

    def __init__(self, donated: Sequence[int], options: Mapping[str, Any], *args: Any) -> None:
        super().__init__(*args)
        shared, self._static = split_leaves(self.others.leaves, lambda leaf: isinstance(leaf, jax.Array))
        self.operands, self.in_axes = (*self.operands, shared), (*self.in_axes, [None for _ in shared])
        self._donated = [*self.arguments.belong_to(donated), *[False for _ in shared]]
        self._options = options

    def run(self, body: Body, element: Callable[..., Any], out_axes: InOutAxes) -> tuple[PyTree, tuple[PyTree, ...]]:
        """Map the body over the elements, if there is a device for each."""
        given, backend = self._options["devices"], self._options["backend"]
        devices = jax.local_devices(backend=backend) if given is None else given
        here = [device for device in devices if device.process_index == jax.process_index(backend)]
        if self.size > len(here):
            raise AxisSizeError(
                body.where,
                Expected(f"at most {len(here)} elements, one for each device", given=self.size),
                "Use `vmap`, which computes all elements on one device, or map over fewer.",
            )
        return super().run(body, element, out_axes)

    def join(self, *slices: Any) -> Any:
        """Return the arguments of the body for one element, given its slice of each operand."""
        sliced, shared = slices
        return self.others.join(sliced, self._static.join(shared))

    def types(self, arrays: Sequence[Any], axes: Sequence[Axis]) -> list[Any]:
        """Return the types of the slices of one element."""
        return list(map(_without_mesh, super().types(arrays, axes)))

    def spread(self, fn: Callable[..., Any], operands: tuple[PyTree, ...], in_axes: PyTree, out_axes: PyTree) -> PyTree:
        """Run the function with `jax.pmap`. Axes may be negative, and no operand needs to be mapped."""
        leaves, treedef = jax.tree.flatten(operands)
        axes = _from_front(flatten_axes("operands", in_axes, operands), map(np.ndim, leaves))

        def run(*slices: Any) -> Any:
            return fn(*jax.tree.unflatten(treedef, slices))

        # `jax.pmap` keeps a reference to the function, which must therefore hold no arrays. Besides, arrays that it
        # closes over would be compiled in as constants.
        converted, consts, shapes = closure_convert(run, *self.types(leaves, axes), axes=self.names)
        outputs, structure = jax.tree.flatten(shapes)
        along = _from_front(flatten_axes("results", out_axes, shapes), [output.ndim + 1 for output in outputs])
        first = 2 + len(leaves) - len(self._donated)
        run = jax.pmap(
            lambda _, consts, *slices: jax.tree.leaves(converted(consts, *slices)),
            self.mapper.axis_name,
            in_axes=(0, None, *axes),
            out_axes=along,
            axis_size=self.size,
            donate_argnums=tuple(number for number, flag in enumerate(self._donated, first) if flag),
            **self._options,
        )
        return jax.tree.unflatten(structure, run(np.arange(self.size), consts, *leaves))


def _from_front(axes: Iterable[Axis], ranks: Iterable[int]) -> list[Axis]:
    """Return the axes of arrays of some ranks, none of them negative."""
    return [axis if axis is None else axis % rank for axis, rank in zip(axes, ranks, strict=True)]


def _without_mesh(leaf: Any) -> jax.ShapeDtypeStruct:
    aval = leaf if isinstance(leaf, ShapedArray) else jax.typeof(leaf)
    return jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
        aval.shape, aval.dtype, weak_type=aval.weak_type
    )
