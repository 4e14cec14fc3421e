"""Functions with what they hold as pytrees: `Applied` with variables, `Partial` with arguments."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax

import liftcore
from liftcore.calls import boundary
from liftcore.errors import ModifyScopeVariableError
from liftcore.owners import check_function_of_scope, collections_of
from liftcore.typing import Filter

from .module import Module

__all__ = ["Applied", "Partial"]


class Applied(Module):
    """A function of a scope, or a module with a method `apply`, as a module that is a pytree.

    Its variables are leaves of the pytree. `filter_grad` differentiates with respect to all floating-point arrays,
    including running statistics. To train only the parameters, use `trainable`.

    Example:
        >>> import jax, equinox_like as eqx, linen_like as nn
        >>> import jax.numpy as jnp
        >>> layer = Applied.init(nn.Dense(2), jax.random.key(0), jnp.ones((1, 3)))
        >>> layer(jnp.ones((1, 3))).shape
        (1, 2)
        >>> eqx.filter_grad(lambda layer, x: layer(x).sum())(layer, jnp.ones((1, 3))).variables["params"]["bias"]
        Array([1., 1.], dtype=float32)

    Attributes:
        fn: the function, called as `fn(scope, *args, **kwargs)`, or the module.
        variables: `{collection: {name: … array}}`. To change one, use `tree_at`.
    """

    fn: Any
    variables: Any

    def __check_init__(self) -> None:
        check_function_of_scope("Applied", self.fn, "a pytree module")

    def __collections__(self) -> list[str | None]:
        below = [[name] * len(jax.tree.leaves(self.variables[name])) for name in sorted(self.variables)]
        return [*collections_of(self.fn, lambda leaf: None), *itertools.chain(*below)]

    @classmethod
    @boundary
    def init(cls, fn: Any, rngs: Any, *args: Any, **kwargs: Any) -> Applied:
        """Create an `Applied` with new variables.

        Args:
            fn: the function or the module.
            rngs: a key for each RNG stream, or one key for the stream "params".
            *args: the positional arguments of a first call.
            **kwargs: the keyword arguments of this call.
        """
        check_function_of_scope("Applied.init", fn, "a pytree module")
        if hasattr(type(fn), "init"):
            return cls(fn, fn.init(rngs, *args, **kwargs))
        return cls(fn, liftcore.init(fn)(rngs, *args, **kwargs)[1])

    @boundary
    def __call__(self, /, *args: Any, rngs: Any = None, mutable: Filter = False, **kwargs: Any) -> Any:
        """Call the function or the module.

        Args:
            *args: the positional arguments.
            rngs: a key for each RNG stream that the function draws from.
            mutable: a filter of the variables that the call may change.
            **kwargs: the keyword arguments.

        Returns:
            The result. With `mutable`, the result and an `Applied` with the new variables.
        """
        try:
            found = self._applied(args, {"rngs": rngs, **kwargs}, mutable)
        except ModifyScopeVariableError as error:
            error.add_note('An Applied takes `mutable=` in its call, `y, model = model(x, mutable="batch_stats")`.')
            raise
        if mutable is False:
            return found
        result, changed = found
        return result, Applied(self.fn, {**self.variables, **changed})

    def _applied(self, args: tuple[Any, ...], kwargs: dict[str, Any], mutable: Filter) -> Any:
        if hasattr(type(self.fn), "apply"):
            return self.fn.apply(self.variables, *args, mutable=mutable, **kwargs)
        return liftcore.apply(self.fn, mutable=mutable)(self.variables, *args, **kwargs)


R = TypeVar("R")


class Partial(Module, Generic[R]):
    """A function with some of its arguments, like `functools.partial`, as a module.

    The function is a child of the pytree too, unlike that of `jax.tree_util.Partial`: if it is a module, its arrays are
    leaves.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> scaled = eqx.Partial(jnp.multiply, jnp.arange(3.0))
        >>> scaled(2)
        Array([0., 2., 4.], dtype=float32)
        >>> eqx.filter_grad(lambda fn: fn(2).sum())(scaled).args
        (Array([2., 2., 2.], dtype=float32),)

    Attributes:
        func: the function, or any callable pytree.
        args: its first positional arguments.
        keywords: its keyword arguments.
    """

    func: Callable[..., R]
    args: tuple[Any, ...]
    keywords: dict[str, Any]

    def __init__(self, func: Callable[..., R], /, *args: Any, **keywords: Any) -> None:
        """Create a partial function.

        Args:
            func: the function, or any callable pytree.
            *args: its first positional arguments.
            **keywords: its keyword arguments.
        """
        self.func, self.args, self.keywords = func, args, keywords

    @boundary
    def __call__(self, /, *args: Any, **kwargs: Any) -> R:
        """Call the function.

        Args:
            *args: the positional arguments after the given ones.
            **kwargs: keyword arguments, which replace given ones of the same name.
        """
        return self.func(*self.args, *args, **{**self.keywords, **kwargs})
