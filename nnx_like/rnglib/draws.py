"""`Draws`: the functions of `jax.random` and JAX's initializers, as methods that draw the key."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax

__all__ = ["Draws", "KeylessInitializer", "Sampler"]

Sampler = Callable[..., jax.Array]
"""A function of `jax.random` without its first argument, the key."""

KeylessInitializer = Callable[..., jax.Array]
"""An initializer without its first argument, `init(shape, dtype)`. Each call draws a key."""


class Draws:
    """The methods for `jax.random` and the initializers, on a callable that returns a new key.

    A method named like a function of `jax.random` takes the same arguments without the key. A method named like an
    initializer takes the arguments of the function in `jax.nn.initializers`, and returns a function of shape and dtype.
    `orthogonal`, `normal`, `uniform` and `truncated_normal` are the functions of `jax.random`.

    Example:
        >>> import jax
        >>> import nnx_like as nnx
        >>> rngs = nnx.Rngs(0)
        >>> drawn = rngs.normal((2, 3))
        >>> bool((drawn == jax.random.normal(nnx.Rngs(0)(), (2, 3))).all())
        True
        >>> rngs.lecun_normal()((2, 3)).shape
        (2, 3)
    """

    __slots__ = ()

    ball: Sampler
    bernoulli: Sampler
    beta: Sampler
    binomial: Sampler
    bits: Sampler
    categorical: Sampler
    cauchy: Sampler
    chisquare: Sampler
    choice: Sampler
    dirichlet: Sampler
    double_sided_maxwell: Sampler
    exponential: Sampler
    f: Sampler
    gamma: Sampler
    generalized_normal: Sampler
    geometric: Sampler
    gumbel: Sampler
    laplace: Sampler
    loggamma: Sampler
    logistic: Sampler
    lognormal: Sampler
    maxwell: Sampler
    multinomial: Sampler
    multivariate_normal: Sampler
    normal: Sampler
    orthogonal: Sampler
    pareto: Sampler
    permutation: Sampler
    poisson: Sampler
    rademacher: Sampler
    randint: Sampler
    rayleigh: Sampler
    t: Sampler
    triangular: Sampler
    truncated_normal: Sampler
    uniform: Sampler
    wald: Sampler
    weibull_min: Sampler

    delta_orthogonal: Callable[..., KeylessInitializer]
    glorot_normal: Callable[..., KeylessInitializer]
    glorot_uniform: Callable[..., KeylessInitializer]
    he_normal: Callable[..., KeylessInitializer]
    he_uniform: Callable[..., KeylessInitializer]
    kaiming_normal: Callable[..., KeylessInitializer]
    kaiming_uniform: Callable[..., KeylessInitializer]
    lecun_normal: Callable[..., KeylessInitializer]
    lecun_uniform: Callable[..., KeylessInitializer]
    variance_scaling: Callable[..., KeylessInitializer]
    xavier_normal: Callable[..., KeylessInitializer]
    xavier_uniform: Callable[..., KeylessInitializer]

    def __call__(self) -> jax.Array:
        """Return a new key."""
        raise NotImplementedError


def _sampling(sample: Callable[..., Any]) -> Callable[..., Any]:
    """Turn a function of `jax.random` into a method."""

    @functools.wraps(sample)
    def method(self: Draws, *args: Any, **kwargs: Any) -> Any:
        return sample(self(), *args, **kwargs)

    return _described(method, sample, skipped="key")


def _initializing(make: Callable[..., Any]) -> Callable[..., Any]:
    """Turn an initializer factory into a method; the initializers that it returns need no key."""

    @functools.wraps(make)
    def method(self: Draws, *args: Any, **kwargs: Any) -> KeylessInitializer:
        initializer = make(*args, **kwargs)
        return lambda *shape, **options: initializer(self(), *shape, **options)

    return _described(method, make, skipped=None)


def _described(method: Any, wrapped: Callable[..., Any], skipped: str | None) -> Callable[..., Any]:
    """Set the signature and docstring of a method from the function behind it, without the argument that it draws."""
    signature = inspect.signature(wrapped)
    of_self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    kept = [one for name, one in signature.parameters.items() if name != skipped]
    method.__signature__ = signature.replace(parameters=[of_self, *kept])
    text = inspect.getdoc(wrapped) or ""
    method.__doc__ = "\n".join(line for line in text.splitlines() if not line.startswith("  key:"))
    method.__module__, method.__qualname__ = __name__, f"{Draws.__name__}.{wrapped.__name__}"
    del method.__wrapped__  # otherwise `inspect` would read the signature of the original
    return method


def _fill() -> None:
    for name, kind in Draws.__annotations__.items():
        made = _sampling if kind == "Sampler" else _initializing
        module = jax.random if kind == "Sampler" else jax.nn.initializers
        if hasattr(module, name):  # not all releases of JAX have every function
            setattr(Draws, name, made(getattr(module, name)))


_fill()
