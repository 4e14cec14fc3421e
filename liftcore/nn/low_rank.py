"""Low-rank updates of kernels, in a collection of their own: made, applied, and merged into the kernels.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", https://arxiv.org/abs/2106.09685.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.nn import initializers

from .. import meta
from ..errors import LiftArgumentError
from ..scopes.scope import Scope
from ..typing import Array, ArrayLike, Dtype, Initializer, Path, Variables
from .axes import normalize_axes, to_tuple
from .dtypes import PromoteDtypeFn, promote_dtype
from .params import check_stored

__all__ = ["LORA", "lora", "merge_lora", "unmerge_lora"]

LORA = "lora"
"""The collection of the updates. A filter `"lora"` takes exactly them."""

_HE_UNIFORM = initializers.he_uniform()


def lora(
    scope: Scope,
    inputs: ArrayLike,
    features: int | Iterable[int],
    rank: int,
    axis: int | Iterable[int] = -1,
    batch_dims: Iterable[int] = (),
    *,
    alpha: float | None = None,
    dtype: Dtype | None = None,
    param_dtype: Dtype = jnp.float32,
    precision: lax.PrecisionLike = None,
    a_init: Initializer = _HE_UNIFORM,
    b_init: Initializer = initializers.zeros,
    promote_dtype: PromoteDtypeFn = promote_dtype,
) -> Array:
    """`(alpha / rank) * inputs @ a @ b`: what a kernel changed by `(alpha / rank) * a @ b` adds to its product.

    As `b` begins with zeros, the result does too. The update has `rank * (in + features)` numbers instead of
    `in * features`. Source: Hu et al., https://arxiv.org/abs/2106.09685.

    Shapes: `(..., in)` to `(..., features)`; with several axes, batch dimensions and features those of `dense_general`.
    Collection `lora`: `a`, `(*batch, *in, rank)`; `b`, `(*batch, rank, *features)`. RNG streams: `params`, for `a`.

    Example:
        >>> import jax, liftcore
        >>> y, variables = liftcore.init(lora)(jax.random.key(0), jnp.ones((2, 3)), 4, rank=1)
        >>> bool((y == 0).all()), jax.tree.map(jnp.shape, variables)
        (True, {'lora': {'a': (3, 1), 'b': (1, 4)}})

    Args:
        scope: where the update lives.
        inputs: the array.
        features: the sizes of the new axes, which come last.
        rank: that of the update, at least 1.
        axis: the axes that are summed over.
        batch_dims: the leading axes for which updates are not shared.
        alpha: the factor is `alpha / rank`; by default it is 1.
        dtype: the dtype of the computation; by default, what inputs and update promote to.
        param_dtype: the dtype of a new update.
        precision: how exactly products are computed: a `jax.lax.Precision`, or two for the two operands, or names of
            them; by default as the backend does.
        a_init: makes `a`; asked for a matrix `(batch * in, rank)`.
        b_init: makes `b`; asked for its shape.
        promote_dtype: called as `promote_dtype(inputs, a, b, dtype=dtype)`.

    Raises:
        LiftArgumentError: where the rank is not positive, or an axis does not exist.
        ScopeParamShapeError: where the stored update is for other sizes.
    """
    where, shape, features = f"lora at {scope.path_text}", jnp.shape(inputs), to_tuple(features)
    if rank < 1:
        raise LiftArgumentError(where, f"expected a rank of 1 or more, given {rank}.", "Pass a small one: `rank=8`.")
    axes = normalize_axes(where, "axis", axis, len(shape))
    batch = normalize_axes(where, "batch_dims", batch_dims, len(shape))
    n, lead, summed = len(batch), tuple(shape[i] for i in batch), tuple(shape[i] for i in axes)
    a_shape, b_shape = (*lead, *summed, rank), (*lead, rank, *features)

    def new_a() -> Any:
        made = a_init(scope.make_rng("params"), (math.prod(lead) * math.prod(summed), rank), param_dtype)
        return meta.replace_boxed(made, jnp.reshape(meta.unbox(made), a_shape))

    a = scope.variable(LORA, "a", new_a).value
    b = scope.variable(LORA, "b", lambda: b_init(scope.make_rng("params"), b_shape, param_dtype)).value
    check_stored(inputs, "lora", scope, "lora/a", a, a_shape)
    check_stored(inputs, "lora", scope, "lora/b", b, b_shape)
    x, a, b = promote_dtype(inputs, a, b, dtype=dtype)
    x = lax.dot_general(x, a, ((axes, tuple(range(n, n + len(axes)))), (batch, batch)), precision=precision)
    x = x * _scale(alpha, rank)
    return lax.dot_general(x, b, (((x.ndim - 1,), (n,)), (batch, batch)), precision=precision)


def _scale(alpha: float | None, rank: int) -> float:
    return 1.0 if alpha is None else alpha / rank


def merge_lora(variables: Variables, *, alpha: float | None) -> Variables:
    """The variables of the layer or model itself, with each update added to its kernel: it then costs nothing.

    The sum is computed in `float32` at least and rounded to the dtype of the kernel. The updates may be stacked along
    leading axes, as a lifted `scan` does it, if the kernels are too.

    Example:
        >>> kernel, a, b = jnp.ones((2, 2)), jnp.array([[1.0], [0.0]]), jnp.array([[0.0, 3.0]])
        >>> variables = {"params": {"dense": {"kernel": kernel}}, "lora": {"dense": {"a": a, "b": b}}}
        >>> merged = merge_lora(variables, alpha=2.0)
        >>> merged
        {'params': {'dense': {'kernel': Array([[1., 7.],
               [1., 1.]], dtype=float32)}}}

    Args:
        variables: with the collections `params` and `lora`.
        alpha: that of the layers, which is not stored: it must be said again.

    Returns:
        All collections but `lora`.

    Raises:
        LiftArgumentError: where there is no `lora`, or an update has no kernel that it fits.
    """
    if LORA not in variables:
        raise LiftArgumentError(
            "merge_lora",
            f'expected a collection "{LORA}", given {sorted(variables)}.',
            f"Pass what `init` of the layer with updates made, or add them: `{{**variables, '{LORA}': updates}}`.",
        )
    rest = {name: tree for name, tree in variables.items() if name != LORA}
    return {**rest, "params": _moved("merge_lora", variables["params"], variables[LORA], alpha, jnp.add)}


def unmerge_lora(variables: Variables, updates: Mapping[str, Any], *, alpha: float | None) -> Variables:
    """The inverse of `merge_lora`: kernels without the updates, and the updates beside them.

    Each of the two rounds once, so a kernel comes back within the last place of the larger of it and the merged one.

    Example:
        >>> updates = {"dense": {"a": jnp.array([[1.0]]), "b": jnp.array([[3.0]])}}
        >>> unmerge_lora({"params": {"dense": {"kernel": jnp.array([[5.0]])}}}, updates, alpha=None)["params"]
        {'dense': {'kernel': Array([[2.]], dtype=float32)}}

    Args:
        variables: what `merge_lora` returned.
        updates: the collection `lora` that it was given.
        alpha: that of the layers, which is not stored: it must be said again.

    Raises:
        LiftArgumentError: where an update has no kernel that it fits.
    """
    moved = _moved("unmerge_lora", variables["params"], updates, alpha, jnp.subtract)
    return {**variables, "params": moved, LORA: updates}


def _moved(
    where: str, params: Mapping[str, Any], updates: Mapping[str, Any], alpha: float | None, by: Callable[..., Array]
) -> Any:
    """Parameters with each kernel that has an update moved by it; those without stay the same objects."""
    result = dict(params)
    for path, a, b in _pairs(updates, ()):
        node = result
        for name in path:
            if name in node:
                node[name] = dict(node[name])
            node = node.get(name, {})
        if "kernel" not in node:
            raise LiftArgumentError(
                where,
                f'"lora/{"/".join(path)}" is the update of no kernel: "params" has none there.',
                "Pass the parameters of the model that the updates were made for.",
            )
        kernel = meta.unbox(node["kernel"])
        wide = jnp.promote_types(jnp.float32, kernel.dtype)
        update = _product(where, path, kernel, a.astype(wide), b.astype(wide)) * _scale(alpha, a.shape[-1])
        node["kernel"] = meta.replace_boxed(node["kernel"], by(kernel.astype(wide), update).astype(kernel.dtype))
    return result


def _pairs(updates: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Array, Array]]:
    """The updates below a path, each with the path of its layer."""
    if "a" in updates and not isinstance(updates["a"], Mapping):
        yield path, meta.unbox(updates["a"]), meta.unbox(updates["b"])
    for name, below in updates.items():
        if isinstance(below, Mapping):
            yield from _pairs(below, (*path, name))


def _product(where: str, path: Path, kernel: Array, a: Array, b: Array) -> Array:
    """`a @ b` in the shape of the kernel, for each index of the leading axes that all three share."""
    n = a.ndim + b.ndim - 2 - kernel.ndim
    lead, rank = a.shape[: max(n, 0)], a.shape[-1]
    if n < 0 or b.shape[: n + 1] != (*lead, rank) or a.shape[:-1] + b.shape[n + 1 :] != kernel.shape:
        raise LiftArgumentError(
            where,
            f"the update at {'/'.join(path)} has shapes {a.shape} and {b.shape}, which do not make {kernel.shape}.",
            "Updates and kernels must be stacked alike, and along leading axes.",
        )
    left = a.reshape(*lead, math.prod(a.shape[n:-1]), rank)
    right = b.reshape(*lead, rank, math.prod(b.shape[n + 1 :]))
    return jnp.matmul(left, right, precision="highest").reshape(kernel.shape)
