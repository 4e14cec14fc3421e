"""`transformation`: makes new lifted transformations of module classes, methods and functions of a module."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import liftcore
from liftcore import Captured
from liftcore.errors import check_function, name_of
from liftcore.typing import Filter

from ..lifting import lift_with

__all__ = ["transformation"]


def transformation(
    transform: Callable[..., Any],
    in_variable_filters: Sequence[Filter],
    out_variable_filters: Sequence[Filter | Captured],
    rng_filters: Sequence[Filter],
    name: str | None = None,
    *,
    prefix: str = "",
    **options: Any,
) -> Callable[..., Any]:
    """Make a new lifted transformation; `liftcore.transformation` for module classes, methods and functions.

    Example:
        >>> import jax, linen_like as nn
        >>> def without_gradient(body, variables, rngs, *args):
        ...     return body(jax.lax.stop_gradient(variables), rngs, *args)
        >>> frozen = nn.transformation(without_gradient, [True], [True, nn.Captured()], [True], name="frozen")
        >>> model, x = nn.Sequential([frozen(nn.Dense)(3), nn.Dense(1)]), jax.numpy.ones((2, 4))
        >>> variables = model.init(jax.random.key(0), x)
        >>> grads = jax.grad(lambda variables: model.apply(variables, x).sum())(variables)["params"]
        >>> bool(grads["layers_0"]["kernel"].any()), bool(grads["layers_1"]["kernel"].any())
        (False, True)

    Args:
        transform: called as `transform(body, variable_groups, rng_groups, *args, **kwargs)`, where `body` is the method
            or function as a pure function of the groups, and the arguments are those of the call without the module;
            returns the result and the output groups. See `liftcore.transformation`.
        in_variable_filters: the filters of the input groups; variables that no filter matches are not lifted.
        out_variable_filters: the filters of the output groups. With `Captured()` as the last one, sown values that no
            other filter matches form a last group.
        rng_filters: the filters of the groups of RNG streams.
        name: the name of the transformation, in paths, in the names of lifted classes and in errors; by default the
            name of `transform`.
        prefix: the start of automatic names of submodules of a lifted class, before the name of the class; by default
            empty, so that the names are those of the class.
        **options: `advice`, `prepare` and `shown` of `liftcore.transformation`.

    Returns:
        `lifted(target, *, methods=None)`, where the target is a Module class, a `functools.partial` of one, or a
        function whose first argument is a module. Use it like `nn.vmap`, also as a decorator of a method.
        Transformations made with equal arguments make the same class from a class.

    Raises:
        LiftArgumentError: if `transform` is not callable.
    """
    check_function("nn.transformation", transform)
    name = name or name_of(transform)
    groups = tuple(in_variable_filters), tuple(out_variable_filters), tuple(rng_filters)
    lift = functools.partial(_lift, transform, groups, name, tuple(options.items()))
    return functools.partial(lift_with, lift, name=name, prefix=prefix)


def _lift(transform: Any, groups: tuple[Any, Any, Any], name: str, options: Any, fn: Any) -> Callable[..., Any]:
    return liftcore.transformation(transform, *groups, name, **dict(options))(fn)
