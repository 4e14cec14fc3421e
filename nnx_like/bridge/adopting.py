"""`adopt` and `object_in_scope`: objects whose variables are those of a scope."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from liftcore import Scope
from liftcore.errors import check_function, name_of

from ..variablelib.variable import Variable
from .opening import Making, Plan, plan_in, run
from .reaching import Reach, Steps
from .variables import to_linen_var

__all__ = ["Adopted", "InScope", "adopt", "object_in_scope"]


@dataclasses.dataclass(frozen=True)
class Adopted:
    """An object whose variables are those of a scope: read before each call, and written after it where they changed.

    It is called as the object is. Methods and parts of the object are attributes: `adopted.encode(x)`,
    `adopted.layers[0](x)`.

    Attributes:
        scope: the scope.
        plan: the object without its values.
    """

    scope: Scope
    plan: Plan

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the object.

        Args:
            *args: the arguments.
            **kwargs: those by name.

        Raises:
            ModifyScopeVariableError: where it changes a variable whose collection is immutable.
        """
        return run(self.scope, self.plan, _called, (Steps(), *args), kwargs)

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function of the object.

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
            fn: called as `fn(object, *args, **kwargs)`. The object ends with the call.
            *args: its arguments.
            **kwargs: those by name.

        Raises:
            ModifyScopeVariableError: where it changes a variable whose collection is immutable.
        """
        return run(self.scope, self.plan, fn, args, kwargs)

    def __getattr__(self, name: str) -> Reach:
        if name[:1] == "_":
            raise AttributeError(name)
        return Reach(self._reached, Steps().attribute(name), self)

    def _reached(self, steps: Steps, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return run(self.scope, self.plan, _called, (steps, *args), kwargs)

    def __scopes__(self) -> tuple[Sequence[Scope], Callable[[Sequence[Scope]], Any]]:
        return [self.scope], _OnOther(self.plan)


@dataclasses.dataclass(frozen=True)
class _OnOther:
    """Makes an adopted object on another scope."""

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
    """An object as a part of a model of scopes: its variables are variables of the scope, at their paths.

    The collection of a variable is named after its kind: `Param` is in "params", `BatchStat` in "batch_stats", a kind
    of your own under the name that `nnx.register_variable_name` gave it. So an object stands in functions of scopes and
    in Linen-style modules, under any lift, in `init` too. Where its variables exist, `make` is run for the structure
    alone.

    Random streams of the object have keys that are drawn from the streams of the scope, anew for each call. What a call
    changes of attributes that are no variables ends with the call; new variables are kept.

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
        scope: a scope of its own, such as `scope.push("encoder")`.
        make: called with `nnx.Rngs`; returns the object, or a pytree of objects.
        *streams: the names of the streams that it gets, each with a key of the stream of the scope with this name.
            Without, it gets all streams of the scope, and "params". There is a "default" in any case.
        metadata_fn: makes the value that stands in a collection, with its box, of a variable that has metadata; None
            leaves values without boxes.

    Returns:
        What is called as the object is.

    Raises:
        ScopeVariableNotFoundError: where a variable is missing and may not be made, or another error that says so.
    """
    check_function("adopt", make)
    return Adopted(scope, plan_in(scope, Making(make, streams, metadata_fn, strict=True)))


@dataclasses.dataclass(frozen=True)
class InScope:
    """A function of a scope that calls an object in it, or a method of that; attributes lead to methods and parts.

    Attributes:
        make: makes the object of `Rngs`.
        streams: the names of the streams that it gets.
        steps: what leads from the object to what is called.
    """

    make: Callable[..., Any]
    streams: tuple[str, ...]
    steps: Steps

    def __post_init__(self) -> None:
        self.__dict__["__name__"] = name_of(self.make)  # lifts call it so

    def __call__(self, scope: Scope, *args: Any, **kwargs: Any) -> Any:
        """Calls the object.

        Args:
            scope: the scope of its variables.
            *args: the arguments.
            **kwargs: those by name.
        """
        return adopt(scope, self.make, *self.streams).run(_called, self.steps, *args, **kwargs)

    def __getattr__(self, name: str) -> InScope:
        if name[:1] == "_":
            raise AttributeError(name)
        return InScope(self.make, self.streams, self.steps.attribute(name))

    def __getitem__(self, key: Any) -> InScope:
        return InScope(self.make, self.streams, self.steps.item(key))


def object_in_scope(make: Callable[..., Any], *streams: str) -> InScope:
    """A function of a scope that calls an object whose variables are those of the scope: `adopt`, and a call.

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
        *streams: the names of the streams that it gets; without, all that the scope has.

    Returns:
        `called(scope, *args, **kwargs)`. Its attributes are such functions of methods and parts of the object:
        `object_in_scope(make).encode(scope, x)`.

    Raises:
        LiftArgumentError: where `make` cannot be called.
    """
    check_function("object_in_scope", make)
    return InScope(make, streams, Steps())
