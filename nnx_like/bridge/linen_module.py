"""`ToLinen`: an object as a Linen-style module."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import linen_like as nn
from liftcore import FrozenDict, freeze
from liftcore.errors import Expected, LiftArgumentError, shown
from liftcore.owners import call_maker, check_maker

from ..objects.pytree import Pytree
from ..variablelib.variable import Variable
from .adopting import Adopted, plan_in
from .reaching import Reach, Steps
from .variables import to_linen_var

__all__ = ["ToLinen", "to_linen"]


@dataclasses.dataclass(frozen=True)
class _Maker:
    """Makes the object from `Rngs`."""

    cls: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    skip_rng: bool

    def __call__(self, rngs: Any) -> Any:
        given = {} if self.skip_rng or not _takes_rngs(self.cls) else {"rngs": rngs}
        return call_maker("ToLinen", self.cls, "its `args` and `kwargs`", *self.args, **given, **self.kwargs)


def _takes_rngs(cls: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(one.name == "rngs" or one.kind is one.VAR_KEYWORD for one in parameters)


class ToLinen(nn.Module):
    """An object as a Linen-style module: `init` creates its variables, each in the collection of its kind.

    Use it in other modules and under lifts, like any module. The methods and parts of the object are methods and
    parts of the module: `module.attend(x)` in a model, or `apply(variables, x, method="attend")`. `init` keeps what the
    first call writes. If a collection is immutable in an `apply`, the object's writes to its variables are dropped.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import linen_like as nn, nnx_like as nnx
        >>> ensemble = nn.vmap(nnx.bridge.ToLinen, variable_axes={"params": 0}, split_rngs={"params": True})
        >>> model = ensemble(nnx.Linear, (3, 4))
        >>> y, variables = model.init_with_output(jax.random.key(0), jnp.ones((5, 3)))
        >>> y.shape, variables["params"]["kernel"].shape
        ((5, 4), (5, 3, 4))

    Attributes:
        nnx_class: the class of the object, or a function that makes it. It gets `rngs=` if it has this parameter.
        args: its arguments.
        kwargs: the keyword arguments.
        skip_rng: whether not to pass `rngs=`, even if it has this parameter.
        metadata_fn: turns a variable with metadata into the boxed value in the collection; with None, values are not
            boxed.
    """

    makes_objects: ClassVar[bool] = True
    nnx_class: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = FrozenDict({})
    skip_rng: bool = False
    metadata_fn: Callable[[Variable[Any]], Any] | None = to_linen_var

    def __call__(self, *args: Any, nnx_method: Callable[..., Any] | str | None = None, **kwargs: Any) -> Any:
        """Call the object.

        Args:
            *args: the arguments.
            nnx_method: another method, by name or as a function of the object.
            **kwargs: the arguments by name.

        Raises:
            StructureError: if the object's own method does nothing but change an attribute that is not a variable, such
                as the mode.
        """
        adopted = self._adopted()
        if callable(nnx_method) and not isinstance(nnx_method, Steps):
            return adopted.run(nnx_method, *args, **kwargs)
        steps = Steps().attribute(nnx_method) if isinstance(nnx_method, str) else nnx_method or Steps()
        return adopted._reached(steps, args, kwargs)

    def _adopted(self) -> Adopted:
        self._check_arguments()
        make = _Maker(self.nnx_class, tuple(self.args), freeze(dict(self.kwargs)), self.skip_rng)
        return Adopted(self.scope, plan_in(self.scope, make, (), self.metadata_fn, strict=False))

    def _check_arguments(self) -> None:
        check_maker("ToLinen", self.nnx_class, "rngs", "nnx.bridge.to_linen(lambda rngs: module)")
        if not isinstance(self.args, Sequence) or not isinstance(self.kwargs, Mapping):
            name = getattr(self.nnx_class, "__name__", "nnx_class")
            where = f"ToLinen({name})"
            given = f"{shown(self.args)} and {shown(self.kwargs)}"
            what = Expected("a tuple as `args` and a dict as `kwargs`", given, words=given)
            fix = f"Write `ToLinen({name}, args=(2, 2))`, or `to_linen({name}, 2, 2)`."
            raise LiftArgumentError(where, what, fix, option="kwargs" if isinstance(self.args, Sequence) else "args")

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name[:1] == "_" or "nnx_class" not in vars(self):
                raise
            defined = inspect.getattr_static(self.nnx_class, name, None)
            if inspect.isfunction(defined):
                return types.MethodType(_method(name), self)
            if self.scope is None or name not in self._adopted().run(lambda made: list(vars(made))):
                raise
        return self._part(name)

    def _part(self, name: str) -> Any:
        """Return a part of the object: something callable runs through this module; a variable gives its value."""
        value = self._adopted().run(getattr, name)
        if isinstance(value, Variable):
            return value.get_value()
        if not callable(value) and not isinstance(value, (Pytree, list, tuple, dict)):
            return value

        def reached(steps: Steps, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return self(*args, nnx_method=steps, **kwargs)

        return Reach(reached, Steps().attribute(name), self)


def _method(name: str) -> Callable[..., Any]:
    def method(module: ToLinen, *args: Any, **kwargs: Any) -> Any:
        return module(*args, nnx_method=name, **kwargs)

    method.__name__ = name
    return method


def to_linen(
    nnx_class: Callable[..., Any],
    *args: Any,
    metadata_fn: Callable[[Variable[Any]], Any] | None = to_linen_var,
    name: str | None = None,
    skip_rng: bool = False,
    **kwargs: Any,
) -> ToLinen:
    """Make a `ToLinen` from the class of an object and its arguments.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> model = nnx.bridge.to_linen(nnx.Linear, 3, out_features=4)
        >>> variables = model.init(jax.random.key(0), jnp.ones(3))
        >>> variables["params"]["kernel"].shape, model.apply(variables, jnp.ones(3)).shape
        ((3, 4), (4,))

    Args:
        nnx_class: the class of the object, or a function that makes it. It gets `rngs=` if it has this parameter.
        *args: its arguments.
        metadata_fn: turns a variable with metadata into the boxed value in the collection; with None, values are not
            boxed.
        name: the name of the module in its parent module.
        skip_rng: whether not to pass `rngs=`, even if it has this parameter.
        **kwargs: the arguments by name.
    """
    return ToLinen(nnx_class, args, freeze(kwargs), skip_rng, metadata_fn, name=name)
