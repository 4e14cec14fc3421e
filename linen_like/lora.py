"""Low-rank updates beside the parameters of a model: for one dense layer, or for chosen layers of any model.

The parameters of the model keep their names. The updates are a separate collection, `lora`. To load a checkpoint of the
model, write `variables | {"params": checkpoint["params"]}`. The filter `"lora"` matches exactly the updates. To train
them alone, take the gradient with respect to `variables["lora"]`. The updates can also be parameters, with names of
their own: lifts inside the model that take `params` then take the updates as well.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import jax.numpy as jnp
from jax import lax

from liftcore import filters, nn
from liftcore.errors import LiftArgumentError, UnliftedCollectionError
from liftcore.nn import merge_lora, unmerge_lora
from liftcore.typing import Array, ArrayLike, Dtype, Filter, Key

from .convolution import Conv
from .dense import Dense, DenseGeneral, Einsum, default_kernel_init
from .dtypes import PromoteDtypeFn, promote_dtype
from .embedding import Embed
from .initializers import Initializer, he_uniform, zeros_init
from .lifecycle.calling import compact, nowrap
from .lifecycle.context import InterceptorContext, intercept_methods
from .lifecycle.fields import options
from .module import Module

__all__ = ["LoRA", "LoRADense", "merge_lora", "unmerge_lora"]

_he_uniform = he_uniform()


def _default_a_init(key: Key, *args: Any, **kwargs: Any) -> Array:
    """Make the first factor of an update, as a function that can be pickled."""
    return _he_uniform(key, *args, **kwargs)


class LoRADense(Module):
    """A `Dense` with a low-rank update added: `inputs @ kernel + bias + (alpha / rank) * inputs @ a @ b`.

    Its parameters and automatic names are those of `Dense`, so a model can use it in place of `Dense`. See
    `liftcore.nn.lora`, also for the source.

    Example:
        >>> import jax
        >>> layer, x = LoRADense(4, rank=2, alpha=8.0), jnp.ones((1, 3))
        >>> variables = layer.init(jax.random.key(0), x)
        >>> jax.tree.map(jnp.shape, variables)
        {'lora': {'a': (3, 2), 'b': (2, 4)}, 'params': {'bias': (4,), 'kernel': (3, 4)}}
        >>> merged = merge_lora(variables, alpha=8.0)
        >>> bool((Dense(4).apply(merged, x) == layer.apply(variables, x)).all())  # a new update changes nothing
        True

    Attributes:
        features: the size of the last axis of the result.
        rank: the rank of the update, at least 1.
        alpha: the update is multiplied by `alpha / rank`; by default by 1.
        a_init, b_init: make the factors `a` and `b`.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        precision: the precision of products: a `jax.lax.Precision`, or a pair of these for the two operands, or their
            names; by default that of the backend.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        promote_dtype: called as `promote_dtype(inputs, kernel, bias, dtype=dtype)`; returns the three in one dtype.
        dot_general: the multiplication, called like `jax.lax.dot_general`, which is the default.
        collection: the collection of the update; in `"params"`, the two factors are called `lora_a` and `lora_b`.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs and, for new axes, from the kernel.
    """

    _name_prefix = "Dense"

    features: int
    rank: int
    alpha: float | None = None
    use_bias: bool = True
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: lax.PrecisionLike = None
    kernel_init: Initializer = default_kernel_init
    bias_init: Initializer = zeros_init()
    a_init: Initializer = _default_a_init
    b_init: Initializer = zeros_init()
    promote_dtype: PromoteDtypeFn = promote_dtype
    dot_general: Callable[..., Array] | None = None
    collection: str = "lora"
    out_sharding: Any = field(default=None, kw_only=True)

    @compact
    def __call__(self, inputs: ArrayLike) -> Array:
        """Map `(..., in)` to `(..., features)`.

        Args:
            inputs: `(..., in)`.
        """
        y = nn.dense(self.scope, inputs, **options(self, nn.dense))
        update = nn.lora(self.scope, inputs, **options(self, nn.lora))
        return y + nn.align(update.astype(y.dtype), y)


class LoRA(Module):
    """A module that adds low-rank updates to chosen layers of another module, however deep they are.

    It is called like that module, and has its methods and its parameters, under their own names. The updates are added
    to the results of `Dense`, `DenseGeneral`, `Einsum`, `Conv` and `Embed` layers; nothing else changes. See
    `liftcore.nn.lora`, also for the source, and the guide on fine-tuning.

    The updates are the collection `lora`. Lifts inside the model have to take it in the same way as `params`, for
    example with `variable_axes={("params", "lora"): 0}`. With `collection="params"`, the updates are parameters
    instead, `lora_a` and `lora_b` beside each kernel, which such lifts already take.

    Example:
        >>> import jax, linen_like as nn
        >>> model, x = nn.Sequential([nn.Dense(4), nn.relu, nn.Dense(2)]), jnp.ones((1, 3))
        >>> from liftcore.filters import PathContains
        >>> tuned = nn.LoRA(model, rank=1, targets=PathContains("layers_2"))
        >>> variables = tuned.init(jax.random.key(0), x)
        >>> jax.tree.map(jnp.shape, variables["lora"])
        {'layers_2': {'a': (4, 1), 'b': (1, 2)}}
        >>> base = model.init(jax.random.key(1), x)
        >>> variables = variables | {"params": base["params"]}  # load a checkpoint of the model
        >>> bool((tuned.apply(variables, x) == model.apply(base, x)).all())
        True
        >>> merged = merge_lora(variables, alpha=None)  # for `model`

    Attributes:
        base: the module.
        rank: the rank of the updates, at least 1.
        alpha: each update is multiplied by `alpha / rank`; by default by 1.
        targets: a filter of the kernels that get an update, matched against `("params", *modules, "kernel")`, or
            "embedding".
        param_dtype: the dtype of the updates; they are computed in the dtype of their layer.
        a_init, b_init: make the factors `a` and `b`.
        collection: the collection of the updates.

    Raises:
        LiftArgumentError: when called, if the rank is not positive or no layer has an update.
    """

    base: Module
    rank: int
    alpha: float | None = None
    targets: Filter = True
    param_dtype: Dtype = jnp.float32
    a_init: Initializer = _default_a_init
    b_init: Initializer = zeros_init()
    collection: str = "lora"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self._run("__call__", *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return the other methods of the module, as methods of this one."""
        method = getattr(type(self.__dict__.get("base")), name, None)
        if getattr(method, "is_module_method", False) and not name.startswith("_"):
            return types.MethodType(lambda module, *args, **kwargs: module._run(name, *args, **kwargs), self)
        return super().__getattr__(name)

    @nowrap
    def _run(self, method: str, *args: Any, **kwargs: Any) -> Any:
        adding = _Adding(self)
        base = self.base.clone(parent=self.scope.rewound(), _deep_clone=True)  # in its place
        with intercept_methods(adding):
            y = getattr(base, method)(*args, **kwargs)
        adding.check()
        return y


class _Adding:
    """Adds updates to the results of layers during one call, as an interceptor, and records these layers."""

    def __init__(self, tuned: LoRA) -> None:
        self.tuned, self.is_target = tuned, filters.to_predicate(tuned.targets)
        self.seen: dict[str, str] = {}
        self.added: Counter[str] = Counter()

    def __call__(
        self, next_fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], context: InterceptorContext
    ) -> Any:
        """See `nn.intercept_methods`."""
        layer, method = context.module, context.method_name
        kind = next((kind for kind in _KINDS if isinstance(layer, kind)), None)
        if kind is None or method not in (_EMBED_METHODS if kind is Embed else _METHODS):
            return next_fun(*args, **kwargs)
        kernel = "embedding" if kind is Embed else "kernel"
        path = ("params", *layer.scope.path, kernel)
        place = "/".join(path)
        before = self.added[place]
        y = next_fun(*args, **kwargs)
        self.seen[place] = type(layer).__name__
        inner = self.added[place] > before  # a method called the same method of its base class, which added it
        if inner or not self.is_target(path, layer.scope.get_variable("params", kernel)):
            return y
        self.added[place] += 1
        try:
            update = _KINDS[kind](self.tuned, layer, method, *args, **kwargs)
        except UnliftedCollectionError as error:
            error.add_note('Or keep the updates among the parameters: `nn.LoRA(…, collection="params")`.')
            raise
        return y + nn.align(update.astype(y.dtype), y)

    def check(self) -> None:
        """Check that some layer has an update. Layers in functions that were compiled earlier are not seen."""
        if self.added.total():
            return
        layers = [f"{path} ({kind})" for path, kind in self.seen.items()]
        more = f" and {len(layers) - _SHOWN} more" if len(layers) > _SHOWN else ""
        *kinds, last = (kind.__name__ for kind in _KINDS)
        there = f"its layers are {', '.join(layers[:_SHOWN])}{more}" if layers else "it has no such layer at all"
        fix = "Write a filter that matches some of these paths; `targets=True` matches all."
        raise LiftArgumentError(
            f"LoRA at {self.tuned.scope.path_text}",
            f"{type(self.tuned.base).__name__} has no {', '.join(kinds)} or {last} that `targets` matches, "
            f"{self.tuned.targets!r}: {there}.",
            fix if layers else "Use such layers: the arrays of other layers, or of an adopted pytree, get no updates.",
            option="targets",
            given=repr(self.tuned.targets),
            available=tuple(self.seen),
        )


_METHODS = ("__call__",)
_EMBED_METHODS = ("__call__", "attend")

_SHOWN = 12
"""The number of layers that an error lists."""


def _dense(tuned: LoRA, layer: Any, method: str, inputs: ArrayLike) -> Array:
    return nn.lora(layer.scope.rewound(), inputs, **_options(tuned, layer, nn.lora))


def _einsum(tuned: LoRA, layer: Any, method: str, inputs: ArrayLike, einsum_str: str | None = None) -> Array:
    given = _options(tuned, layer, nn.lora_einsum) | {"einsum_str": layer.einsum_str or einsum_str}
    return nn.lora_einsum(layer.scope.rewound(), inputs, **given)


def _conv(tuned: LoRA, layer: Any, method: str, inputs: Array) -> Array:
    return nn.lora_conv(layer.scope.rewound(), inputs, **_options(tuned, layer, nn.lora_conv))


def _embedding(tuned: LoRA, layer: Any, method: str, inputs: ArrayLike) -> Array:
    update = nn.lora_embedding(layer.scope.rewound(), **_options(tuned, layer, nn.lora_embedding))
    return update.attend(inputs) if method == "attend" else update.lookup(inputs)


def _options(tuned: LoRA, layer: Module, fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments of an update's function: fields of the layer, and fields of the wrapper."""
    return options(layer, fn) | options(tuned, fn)


_KINDS: dict[type[Module], Callable[..., Array]] = {
    Dense: _dense,
    DenseGeneral: _dense,
    Einsum: _einsum,
    Conv: _conv,
    Embed: _embedding,
}
"""The layers that updates can be added to, with the functions that compute the updates."""
