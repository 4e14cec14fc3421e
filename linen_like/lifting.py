"""Lifting: `vmap`, `scan`, `remat` and `jit` of module classes, of methods and of functions of a module.

Each takes the scopes out of the module, calls the transformation of liftcore once, and inside runs the method on a
clone of the module that lies on the lifted scopes. The clone is made from a `Template`, a value that knows the
module's class and fields and nothing of where it stands, so that what is compiled for one module serves all equal ones.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax

import liftcore
from liftcore.errors import LiftArgumentError
from liftcore.typing import Filter, InOutAxes

from ._context import context
from .binding import State, bound_scope
from .calling import function_name
from .fields import fingerprint
from .module import Module
from .naming import map_modules
from .template import Parts, Place, Template, detach, instantiate

__all__ = ["checkpoint", "jit", "remat", "scan", "vmap"]

Target = TypeVar("Target", bound=Callable[..., Any])
Core = Callable[[Callable[..., Any]], Callable[..., Any]]


def vmap(
    target: Target,
    variable_axes: Mapping[Any, Any] = liftcore.NO_AXES,
    split_rngs: Mapping[Any, bool] | bool = liftcore.NO_AXES,
    in_axes: InOutAxes = 0,
    out_axes: InOutAxes = 0,
    axis_size: int | None = None,
    axis_name: Any = None,
    spmd_axis_name: Any = None,
    methods: str | Iterable[str] | None = None,
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
        methods: which methods of a class are lifted, by default `__call__`.
        kw_axes: see `liftcore.vmap`.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    core = functools.partial(
        liftcore.vmap,
        in_axes=in_axes,
        out_axes=(out_axes, 0),
        axis_name=axis_name,
        axis_size=axis_size,
        spmd_axis_name=spmd_axis_name,
        kw_axes=kw_axes,
        variable_axes=variable_axes,
        split_rngs=split_rngs,
    )
    return _lift(core, target, methods, "Vmap", "Vmap")


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
    methods: str | Iterable[str] | None = None,
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
        methods: which methods of a class are lifted, by default `__call__`.
        kw_axes: see `liftcore.scan`.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """

    def core(call: Call) -> Callable[..., Any]:
        @functools.wraps(call)
        def body(scopes: Any, carry: Any, *slices: Any, **kwargs: Any) -> Any:
            (carry, ys), after = call(scopes, carry, *slices, **kwargs)
            return carry, (ys, after)

        lifted = liftcore.scan(
            body,
            length,
            reverse,
            unroll,
            in_axes=in_axes,
            out_axes=(out_axes, 0),
            kw_axes=kw_axes,
            variable_axes=variable_axes,
            variable_broadcast=variable_broadcast,
            variable_carry=variable_carry,
            split_rngs=split_rngs,
        )

        def run(scopes: Any, *args: Any, **kwargs: Any) -> Any:
            carry, (ys, after) = lifted(scopes, *args, **kwargs)
            return (carry, ys), after

        return run

    return _lift(core, target, methods, "Scan", "Scan")


def remat(
    target: Target,
    variables: Filter = True,
    rngs: Filter = True,
    prevent_cse: bool = True,
    static_argnums: int | Iterable[int] = (),
    policy: Callable[..., Any] | None = None,
    methods: str | Iterable[str] | None = None,
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
        prevent_cse: see `jax.checkpoint`.
        static_argnums: see `jax.checkpoint`; the module is number 0.
        policy: see `jax.checkpoint`.
        methods: which methods of a class are lifted, by default `__call__`.
        static_argnames: see `jax.checkpoint`.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    core = functools.partial(
        liftcore.remat,
        prevent_cse=prevent_cse,
        policy=policy,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        variables=variables,
        rngs=rngs,
    )
    return _lift(core, target, methods, "Checkpoint", "")


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
    methods: str | Iterable[str] | None = None,
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
        methods: which methods of a class are lifted, by default `__call__`.
        donate_argnames: see `jax.jit`.
        inline: see `jax.jit`.
        keep_unused: see `jax.jit`.
        compiler_options: see `jax.jit`.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    core = functools.partial(
        liftcore.jit,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        keep_unused=keep_unused,
        device=device,
        backend=backend,
        inline=inline,
        compiler_options=compiler_options,
        variables=variables,
        rngs=rngs,
    )
    return _lift(core, target, methods, "Jit", "")


# --- from a module to scopes and back ---------------------------------------------------------------------------------


class After:
    """What a lifted body leaves to the module outside: the automatic names it gave out. A pytree without leaves."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = tuple(counts.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, After) and self.counts == other.counts

    def __hash__(self) -> int:
        return hash(self.counts)


jax.tree_util.register_static(After)


class Call:
    """A method or function of a module, as a function of scopes.

    Modules among the arguments are taken out and stand with those that the fields of the module lead to.
    """

    def __init__(self, fn: Callable[..., Any], parts: Parts, state: State | None) -> None:
        self.fn, self.parts, self.state = fn, parts, state
        self.__name__ = _name(fn, parts.templates[0])
        self.__signature__ = inspect.signature(fn)

    def __call__(self, scopes: Any, *args: Any, **kwargs: Any) -> tuple[Any, After]:
        module, others = instantiate(self.parts, scopes)
        if others:
            args, kwargs = map_modules((args, kwargs), lambda place: others[place.index])
        if self.state is None:
            return self.fn(module, *args, **kwargs), After({})
        module._state.follow(self.state)
        context.modules.append(module)
        try:
            return self.fn(module, *args, **kwargs), After(module._state.names.counts)
        finally:
            context.modules.pop()


class EqualCall(Call):
    """A `Call` that equals those of equal modules, so that they share what is compiled."""

    def __init__(self, fn: Callable[..., Any], parts: Parts, state: State | None, value: Any) -> None:
        super().__init__(fn, parts, state)
        standing = None
        if state is not None:
            standing = state.in_setup, state.in_compact, state.reuse, tuple(state.names.counts.items())
        self._key = fn, value, standing, context.captures[-1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EqualCall) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _run(
    core: Core, fn: Callable[..., Any], module: Any, cls: type[Module], running: bool, args: Any, kwargs: Any
) -> tuple[Any, After]:
    """Runs a function of a module inside a lift.

    Args:
        core: makes a lifted function of a function of scopes.
        fn: the function.
        module: the module outside.
        cls: the class that it is made again with inside.
        running: whether `fn` is a part of the module's method that runs, and so goes on with its names.
        args: the arguments after the module.
        kwargs: the keyword arguments.
    """
    scope = bound_scope(module, function_name(fn))
    arguments: dict[int, Any] = {}
    if any(isinstance(leaf, Module) for leaf in jax.tree.leaves((args, kwargs))):
        args, kwargs = map_modules((args, kwargs), lambda found: _place(arguments, found))
    parts = detach(module, cls, list(arguments.values()))
    state = None
    if running:
        state = State()
        state.follow(module._state)
    values = [fingerprint(part) for part in (*parts.templates, *parts.arguments)]
    # A field that cannot be hashed, an array say, makes a call that shares nothing with those of other modules.
    call = Call(fn, parts, state) if None in values else EqualCall(fn, parts, state, tuple(values))
    scopes = [scope if running else scope.rewound(), *(other.scope.rewound() for other in parts.others)]
    result: tuple[Any, After] = core(call)(scopes, *args, **kwargs)
    return result


def _place(arguments: dict[int, Any], module: Module) -> Place:
    """What stands for a module among the arguments."""
    arguments.setdefault(id(module), module)
    return Place(list(arguments).index(id(module)))


def _name(fn: Callable[..., Any], template: Template) -> str:
    name, cls = function_name(fn), template.cls.__name__
    return cls if name == "__call__" else f"{cls}.{name}" if hasattr(template.cls, name) else name


def _lift(core: Core, target: Any, methods: str | Iterable[str] | None, class_prefix: str, name_prefix: str) -> Any:
    if isinstance(target, type) and issubclass(target, Module):
        names = ("__call__",) if methods is None else (methods,) if isinstance(methods, str) else tuple(methods)
        return _lifted_class(core, target, names, class_prefix, name_prefix)
    if isinstance(target, Module) or not callable(target):
        given = f"an instance of {type(target).__name__}" if isinstance(target, Module) else repr(target)
        raise LiftArgumentError(
            f"nn.{class_prefix.lower()}",
            f"expected a Module class or a function of a module, given {given}.",
            f"Lift the class: `nn.{class_prefix.lower()}({type(target).__name__}, …)(…)`.",
        )
    if methods is not None:
        raise LiftArgumentError("methods", "it chooses methods of a class, given a function.", "Leave it out.")
    return _lifted_function(core, target)


def _lifted_class(core: Core, cls: type[Module], methods: Sequence[str], class_prefix: str, name_prefix: str) -> Any:
    """A subclass whose methods run on clones of the class itself, inside the lift."""
    missing = [name for name in methods if not callable(getattr(cls, name, None))]
    if missing:
        raise LiftArgumentError(
            f"methods={list(methods)}",
            f"{cls.__name__} has no method {missing}.",
            'Name methods: `methods=["encode"]`.',
        )
    namespace = {
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "__qualname__": f"{class_prefix}{cls.__qualname__}",
        "_name_prefix": f"{name_prefix}{cls._name_prefix}",
        **{name: _lifted_method(core, cls, getattr(cls, name)) for name in methods},
    }
    return type(cls)(f"{class_prefix}{cls.__name__}", (cls,), namespace)


def _lifted_method(core: Core, cls: type[Module], fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _run(core, fn, self, cls, False, args, kwargs)[0]

    return method


def _lifted_function(core: Core, fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def lifted(module: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(module, Module):
            raise LiftArgumentError(
                f"lifted {function_name(fn)}",
                f"expected a module as the first argument, given {type(module).__name__}.",
                "Pass the module whose variables are lifted, such as `self`.",
            )
        result, after = _run(core, fn, module, type(module), True, args, kwargs)
        module._state.names.counts.update(after.counts)
        return result

    return lifted
