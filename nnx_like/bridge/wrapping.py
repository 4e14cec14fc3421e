"""`ToNNX`: wraps a Linen-style module, or a function of a scope, in an object."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import jax

import liftcore
import linen_like as nn
from liftcore.calls import boundary
from liftcore.errors import (
    LiftArgumentError,
    ScopeCollectionNotFound,
    ScopeParamNotFoundError,
    ScopeVariableNotFoundError,
    check_function,
)
from liftcore.filters import leaves_of
from liftcore.owners import check_function_of_scope

from ..objects.module import Module
from ..objects.pytree import Pytree
from ..rnglib.streams import Rngs
from ..variablelib.variable import Variable
from .reaching import Reach, Steps, initializing, is_initializing
from .streams import forked, keys_of, of_abstract_key
from .variables import hold, nnx_attrs_to_linen_vars, to_nnx_var

__all__ = ["FromLinen", "LinenPart", "ToNNX", "Wrapped", "is_linen", "kind_of", "lazy_init", "part_of"]

# --- what a module has ------------------------------------------------------------------------------------------------


def is_linen(value: Any) -> bool:
    """Return whether a value is a Linen-style module."""
    return isinstance(value, nn.Module)


def kind_of(module: nn.Module, name: str) -> str | None:
    """Return the kind of attribute that a module has under a name.

    Args:
        module: the module, unbound.
        name: the name of an attribute.

    Returns:
        `"method"` for a method, a submodule, or a list or dict of these; `"field"` for a field; `"value"` for anything
        else that `setup` makes; None if there is no such attribute, or if all modules have it, such as `apply`.
    """
    if hasattr(nn.Module, name):
        return None
    defined = inspect.getattr_static(type(module), name, None)
    if inspect.isfunction(defined) or isinstance(defined, (staticmethod, classmethod)):
        return "method"
    if name in type(module).__dataclass_fields__:
        return "method" if _holds_module(getattr(module, name)) else "field"

    def kind(bound: Any) -> str | None:
        if not hasattr(bound, name):
            return None
        value = getattr(bound, name)
        return "method" if _holds_module(value) or callable(value) else "value"

    found: str | None = _during_setup(module, kind)
    return found


def _holds_module(value: Any) -> bool:
    return any(is_linen(leaf) for leaf in jax.tree.leaves(value, is_leaf=is_linen))


def part_of(module: Any, path: Sequence[str]) -> Any:
    """Return the unbound submodule at a path: one that `setup` makes or that is in a field.

    Args:
        module: the module, unbound.
        path: names of submodules.

    Raises:
        LiftArgumentError: if there is no such submodule.
    """
    return _during_setup(module, lambda bound: _submodule(bound, path).unbind()[0]) if path else module


def _submodule(bound: nn.Module, path: Sequence[str]) -> nn.Module:
    for name in path:
        dir(bound)  # runs `setup`
        held = [value for key, value in vars(bound).items() if key[:1] != "_" and key != "scope"]
        found = [leaf for leaf in jax.tree.leaves(held, is_leaf=is_linen) if is_linen(leaf) and leaf.name == name]
        if not found:
            raise LiftArgumentError(
                f"{type(bound).__name__}.{name}",
                "it cannot be called on its own: `setup` makes no submodule of this name, only a method does.",
                "Make it in `setup`, or call a method of the module that uses it.",
                given=name,
            )
        bound = found[0]
    return bound


def _during_setup(module: nn.Module, ask: Callable[[Any], Any]) -> Any:
    """Return the result of a function that inspects a module bound to abstract variables (shapes only)."""

    def bound(key: Any) -> Any:
        scope = liftcore.bind({}, {"params": key}, mutable=True, initializing=True)
        return ask(module.clone(parent=scope, _deep_clone=True))

    return of_abstract_key(bound)


# --- wrapped modules --------------------------------------------------------------------------------------------------


_INITIAL = liftcore.DenyList("intermediates")
_STATE = liftcore.DenyList(["intermediates", "params"])
"""The collections that a call may change by default. Parameters are given, so lifts need not look for new ones."""

_MISSING = (ScopeCollectionNotFound, ScopeParamNotFoundError, ScopeVariableNotFoundError)

_NONE: Any = object()

_OWN = "to_nnx__"
"""The prefix of the wrapper's own attributes; all other attributes belong to the wrapped module."""


class Wrapped(Module):
    """An object around a module: its variables are attributes, and its methods and parts are found by their names.

    Attributes:
        to_nnx__module: the unbound module, or the function of a scope.
        to_nnx__path: the names that lead from the module to this part.
        to_nnx__rngs: the streams that keys are drawn from, or None.
    """

    to_nnx__module: Any
    to_nnx__path: tuple[str, ...] = ()
    to_nnx__rngs: Rngs | None = None

    @boundary
    def __call__(
        self,
        *args: Any,
        rngs: Any = None,
        method: Callable[..., Any] | str | None = None,
        mutable: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Call the wrapped module, and update the variables of the object.

        Args:
            *args: the arguments.
            rngs: `Rngs`, a key for "params" or a mapping from names to keys; used instead of the streams of the object.
            method: another method of the module, by name or as a function; `wrapped.encode(x)` is equivalent.
            mutable: a filter for the collections that may change; by default all but "params" and "intermediates".
            **kwargs: the arguments by name.

        Returns:
            The result. Missing variables are created first, if there are streams to draw keys from.
        """
        return self._run(_steps(method), args, kwargs, rngs, mutable)

    @boundary
    def lazy_init(self, *args: Any, rngs: Any = None, method: Any = None, **kwargs: Any) -> Self:
        """Create the variables before the first call, without computing the result.

        Args:
            *args: the arguments of a call; arrays may be `jax.ShapeDtypeStruct`.
            rngs: see `__call__`.
            method: see `__call__`.
            **kwargs: the arguments by name.

        Returns:
            The object itself.
        """
        self._initialize(_steps(method), args, kwargs, self._keys(rngs))
        return self

    def __getattr__(self, name: str) -> Any:
        module = vars(self).get("to_nnx__module")
        if name[:1] == "_" or name.startswith(_OWN) or not is_linen(module):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")
        module = part_of(module, self.to_nnx__path)
        kind = kind_of(module, name)
        if kind == "method":
            return Reach(self._reached, Steps().attribute(name), self)
        if kind == "field" and not self.to_nnx__path:
            return getattr(module, name)
        if kind == "value":
            return self._run(lambda bound: functools.partial(getattr, bound, name), (), {})
        raise AttributeError(f"{type(module).__name__} has no method, submodule or variable {name!r}.")

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and not name.startswith(_OWN) and name in vars(self)

    def to_nnx__part(self, name: str) -> LinenPart:
        """Return the part that holds the variables below a name."""
        return LinenPart(self.to_nnx__module, (*self.to_nnx__path, name))

    def _reached(self, steps: Steps, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        options = {name: kwargs.pop(name) for name in ("rngs", "mutable") if name in kwargs}
        return self._run(steps, args, kwargs, **options)

    def _run(
        self, steps: Callable[[Any], Any], args: tuple[Any, ...], kwargs: Any, rngs: Any = None, mutable: Any = None
    ) -> Any:
        """Call the part at `steps` with the variables. Creates those that are missing."""
        keys, call = self._keys(rngs), functools.partial(self._applied, steps, args, kwargs)
        initial, state = (_INITIAL, _STATE) if mutable is None else (mutable, mutable)
        if is_initializing():
            return call(keys, initial)
        if "params" not in keys:
            try:
                return call(keys, state)
            except _MISSING as error:
                fix = "Give the object streams, `ToNNX(module, rngs=nnx.Rngs(0))`, or pass the call `rngs=nnx.Rngs(0)`."
                error.reword(fix=fix)
                raise
        has_some = bool(nnx_attrs_to_linen_vars(self))
        # A call that may create variables does so as it runs. If the caller restricts what may change, new variables
        # must not change beyond that either, so they are created first.
        for filter in [*[_STATE] * has_some, _INITIAL] if mutable is None else [mutable] * has_some:
            with contextlib.suppress(*_MISSING):
                return call(keys, filter)
        self._initialize(steps, args, kwargs, keys)
        return call(self._keys(rngs), state)

    def _applied(
        self, steps: Callable[[Any], Any], args: Any, kwargs: Any, keys: Mapping[str, Any], mutable: Any
    ) -> Any:
        variables = nnx_attrs_to_linen_vars(self)
        with liftcore.bind(variables, keys, mutable, initializing=bool(is_initializing())).temporary() as scope:
            result = self._called(scope, steps, args, kwargs)
            changed = scope.mutable_variables()
        known = dict(leaves_of(variables))
        self._take([(place, value) for place, value in leaves_of(changed) if known.get(place, _NONE) is not value])
        return result

    def _initialize(
        self, steps: Callable[[Any], Any], args: tuple[Any, ...], kwargs: Any, keys: Mapping[str, Any]
    ) -> None:
        """Create the missing variables; compute nothing else."""

        def call(scope: liftcore.Scope, *args: Any, **kwargs: Any) -> Any:
            return self._called(scope, steps, args, kwargs)

        made = liftcore.lazy_init(call, _INITIAL)(keys, *args, **kwargs)
        known = dict(leaves_of(nnx_attrs_to_linen_vars(self)))
        self._take([pair for pair in leaves_of(made) if pair[0] not in known])

    def _called(self, scope: liftcore.Scope, steps: Callable[[Any], Any], args: Any, kwargs: Any) -> Any:
        module: Any = self.to_nnx__module
        with initializing(scope.is_initializing()), nn.no_parent():
            if is_linen(module):
                fields = {} if self.to_nnx__path else self._fields()
                bound = part_of(module, self.to_nnx__path).clone(parent=scope, _deep_clone=True, **fields)
                return steps(bound)(*args, **kwargs)
            if self.to_nnx__path:
                raise LiftArgumentError(
                    ".".join(self.to_nnx__path),
                    "the wrapped value is a function of a scope, so this name leads to variables and cannot be called.",
                    "Call the object itself, or wrap a Linen-style module, which has submodules.",
                    given=".".join(self.to_nnx__path),
                )
            return steps(functools.partial(module, scope))(*args, **kwargs)

    def _fields(self) -> dict[str, Any]:
        """Return the fields of the module that were set on the object, such as `deterministic`."""
        names = type(self.to_nnx__module).__dataclass_fields__.keys() & vars(self).keys()
        return {name: vars(self)[name] for name in names if not isinstance(vars(self)[name], (Variable, Pytree))}

    def _take(self, values: Iterable[tuple[tuple[str, ...], Any]]) -> None:
        """Store values of collections as variables of the object."""
        for place, value in values:
            hold(self, place[1:], to_nnx_var(place[0], value))

    def _keys(self, rngs: Any) -> dict[str, Any]:
        """Draw a key from each stream."""
        source = self.to_nnx__rngs if rngs is None else rngs
        if source is None:
            return {}
        if isinstance(source, Rngs):
            return keys_of(source)
        return dict(source) if isinstance(source, Mapping) else {"params": source}


class LinenPart(Wrapped):
    """The variables below a name of a wrapped module. Call it to call that submodule; pass keys as `rngs=`.

    Args:
        module: the unbound module, or the function of a scope.
        path: the names that lead from the module to this part.
    """

    def __init__(self, module: Any, path: tuple[str, ...]) -> None:
        self.to_nnx__module, self.to_nnx__path = module, path


class ToNNX(Wrapped):
    """Wraps a Linen-style module, or a function of a scope, in an object: variables are attributes at their paths.

    The collection of a variable decides its kind: variables of "params" are `Param`. A call changes the variables in
    place. All methods and submodules of the module are attributes. To create the variables, make a call, call
    `lazy_init`, or pass the arguments of a call here. Fields of the module, such as `deterministic`,
    can be set on the object; fields of its submodules cannot.

    Example:
        >>> import jax.numpy as jnp
        >>> import linen_like as nn, nnx_like as nnx
        >>> class AutoEncoder(nn.Module):
        ...     def setup(self):
        ...         self.encoder, self.decoder = nn.Dense(2), nn.Dense(4)
        ...     def encode(self, x):
        ...         return self.encoder(x)
        ...     def __call__(self, x):
        ...         return self.decoder(self.encode(x))
        >>> model = nnx.bridge.ToNNX(AutoEncoder(), rngs=nnx.Rngs(0))
        >>> model(jnp.ones((3, 4))).shape, model.encode(jnp.ones((3, 4))).shape
        ((3, 4), (3, 2))
        >>> model.encoder.kernel.shape, model.encoder(jnp.ones((3, 4))).shape
        ((4, 2), (3, 2))

    Args:
        module: the module, or a function that is called as `fn(scope, *args)`. A bound module also gives its variables.
        *args: the arguments of a call, to create the variables at once; see `lazy_init`. The first may be `Rngs`.
        rngs: the streams; the object forks them and keeps the forks. Each call draws a key from each stream; if there
            is no stream "params", "default" is used. Without `rngs`, pass keys to each call.
        variables: the variables, if they exist already: `{collection: {name: … value}}`.
        **kwargs: keyword arguments of a call.

    Raises:
        LiftArgumentError: if two variables of different collections have the same path.
    """

    def __init__(
        self,
        module: Any,
        *args: Any,
        rngs: Rngs | None = None,
        variables: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        check_function_of_scope("ToNNX", module, "an object")
        if rngs is None and args and isinstance(args[0], Rngs):
            rngs, *args = args  # type: ignore[assignment]
        if is_linen(module) and module.scope is not None:
            module, held = module.unbind()
            variables = held if variables is None else variables
        self.to_nnx__module = module
        if rngs is not None:
            self.to_nnx__rngs = forked(rngs)
        self._take(leaves_of(variables or {}))
        if args or kwargs:
            self.lazy_init(*args, **kwargs)


FromLinen = ToNNX


@boundary
def lazy_init(fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an object, or one of its methods, to create the variables of all modules that are wrapped in it.

    A wrapped module creates its variables at its first call anyway. This function creates them earlier, as `init`
    would.

    Example:
        >>> import jax.numpy as jnp
        >>> import linen_like as nn, nnx_like as nnx
        >>> model = nnx.Sequential(nnx.bridge.ToNNX(nn.Dense(3), rngs=nnx.Rngs(0)), nnx.relu)
        >>> nnx.bridge.lazy_init(model, jnp.ones(2)).layers[0].kernel.shape
        (2, 3)

    Args:
        fn: the object, or a method of it.
        *args: the arguments of a call.
        **kwargs: the keyword arguments.

    Returns:
        The object.
    """
    check_function("lazy_init", fn)
    if isinstance(fn, Wrapped):
        return fn.lazy_init(*args, **kwargs)
    with initializing(True):
        fn(*args, **kwargs)
    return getattr(fn, "__self__", fn)


def _steps(method: Callable[..., Any] | str | None) -> Callable[[Any], Any]:
    """Return how to get from a bound module to a method; one that was given as a function takes the module first."""
    if method is None:
        return Steps()
    if isinstance(method, str):
        return Steps().attribute(method)
    return functools.partial(functools.partial, getattr(method, "__func__", method))
