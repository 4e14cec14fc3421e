"""`Partial`: a function with some of its arguments, as a pytree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from liftcore.errors import boundary

from .module import Module

__all__ = ["Partial"]


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
