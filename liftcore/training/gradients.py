"""Gradients of a batch: on one microbatch after the other, or for each example."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr

from .. import meta
from ..calls import boundary
from ..errors import AxisSizeError, CarryTypeError, Expected, LiftArgumentError, check_function, common_size, name_of
from ..filters import Any as AnyOf
from ..filters import DenyList, to_predicate
from ..lift.eval_shape import eval_shape
from ..lift.grad import value_and_grad
from ..lift.scan import scan
from ..lift.vmap import vmap
from ..nn.layer import accumulation_dtype
from ..pipeline.body import Body
from ..pipeline.packing import transformation
from ..pytrees import Others
from ..runners.axes import Out, broadcast, flatten_axes, keyword_axes
from ..scopes.lifts import Captured
from ..typing import Filter, InOutAxes, PyTree
from .dynamic_scale import DynamicScale, paired, scaled, unscaled

__all__ = ["accumulate_gradients", "per_example_gradients"]


_WHERE = "accumulate_gradients"


def accumulate_gradients(
    fn: Callable[..., Any],
    steps: int,
    has_aux: bool = False,
    *,
    wrt: Filter = "params",
    in_axes: InOutAxes = 0,
    kw_axes: InOutAxes = 0,
    stacked: Filter = "intermediates",
    scale: DynamicScale | None = None,
) -> Callable[..., Any]:
    """Lift `value_and_grad` over the microbatches of a batch, and return the means of their values and gradients.

    This is a `liftcore.scan` of `liftcore.value_and_grad`, so only the activations of one microbatch are in memory.
    Variables that the function writes, such as batch statistics, are carried from one microbatch to the next. Each
    microbatch draws keys of its own, except from the RNG stream `params`. If the function is a mean over the batch,
    writes nothing and draws no keys, the result is the same as for the whole batch.

    Example:
        >>> import jax, jax.numpy as jnp, liftcore
        >>> def loss(scope, x):
        ...     return jnp.mean(liftcore.nn.dense(scope, x, 2) ** 2)
        >>> x = jax.random.normal(jax.random.key(1), (6, 3))
        >>> model = accumulate_gradients(loss, steps=3)
        >>> (value, grads), variables = liftcore.init(model)(jax.random.key(0), x)
        >>> whole = jax.grad(liftcore.apply(loss))(variables, x)
        >>> bool(jnp.allclose(grads["params"]["kernel"], whole["params"]["kernel"], atol=1e-5))
        True

    Args:
        fn: called as `fn(scopes, *args, **kwargs)` with a microbatch; returns a number or, with `has_aux`, a pair of a
            number and anything else.
        steps: the number of microbatches. It must divide the number of batch elements.
        has_aux: whether `fn` returns a pair, of which only the first is differentiated; the second is returned stacked
            over the microbatches, on a new first axis.
        wrt: a filter of the variables to differentiate with respect to, such as the `trainable` of a `TrainState`.
        in_axes: the batch axis of each argument after the scopes, or None for an argument that all microbatches share;
            a pytree prefix. Microbatch `i` has the batch elements `i`, `i + steps`, `i + 2 * steps`, …. So if a batch
            is sharded, each device keeps its part of every microbatch.
        kw_axes: the same for keyword arguments, as a pytree prefix of their dict. Values that are not arrays are
            shared.
        stacked: a filter of variables that each microbatch creates anew, such as sown values. They are returned stacked
            on a new first axis.
        scale: a `DynamicScale` that scales the value of each microbatch before it is differentiated.

    Returns:
        `lifted(scopes, *args, **kwargs)`, which returns the value and the gradients, `{collection: {module: {name:
        …}}}`. They are summed in float32 at least, and returned in the dtypes of the variables. With `scale`, it
        returns a `DynamicScaleResult`, as for one step: the scale changes after the last microbatch.

    Raises:
        AxisSizeError: when called, if the sizes of batch axes disagree, or `steps` does not divide them.
    """
    check_function(_WHERE, fn)
    if not isinstance(steps, Integral) or isinstance(steps, bool) or steps < 1:
        raise LiftArgumentError(
            f"{_WHERE}, steps",
            Expected("a number of microbatches, 1 or more", given=steps),
            "For example, `steps=4`.",
            option="steps",
        )
    loss = paired(_WHERE, fn) if has_aux else fn
    loss = loss if scale is None else scaled(scale, loss, has_aux)
    differentiated = value_and_grad(loss, has_aux=has_aux, wrt=wrt)

    def part(scopes: Any, batch: _Batch, sliced: Any, whole: Any) -> tuple[PyTree, Any]:
        args, kwargs = batch.joined(sliced, whole)
        value, grads = differentiated(scopes, *args, **kwargs)
        value, aux = value if has_aux else (value, None)
        return (value, grads), aux

    def add(scopes: Any, sums: PyTree, sliced: Any, batch: _Batch, whole: Any) -> tuple[PyTree, Any]:
        now, aux = part(scopes, batch, sliced, whole)
        return jax.tree.map(lambda total, one: total + one.astype(total.dtype), sums, now), aux

    part.__name__ = add.__name__ = name_of(fn)  # for the paths in errors and profiles
    over_all = scan(
        add,
        length=steps,
        in_axes=(0, broadcast, broadcast),
        variable_broadcast=AnyOf("params", wrt),
        variable_carry=DenyList(stacked),
        variable_axes={to_predicate(stacked): Out(0)},
        split_rngs={"params": False, ...: True},
    )

    @boundary
    def lifted(scopes: Any, *args: Any, **kwargs: Any) -> Any:
        batch = _Batch.of(args, kwargs, in_axes, kw_axes)
        sliced, whole = batch.parted(args, kwargs, steps)
        types, _ = eval_shape(part)(scopes, batch, [leaf[0] for leaf in sliced], whole)
        zero = jax.tree.map(lambda kind: jnp.zeros_like(kind, dtype=accumulation_dtype(kind.dtype)), types)
        try:
            sums, aux = over_all(scopes, zero, sliced, batch, whole)
        except CarryTypeError as error:
            error.add_note("To stack what microbatches create, write `accumulate_gradients(…, stacked=collection)`.")
            raise
        value, grads = jax.tree.map(lambda total, kind: (total / steps).astype(kind.dtype), sums, types)
        out = (value, aux) if has_aux else value
        return (out, grads) if scale is None else unscaled(scale, out, grads, has_aux)

    return lifted


class _Batch(NamedTuple):
    """The structure of the arguments of a call, which lifts pass through as static data, and the axes to slice.

    Attributes:
        treedef: the structure of the arguments.
        axes: the batch axis of each leaf; None for a shared one.
    """

    treedef: Any
    axes: tuple[int | None, ...]

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any], in_axes: InOutAxes, kw_axes: InOutAxes) -> _Batch:
        axes = (*flatten_axes(f"{_WHERE}, in_axes", in_axes, tuple(args)), *keyword_axes(kw_axes, kwargs))
        return cls(jax.tree.structure((tuple(args), dict(kwargs))), axes)

    def parted(self, args: Sequence[Any], kwargs: Mapping[str, Any], steps: int) -> tuple[list[Any], list[Any]]:
        """Return the leaves with a batch axis, with the microbatches on a new first axis, and the other leaves."""
        pairs = list(zip(jax.tree.leaves_with_path((tuple(args), dict(kwargs))), self.axes, strict=True))
        named = [(_name(path), leaf, axis) for (path, leaf), axis in pairs if axis is not None]
        common_size(_WHERE, [(name, np.shape(leaf), axis) for name, leaf, axis in named])
        sliced = [_parted(name, leaf, axis, steps) for name, leaf, axis in named]
        return sliced, [leaf for (_, leaf), axis in pairs if axis is None]

    def joined(self, sliced: Sequence[Any], whole: Sequence[Any]) -> tuple[Any, Any]:
        """Return the positional and the keyword arguments of one microbatch."""
        args, kwargs = Others(self.treedef, [axis is not None for axis in self.axes], whole).join(sliced)
        return args, kwargs


def _name(path: Any) -> str:
    """Return the name of an argument, given its path in the pair of positional and keyword arguments."""
    return f"{('args', 'kwargs')[path[0].idx]}{keystr(path[1:])}"


def _parted(name: str, leaf: Any, axis: int, steps: int) -> Any:
    shape = np.shape(leaf)
    axis %= len(shape)
    if shape[axis] % steps:
        what = f"{shape[axis]} batch elements cannot be split into {steps} microbatches of equal size."
        fix = "Choose a value of `steps` that divides the batch size."
        raise AxisSizeError(f"{_WHERE}, {name}", what, fix, option="steps", given=steps)
    split = jnp.reshape(leaf, (*shape[:axis], shape[axis] // steps, steps, *shape[axis + 1 :]))
    return jnp.moveaxis(split, axis + 1, 0)


# --- for each example -------------------------------------------------------------------------------------------------


def per_example_gradients(
    fn: Callable[..., Any],
    has_aux: bool = False,
    *,
    wrt: Filter = "params",
    in_axes: InOutAxes = 0,
    kw_axes: InOutAxes = 0,
    axis_name: Any = "liftcore.training.examples",
    scale: DynamicScale | None = None,
) -> Callable[..., Any]:
    """Lift `value_and_grad` for each example of a batch: values and gradients have a first axis for the examples.

    This is a `liftcore.vmap` of `liftcore.value_and_grad`. Each example draws keys of its own, except from the RNG
    stream `params`. All examples read the same variables. If they write variables, such as batch statistics, the mean
    over the examples is kept; for variables that are not floating-point, the maximum. This is also true of sown
    values: to get those of each example, return them with `has_aux`. (`accumulate_gradients` stacks sown values.)

    Example:
        >>> import jax, jax.numpy as jnp, liftcore
        >>> def loss(scope, x):
        ...     return jnp.sum(liftcore.nn.dense(scope, x, 1))
        >>> model = per_example_gradients(loss)
        >>> (values, grads), variables = liftcore.init(model)(jax.random.key(0), jnp.ones((6, 3)))
        >>> values.shape, grads["params"]["kernel"].shape, variables["params"]["kernel"].shape
        ((6,), (6, 3, 1), (3, 1))

    Args:
        fn: called as `fn(scopes, *args, **kwargs)` with one example, without its batch axis; returns a number or, with
            `has_aux`, a pair of a number and anything else. For layers that need a batch axis, write `x[None]` in it.
        has_aux: whether `fn` returns a pair, of which only the first is differentiated; the second is returned stacked
            over the examples.
        wrt: a filter of the variables to differentiate with respect to, such as the `trainable` of a `TrainState`.
        in_axes: the batch axis of each argument after the scopes, or None for an argument that all examples share; a
            pytree prefix.
        kw_axes: the same for keyword arguments, as a pytree prefix of their dict. Values that are not arrays are
            shared.
        axis_name: a name for the axis of the examples, for collectives such as `jax.lax.pmean` in `fn`.
        scale: a `DynamicScale` that scales the value of each example before it is differentiated.

    Returns:
        `lifted(scopes, *args, **kwargs)`, which returns the values and the gradients. The names of a boxed gradient
        begin with None, for the axis of the examples. With `scale`, it returns a `DynamicScaleResult`, as for one step:
        the scale changes once, and `finite` says whether the gradients of all examples are finite.

    Raises:
        AxisSizeError: when called, if sizes disagree or there is no batch axis.
    """
    where = "per_example_gradients"
    check_function(where, fn)
    loss = fn if scale is None else scaled(scale, paired(where, fn) if has_aux else fn, has_aux)
    over_batch = vmap(
        _averaging(value_and_grad(loss, has_aux=has_aux, wrt=wrt), axis_name),
        in_axes,
        kw_axes=kw_axes,
        axis_name=axis_name,
        variable_axes={True: None},
        split_rngs={"params": False, ...: True},
    )

    @boundary
    def lifted(scopes: Any, *args: Any, **kwargs: Any) -> Any:
        out, grads = over_batch(scopes, *args, **kwargs)
        grads = meta.add_axis(grads, 0, {})
        return (out, grads) if scale is None else unscaled(scale, out, grads, has_aux)

    return lifted


def _averaging(fn: Callable[..., Any], axis_name: Any) -> Callable[..., Any]:
    """Return a function of scopes in which the values written along a mapped axis are reduced to one."""

    def transform(body: Body, variable_groups: Sequence[PyTree], rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        result, groups = body(variable_groups, rng_groups, *args, **kwargs)
        written = jax.tree.map(lambda leaf: _together(leaf, axis_name), groups[0].values)
        return result, (groups[0]._replace(values=written), *groups[1:])

    return transformation(transform, [True], [True, Captured()], [True], "per_example")(fn)


def _together(leaf: Any, axis_name: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return jax.lax.pmean(leaf, axis_name)  # type: ignore[no-untyped-call]
    return jax.lax.pmax(leaf, axis_name)  # type: ignore[no-untyped-call]
