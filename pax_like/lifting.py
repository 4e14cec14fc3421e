"""Functions of modules: as pure functions, under any lift of `liftcore`, and differentiated."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any, cast

import jax

import liftcore
from liftcore import Blueprint, Scope, is_array
from liftcore.caches import bounded
from liftcore.calls import boundary, call_user
from liftcore.errors import Expected, LiftArgumentError, check_function, name_of, shown
from liftcore.problems import no_functions

from .structure import check_shared, is_module
from .variables import Places, places_of, write

__all__ = ["OnScope", "check_first", "lift", "module_and_value", "pure", "run", "value_and_grad"]

# --- pure functions of modules ----------------------------------------------------------------------------------------


def pure(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function pure: it gets copies of the modules among its arguments, and changes only these.

    Example:
        >>> import jax, pax_like as pax
        >>> norm = pax.BatchNorm(3)
        >>> @jax.jit
        ... @pax.pure
        ... def step(norm, x):
        ...     y = norm(x)
        ...     return norm, y.mean()
        >>> changed, mean = step(norm, jax.numpy.ones((4, 3)))
        >>> norm.mean.tolist(), [round(float(one), 2) for one in changed.mean]
        ([0.0, 0.0, 0.0], [0.01, 0.01, 0.01])

    Args:
        fn: the function. To keep the changes of a module, it must return the module. A method of a module, or a module,
            is called on a copy too.

    Raises:
        SharedModuleError: when the pure function is called, if a module is in two places of its arguments.
    """
    return _pure(*_unbound("pure", fn))


def module_and_value(fn: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """Make a function pure: it returns the changed module and its result, and does not change the module it is given.

    Example:
        >>> import jax, pax_like as pax
        >>> norm = pax.BatchNorm(3)
        >>> norm, y = jax.jit(pax.module_and_value(norm))(jax.numpy.ones((4, 3)))
        >>> y.shape, round(float(norm.mean[0]), 2)
        ((4, 3), 0.01)

    Args:
        fn: a function whose first argument is a module; or a method of a module, or a callable module, for which the
            pure function has no such argument.

    Returns:
        A function that returns the module after the call, and the result.

    Raises:
        LiftArgumentError: when it is called, if the first argument is not a module.
        SharedModuleError: when it is called, if a module is in two places of its arguments.
    """
    method, bound = _unbound("module_and_value", fn)

    def both(module: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        result = call_user(f"module_and_value({name_of(method)})", method, module, *args, **kwargs)
        return module, result

    changed = _pure(both)

    @functools.wraps(method)
    @boundary
    def call(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        args = (*bound, *args)
        check_first(f"module_and_value({name_of(method)})", args)
        return changed(*args, **kwargs)

    return call


def check_first(where: str, args: tuple[Any, ...]) -> None:
    """Check that the first argument is a module.

    Args:
        where: the name of the function, for the error.
        args: its arguments.
    """
    if not args or not is_module(args[0]):
        given = shown(args[0]) if args else "none"
        what = Expected("a module as its first argument", given, words=given)
        raise LiftArgumentError(where, what, "Call it as `fn(module, …)`.")


def _unbound(where: str, fn: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the function that takes a module as its first argument, and the module, if `fn` is bound to one."""
    check_function(where, fn)
    if isinstance(fn, types.MethodType) and is_module(fn.__self__):
        return fn.__func__, (fn.__self__,)
    if is_module(fn):
        return type(fn).__call__, (fn,)
    return fn, ()


def _pure(fn: Callable[..., Any], bound: tuple[Any, ...] = ()) -> Callable[..., Any]:
    @functools.wraps(fn)
    @boundary
    def call(*args: Any, **kwargs: Any) -> Any:
        args = (*bound, *args)
        check_shared((args, kwargs))
        args, kwargs = jax.tree.map(lambda leaf: leaf, (args, kwargs))
        return call_user(f"pure({name_of(fn)})", fn, *args, **kwargs)

    return call


# --- lifts of functions that change modules ---------------------------------------------------------------------------


def lift(transformation: Callable[..., Any], *fns: Any, **options: Any) -> Callable[..., tuple[Any, Any]]:
    """Apply a lifted transformation to functions that change a module.

    Inside, the parameters of the module are variables in the collection "params", and its states are in "state". So the
    options of the transformation can treat each kind, or single arrays, differently.

    Example:
        >>> import jax, liftcore, pax_like as pax
        >>> import jax.numpy as jnp
        >>> class Sum(pax.Module):
        ...     def __init__(self):
        ...         self.register_state("total", jnp.float32(0))
        ...         self.register_parameter("scale", jnp.float32(2))
        ...     def add(self, _, x):
        ...         self.total = self.total + self.scale * x
        ...         return None, self.total
        >>> over_time = pax.lift(liftcore.scan, Sum.add, variable_carry="state", variable_broadcast="params")
        >>> changed, (_, totals) = over_time(Sum(), None, jnp.arange(4.0))
        >>> totals, changed.total
        (Array([ 0.,  2.,  6., 12.], dtype=float32), Array(12., dtype=float32))

    Args:
        transformation: a transformation of `liftcore`, or your own from `liftcore.pack`; called as
            `transformation(*fns, **options)`. To define a derivative rule, pass a function that applies
            `liftcore.custom_vjp` to its argument, defines the rule, and returns the result.
        *fns: the functions, called as `fn(module, *args, **kwargs)`; they may change the arrays of the module. Most
            transformations take one function; `liftcore.switch` takes a list.
        **options: the options of the transformation.

    Returns:
        `lifted(module, *args, **kwargs)`, which returns the changed module and the result of the transformation. The
        module that you pass does not change.

    Raises:
        LiftArgumentError: when it is called, if the first argument is not a module, or a function changes more of it
            than arrays.
        LiftError: an error of the transformation. If a kind is not lifted, it shows the line that lifts it.
    """
    where = f"lift({name_of(transformation)})"
    liftcore.pipeline.check_lift(where, transformation)
    named = [fn for given in fns for fn in (given if isinstance(given, list | tuple) else [given])]
    if not named:
        raise no_functions(where, "Write `lift(transformation, fn)`.")
    for fn in named:
        _check_free(where, fn)

    @bounded(_KEPT)
    def lifted(places: Places) -> Callable[..., Any]:
        def body(given: Any) -> Any:  # of one function, or of a list of functions, as `liftcore.switch` takes it
            if isinstance(given, list | tuple):
                return [OnScope(fn, places.blueprint) for fn in given]
            return OnScope(given, places.blueprint)

        return cast(Callable[..., Any], transformation(*map(body, fns), **options))

    @functools.wraps(named[0])
    @boundary
    def call(module: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        changed, result, _ = run(where, lifted, module, args, kwargs)
        return changed, result

    return call


_KEPT = 64
"""The number of module definitions for which a lifted function, with its compiled programs, is kept."""


def run(
    where: str,
    lifted: Callable[[Places], Callable[..., Any]],
    module: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, Any, Places]:
    """Call a function of a scope with the arrays of a module as the variables of the scope.

    Args:
        where: the name of the function that was called, for errors.
        lifted: a function from the variables of the module to the function to call.
        module: the module, which does not change.
        args: the positional arguments after the scope.
        kwargs: the keyword arguments.

    Returns:
        The changed module, the result, and the `Places` of the module.
    """
    check_first(where, (module,))
    places, leaves = places_of(module)
    scope = liftcore.bind(places.variables(leaves), mutable=True)
    result = lifted(places)(scope, *args, **kwargs)
    return places.blueprint.read(scope.variables()), result, places


@dataclasses.dataclass(frozen=True)
class OnScope:
    """A function of a module as a function of a scope with its arrays. Equal if the function and the blueprint are.

    Attributes:
        fn: the function.
        blueprint: the blueprint of the module.
    """

    fn: Callable[..., Any]
    blueprint: Blueprint

    def __post_init__(self) -> None:
        self.__dict__.update({"__name__": name_of(self.fn), "__doc__": self.fn.__doc__, "__wrapped__": self.fn})

    @property
    def shared_as(self) -> Callable[..., Any]:
        """The function, for `liftcore`: what is compiled for a closure is not kept longer than the closure."""
        return self.fn

    def __call__(self, scope: Scope, *args: Any, **kwargs: Any) -> Any:
        """Call the function, and write the arrays that it changed."""
        module = self.blueprint.read(scope)
        result = call_user(name_of(self.fn), self.fn, module, *args, **kwargs)
        write(name_of(self.fn), self.blueprint, scope, module)
        return result


def _check_free(where: str, fn: Any) -> None:
    """Check that a function takes the module as an argument, so that it is not bound to one."""
    check_function(where, fn)
    if is_module(fn) or is_module(getattr(fn, "__self__", None)):
        kind = type(fn if is_module(fn) else fn.__self__).__name__
        given = f"one that is bound to a {kind}"
        raise LiftArgumentError(
            where,
            Expected("a function whose first argument is the module", given, words=given),
            f"Write `lift(…, {kind}.{getattr(fn, '__name__', '__call__')})(module, …)`.",
        )


# --- gradients --------------------------------------------------------------------------------------------------------


def value_and_grad(
    fn: Callable[..., Any], has_aux: bool = False, **options: Any
) -> Callable[..., tuple[tuple[Any, Any], Any]]:
    """Apply `jax.value_and_grad` with respect to the parameters of a module that are not frozen.

    Example:
        >>> import jax, pax_like as pax
        >>> import jax.numpy as jnp
        >>> def loss(layer, x):
        ...     return jnp.sum(layer(x) ** 2)
        >>> layer = pax.Linear(2, 1, key=jax.random.key(0))
        >>> (layer, value), gradient = pax.value_and_grad(loss)(layer, jnp.ones((3, 2)))
        >>> gradient
        Linear(bias=float32[1], kernel=float32[2,1], is_training=True)

    Args:
        fn: a function, called as `fn(module, *args, **kwargs)`. It returns a number or, with `has_aux`, a pair of a
            number and anything else. It may change the arrays of the module.
        has_aux: whether `fn` returns a pair, of which only the first is differentiated.
        **options: `holomorphic` and `allow_int` of `jax.value_and_grad`.

    Returns:
        A function that returns `((module, value), gradient)`: the changed module, the value, and a module that holds
        gradients in place of parameters, and None in place of all other arrays.

    Raises:
        LiftArgumentError: when it is called, if the first argument is not a module, has no parameter to differentiate
            with respect to, or has one that is not floating-point.
    """
    where = f"value_and_grad({name_of(fn)})"
    check_function(where, fn)

    @bounded(64)
    def lifted(places: Places) -> Callable[..., Any]:
        if not places.trainable:
            raise LiftArgumentError(
                where,
                "the module has no parameter to differentiate with respect to.",
                "Register one, `self.register_parameter(name, array)`, or write `module.unfreeze()`.",
                expected="parameter",
            )
        body = OnScope(fn, places.blueprint)
        return liftcore.value_and_grad(body, has_aux=has_aux, wrt=_Among(places.trainable), **options)

    @functools.wraps(fn)
    @boundary
    def call(module: Any, *args: Any, **kwargs: Any) -> tuple[tuple[Any, Any], Any]:
        changed, (value, gradient), places = run(where, lifted, module, args, kwargs)
        found = liftcore.traverse_util.flatten_dict(gradient)
        of_module = places.blueprint.rest.unflatten([found.get(path) for path in places.blueprint.paths])
        # Replace the functions in pytree modules by None, as in `parameters`.
        return (changed, value), jax.tree.map(lambda leaf: leaf if is_array(leaf) else None, of_module)

    return call


@dataclasses.dataclass(frozen=True)
class _Among:
    """A filter that matches variables by their exact paths."""

    paths: frozenset[Any]

    def __call__(self, path: Any, value: Any) -> bool:
        return tuple(path) in self.paths
