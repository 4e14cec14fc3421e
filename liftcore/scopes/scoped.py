"""Values that hold scopes: such a value lists its scopes, and can be rebuilt on other scopes.

A transformation of arbitrary Python objects needs to know no more about a bound module or a variable among its
arguments: it lifts the scopes, and rebuilds the value inside. The values of this library are here too: a `Variable`,
which is a handle to one named value of a scope, and a `Child`, which is a function with a scope of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax

from .. import meta
from ..calls import hide_frames

if TYPE_CHECKING:
    from ..rest import Rest
    from .scope import Scope

__all__ = [
    "Child",
    "Scoped",
    "Variable",
    "as_node",
    "is_scoped",
    "on_other_scopes",
    "scopes_in",
    "split_scoped",
    "without_nodes",
]


class Scoped(Protocol):
    """The protocol of a value that holds scopes: its class defines the method `__scopes__`.

    Example:
        >>> import dataclasses, liftcore
        >>> @dataclasses.dataclass(frozen=True)
        ... class Counter:
        ...     scope: liftcore.Scope
        ...     step: int
        ...     def count(self):
        ...         n = self.scope.variable("state", "n", lambda: 0)
        ...         n.value += self.step
        ...         return n.value
        ...     def __scopes__(self):
        ...         return [self.scope], OnOther(self.step)
        >>> @dataclasses.dataclass(frozen=True)
        ... class OnOther:  # a dataclass, because equal instances reuse the same trace
        ...     step: int
        ...     def __call__(self, scopes):
        ...         return Counter(scopes[0], self.step)
        >>> import equinox_like as eqx
        >>> counter = Counter(liftcore.bind({}, mutable=True), 2)
        >>> compiled = eqx.filter_jit(lambda counter: counter.count())
        >>> int(compiled(counter)), int(compiled(counter))
        (2, 4)
    """

    def __scopes__(self) -> tuple[Sequence[Scope], Callable[[Sequence[Scope]], Any]]:
        """Return the scopes, and a function that rebuilds the value on other scopes in the same order.

        The function is a part of the key of the trace cache, as static values are: see `static_key`.
        """


def is_scoped(value: Any) -> bool:
    """Whether a value may hold scopes: a scope, a variable, a module, or a method of one.

    Example:
        >>> import liftcore
        >>> is_scoped(liftcore.bind({})), is_scoped(3)
        (True, False)

    Args:
        value: any value.
    """
    kind = type(value)
    if kind is types.MethodType:
        kind = type(value.__self__)
    return hasattr(kind, "__scopes__")


def split_scoped(value: Any) -> tuple[Sequence[Scope], Callable[[Sequence[Scope]], Any]]:
    """Return the scopes of a value, and a function that rebuilds the value on other scopes.

    Example:
        >>> import liftcore
        >>> n = liftcore.bind({"state": {"n": 3}}).variable("state", "n")
        >>> scopes, make = split_scoped(n)
        >>> other = liftcore.bind({"state": {"n": 4}})
        >>> make([other]).value
        4

    Args:
        value: a value for which `is_scoped` returns True.
    """
    if type(value) is types.MethodType:
        scopes, make = split_scoped(value.__self__)
        return scopes, _Method(make, value.__func__)
    parts: tuple[Sequence[Scope], Callable[[Sequence[Scope]], Any]] = value.__scopes__()
    return parts


@dataclasses.dataclass(frozen=True)
class _Method:
    """Rebuilds a bound method."""

    make: Callable[[Sequence[Scope]], Any]
    function: Callable[..., Any]

    def __call__(self, scopes: Sequence[Scope]) -> Any:
        return types.MethodType(self.function, self.make(scopes))


class _Held:
    """The scopes of a value that holds some, as a pytree node that is unflattened to the value on other scopes."""

    def __init__(self, scopes: Sequence[Scope], make: Rest | _Unshared) -> None:
        self.scopes, self.make = scopes, make


class _Unshared:
    """A function that cannot be compared with others, so a trace that depends on it is not used again."""

    def __init__(self, value: Any) -> None:
        self.value = value


jax.tree_util.register_pytree_node(
    _Held, lambda held: (held.scopes, held.make), lambda make, scopes: make.value(tuple(scopes))
)


def as_node(value: Any) -> Any:
    """Return a value that holds scopes, such as a child of a scope, as a node of these; other values unchanged."""
    if not is_scoped(value):
        return value
    scopes, make = split_scoped(value)
    if not scopes:
        return value
    from ..rest import Rest  # imported here: a model of plain layers needs neither
    from ..statics import Undescribed

    try:
        return _Held(scopes, Rest(make))
    except Undescribed:
        return _Held(scopes, _Unshared(make))


def scopes_in(tree: Any) -> list[Scope]:
    """Return all scopes in a pytree of values that hold scopes, such as scopes and children of scopes."""
    return [scope for value in jax.tree.leaves(tree, is_leaf=is_scoped) for scope in split_scoped(value)[0]]


def on_other_scopes(tree: Any, other: Callable[[Scope], Scope]) -> Any:
    """Return a pytree of values that hold scopes on other scopes.

    Args:
        tree: the pytree; see `scopes_in`.
        other: called with each scope; returns the one to put in its place.
    """

    def moved(value: Any) -> Any:
        scopes, make = split_scoped(value)
        return make([other(scope) for scope in scopes])

    return jax.tree.map(moved, tree, is_leaf=is_scoped)


def without_nodes(structure: Any) -> Any:
    """Return a pytree structure with the children of each `_Held` in its place."""
    data, children = structure.node_data(), list(map(without_nodes, structure.children()))
    if data is None:
        return structure
    if data[0] is _Held:
        return children[0] if len(children) == 1 else jax.tree_util.treedef_tuple(children)
    return type(structure).from_node_data_and_children(jax.tree_util.default_registry, data, children)


class Variable:
    """One named value of a collection, read and written through `value`.

    Example:
        >>> import liftcore
        >>> def count(scope):
        ...     n = scope.variable("state", "n", lambda: 0)
        ...     n.value += 1
        ...     return n.value
        >>> liftcore.apply(count, mutable=["state"])({"state": {"n": 41}})
        (42, {'state': {'n': 42}})
    """

    __slots__ = ("collection", "name", "scope", "unbox")

    def __init__(self, scope: Scope, collection: str, name: str, unbox: bool = True) -> None:
        self.scope, self.collection, self.name, self.unbox = scope, collection, name, unbox

    @property
    def value(self) -> Any:
        """The current value; if it is boxed (see `liftcore.meta`), the content of the box, unless `unbox` is False."""
        value = self.scope.get_variable(self.collection, self.name)
        return meta.unbox(value) if self.unbox else value

    @value.setter
    def value(self, value: Any) -> None:
        put = self.scope.put_unboxed if self.unbox else self.scope.put_variable
        put(self.collection, self.name, value)

    def __scopes__(self) -> tuple[list[Scope], Callable[[Sequence[Scope]], Variable]]:
        """See `liftcore.Scoped`."""
        return [self.scope], _Variable(self.collection, self.name, self.unbox)

    def is_mutable(self) -> bool:
        """Whether the value may be written."""
        return self.scope.is_mutable_collection(self.collection)

    def __repr__(self) -> str:
        return f"Variable({self.collection}/{'/'.join((*self.scope.path, self.name))})"


@dataclasses.dataclass(frozen=True)
class _Variable:
    """Rebuilds a variable in another scope."""

    collection: str
    name: str
    unbox: bool

    def __call__(self, scopes: Sequence[Scope]) -> Variable:
        return Variable(scopes[0], self.collection, self.name, self.unbox)


class Child:
    """A function whose first argument is a child scope; `Scope.child` returns it.

    Each call begins with all names in the child scope free, so all calls use the same variables. In the body of a lift
    over a scope that the child belongs to, a call uses the variables and the streams that the lift passes in.

    Args:
        fn: a function of a scope.
        scope: the child scope.
        named_call: whether profiles show the name of the scope.
        kwargs: keyword arguments that are passed to every call.
    """

    def __init__(self, fn: Callable[..., Any], scope: Scope, named_call: bool, kwargs: Mapping[str, Any]) -> None:
        self._fn, self._scope, self._named_call, self._kwargs = fn, scope, named_call, dict(kwargs)
        self.__name__ = getattr(fn, "__name__", "fn")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with the child scope."""
        scope = self._scope
        (scope.parent or scope).check_valid()
        named = jax.named_scope(str(scope.name)) if self._named_call else contextlib.nullcontext()
        try:
            with named:
                return self._fn(scope.here().rewound(), *args, **{**self._kwargs, **kwargs})
        except Exception as error:
            hide_frames(error)
            raise

    def __scopes__(self) -> tuple[Sequence[Scope], Callable[[Sequence[Scope]], Child]]:
        """See `liftcore.Scoped`."""
        return [self._scope], _Child(self._fn, self._named_call, self._kwargs)

    def __repr__(self) -> str:
        return f"<child {self.__name__} at {self._scope.path_text}>"


@dataclasses.dataclass(frozen=True)
class _Child:
    """Rebuilds a child on another scope."""

    fn: Callable[..., Any]
    named_call: bool
    kwargs: Mapping[str, Any]

    def __call__(self, scopes: Sequence[Scope]) -> Child:
        return Child(self.fn, scopes[0], self.named_call, self.kwargs)
