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
