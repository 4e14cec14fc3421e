"""Low-rank updates of dense layers, beside the parameters of the model: one layer with one, or all of a model.

The updates are a collection of their own, `lora`. So the parameters are those of the model itself, name by name, and a
checkpoint of it is loaded by `variables | {"params": checkpoint["params"]}`; the filter `"lora"` takes exactly the
updates; and to train them alone, one takes the gradient with respect to `variables["lora"]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from liftcore import filters, nn
from liftcore.errors import LiftArgumentError
from liftcore.nn import merge_lora, unmerge_lora
from liftcore.typing import Array, ArrayLike, Dtype, Filter, Key

from .dense import Dense, DenseGeneral, default_kernel_init
from .dtypes import PromoteDtypeFn, promote_dtype
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

    @compact
    def __call__(self, inputs: ArrayLike) -> Array:
        """Maps `(..., in)` to `(..., features)`."""
        y = nn.dense(self.scope, inputs, **options(self, nn.dense))
        update = nn.lora(self.scope, inputs, **options(self, nn.lora))
        return y + update.astype(y.dtype)


class LoRA(Module):
    """A module in which the kernel of each `Dense` and `DenseGeneral` has a low-rank update, however deep they are.

    It is called as the module is, and has its parameters under their own names: nothing of the model changes but what
    `liftcore.nn.lora` adds to the results of these layers. Lifted layers of it need the collection `lora` to be lifted
    as `params` is, for example by `variable_axes={("params", "lora"): 0}`.

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
        targets: a filter of the kernels that have one, asked about `("params", *modules, "kernel")`.
        param_dtype: the dtype of new updates; they are used in the dtype of their layer.
        a_init, b_init: make them.

    Raises:
        LiftArgumentError: when called, where no layer has an update.
    """

    base: Module
    rank: int
    alpha: float | None = None
    targets: Filter = True
    param_dtype: Dtype = jnp.float32
    a_init: Initializer = _default_a_init
    b_init: Initializer = zeros_init()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module."""
        updated: list[Module] = []
        is_target = filters.to_predicate(self.targets)

        def update(next_fun: Callable[..., Any], args: Any, kwargs: Any, context: InterceptorContext) -> Any:
            y, layer = next_fun(*args, **kwargs), context.module
            if context.method_name != "__call__" or not isinstance(layer, Dense | DenseGeneral):
                return y
            if not is_target(("params", *layer.path, "kernel"), layer.scope.get_variable("params", "kernel")):
                return y
            updated.append(layer)
            return y + self._update(layer, *args, **kwargs).astype(y.dtype)

        base = self.base.clone(parent=self.scope, _deep_clone=True)  # in the place of this module, not below it
        with intercept_methods(update):
            y = base(*args, **kwargs)
        if not updated:
            raise LiftArgumentError(
                f"LoRA at /{'/'.join(self.path)}",
                f"{type(self.base).__name__} has no Dense or DenseGeneral that `targets` matches: {self.targets!r}.",
                "Print `model.init(…)` to see the paths; `targets=True` takes all.",
            )
        return y

    @nowrap
    def _update(self, layer: Dense | DenseGeneral, inputs: ArrayLike) -> Array:
        """What the update adds to the result of a layer, which may have been called before."""
        given = options(layer, nn.lora) | options(self, nn.lora)
        return nn.lora(layer.scope.rewound(), inputs, **given)
