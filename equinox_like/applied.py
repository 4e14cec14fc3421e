"""Functions with what they hold as pytrees: `Applied` with variables, `Partial` with arguments; and what to train."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container
from typing import Any, Generic, TypeVar

import jax

import liftcore
from liftcore.calls import boundary
from liftcore.errors import ModifyScopeVariableError
from liftcore.filters import Parameters, WithTag, to_predicate
from liftcore.owners import check_function_of_scope, collections_of
from liftcore.typing import Filter

from .module import Module
from .tree import is_inexact_array

__all__ = ["Applied", "Partial", "trainable"]


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


# --- what to train ----------------------------------------------------------------------------------------------------


def trainable(pytree: Any, variables: Filter = "params") -> Any:
    """Return a pytree of bools: True for each leaf to train.

    The leaves to train are the floating-point arrays that a filter matches: by default all parameters. In an `Applied`,
    a module with kinds or an object, those are the arrays that their own style calls parameters. Running statistics are
    floating-point arrays too, and `filter_grad` and an optimizer would change them. Pass the result as `arg` of
    `filter_grad`, and to `filter` for the optimizer.

    Example:
        >>> import jax, equinox_like as eqx, linen_like as nn
        >>> from liftcore.filters import PathContains
        >>> import jax.numpy as jnp
        >>> x = jnp.ones((4, 2))
        >>> norm = eqx.Applied.init(nn.BatchNorm(use_running_average=False), jax.random.key(0), x)
        >>> chosen = eqx.trainable(norm)
        >>> chosen.variables["params"]["bias"], chosen.variables["batch_stats"]["mean"]
        (True, False)
        >>> def loss(norm):
        ...     y, norm = norm(x, mutable="batch_stats")
        ...     return jnp.sum(y), norm
        >>> gradient, changed = eqx.filter_grad(loss, has_aux=True, arg=chosen)(norm)
        >>> gradient.variables["batch_stats"]["mean"] is None
        True
        >>> eqx.trainable({"w": jnp.ones(2), "b": jnp.ones(2)}, PathContains("w"))
        {'b': False, 'w': True}

    Args:
        pytree: the model, or any pytree with models in it.
        variables: a filter of variables; see `liftcore.filters`. The path of an array is its collection, and the names
            that lead to it in the pytree. Its owner decides the collection: a variable of an `Applied` is in its own,
            and an array of a pytree module in "params".

    Raises:
        InvalidFilterError: if `variables` is not a filter.
        LiftArgumentError: if it matches nothing, unless it is "params", is None, or includes None, as
            `("batch_stats", None)` does.
    """
    predicate, found = to_predicate(variables), Parameters.of(pytree, ("params",))
    nodes = jax.tree.leaves_with_path(pytree, is_leaf=_is_applied)
    applied = {tuple(map(_name, keys)) for keys, node in nodes if _is_applied(node)}
    collections = iter(collections_of(pytree, lambda _: "params"))
    paths = []
    for path, value in zip(found.paths, found.values, strict=True):  # a box is one variable of one collection
        owned = [next(collections) for _ in jax.tree.leaves(value)]
        paths.append(_path(path, owned[0] if owned else None, applied))
    chosen = [
        path is not None and bool(predicate(path, value)) for path, value in zip(paths, found.values, strict=True)
    ]
    if not any(chosen) and predicate != WithTag("params"):  # a layer need not have parameters
        found._replace(paths=[path for path in paths if path is not None]).check("trainable", predicate)

    def of_leaves(value: Any, chosen: bool) -> Any:
        return jax.tree.map(lambda leaf: chosen and is_inexact_array(leaf), value)

    return found.like(list(map(of_leaves, found.values, chosen)))


def _is_applied(node: Any) -> bool:
    return isinstance(node, Applied)


def _path(path: tuple[str, ...], collection: str | None, applied: Container[tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the path that begins with the collection, or None for a leaf that is not a variable.

    In an `Applied`, the names "variables" and that of the collection are left out.
    """
    names = path[1:]
    place = next((names[:end] for end in range(len(names)) if names[:end] in applied), None)
    if collection is None:
        return None
    return (collection, *names) if place is None else (collection, *place, *names[len(place) + 2 :])


def _name(key: Any) -> str:
    return jax.tree_util.keystr((key,), simple=True)
