"""Positions as rotations: the product of a query and a key depends only on the distance of their positions."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from ..errors import Expected, LiftArgumentError
from ..typing import Array, ArrayLike
from .layer import canonicalize_dtype, checks_options
from .masks import broadcasts
from .sharding import on_auto_axes, sharding_entries, to_spec

__all__ = ["rotary_embedding", "rotate_pairs", "rotation_table"]


@checks_options
def rotary_embedding(
    x: ArrayLike,
    positions: ArrayLike,
    *,
    base: float = 10_000.0,
    features: int | None = None,
    interleaved: bool = True,
) -> Array:
    """Rotate the i-th pair of features, `(a, b)` to `(a cos t - b sin t, a sin t + b cos t)`, by an angle `t`.

    The angle is `t = position / base ** (2 * i / features)`, so that `<rotate(q, m), rotate(k, n)>` is a function of
    `q`, `k` and `m - n`. Source: Su et al., "RoFormer", https://arxiv.org/abs/2104.09864.

    Shapes: `(*batch, length, heads, depth)`, unchanged; the dtype too, with angles of at least `float32`.

    Example:
        >>> x = rotary_embedding(jnp.ones((4, 1, 2)), jnp.arange(4))[:, 0]  # one head with one pair
        >>> (100 * x @ x.T).round().astype(int)
        Array([[ 200,  108,  -83, -198],
               [ 108,  200,  108,  -83],
               [ -83,  108,  200,  108],
               [-198,  -83,  108,  200]], dtype=int32)

    Args:
        x: queries or keys; integers become floating.
        positions: `(*batch, length)`, or broadcast to it.
        base: the larger it is, the more slowly the last pairs rotate.
        features: the number of features to rotate, from the first on; by default all, `depth`.
        interleaved: whether neighbors form a pair, `(0, 1), (2, 3), …`, as in the source; otherwise a feature of the
            first half and one of the second do, `(0, features / 2), …`, as in GPT-NeoX, Llama and Gemma.

    Raises:
        LiftArgumentError: if `features` is odd or larger than `depth`, or the positions do not match.
    """
    x = jnp.asarray(x, canonicalize_dtype(x))
    features = _checked_features(x, jnp.shape(positions), features)
    dtype = np.finfo(jnp.promote_types(x.dtype, jnp.float32)).dtype

    def turn(x: Array, positions: ArrayLike) -> Array:
        cos, sin = rotation_table(jnp.expand_dims(jnp.asarray(positions, dtype), -1), features, base)
        turned = rotate_pairs(x[..., :features], cos, sin, interleaved)
        return jnp.concatenate([turned, x[..., features:]], -1)

    return on_auto_axes(turn, to_spec(*sharding_entries(x)), x, positions)


def rotation_table(positions: ArrayLike, features: int, base: float) -> tuple[Array, Array]:
    """Return the cosines and the sines of the angles of `rotary_embedding`, `(*positions, features / 2)`.

    Example:
        >>> cos, sin = rotation_table(jnp.arange(2), 4, base=10_000.0)
        >>> sin.round(2)
        Array([[0.  , 0.  ],
               [0.84, 0.01]], dtype=float32)

    Args:
        positions: the positions; the results have their dtype, but at least `float32`.
        features: the number of features to rotate.
        base: the larger it is, the more slowly the last pairs rotate.
    """
    dtype = jnp.promote_types(jnp.result_type(positions), jnp.float32)
    rates = 1 / base ** (jnp.arange(0, features, 2, dtype=dtype) / features)
    angles = jnp.expand_dims(jnp.asarray(positions, dtype), -1) * rates
    return jnp.cos(angles), jnp.sin(angles)


def rotate_pairs(x: Array, cos: Array, sin: Array, interleaved: bool = True) -> Array:
    """Return the features of an array, rotated in pairs, in its own dtype.

    Example:
        >>> quarter = jnp.array([0.0]), jnp.array([1.0])
        >>> rotate_pairs(jnp.array([3.0, 4.0]), *quarter)
        Array([-4.,  3.], dtype=float32)

    Args:
        x: the array; integers become floating.
        cos: the cosines, from `rotation_table`; broadcast to the pairs.
        sin: the sines.
        interleaved: whether neighbors form a pair; see `rotary_embedding`.
    """
    x = jnp.asarray(x, canonicalize_dtype(x))
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else jnp.split(x, 2, -1)
    pairs = [a * cos - b * sin, a * sin + b * cos]
    turned = jnp.stack(pairs, -1).reshape(x.shape) if interleaved else jnp.concatenate(pairs, -1)
    return turned.astype(x.dtype)


def _checked_features(x: Array, positions: tuple[int, ...], features: int | None) -> int:
    where = "rotary_embedding"
    if x.ndim < 3:
        raise LiftArgumentError(
            where,
            Expected("x of shape (*batch, length, heads, depth)", given=x.shape),
            "Add an axis for the heads: `x[..., None, :]`.",
        )
    depth, lengths = x.shape[-1], x.shape[:-2]
    features = depth if features is None else features
    if features % 2 or not 0 <= features <= depth:
        raise LiftArgumentError(
            where,
            f"{features} of the {depth} features of a head cannot be rotated in pairs.",
            f"Choose an even depth of the heads, or rotate only the first features: `features={depth // 2 * 2}`.",
            option="features",
            given=features,
        )
    if not broadcasts(positions, lengths):
        raise LiftArgumentError(
            where,
            f"the positions have shape {positions}, which does not broadcast to (*batch, length) = {lengths}.",
            "Pass a position for each element, such as `jnp.arange(length)`.",
            option="positions",
            given=positions,
            expected=lengths,
        )
    return features
