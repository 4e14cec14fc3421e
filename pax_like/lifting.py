"""`lift`: apply any lifted transformation of liftcore to functions that change a module."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import liftcore
from liftcore import Blueprint, Scope
from liftcore.caches import bounded
from liftcore.errors import LiftArgumentError, boundary, call_user, check_function, name_of

from .purity import check_first
from .structure import is_module
from .variables import Places, places_of, write

__all__ = ["OnScope", "lift", "run"]


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
    check_function(where, transformation)
    named = list(_named(where, fns))
    for fn in named:
        _check_free(where, fn)

    @bounded(_KEPT)
    def lifted(places: Places) -> Callable[..., Any]:
        return cast(Callable[..., Any], transformation(*_bodies(fns, places.blueprint), **options))

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


def _named(where: str, fns: Sequence[Any]) -> Iterator[Callable[..., Any]]:
    """Yield the functions, including those in lists."""
    if not fns:
        raise LiftArgumentError(where, "no function was given.", "Write `lift(transformation, fn)`.")
    for one in fns:
        yield from one if isinstance(one, list | tuple) else [one]


def _check_free(where: str, fn: Any) -> None:
    """Check that a function takes the module as an argument, so that it is not bound to one."""
    check_function(where, fn)
    if is_module(fn) or is_module(getattr(fn, "__self__", None)):
        kind = type(fn if is_module(fn) else fn.__self__).__name__
        raise LiftArgumentError(
            where,
            f"expected a function whose first argument is the module, given one that is bound to a {kind}.",
            f"Write `lift(…, {kind}.{getattr(fn, '__name__', '__call__')})(module, …)`.",
        )


def _bodies(fns: Sequence[Any], blueprint: Blueprint) -> list[Any]:
    return [
        [OnScope(fn, blueprint) for fn in one] if isinstance(one, list | tuple) else OnScope(one, blueprint)
        for one in fns
    ]
