"""`adopt` and `object_in_scope`: objects whose variables are stored in a scope."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from liftcore import Scope
from liftcore.errors import name_of
from liftcore.owners import Style, check_maker

from ..rnglib.streams import Rngs
from ..transforms.uniform import eval_shape
from ..variablelib.variable import Variable
from .opening import Making, Plan, plan_in, run
from .reaching import Reach, Steps
from .variables import to_linen_var

__all__ = ["Adopted", "InScope", "adopt", "object_in_scope"]


@dataclasses.dataclass(frozen=True)
class Adopted:
    """An object whose variables are stored in a scope: each call reads them and writes back those that changed.

    Call it as you would call the object. Methods and parts of the object are attributes: `adopted.encode(x)`,
    `adopted.layers[0](x)`.

    Attributes:
        scope: the scope.
        plan: the static part of the object.
    """

    scope: Scope
    plan: Plan

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the object.

        Args:
            *args: the arguments.
            **kwargs: the keyword arguments.

        Raises:
            ModifyScopeVariableError: if it changes a variable in an immutable collection.
        """
        return run(self.scope, self.plan, _called, (Steps(), *args), kwargs)

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of the object.

        Example:
            >>> import jax, liftcore, nnx_like as nnx
            >>> import jax.numpy as jnp
            >>> def model(scope, x):
            ...     linear = nnx.bridge.adopt(scope.push("linear"), lambda rngs: nnx.Linear(3, 2, rngs=rngs))
            ...     return linear(x), linear.run(lambda linear: linear.kernel.get_value())
            >>> (_, kernel), variables = liftcore.init(model)(jax.random.key(0), jnp.ones(3))
            >>> variables["params"]["linear"]["kernel"] is kernel
            True

        Args:
            fn: called as `fn(object, *args, **kwargs)`. The object exists only during the call.
            *args: its arguments.
            **kwargs: the keyword arguments.

        Raises:
            ModifyScopeVariableError: if it changes a variable in an immutable collection.
        """
        return run(self.scope, self.plan, fn, args, kwargs)

    def __getattr__(self, name: str) -> Reach:
        if name[:1] == "_" or not self.plan.may_have(name):
            raise AttributeError(name, name=name, obj=self)
        return Reach(self._reached, Steps().attribute(name), self)

    def _reached(self, steps: Steps, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return run(self.scope, self.plan, _called, (steps, *args), kwargs)

    def __scopes__(self) -> tuple[Sequence[Scope], Callable[[Sequence[Scope]], Any]]:
        return [self.scope], _OnOther(self.plan)


@dataclasses.dataclass(frozen=True)
class _OnOther:
    """Rebuilds an adopted object on another scope."""

    plan: Plan

    def __call__(self, scopes: Sequence[Scope]) -> Adopted:
        return Adopted(scopes[0], self.plan)


def _called(made: Any, steps: Steps, *args: Any, **kwargs: Any) -> Any:
    return steps(made)(*args, **kwargs)


def adopt(
    scope: Scope,
    make: Callable[..., Any],
    *streams: str,
    metadata_fn: Callable[[Variable[Any]], Any] | None = to_linen_var,
) -> Adopted:
    """Use an object in a model of scopes: its variables become variables of the scope, at their paths.

    The kind of a variable decides its collection: `Param` goes into "params", `BatchStat` into "batch_stats", and a
    kind of your own into the collection that `nnx.register_variable_name` names. An object can be used in functions of
    scopes and in Linen-style modules, under any lift, and in `init`. If its variables exist already, `make` runs only
    to find the structure.

    RNG streams of the object draw their keys from the streams of the scope, new ones in each call. Changes of
    attributes that are not variables are lost after the call; new variables are kept.

    Example:
        >>> import jax, liftcore, linen_like as nn, nnx_like as nnx
        >>> import jax.numpy as jnp
        >>> class Block(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x, _):
        ...         linear = nnx.bridge.adopt(self.scope.push("linear"), lambda rngs: nnx.Linear(3, 3, rngs=rngs))
        ...         return linear(x), None
        >>> blocks = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=4)()
        >>> blocks.init(jax.random.key(0), jnp.ones(3), None)["params"]["linear"]["kernel"].shape
        (4, 3, 3)

    Args:
        scope: a scope for this object alone, such as `scope.push("encoder")`.
        make: called with `nnx.Rngs`; returns the object, or a pytree of objects.
        *streams: the names of its streams. Each gets a key from the stream of that name in the scope. By default, the
            object gets all streams of the scope, and "params". It always gets "default".
        metadata_fn: turns a variable with metadata into the boxed value in the collection; with None, values are not
            boxed.

    Returns:
        An object to call as you would call the original one.

    Raises:
        ScopeVariableNotFoundError: if a variable is missing and cannot be created. The scope may raise a related error.
    """
    check_maker("adopt", make, "rngs")
    return Adopted(scope, plan_in(scope, Making(make, streams, metadata_fn, strict=True)))


@dataclasses.dataclass(frozen=True)
class InScope:
    """A function of a scope that calls an object in it, or one of its methods. Attributes select methods and parts.

    Attributes:
        make: called with `nnx.Rngs`; makes the object.
        streams: the names of the streams that it gets.
        steps: the attributes and items that lead from the object to what is called.
    """

    __style__: ClassVar[Style] = Style("a function of a scope", used="module(scope, x)")

    make: Callable[..., Any]
    streams: tuple[str, ...]
    steps: Steps

    def __post_init__(self) -> None:
        self.__dict__["__name__"] = name_of(self.make)  # lifts use it in paths

    def __call__(self, scope: Scope, *args: Any, **kwargs: Any) -> Any:
        """Call the object.

        Args:
            scope: the scope of its variables.
            *args: the arguments.
            **kwargs: the keyword arguments.
        """
        return adopt(scope, self.make, *self.streams).run(_called, self.steps, *args, **kwargs)

    @functools.cached_property
    def _part(self) -> Any:
        """The part of the object that a call calls, with types in place of its arrays."""
        return self.steps(eval_shape(self.make, Rngs(0)))

    def __getattr__(self, name: str) -> InScope:
        if name[:1] == "_" or not hasattr(self._part, name):
            raise AttributeError(name, name=name, obj=self)
        return InScope(self.make, self.streams, self.steps.attribute(name))

    def __getitem__(self, key: Any) -> InScope:
        return InScope(self.make, self.streams, self.steps.item(key))


def object_in_scope(make: Callable[..., Any], *streams: str) -> InScope:
    """Make a function of a scope that adopts an object with `adopt` and calls it.

    Example:
        >>> import jax, liftcore, nnx_like as nnx
        >>> import jax.numpy as jnp
        >>> linear = nnx.bridge.object_in_scope(lambda rngs: nnx.Linear(3, 2, rngs=rngs))
        >>> columns = liftcore.vmap(linear, in_axes=1, variable_axes={"params": 0}, split_rngs={"params": True})
        >>> y, variables = liftcore.init(columns)(jax.random.key(0), jnp.ones((3, 5)))
        >>> y.shape, variables["params"]["kernel"].shape
        ((5, 2), (5, 3, 2))

    Args:
        make: called with `nnx.Rngs`; returns the object.
        *streams: the names of the streams that it gets; by default all streams of the scope.

    Returns:
        A function `called(scope, *args, **kwargs)`. Its attributes are functions for the methods and parts of the
        object: `object_in_scope(make).encode(scope, x)`.

    Raises:
        LiftArgumentError: if `make` cannot be called.
    """
    check_maker("object_in_scope", make, "rngs", "nnx.bridge.object_in_scope(lambda rngs: module)")
    return InScope(make, streams, Steps())
