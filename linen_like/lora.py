"""Low-rank updates beside the parameters of a model: a dense layer with one, or chosen layers of any model.

The parameters stay those of the model itself, name by name. The updates are a collection of their own, `lora`: a
checkpoint of the model is loaded by `variables | {"params": checkpoint["params"]}`, the filter `"lora"` takes exactly
the updates, and to train them alone, one takes the gradient with respect to `variables["lora"]`. Or they are parameters
too, by names of their own: lifts inside of the model that take `params` then take them as well.
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
from .lifecycle.fields import options
from .lifecycle.interception import InterceptorContext, intercept_methods
from .module import Module

__all__ = ["LoRA", "LoRADense", "merge_lora", "unmerge_lora"]

_he_uniform = he_uniform()


def _default_a_init(key: Key, *args: Any, **kwargs: Any) -> Array:
    """What makes the first factor of an update, as a function that can be pickled."""
    return _he_uniform(key, *args, **kwargs)


class LoRADense(Module):
    """`inputs @ kernel + bias`, and a low-rank update of the kernel: `(alpha / rank) * inputs @ a @ b`.

    The parameters are those of `Dense`, as are automatic names, so that a model may use it in place of that. See
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
        features: the size of the last dimension of the result.
        rank: that of the update.
        alpha: its factor is `alpha / rank`; by default it is 1.
        a_init, b_init: make the update.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation; by default what inputs and parameters promote to.
        param_dtype: the dtype of new parameters.
        precision: how exactly products are computed: a `jax.lax.Precision`, or two for the two operands, or names of
            them; by default as the backend does.
        kernel_init: makes the kernel.
        bias_init: makes the bias.
        promote_dtype: called as `promote_dtype(inputs, kernel, bias, dtype=dtype)`; returns the three in one dtype.
        dot_general: what multiplies, called as `jax.lax.dot_general` is, which is the default.
        collection: where the update is kept; in `"params"`, the two factors are called `lora_a` and `lora_b`.
        out_sharding: the sharding of the result, on a mesh of Explicit axes: a `PartitionSpec` or `NamedSharding`. By
            default it follows from the inputs, and for new axes from the kernel.
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
        """Maps `(..., in)` to `(..., features)`.

        Args:
            inputs: `(..., in)`.
        """
        y = nn.dense(self.scope, inputs, **options(self, nn.dense))
        update = nn.lora(self.scope, inputs, **options(self, nn.lora))
        return y + nn.align(update.astype(y.dtype), y)


class LoRA(Module):
    """A module in which the kernels of chosen layers have a low-rank update, however deep they are.

    It is called as the module is, has its methods, and has its parameters under their own names. Nothing of the model
    changes but what the updates add to the results of `Dense`, `DenseGeneral`, `Einsum`, `Conv` and `Embed` layers. See
    `liftcore.nn.lora`, also for the source, and the guide on fine-tuning.

    The updates are the collection `lora`, which lifts inside of the model have to take as they take `params`, for
    example by `variable_axes={("params", "lora"): 0}`; or, by `collection="params"`, parameters `lora_a` and `lora_b`
    beside each kernel, which each lift takes already.

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
        rank: that of the updates.
        alpha: their factor is `alpha / rank`; by default it is 1.
        targets: a filter of the kernels that have one, asked about `("params", *modules, "kernel")`, or "embedding".
        param_dtype: the dtype of new updates; they are used in the dtype of their layer.
        a_init, b_init: make them.
        collection: where they are kept.

    Raises:
        LiftArgumentError: when called, where the rank is not positive or no layer has an update.
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
        """Calls the module."""
        return self._run("__call__", *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Gives the other methods of the module, as methods of this one."""
        method = getattr(type(self.__dict__.get("base")), name, None)
        if getattr(method, "is_module_method", False) and not name.startswith("_"):
            return types.MethodType(lambda module, *args, **kwargs: module._run(name, *args, **kwargs), self)
        return super().__getattr__(name)

    @nowrap
    def _run(self, method: str, *args: Any, **kwargs: Any) -> Any:
        adding = _Adding(self)
        base = self.base.clone(parent=self.scope.rewound(), _deep_clone=True)  # in its place, not below it
        with intercept_methods(adding):
            y = getattr(base, method)(*args, **kwargs)
        adding.check()
        return y


class _Adding:
    """The interceptor that adds updates to the results of the layers of one call, and keeps which it saw."""

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
        inner = self.added[place] > before  # a subclass whose method calls that of its base, which has it already
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
        """Checks that any layer has an update; what a lifted function was compiled for before shows no layers."""
        if self.added.total():
            return
        layers = [f"{path} ({kind})" for path, kind in self.seen.items()]
        more = f" and {len(layers) - _SHOWN} more" if len(layers) > _SHOWN else ""
        *kinds, last = (kind.__name__ for kind in _KINDS)
        there = f"its layers are {', '.join(layers[:_SHOWN])}{more}" if layers else "there is none at all"
        raise LiftArgumentError(
            f"LoRA at {self.tuned.scope.path_text}",
            f"{type(self.tuned.base).__name__} has no {', '.join(kinds)} or {last} that `targets` matches, "
            f"{self.tuned.targets!r}: {there}.",
            "Write a filter that takes some of these paths; `targets=True` takes all.",
        )


_METHODS = ("__call__",)
_EMBED_METHODS = ("__call__", "attend")

_SHOWN = 12
"""How many layers an error lists."""


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
    """The arguments of the function of an update that are fields of the layer, and those that are of the wrapper."""
    return options(layer, fn) | options(tuned, fn)


_KINDS: dict[type[Module], Callable[..., Array]] = {
    Dense: _dense,
    DenseGeneral: _dense,
    Einsum: _einsum,
    Conv: _conv,
    Embed: _embedding,
}
"""The layers that updates can be added to, and what computes them, however often a layer was called before."""
