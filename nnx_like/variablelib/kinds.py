"""The kinds of variables: each class states the purpose of its variables."""

from __future__ import annotations

from typing import Any, TypeVar

from .registry import register_variable_name
from .variable import Variable

A = TypeVar("A")

__all__ = [
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
]


@register_variable_name("params")
class Param(Variable[A]):
    """A parameter that is learnt."""


@register_variable_name("batch_stats")
class BatchStat(Variable[A]):
    """A statistic over batches, such as the running mean of batch normalization."""


@register_variable_name("cache")
class Cache(Variable[A]):
    """What is kept from one call to the next, such as the keys and values of attention while text is generated."""


@register_variable_name("intermediates")
class Intermediate(Variable[A]):
    """A value from inside a call, which `Module.sow` keeps."""


@register_variable_name("perturbations")
class Perturbation(Intermediate[A]):
    """A zero that `Module.perturb` adds to a value: its gradient is that of the value."""


class LoRAParam(Param[A]):
    """A parameter of a low-rank adaptation (Hu et al., 2021: "LoRA: Low-Rank Adaptation of Large Language Models")."""


class RngState(Variable[A]):
    """The state of a random stream: its key or its count. Its metadata `tag` is the name of the stream."""


class RngCount(RngState[A]):
    """How many keys a random stream has given."""


class RngKey(RngState[A]):
    """The key that a random stream derives its keys from."""


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
