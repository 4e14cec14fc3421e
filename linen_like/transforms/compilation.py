"""`jit`, `remat` and other transformations that change when and where code runs, or check it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import liftcore
from liftcore.calls import boundary
from liftcore.typing import Filter, Variables

from ..lifting import Methods, lift_functions, lift_with, refuse
from .options import lift_by_options

__all__ = ["checkify", "checkpoint", "eval_shape", "jit", "named_call", "purify", "remat"]

Target = TypeVar("Target", bound=Callable[..., Any])


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
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.
        concrete: must be False; JAX has removed this option.
        prevent_cse: whether to keep the compiler from undoing the rematerialization by merging equal operations.
            Inside a `scan`, False is enough and faster.
        static_argnums: the positions of arguments that Python code needs as values, such as flags. Positions count in
            the signature of `target`, where the module is 0.
        policy: the intermediate values to store anyway: one of `jax.checkpoint_policies`; by default none.
        methods: the methods of a class to lift, by default `__call__`; or a mapping from method names to options that
            override the options given here.
        static_argnames: the same, by name.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    refuse("remat", concrete=concrete)
    return lift_by_options(liftcore.remat, locals(), ignored=("concrete",))


checkpoint = remat
"""Another name for `remat`."""


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
    in_shardings: Any = None,
    out_shardings: Any = None,
    variable_shardings: Mapping[Any, Any] = liftcore.NO_AXES,
    donate_variables: Filter = False,
) -> Target:
    """`liftcore.jit` for a module class, a method or a function of a module.

    It changes no name, no value and no draw. Modules with equal fields share the compiled function, anywhere in a
    model.

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
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.
        static_argnums: the positions of arguments that Python code needs as values, such as flags. Each new value
            compiles again. They must be hashable. Positions count in the signature of `target`, where the module is 0.
        static_argnames: the same, by name.
        donate_argnums: the positions of arguments whose buffers the results may reuse. The call deletes their arrays.
            Positions count as in `static_argnums`.
        device: the device to run on; by default the device of the arguments.
        backend: the platform to run on, such as `"cpu"`; by default the platform of the arguments.
        methods: the methods of a class to lift, by default `__call__`; or a mapping from method names to options that
            override the options given here.
        donate_argnames: the same, by name.
        inline: whether to inline the body into the surrounding program, instead of calling it as a function.
        keep_unused: whether to pass unused arguments to the compiled function.
        compiler_options: options of XLA, by name.
        in_shardings: the shardings of the arguments: a pytree prefix of the tuple of arguments after the module,
            without static arguments. None leaves the choice to JAX.
        out_shardings: the shardings of the result, as a pytree prefix. None leaves the choice to the compiler.
        variable_shardings: maps filters of variables to shardings, on the way in and on the way out. JAX chooses the
            shardings of all other variables.
        donate_variables: a filter of variables whose buffers the results may reuse. The call deletes their arrays, and
            the scope holds the new values. Variables that are not mutable are not donated. A donated variable counts
            as written by the body.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    return lift_by_options(liftcore.jit, locals())


def named_call(class_fn: Target, force: bool = True) -> Target:
    """`liftcore.named_call` for a module class, a method or a function of a module. It changes no name and no draw.

    Operations of modules carry their names in profiles anyway; use this for functions.

    Example:
        >>> import jax, linen_like as nn
        >>> class Model(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         @nn.named_call
        ...         def attention(mdl, x):
        ...             return nn.Dense(3)(x)
        ...         return attention(self, x)
        >>> variables = Model().init(jax.random.key(0), jax.numpy.ones(3))
        >>> "attention" in jax.jit(Model().apply).lower(variables, jax.numpy.ones(3)).as_text(debug_info=True)
        True

    Args:
        class_fn: a Module class, or a function whose first argument is a module.
        force: has no effect, since there is no switch that turns names off.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    return lift_with(liftcore.named_call, class_fn, name="nn.named_call")


def checkify(
    target: Target,
    errors: frozenset[Any] | None = None,
    variables: Filter = True,
    rngs: Filter = True,
    methods: Methods = None,
) -> Callable[..., Any]:
    """`liftcore.checkify` for a module class, a method or a function of a module. It changes no name and no draw.

    Example:
        >>> import jax, linen_like as nn
        >>> from jax.experimental.checkify import check
        >>> class Root(nn.Module):
        ...     def __call__(self, x):
        ...         check(x >= 0, "{x} has no root", x=x)
        ...         return jax.numpy.sqrt(x)
        >>> error, _ = nn.checkify(Root)().apply({}, jax.numpy.float32(-1))
        >>> error.get()
        '-1.0 has no root (`check` failed)'

    Args:
        target: a Module class, or a function whose first argument is a module.
        errors: the checks to run: a set from `jax.experimental.checkify`, such as `float_checks`; by default its
            `user_checks`.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.
        methods: the methods of a class to lift, by default `__call__`; or a mapping from method names to options that
            override the options given here.

    Returns:
        A Module class with the same fields, or a function with the same arguments; either returns the error and the
        result.
    """
    return lift_by_options(liftcore.checkify, locals())


@boundary
def eval_shape(
    fn: Callable[..., Any], mdl: Any, *args: Any, variables: Filter = True, rngs: Filter = True, **kwargs: Any
) -> Any:
    """`liftcore.eval_shape` for a function of a module; it runs at once, and does not change the module.

    Example:
        >>> import jax, linen_like as nn
        >>> class Widening(nn.Module):
        ...     encoder: nn.Module
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         width = nn.eval_shape(lambda mdl, x: mdl.encoder(x), self, x).shape[-1]
        ...         return nn.Dense(2 * width)(self.encoder(x))
        >>> Widening(nn.Dense(3)).init_with_output(jax.random.key(0), jax.numpy.ones((1, 5)))[0].shape
        (1, 6)

    Args:
        fn: called as `fn(mdl, *args, **kwargs)`.
        mdl: the module, or a pytree of modules.
        *args: pytrees of arrays, or of `jax.ShapeDtypeStruct`.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.
        **kwargs: keyword arguments of the same kind.

    Returns:
        A pytree of `jax.ShapeDtypeStruct`.
    """
    lift = functools.partial(liftcore.eval_shape, variables=variables, rngs=rngs)
    return lift_functions(lift, fn, name="nn.eval_shape")(mdl, *args, **kwargs)


@boundary
def purify(
    fn: Callable[..., Any], mdl: Any, *example_args: Any, **example_kwargs: Any
) -> tuple[Callable[..., Any], Variables]:
    """`liftcore.purify` for a function of a module: a pure function, and the variables that it takes.

    Example:
        >>> import jax, linen_like as nn
        >>> class Flow(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         field, variables = nn.purify(lambda mdl, x: mdl(x), nn.Dense(3), x)
        ...         return jax.lax.fori_loop(0, 10, lambda i, x: x + 0.1 * field(variables, x), x)
        >>> y, variables = Flow().init_with_output(jax.random.key(0), jax.numpy.ones(3))
        >>> list(variables["params"])
        ['Dense_0']

    Args:
        fn: called as `fn(mdl, *args, **kwargs)`.
        mdl: the module, or a pytree of modules.
        *example_args: example arguments of `fn`. If they are given and variables may be created, `fn` is traced once,
            and its variables are created in the scope. An array may be a `jax.ShapeDtypeStruct` if no initial value
            depends on it.
        **example_kwargs: example keyword arguments of `fn`.

    Returns:
        `pure_fn(variables, *args, rngs=None, mutable=False, **kwargs)`, which is like `apply`, and the variables below
        the module. For several modules, these are the variables below their common scope.
    """
    lift = functools.partial(functools.partial, liftcore.purify)
    return lift_functions(lift, fn, name="nn.purify")(mdl, *example_args, **example_kwargs)
