"""Registered names of kinds: a collection in a plain dict has the name of its variables' kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

import jax

from liftcore.errors import LiftArgumentError
from liftcore.owners import by_dtype

from .variable import Variable

__all__ = ["register_variable_name", "variable_name_from_type", "variable_type_from_name"]

K = TypeVar("K", bound=type[Variable[Any]])

_kinds: dict[str, type[Variable[Any]]] = {}


@overload
def register_variable_name(name: str, typ: K, *, overwrite: bool = False) -> K: ...
@overload
def register_variable_name(name: str, typ: None = None, *, overwrite: bool = False) -> Callable[[K], K]: ...
def register_variable_name(name: str, typ: Any = None, *, overwrite: bool = False) -> Any:
    """Register a name for a kind of variables. It can be used as a class decorator.

    Example:
        >>> @register_variable_name("statistics")
        ... class Statistic(Variable): ...
        >>> variable_name_from_type(Statistic)
        'statistics'

    Args:
        name: the name.
        typ: the kind. Without it, the result is a decorator.
        overwrite: whether to allow a name that belongs to another kind.

    Returns:
        The kind.

    Raises:
        LiftArgumentError: if the name is taken.
    """
    if typ is None:
        return lambda kind: register_variable_name(name, kind, overwrite=overwrite)
    if not overwrite and name in _kinds:
        raise LiftArgumentError(
            f"register_variable_name({name!r})",
            f"the name is already registered for {_kinds[name].__name__}.",
            "Choose another name, or write `overwrite=True`.",
        )
    _kinds[name] = typ
    return typ


def variable_type_from_name(
    name: str, /, *, base: type[Variable[Any]] = Variable, allow_register: bool = False
) -> type[Variable[Any]]:
    """Return the kind that is registered under a name.

    Example:
        >>> import nnx_like.variablelib.kinds
        >>> variable_type_from_name("params").__name__
        'Param'

    Args:
        name: the name.
        base: the base class of a new kind.
        allow_register: whether to make and register a new kind if the name is unknown.

    Raises:
        LiftArgumentError: if the name is unknown and `allow_register` is False.
    """
    if name in _kinds:
        return _kinds[name]
    if not allow_register:
        raise LiftArgumentError(
            f"variable_type_from_name({name!r})",
            "no kind is registered under this name.",
            "Call `register_variable_name(name, kind)`, or write `allow_register=True`.",
        )
    return register_variable_name(name, type(name, (base,), {}))


def variable_name_from_type(typ: type[Variable[Any]], /, *, allow_register: bool = False) -> str:
    """Return the registered name of a kind.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.variable_name_from_type(nnx.BatchStat)
        'batch_stats'

    Args:
        typ: the kind.
        allow_register: whether to register the class name if the kind has no name.

    Raises:
        LiftArgumentError: if the kind has no name and `allow_register` is False, or the class name is taken.
    """
    for name, kind in _kinds.items():
        if kind is typ:
            return name
    if not allow_register:
        raise LiftArgumentError(
            f"variable_name_from_type({typ.__name__})",
            "this kind has no registered name.",
            "Call `register_variable_name(name, kind)`, or write `allow_register=True`.",
        )
    register_variable_name(typ.__name__, typ)
    return typ.__name__


def _collections(variable: Variable[Any]) -> list[str | None]:
    name = variable_name_from_type(type(variable), allow_register=True)
    return [name if by_dtype(leaf) else None for leaf in jax.tree.leaves(variable.get_raw_value())]


Variable.__collections__ = _collections  # here, since only this file knows the names of kinds
