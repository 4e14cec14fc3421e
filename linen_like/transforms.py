"""`vmap`, `scan`, `remat` and `jit` of module classes, of methods and of functions of a module.

Names, order and defaults of the arguments are those of `flax.linen`; what is added is keyword-only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import liftcore
from liftcore.errors import LiftArgumentError
from liftcore.typing import Filter, InOutAxes

from .lifting import Methods, lift

__all__ = ["checkpoint", "jit", "remat", "scan", "vmap"]

Target = TypeVar("Target", bound=Callable[..., Any])


def vmap(
    target: Target,
    variable_axes: Mapping[Any, Any] = liftcore.NO_AXES,
    split_rngs: Mapping[Any, bool] | bool = liftcore.NO_AXES,
    in_axes: InOutAxes = 0,
    out_axes: InOutAxes = 0,
    axis_size: int | None = None,
    axis_name: Any = None,
    spmd_axis_name: Any = None,
    metadata_params: Mapping[Any, Any] = liftcore.NO_AXES,
    methods: Methods = None,
    *,
    kw_axes: InOutAxes = 0,
) -> Target:
    """`liftcore.vmap` for a module class, a method or a function of a module.

    Example:
        >>> import jax, linen_like as nn
        >>> Ensemble = nn.vmap(nn.Dense, variable_axes={"params": 0}, split_rngs={"params": True})
        >>> variables = Ensemble(features=2).init(jax.random.key(0), jax.numpy.ones((5, 3)))
        >>> jax.tree.map(lambda value: value.shape, variables)
        {'params': {'bias': (5, 2), 'kernel': (5, 3, 2)}}

    Args:
        target: a Module class, or a function whose first argument is a module.
        variable_axes: see `liftcore.vmap`.
        split_rngs: see `liftcore.vmap`.
        in_axes: see `liftcore.vmap`; the module itself is not counted.
        out_axes: see `jax.vmap`.
        axis_size: see `jax.vmap`.
        axis_name: see `jax.vmap`.
        spmd_axis_name: see `jax.vmap`.
        metadata_params: must be empty; there are no metadata boxes yet.
        methods: which methods of a class are lifted, by default `__call__`; or a mapping from their names to options
            that differ from those given here.
        kw_axes: see `liftcore.vmap`.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    _refuse("vmap", metadata_params=metadata_params)
    options = {
        "in_axes": in_axes,
        "out_axes": out_axes,
        "axis_name": axis_name,
        "axis_size": axis_size,
        "spmd_axis_name": spmd_axis_name,
        "kw_axes": kw_axes,
        "variable_axes": variable_axes,
        "split_rngs": split_rngs,
    }
    return lift("vmap", liftcore.vmap, options, target, methods, "Vmap")


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
        metadata_params: must be empty; there are no metadata boxes yet.
        methods: which methods of a class are lifted, by default `__call__`; or a mapping from their names to options
            that differ from those given here.
        _split_transpose: see `jax.lax.scan`.
        check_constancy_invariants: no other choice than True is needed: the check costs no trace here.
        kw_axes: see `liftcore.scan`.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    _refuse("scan", metadata_params=metadata_params, data_transform=data_transform)
    options = {
        "length": length,
        "reverse": reverse,
        "unroll": unroll,
        "_split_transpose": _split_transpose,
        "in_axes": in_axes,
        "out_axes": out_axes,
        "kw_axes": kw_axes,
        "variable_axes": variable_axes,
        "variable_broadcast": variable_broadcast,
        "variable_carry": variable_carry,
        "split_rngs": split_rngs,
    }
    return lift("scan", liftcore.scan, options, target, methods, "Scan")


def remat(
    target: Target,
    variables: Filter = True,
    rngs: Filter = True,
    concrete: bool = False,
    prevent_cse: bool = True,
    static_argnums: int | Iterable[int] = (),
    policy: Callable[..., Any] | None = None,
    methods: Methods = None,
    *,
    static_argnames: str | Iterable[str] = (),
) -> Target:
    """`liftcore.remat` for a module class, a method or a function of a module.

    It changes no name, no value and no draw: `nn.remat(Dense)` makes a `Dense_0`.

    Example:
        >>> import jax, linen_like as nn
        >>> variables = nn.remat(nn.Dense)(2).init(jax.random.key(0), jax.numpy.ones(3))
        >>> same = nn.Dense(2).init(jax.random.key(0), jax.numpy.ones(3))
        >>> bool((variables["params"]["kernel"] == same["params"]["kernel"]).all())
        True

    Args:
        target: a Module class, or a function whose first argument is a module.
        variables: see `liftcore.remat`.
        rngs: see `liftcore.remat`.
        concrete: must be False; JAX has no such option any more.
        prevent_cse: see `jax.checkpoint`.
        static_argnums: see `jax.checkpoint`; the module is number 0.
        policy: see `jax.checkpoint`.
        methods: which methods of a class are lifted, by default `__call__`; or a mapping from their names to options
            that differ from those given here.
        static_argnames: see `jax.checkpoint`.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    _refuse("remat", concrete=concrete)
    options = {
        "prevent_cse": prevent_cse,
        "policy": policy,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "variables": variables,
        "rngs": rngs,
    }
    return lift("remat", liftcore.remat, options, target, methods)


checkpoint = remat
"""Another name of `remat`."""


def jit(
    target: Target,
    variables: Filter = True,
    rngs: Filter = True,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    donate_argnums: int | Iterable[int] = (),
    device: Any = None,
    backend: str | None = None,
    methods: Methods = None,
    *,
    donate_argnames: str | Iterable[str] = (),
    inline: bool = False,
    keep_unused: bool = False,
    compiler_options: Mapping[str, Any] | None = None,
) -> Target:
    """`liftcore.jit` for a module class, a method or a function of a module.

    It changes no name, no value and no draw. Modules with equal fields share what is compiled, wherever they stand.

    Example:
        >>> import jax, linen_like as nn
        >>> class Deep(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         for _ in range(3):  # traced and compiled once
        ...             x = nn.jit(nn.Dense)(3)(x)
        ...         return x
        >>> list(Deep().init(jax.random.key(0), jax.numpy.ones(3))["params"])
        ['Dense_0', 'Dense_1', 'Dense_2']

    Args:
        target: a Module class, or a function whose first argument is a module.
        variables: see `liftcore.jit`.
        rngs: see `liftcore.jit`.
        static_argnums: see `jax.jit`; the module is number 0.
        static_argnames: see `jax.jit`.
        donate_argnums: see `jax.jit`; the module is number 0.
        device: see `jax.jit`.
        backend: see `jax.jit`.
        methods: which methods of a class are lifted, by default `__call__`; or a mapping from their names to options
            that differ from those given here.
        donate_argnames: see `jax.jit`.
        inline: see `jax.jit`.
        keep_unused: see `jax.jit`.
        compiler_options: see `jax.jit`.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    options = {
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
        "keep_unused": keep_unused,
        "device": device,
        "backend": backend,
        "inline": inline,
        "compiler_options": compiler_options,
        "variables": variables,
        "rngs": rngs,
    }
    return lift("jit", liftcore.jit, options, target, methods)


def _refuse(name: str, **options: Any) -> None:
    """Raises where an option of Linen is used that has no meaning here."""
    for option, value in options.items():
        if value:
            raise LiftArgumentError(
                f"nn.{name}", f"{option}={value!r} is not supported; see the arguments of `nn.{name}`.", "Leave it out."
            )
