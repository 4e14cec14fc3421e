"""`scan` and other loops: a method of a module that is run again and again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import liftcore
from liftcore.typing import Filter, InOutAxes, PyTree

from ..lifting.lifting import Methods, flags, lift_with, run_lifted
from .options import refuse

__all__ = ["associative_scan", "fori_loop", "remat_scan", "scan", "while_loop"]

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
        target: see `nn.vmap`.
        variable_axes: see `liftcore.scan`.
        variable_broadcast: see `liftcore.scan`.
        variable_carry: see `liftcore.scan`.
        split_rngs: see `liftcore.scan`.
        in_axes: see `liftcore.scan`; neither the module nor the carry is counted.
        out_axes: see `liftcore.scan`.
        length: see `jax.lax.scan`.
        reverse: see `jax.lax.scan`.
        unroll: see `jax.lax.scan`.
        data_transform: must be None; a function of the core's own groups, which are others here.
        metadata_params: see `liftcore.scan`.
        methods: see `nn.vmap`.
        _split_transpose: see `jax.lax.scan`.
        check_constancy_invariants: no other choice than True is needed: the check costs no trace here.
        kw_axes: see `liftcore.scan`.

    Returns:
        See `nn.vmap`.
    """
    refuse("scan", data_transform=data_transform)
    lift = functools.partial(
        liftcore.scan,
        length=length,
        reverse=reverse,
        unroll=unroll,
        _split_transpose=_split_transpose,
        in_axes=in_axes,
        out_axes=out_axes,
        kw_axes=kw_axes,
        variable_axes=variable_axes,
        variable_broadcast=variable_broadcast,
        variable_carry=variable_carry,
        split_rngs=flags(split_rngs),
        metadata_params=metadata_params,
    )
    return lift_with(lift, target, methods=methods, name="nn.scan", prefix="Scan")


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
    """`liftcore.remat_scan` for a module class, a method or a function of a module, of one argument, the carry.

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
        target: see `nn.vmap`.
        lengths: see `liftcore.remat_scan`.
        policy: see `jax.checkpoint`.
        variable_broadcast: see `liftcore.scan`.
        variable_carry: see `liftcore.scan`.
        variable_axes: see `liftcore.remat_scan`.
        split_rngs: see `liftcore.remat_scan`.
        methods: see `nn.vmap`.

    Returns:
        See `nn.vmap`.
    """
    lift = functools.partial(
        liftcore.remat_scan,
        lengths=lengths,
        policy=policy,
        variable_broadcast=variable_broadcast,
        variable_carry=variable_carry,
        variable_axes=variable_axes,
        split_rngs=flags(split_rngs),
    )
    return lift_with(lift, target, methods=methods, name="nn.remat_scan", prefix="Remat_scan")


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
        mdl: as in `nn.cond`.
        init: the first value.
        carry_variables: see `variable_carry` of `liftcore.while_loop`.
        broadcast_variables: see `variable_broadcast` of `liftcore.while_loop`.
        split_rngs: see `liftcore.while_loop`.

    Returns:
        The last value.
    """
    lift = functools.partial(
        liftcore.while_loop,
        variable_carry=carry_variables,
        variable_broadcast=broadcast_variables,
        split_rngs=flags(split_rngs),
    )
    return run_lifted("nn.while_loop", lift, [cond_fn, body_fn], mdl, (init,))


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
        lower: see `jax.lax.fori_loop`.
        upper: see `jax.lax.fori_loop`.
        body_fn: called as `body_fn(mdl, i, value)`; returns the next value.
        mdl: as in `nn.cond`.
        init: the first value.
        carry_variables: see `variable_carry` of `liftcore.fori_loop`.
        broadcast_variables: see `variable_broadcast` of `liftcore.fori_loop`.
        split_rngs: see `liftcore.fori_loop`.
        unroll: see `jax.lax.fori_loop`.

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
    return run_lifted("nn.fori_loop", lift, [body_fn], mdl, (lower, upper, init))


def associative_scan(
    fn: Callable[..., Any], mdl: Any, elems: PyTree, reverse: bool = False, axis: int = 0, *, variables: Filter = True
) -> PyTree:
    """`liftcore.associative_scan` for a function of a module, which may read variables only; it runs at once.

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
        mdl: as in `nn.cond`.
        elems: see `jax.lax.associative_scan`.
        reverse: see `jax.lax.associative_scan`.
        axis: see `jax.lax.associative_scan`.
        variables: see `liftcore.associative_scan`.

    Returns:
        See `jax.lax.associative_scan`.
    """
    lift = functools.partial(liftcore.associative_scan, reverse=reverse, axis=axis, variables=variables)
    return run_lifted("nn.associative_scan", lift, [fn], mdl, (elems,))
