"""Layers around another layer that rescale its parameters before each call: `SpectralNorm`, `WeightNorm`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers

from liftcore import nn
from liftcore.errors import Expected, LiftArgumentError
from liftcore.problems import no_matrix
from liftcore.typing import Array, Dtype, Initializer

from ..errors import StructureError
from ..filterlib import Filter, PathContains, to_predicate
from ..graph.functions import state
from ..objects.module import Module
from ..rnglib.streams import Rngs, RngStream
from ..variablelib.kinds import BatchStat, Param
from .parameters import PromoteDtypeFn, promote_dtype

__all__ = ["SpectralNorm", "WeightNorm"]


class SpectralNorm(Module):
    """Calls a layer after dividing each matrix of its parameters by its largest singular value, which becomes 1.

    Arrays with more dimensions count as matrices of shape `(-1, features)`; scalars and vectors are not changed. Each
    call continues the power iteration that finds this value, unless `update_stats` is False. Source: Miyato et al.,
    "Spectral Normalization for Generative Adversarial Networks", https://arxiv.org/abs/1802.05957.

    Variables: those of the layer, which are changed in place. In the dict `batch_stats`, for a parameter `kernel` of
    shape `(in, features)`, a `BatchStat` `("kernel", "u")`, `(1, features)`, and `("kernel", "sigma")`, `()`.

    Example:
        >>> import nnx_like as nnx
        >>> rngs = nnx.Rngs(0)
        >>> layer = nnx.SpectralNorm(nnx.Linear(2, 2, rngs=rngs), n_steps=20, rngs=rngs)
        >>> y = layer(jnp.eye(2))
        >>> jnp.linalg.svd(y, compute_uv=False).max().round(3)
        Array(1., dtype=float32)

    Args:
        layer_instance: the layer.
        n_steps: the number of power iteration steps in each call; if below 1, nothing is divided.
        epsilon: added to the squared length of a vector before dividing by it.
        dtype: the dtype that divided matrices are rounded to; by default, what they and `u` promote to. They are stored
            in their own dtype.
        param_dtype: the dtype of `u` and `sigma`.
        error_on_non_matrix: whether arrays of more than two dimensions are an error.
        update_stats: whether a call stores the new `u` and `sigma`. `train()` and `eval()` set it through the attribute
            `use_running_average`, which means the opposite.
        rngs: each `u` draws a key from `params`.

    Raises:
        LiftArgumentError: if `layer_instance` is not a module, or has an array that is not allowed.
    """

    @nn.checks_options
    def __init__(
        self,
        layer_instance: Module,
        *,
        n_steps: int = 1,
        epsilon: float = 1e-12,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        error_on_non_matrix: bool = False,
        update_stats: bool = True,
        rngs: Rngs,
    ) -> None:
        _check_layer("SpectralNorm", layer_instance)
        self.layer_instance: Any = layer_instance
        self.n_steps = n_steps
        self.epsilon = epsilon
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.error_on_non_matrix = error_on_non_matrix
        self.use_running_average = not update_stats
        self.batch_stats: dict[tuple[Any, ...], BatchStat[Array]] = {}
        for path, param in self._matrices():
            u = initializers.normal()(rngs.params(), (1, param.shape[-1]), param_dtype)
            self.batch_stats[(*path, "u")] = BatchStat(u)
            self.batch_stats[(*path, "sigma")] = BatchStat(jnp.ones((), param_dtype))

    @nn.checks_options
    def __call__(self, x: Any, update_stats: bool | None = None) -> Any:
        """Divide the parameters, then call the layer.

        Args:
            x: the inputs of the layer.
            update_stats: whether to store what the power iteration found; used instead of the attribute, if given.

        Raises:
            LiftArgumentError: if `update_stats` is None here and in the layer.
            StructureError: if the layer has a new parameter.
        """
        if update_stats is None:
            if self.use_running_average is None:
                what = "`use_running_average` is None in the layer, and `update_stats` in the call."
                fix = "Call `train()` or `eval()` of the model, or pass `update_stats=train`."
                raise LiftArgumentError("SpectralNorm", what, fix, option="update_stats")
            update_stats = not self.use_running_average
        for path, param in self._matrices():
            u = _beside("SpectralNorm", self.batch_stats, path, "u")
            sigma = _beside("SpectralNorm", self.batch_stats, path, "sigma")
            found = nn.spectral_normalize(param[...], u[...], self.n_steps, self.epsilon, self.dtype)
            for variable, value in zip((param, u, sigma) if update_stats else (param,), found, strict=False):
                variable[...] = value.astype(variable.dtype)
        return self.layer_instance(x)

    def _matrices(self) -> Iterator[tuple[tuple[Any, ...], Param[Array]]]:
        """Return the parameters to divide, with their paths in the layer."""
        for path, param in state(self.layer_instance, Param).flat_state():
            if param.ndim < 2 or self.n_steps < 1:
                continue
            if param.ndim > 2 and self.error_on_non_matrix:
                raise no_matrix(f"SpectralNorm, {_text(path)}", param.shape, variable=_text(path))
            yield path, param


class WeightNorm(Module):
    """Calls a layer after scaling its parameters to length 1 for each feature, times a learned scale.

    `scale * w / |w|`, which learns length and direction separately. Source: Salimans & Kingma, "Weight Normalization",
    https://arxiv.org/abs/1602.07868.

    Variables: those of the layer, which are changed in place. In the dict `scales`, for a parameter `kernel`, a `Param`
    `("kernel",)` with the sizes of `feature_axes`.

    Example:
        >>> import nnx_like as nnx
        >>> rngs = nnx.Rngs(0)
        >>> layer = nnx.WeightNorm(nnx.Linear(3, 2, rngs=rngs), rngs=rngs)
        >>> y = layer(jnp.eye(3))
        >>> (layer.layer_instance.kernel[...] ** 2).sum(axis=0).round(3)
        Array([1., 1.], dtype=float32)

    Args:
        layer_instance: the layer.
        feature_axes: the axes of a parameter with separate lengths; None for one length of the whole parameter.
        use_scale: whether there are scales.
        scale_init: makes a scale.
        epsilon: added to the squared length, so that zeros stay zeros.
        dtype: the dtype of scaled parameters; by default, what they and the scale promote to.
        param_dtype: the dtype of the scales.
        variable_filter: which variables of the layer are scaled; see `nnx_like.filterlib`.
        promote_dtype: converts `(scaled parameter,)` to `dtype`.
        rngs: the source of keys for the scales. It does not advance any stream: the default `ones` need no key, so a
            key is only folded from the next one.

    Raises:
        LiftArgumentError: if `layer_instance` is not a module, or a parameter to scale lacks an axis.
    """

    @nn.checks_options
    def __init__(
        self,
        layer_instance: Module,
        *,
        feature_axes: int | Sequence[int] | None = -1,
        use_scale: bool = True,
        scale_init: Initializer = initializers.ones,
        epsilon: float = 1e-12,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        variable_filter: Filter = PathContains("kernel"),  # noqa: B008  # immutable
        promote_dtype: PromoteDtypeFn = promote_dtype,
        rngs: Rngs,
    ) -> None:
        _check_layer("WeightNorm", layer_instance)
        self.layer_instance: Any = layer_instance
        self.feature_axes = () if feature_axes is None else feature_axes
        self.use_scale = use_scale
        self.scale_init = scale_init
        self.epsilon = epsilon
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.variable_filter: Callable[..., bool] = to_predicate(variable_filter)
        self.promote_dtype = promote_dtype
        self.scales: dict[tuple[Any, ...], Param[Array]] | None = None
        if use_scale:
            self.scales = {}
            for number, (path, param) in enumerate(self._chosen()):
                sizes = tuple(param.shape[axis] for axis in self._features(path, param))
                self.scales[path] = Param(scale_init(_key_beside(rngs.params, number), sizes, param_dtype))

    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Scale the parameters, then call the layer.

        Args:
            x: the inputs of the layer.
            *args: other arguments of the layer.
            **kwargs: its keyword arguments.

        Raises:
            StructureError: if the layer has a new parameter.
        """
        for path, param in self._chosen():
            features, value = self._features(path, param), param[...]
            scaled = nn.unit_norm(value, [axis for axis in range(value.ndim) if axis not in features], self.epsilon)
            if self.scales is not None:
                scale = _beside("WeightNorm", self.scales, path)[...]
                sizes = tuple(size if axis in features else 1 for axis, size in enumerate(value.shape))
                scaled = scaled * nn.align(nn.reshape(scale, sizes), scaled)
            (scaled,) = self.promote_dtype((scaled,), dtype=self.dtype)
            param.set_value(scaled)
        return self.layer_instance(x, *args, **kwargs)

    def _chosen(self) -> Iterator[tuple[tuple[Any, ...], Any]]:
        for path, param in state(self.layer_instance).flat_state():
            if self.variable_filter(path, param):
                yield path, param

    def _features(self, path: tuple[Any, ...], param: Any) -> tuple[int, ...]:
        return nn.normalize_axes(f"WeightNorm, {_text(path)}", "feature_axes", self.feature_axes, param.ndim)


def _key_beside(stream: RngStream, number: int) -> Array:
    """Return a key that no draw returns, without advancing the stream, so that later draws are unaffected."""
    upcoming = jax.random.fold_in(stream.key[...], stream.count[...])
    return jax.random.fold_in(jax.random.fold_in(upcoming, 0x5CA1E5), number)


def _beside(where: str, kept: dict[tuple[Any, ...], Any], path: tuple[Any, ...], *name: str) -> Any:
    """Return the variable that is kept for a parameter of the layer."""
    if (*path, *name) not in kept:
        what = f"the layer has a new parameter {_text(path)}, which it did not have when this wrapper was made."
        fix = f"Make the {where} after the layer has all its parameters."
        raise StructureError(where, what, fix, variable=_text(path))
    return kept[(*path, *name)]


def _check_layer(where: str, layer: Any) -> None:
    if not isinstance(layer, Module):
        fix = f"Make the layer first: `{where}(nnx.Linear(3, 2, rngs=rngs), rngs=rngs)`."
        raise LiftArgumentError(where, Expected("a module", layer), fix, option="layer_instance")


def _text(path: tuple[Any, ...]) -> str:
    return '"' + ".".join(map(str, path)) + '"'
