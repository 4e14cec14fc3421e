"""The kinds of variables: each class states the purpose of its variables, and has a registered name.

A collection in a plain dict has the name of its variables' kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

import jax

from liftcore.errors import LiftArgumentError
from liftcore.owners import by_dtype

from .variable import Variable

__all__ = [
    "CONSTANTS",
    "BatchStat",
    "Cache",
    "Intermediate",
    "LoRAParam",
    "Param",
    "Perturbation",
    "RngCount",
    "RngKey",
    "RngState",
    "VariableState",
    "collection_of",
    "register_variable_name",
    "variable_name_from_type",
    "variable_type_from_name",
]


# --- registered names -------------------------------------------------------------------------------------------------

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
        what = f"the name is already registered for {_kinds[name].__name__}."
        fix = "Choose another name, or write `overwrite=True`."
        raise LiftArgumentError(f"register_variable_name({name!r})", what, fix, option="overwrite")
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
        what = "no kind is registered under this name."
        fix = "Call `register_variable_name(name, kind)`, or write `allow_register=True`."
        raise LiftArgumentError(f"variable_type_from_name({name!r})", what, fix, option="allow_register")
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
        what = "this kind has no registered name."
        fix = "Call `register_variable_name(name, kind)`, or write `allow_register=True`."
        raise LiftArgumentError(f"variable_name_from_type({typ.__name__})", what, fix, option="allow_register")
    register_variable_name(typ.__name__, typ)
    return typ.__name__


def _collections(variable: Variable[Any]) -> list[str | None]:
    name = variable_name_from_type(type(variable), allow_register=True)
    return [name if by_dtype(leaf) else None for leaf in jax.tree.leaves(variable.get_raw_value())]


Variable.__collections__ = _collections  # here, since only this file knows the names of kinds


# --- kinds ------------------------------------------------------------------------------------------------------------

A = TypeVar("A")


@register_variable_name("params")
class Param(Variable[A]):
    """A trainable parameter.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(jnp.ones(2), sharding=("model",)), steps=nnx.Variable(3))
        >>> list(nnx.state(model, nnx.Param)), model.w.sharding
        (['w'], ('model',))

    Args:
        value: the value: an array, a number, a string, None or a pytree.
        **metadata: static metadata by name, readable as attributes.
    """


@register_variable_name("batch_stats")
class BatchStat(Variable[A]):
    """A statistic over batches, such as the running mean of batch normalization.

    Example:
        >>> import nnx_like as nnx
        >>> norm = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
        >>> list(nnx.state(norm, nnx.BatchStat))
        ['mean', 'var']

    Args:
        value: the value: an array, a number, a string, None or a pytree.
        **metadata: static metadata by name, readable as attributes.
    """


@register_variable_name("cache")
class Cache(Variable[A]):
    """A value that one call keeps for the next, such as the keys and values of attention during decoding.

    Example:
        >>> import nnx_like as nnx
        >>> cache = nnx.Cache(0)
        >>> cache += 1
        >>> cache.value
        1

    Args:
        value: the value: an array, a number, a string, None or a pytree.
        **metadata: static metadata by name, readable as attributes.
    """


@register_variable_name("intermediates")
class Intermediate(Variable[A]):
    """An intermediate value of a call, stored by `Module.sow`.

    Example:
        >>> import nnx_like as nnx
        >>> model = nnx.Module()
        >>> model.sow(nnx.Intermediate, "hidden", 2.0)
        True
        >>> nnx.pop(model, nnx.Intermediate).hidden.value
        (2.0,)

    Args:
        value: the value: an array, a number, a string, None or a pytree.
        **metadata: static metadata by name, readable as attributes.
    """


@register_variable_name("perturbations")
class Perturbation(Intermediate[A]):
    """A zero that `Module.perturb` adds to an intermediate value: its gradient is the gradient of that value.

    Example:
        >>> import nnx_like as nnx
        >>> model = nnx.Module()
        >>> float(model.perturb("hidden", 2.0)), float(model.hidden.value), type(model.hidden).__name__
        (2.0, 0.0, 'Perturbation')

    Args:
        value: the value: an array, a number, a string, None or a pytree.
        **metadata: static metadata by name, readable as attributes.
    """


class LoRAParam(Param[A]):
    """A parameter of a low-rank adaptation (Hu et al., https://arxiv.org/abs/2106.09685).

    Example:
        >>> import nnx_like as nnx
        >>> layer = nnx.LoRALinear(3, 4, lora_rank=2, rngs=nnx.Rngs(0))
        >>> list(nnx.state(layer, nnx.LoRAParam).lora)
        ['lora_a', 'lora_b']

    Args:
        value: the value: an array, a number, a string, None or a pytree.
        **metadata: static metadata by name, readable as attributes.
    """


class RngState(Variable[A]):
    """The state of an RNG stream: its key or its count. The metadata `tag` is the name of the stream.

    Example:
        >>> import nnx_like as nnx
        >>> rngs = nnx.Rngs(dropout=0)
        >>> list(nnx.state(rngs, nnx.RngState).dropout), rngs.dropout.key.tag
        (['count', 'key'], 'dropout')

    Args:
        value: the value: an array, a number, a string, None or a pytree.
        **metadata: static metadata by name, readable as attributes.
    """


class RngCount(RngState[A]):
    """The number of keys that were drawn from an RNG stream.

    Example:
        >>> import nnx_like as nnx
        >>> rngs = nnx.Rngs(0)
        >>> key = rngs.params()
        >>> type(rngs.default.count).__name__, int(rngs.default.count)
        ('RngCount', 1)

    Args:
        value: the value: an array, a number, a string, None or a pytree.
        **metadata: static metadata by name, readable as attributes.
    """


class RngKey(RngState[A]):
    """The key from which an RNG stream derives its keys.

    Example:
        >>> import nnx_like as nnx
        >>> rngs = nnx.Rngs(0)
        >>> type(rngs.default.key).__name__, rngs.default.key.shape
        ('RngKey', ())

    Args:
        value: the value: an array, a number, a string, None or a pytree.
        **metadata: static metadata by name, readable as attributes.
    """


class _AsState(type):
    """The class of `VariableState`: a call gives a variable, and each variable counts as an instance."""

    def __call__(cls, type: type[Variable[Any]], value: Any, **metadata: Any) -> Variable[Any]:
        return type.from_metadata(value, metadata)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Variable)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, Variable)


class VariableState(metaclass=_AsState):
    """An older name for variables in a state: `VariableState(type=Param, value=x)` returns a `Param`.

    Example:
        >>> state = VariableState(type=Param, value=3, tag="x")
        >>> type(state).__name__, state.value, state.type.__name__, isinstance(state, VariableState)
        ('Param', 3, 'Param', True)

    Args:
        type: the kind of the variable.
        value: its raw value; hooks are not called.
        **metadata: its metadata.
    """


# --- collections ------------------------------------------------------------------------------------------------------

CONSTANTS = "constants"
"""The collection of arrays that are attributes without being variables."""


def collection_of(value: Any) -> str:
    """Return the collection of a variable: the registered name of its kind, or else the name of its class.

    Example:
        >>> from nnx_like.variablelib.kinds import BatchStat
        >>> collection_of(BatchStat(0.0)), collection_of(3.0)
        ('batch_stats', 'constants')

    Args:
        value: a variable, or an array that is an attribute.
    """
    return variable_name_from_type(type(value), allow_register=True) if isinstance(value, Variable) else CONSTANTS
