"""Frozen dataclasses that are pytrees.

Fields are children, unless `field(pytree_node=False)` makes one a static part of the tree structure. A static field
must be hashable and comparable to pass through `jax.jit`.

Example:
    >>> import jax
    >>> @dataclass
    ... class State:
    ...     step: int
    ...     name: str = field(pytree_node=False, default="train")
    >>> jax.tree.map(lambda x: x + 1, State(step=1)).replace(name="eval").step
    2
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast, dataclass_transform, overload

import jax

from .errors import LiftArgumentError

__all__ = [
    "PyTreeNode",
    "TNode",
    "check_fields",
    "child_names",
    "dataclass",
    "field",
    "is_struct",
    "optional",
    "optional_names",
]

T = TypeVar("T")
TNode = TypeVar("TNode", bound="PyTreeNode")

_MARK = "_is_struct"
_OPTIONAL = "optional"


def field(pytree_node: bool = True, *, metadata: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    """Declare a field, as `dataclasses.field` does.

    Args:
        pytree_node: whether the field is a child of the pytree; otherwise it is static.
        metadata: a mapping that the field keeps for other code, as in `dataclasses.field`.
        **kwargs: further arguments of `dataclasses.field`.
    """
    return dataclasses.field(metadata={**(metadata or {}), "pytree_node": pytree_node}, **kwargs)


def optional(spread: bool = False) -> Any:
    """Declare a keyword-only field that is None at first; a checkpoint has no entry for it while it is None.

    A subclass may declare the field again, with or without a default. It stays keyword-only.

    Args:
        spread: whether a checkpoint has the entries of the field, a dict, beside those of the other fields.
    """
    return field(default_factory=lambda: None, kw_only=True, metadata={_OPTIONAL: "spread" if spread else "whole"})


def optional_names(target: Any) -> dict[str, str]:
    """Return how a checkpoint has the fields that `optional` declares: `"spread"`, `"whole"`, or `"unset"` for None.

    Args:
        target: any value; one that is no dataclass of this module has no such fields.
    """
    if not is_struct(type(target)):
        return {}
    found = {one.name: one.metadata.get(_OPTIONAL) for one in dataclasses.fields(target)}
    return {name: "unset" if getattr(target, name) is None else kind for name, kind in found.items() if kind}


@overload
def dataclass(cls: type[T]) -> type[T]: ...
@overload
def dataclass(**kwargs: Any) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(field_specifiers=(field,), frozen_default=True)
def dataclass(cls: type[T] | None = None, **kwargs: Any) -> type[T] | Callable[[type[T]], type[T]]:
    """Make a class a frozen dataclass and a pytree, with a method `replace(**fields)`.

    A subclass must be decorated too to be a pytree. Fields with `init=False` are not part of the tree: `__post_init__`
    sets them, each time JAX rebuilds the object.

    Example:
        >>> @dataclass(kw_only=True)
        ... class Moments:
        ...     mean: float
        ...     count: int = 0
        >>> Moments(mean=1.0).replace(count=2)
        Moments(mean=1.0, count=2)

    Args:
        cls: the class.
        **kwargs: further arguments of `dataclasses.dataclass`; `frozen` is true unless given.

    Returns:
        The class, registered with JAX.
    """
    if cls is None:
        return lambda cls: _register(cls, **kwargs)
    return _register(cls, **kwargs)


def _register(cls: type[T], **kwargs: Any) -> type[T]:
    if is_struct(cls):
        return cls
    _keep_by_keyword(cls)
    made = dataclasses.dataclass(**{"frozen": True, **kwargs})(cls)
    if not hasattr(made, "replace"):
        made.replace = _replace  # type: ignore[attr-defined]  # a class that is being made
    setattr(made, _MARK, True)
    children = child_names(made)
    static = [f.name for f in dataclasses.fields(made) if f.init and f.name not in children]  # type: ignore[arg-type]
    jax.tree_util.register_dataclass(made, children, static)
    return made


def _keep_by_keyword(cls: type) -> None:
    """Make optional fields that a class declares again keyword-only; else they would have the places of the base's."""
    above: Any = [base for base in cls.__mro__[1:] if is_struct(base)]
    declared = {one.name for base in above for one in dataclasses.fields(base) if _OPTIONAL in one.metadata}
    for name in declared & vars(cls).get("__annotations__", {}).keys():
        own = vars(cls).get(name, dataclasses.MISSING)
        again = own if isinstance(own, dataclasses.Field) else field(default=own)
        again.kw_only = True
        setattr(cls, name, again)


def _replace(self: Any, **fields: Any) -> Any:
    """Return a copy with the given fields replaced."""
    return dataclasses.replace(self, **fields)


def is_struct(cls: type) -> bool:
    """Return whether this very class, not only a base class, was made by `dataclass` or `PyTreeNode`."""
    return _MARK in vars(cls)


def child_names(cls: Any) -> list[str]:
    """Return the names of the fields that are children of the pytree, in their order."""
    return [f.name for f in dataclasses.fields(cls) if f.init and f.metadata.get("pytree_node", True)]


def check_fields(where: str, cls: type, given: Iterable[str], own: Iterable[str] | None = ()) -> None:
    """Check the names of the field values for a dataclass that users extend in subclasses.

    Example:
        >>> @dataclass
        ... class State:
        ...     step: int
        >>> check_fields("State.create", State, ["key"], own=["step"])
        Traceback (most recent call last):
        liftcore.errors.LiftArgumentError: State.create: State has no field "key". Define it in a subclass, ...

    Args:
        where: the call, for the error.
        cls: the dataclass.
        given: the names of the values.
        own: the names of fields that the caller sets. None if the other fields have values already.

    Raises:
        LiftArgumentError: if a field does not exist, or a field without a default has no value.
    """
    given, kept = list(given), set(own or ())
    fields = {one.name: one for one in dataclasses.fields(cls) if one.init}
    for name in given:
        if name not in fields:
            raise LiftArgumentError(
                where,
                f'{cls.__name__} has no field "{name}".',
                _definition(cls, name, set(fields) - kept),
                option=name,
            )
        if name in kept:
            what = f'the initial value of "{name}" cannot be chosen.'
            raise LiftArgumentError(where, what, f"Change it afterwards: `state.replace({name}=…)`.", option=name)
    needed = [] if own is None else [name for name, one in fields.items() if _is_required(one) and name not in kept]
    absent = [name for name in needed if name not in given]
    if absent:
        what = f"{cls.__name__} has fields without a value: {', '.join(absent)}."
        raise LiftArgumentError(where, what, f"Pass `{absent[0]}=…`, or give the field a default.", option=absent[0])


def _is_required(one: dataclasses.Field[Any]) -> bool:
    return one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING


def _definition(cls: type, name: str, others: Iterable[str]) -> str:
    """Return the fix for a field that a class lacks."""
    import difflib  # imported here: needed only for an error message

    near = difflib.get_close_matches(name, sorted(others), 1, cutoff=0.8)
    if near:
        return f"Write `{near[0]}=…`, or define `{name}: Any` in a subclass."
    if any(map(dataclasses.is_dataclass, cls.__mro__[1:])):
        return f"Add `{name}: Any` to the class {cls.__name__}."
    return f"Define it in a subclass, `class State({cls.__name__}): {name}: Any`, and use `State` instead."


@dataclass_transform(field_specifiers=(field,), frozen_default=True)
class PyTreeNode:
    """Base class of dataclasses as made by `dataclass`; keyword arguments of the class are passed to it.

    Example:
        >>> class Point(PyTreeNode, kw_only=True):
        ...     x: float
        ...     y: float
        >>> jax.tree.leaves(Point(x=1.0, y=2.0))
        [1.0, 2.0]
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__()
        dataclass(**kwargs)(cls)

    def replace(self: TNode, **fields: Any) -> TNode:
        """Return a copy with the given fields replaced.

        Args:
            **fields: new values, by the names of fields.
        """
        return cast(TNode, _replace(self, **fields))
