"""Loops and branches: run a method of a module repeatedly, or one of several functions of a module."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import liftcore
from liftcore.calls import boundary
from liftcore.problems import no_functions
from liftcore.typing import Filter, InOutAxes, PyTree

from ..lifting import Methods, flags, lift_functions, refuse
from .options import lift_by_options

__all__ = ["associative_scan", "cond", "fori_loop", "remat_scan", "scan", "switch", "while_loop"]


Target = TypeVar("Target", bound=Callable[..., Any])

_FIRST: Mapping[Any, Any] = MappingProxyType({True: 0})
_ALL: Mapping[Any, bool] = MappingProxyType({True: True})


def scan(
    target: Target,
    variable_axes: Mapping[Any, Any] = liftcore.NO_AXES,
    variable_broadcast: Filter = False,
    variable_carry: Filter = False,
    split_rngs: Mapping[Any, bool] | bool = liftcore.NO_AXES,
    in_axes: InOutAxes = 0,
    out_axes: InOutAxes = 0,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    data_transform: Callable[..., Any] | None = None,
    metadata_params: Mapping[Any, Any] = liftcore.NO_AXES,
    methods: Methods = None,
    _split_transpose: bool = False,
    check_constancy_invariants: bool = True,
    *,
    kw_axes: InOutAxes = 0,
) -> Target:
    """`liftcore.scan` for a module class, a method or a function of a module.

    The method takes the carry and slices, and returns the next carry and a pytree to stack.

    Example:
        >>> import jax, linen_like as nn
        >>> class Layer(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x, _):
        ...         return nn.relu(nn.Dense(3)(x)), x.sum()
        >>> Layers = nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=4)
        >>> (x, sums), variables = Layers().init_with_output(jax.random.key(0), jax.numpy.ones(3), None)
        >>> sums.shape, variables["params"]["Dense_0"]["kernel"].shape
        ((4,), (4, 3, 3))

    Args:
        target: a Module class, or a function whose first argument is a module.
        variable_axes: maps filters of stacked variables to axes: an int, or `In`, `Out`, `InOut`, `InPlace`.
        variable_broadcast: a filter of the shared variables.
        variable_carry: a filter of the carried variables.
        split_rngs: maps filters of RNG streams to bools: whether iterations draw different keys. One bool applies to
            all streams.
        in_axes: the axis to slice for each argument after the carry, or `broadcast` to pass the whole argument to each
            iteration; a pytree prefix.
        out_axes: the new axis of each stacked result, or `broadcast` for a value that is the same in all iterations.
        length: the number of iterations; needed only if nothing is sliced.
        reverse: whether to run from the last slice to the first.
        unroll: the number of iterations in one step of the compiled loop; True for all of them.
        data_transform: must be None: it would be called with the groups of flax's core, which differ from those here.
        metadata_params: passed to boxed metadata (see `liftcore.meta`) that gains the axis, such as the name of the
            axis, `{PARTITION_NAME: "layers"}`. Without a name, the axis is unnamed.
        methods: the methods of a class to lift, by default `__call__`; or a mapping from method names to options that
            override the options given here.
        _split_transpose: whether to split the backward pass into two loops: one for the operations that depend on the
            order of iterations, one for the others. Experimental in JAX.
        check_constancy_invariants: has no effect: the check is always made, at no extra trace.
        kw_axes: the axes of keyword arguments, as a pytree prefix of their dict. Values that are not arrays are passed
            on unchanged.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    refuse("scan", data_transform=data_transform)
    return lift_by_options(liftcore.scan, locals(), ("data_transform", "check_constancy_invariants"), prefix="Scan")


def remat_scan(
    target: Target,
    lengths: Sequence[int] = (),
    policy: Callable[..., Any] | None = None,
    variable_broadcast: Filter = False,
    variable_carry: Filter = False,
    variable_axes: Mapping[Any, Any] = _FIRST,
    split_rngs: Mapping[Any, bool] | bool = _ALL,
    *,
    methods: Methods = None,
) -> Target:
    """`liftcore.remat_scan` for a module class, a method or a function of a module, with one argument, the carry.

    Example:
        >>> import jax, linen_like as nn
        >>> class Layer(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         return nn.relu(nn.Dense(3)(x))
        >>> variables = nn.remat_scan(Layer, lengths=(4, 5))().init(jax.random.key(0), jax.numpy.ones(3))
        >>> variables["params"]["Dense_0"]["kernel"].shape
        (4, 5, 3, 3)

    Args:
        target: a Module class, or a function whose first argument is a module.
        lengths: the lengths of the loops, the outermost first.
        policy: the intermediate values to store anyway: one of `jax.checkpoint_policies`; by default none.
        variable_broadcast: a filter of the shared variables.
        variable_carry: a filter of the carried variables.
        variable_axes: maps filters of stacked variables to axes: an int, or `In`, `Out`, `InOut`, `InPlace`. Each
            loop adds an axis. By default all variables are stacked, along axis 0.
        split_rngs: maps filters of RNG streams to bools: whether iterations draw different keys. One bool applies to
            all streams. By default all streams are split.
        methods: the methods of a class to lift, by default `__call__`; or a mapping from method names to options that
            override the options given here.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    return lift_by_options(liftcore.remat_scan, locals(), prefix="Remat_scan")


@boundary
def while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    mdl: Any,
    init: Any,
    carry_variables: Filter = False,
    broadcast_variables: Filter = True,
    split_rngs: Mapping[Any, bool] | bool = liftcore.NO_AXES,
) -> Any:
    """`liftcore.while_loop` for functions of a module; it runs at once.

    Example:
        >>> import jax, linen_like as nn
        >>> class Doubling(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         steps = self.variable("state", "steps", lambda: jax.numpy.int32(0))
        ...         def body(mdl, x):
        ...             steps.value += 1
        ...             return 2 * x
        ...         return nn.while_loop(lambda mdl, x: x < 100, body, self, x, carry_variables="state")
        >>> y, variables = Doubling().init_with_output(jax.random.key(0), 3.0)
        >>> float(y), int(variables["state"]["steps"])
        (192.0, 6)

    Args:
        cond_fn: called as `cond_fn(mdl, value)`.
        body_fn: called as `body_fn(mdl, value)`; returns the next value.
        mdl: the module, or a pytree of modules.
        init: the first value.
        carry_variables: a filter of variables that pass from one iteration to the next.
        broadcast_variables: a filter of variables that all iterations share, among those that are not carried.
        split_rngs: maps filters of RNG streams to bools: whether iterations draw different keys. One bool applies to
            all streams.

    Returns:
        The last value.
    """
    lift = functools.partial(
        liftcore.while_loop,
        variable_carry=carry_variables,
        variable_broadcast=broadcast_variables,
        split_rngs=flags(split_rngs),
    )
    return lift_functions(lift, cond_fn, body_fn, name="nn.while_loop")(mdl, init)


@boundary
def fori_loop(
    lower: Any,
    upper: Any,
    body_fn: Callable[..., Any],
    mdl: Any,
    init: Any,
    carry_variables: Filter = False,
    broadcast_variables: Filter = True,
    split_rngs: Mapping[Any, bool] | bool = liftcore.NO_AXES,
    *,
    unroll: int | bool | None = None,
) -> Any:
    """`liftcore.fori_loop` for a function of a module; it runs at once.

    Example:
        >>> import jax, linen_like as nn
        >>> class Deep(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         return nn.fori_loop(0, 5, lambda mdl, i, x: nn.tanh(nn.Dense(3)(x)), self, x, split_rngs=False)
        >>> variables = Deep().init(jax.random.key(0), jax.numpy.ones(3))
        >>> jax.tree.map(lambda value: value.shape, variables)
        {'params': {'Dense_0': {'bias': (3,), 'kernel': (3, 3)}}}

    Args:
        lower: the first index.
        upper: the index before which the loop ends.
        body_fn: called as `body_fn(mdl, i, value)`; returns the next value.
        mdl: the module, or a pytree of modules.
        init: the first value.
        carry_variables: a filter of variables that pass from one iteration to the next.
        broadcast_variables: a filter of variables that all iterations share, among those that are not carried.
        split_rngs: maps filters of RNG streams to bools: whether iterations draw different keys. One bool applies to
            all streams.
        unroll: the number of iterations in one step of the compiled loop; True for all of them. Only for bounds that
            are known during tracing.

    Returns:
        The last value.
    """
    lift = functools.partial(
        liftcore.fori_loop,
        unroll=unroll,
        variable_carry=carry_variables,
        variable_broadcast=broadcast_variables,
        split_rngs=flags(split_rngs),
    )
    return lift_functions(lift, body_fn, name="nn.fori_loop")(mdl, lower, upper, init)


@boundary
def associative_scan(
    fn: Callable[..., Any], mdl: Any, elems: PyTree, reverse: bool = False, axis: int = 0, *, variables: Filter = True
) -> PyTree:
    """`liftcore.associative_scan` for a function of a module that only reads variables; it runs at once.

    Example:
        >>> import jax, linen_like as nn
        >>> class Decay(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, xs):
        ...         by = self.param("by", lambda key: jax.numpy.float32(0.5))
        ...         return nn.associative_scan(lambda mdl, a, b: by * a * b, self, xs)
        >>> Decay().init_with_output(jax.random.key(0), jax.numpy.ones(4))[0]
        Array([1.   , 0.5  , 0.25 , 0.125], dtype=float32)

    Args:
        fn: called as `fn(mdl, a, b)`; must be associative.
        mdl: the module, or a pytree of modules.
        elems: a pytree of arrays, whose elements along the axis are combined.
        reverse: whether to combine from the last element to the first.
        axis: the axis of the arrays along which the elements are combined.
        variables: a filter of the variables that are lifted.

    Returns:
        A pytree like `elems`, with all prefixes combined.
    """
    lift = functools.partial(liftcore.associative_scan, reverse=reverse, axis=axis, variables=variables)
    return lift_functions(lift, fn, name="nn.associative_scan")(mdl, elems)


# --- branches ---------------------------------------------------------------------------------------------------------


@boundary
def cond(
    pred: Any,
    true_fun: Callable[..., Any],
    false_fun: Callable[..., Any],
    mdl: Any,
    *operands: Any,
    variables: Filter = True,
    rngs: Filter = True,
) -> Any:
    """`liftcore.cond` for functions of a module; it runs at once.

    Both functions may create variables and submodules. In `init` both create theirs, whichever one runs; submodules
    with the same automatic name are the same.

    Example:
        >>> import jax, linen_like as nn
        >>> class Gate(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x, deep):
        ...         return nn.cond(deep, lambda mdl, x: nn.Dense(3, name="deep")(x), lambda mdl, x: x, self, x)
        >>> variables = Gate().init(jax.random.key(0), jax.numpy.ones(3), False)
        >>> list(variables["params"])
        ['deep']

    Args:
        pred: a scalar: whether the first function runs.
        true_fun: called as `true_fun(mdl, *operands)` if `pred` is true.
        false_fun: called as `false_fun(mdl, *operands)` if `pred` is false.
        mdl: the module, or a pytree of modules.
        *operands: pytrees of arrays; modules and variables in them are lifted too.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        The result of the function.
    """
    lift = functools.partial(liftcore.cond, variables=variables, rngs=rngs)
    return lift_functions(lift, true_fun, false_fun, name="nn.cond")(mdl, pred, *operands)


@boundary
def switch(
    index: Any,
    branches: Sequence[Callable[..., Any]],
    mdl: Any,
    *operands: Any,
    variables: Filter = True,
    rngs: Filter = True,
) -> Any:
    """`liftcore.switch` for functions of a module; it runs at once. See `cond`.

    Example:
        >>> import jax, linen_like as nn
        >>> class Heads(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x, head):
        ...         heads = [lambda mdl, x, name=name: nn.Dense(2, name=name)(x) for name in ("a", "b")]
        ...         return nn.switch(head, heads, self, x)
        >>> variables = Heads().init(jax.random.key(0), jax.numpy.ones(3), 1)
        >>> sorted(variables["params"])
        ['a', 'b']

    Args:
        index: an integer: the number of the function that runs, from 0; one out of range is clamped.
        branches: called as `branches[index](mdl, *operands)`.
        mdl: the module, or a pytree of modules.
        *operands: pytrees of arrays; modules and variables in them are lifted too.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        The result of the function.
    """
    functions = list(branches) if isinstance(branches, Iterable) else []
    if not functions:
        raise no_functions("nn.switch", "Pass a list: `nn.switch(index, [f, g], mdl)`.", branches)

    def lift(*calls: Callable[..., Any]) -> Callable[..., Any]:
        return liftcore.switch(calls, variables=variables, rngs=rngs)

    return lift_functions(lift, *functions, name="nn.switch")(mdl, index, *operands)
