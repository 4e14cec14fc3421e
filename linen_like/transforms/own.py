"""`transformation`: lifted transformations of a user's own, for module classes, methods and functions of a module."""

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
    """`liftcore.transformation` for module classes, methods and functions of a module: a new lifted transformation.

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
        in_variable_filters: the filters of the groups that go in; what none of them takes is not lifted.
        out_variable_filters: the filters of the groups that come out. With a last `Captured()`, sown values that no
            other filter takes come out in a last group.
        rng_filters: the filters of the groups of RNG streams.
        name: that of the transformation, in paths, in the names of lifted classes and in the text of errors; by default
            that of `transform`.
        prefix: what the automatic names of submodules of a lifted class begin with, before that of the class itself; by
            default nothing, so that they have the names of the class.
        **options: `advice`, `prepare` and `shown` of `liftcore.transformation`.

    Returns:
        `lifted(target, *, methods=None)`, where the target is a Module class, a `functools.partial` of one, or a
        function whose first argument is a module; used as `nn.vmap` is, above a method too. Transformations that were
        made with equal arguments make the same class of a class.

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
