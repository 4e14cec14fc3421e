"""Merges low-rank updates into the kernels that they change, and takes them out again.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", https://arxiv.org/abs/2106.09685.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax.numpy as jnp

from .. import meta
from ..errors import Expected, LiftArgumentError
from ..traverse_util.flat import flatten_dict, unflatten_dict
from ..typing import Array, Path, Shape, Variables
from .low_rank import LORA, factor_names, lora_scale

__all__ = ["merge_lora", "place_of_update", "unmerge_lora"]

_BY_LAYER = ("kernel", "embedding")
"""The names of kernels whose updates are at the path of the layer."""
_SUFFIX = "_lora"
"""The end of the name of other updates, which follows that of the kernel. No variable of a layer has such a name, so
styles that keep all collections in one object have room for both."""


def place_of_update(path: Path) -> Path:
    """Return the path of the update of a kernel; neither path has a collection.

    Example:
        >>> place_of_update(("dense", "kernel")), place_of_update(("cell", "weight_ih"))
        (('dense',), ('cell', 'weight_ih_lora'))

    Args:
        path: the path of the kernel.
    """
    *layer, name = path
    return tuple(layer) if name in _BY_LAYER else (*layer, f"{name}{_SUFFIX}")


def merge_lora(variables: Variables, *, alpha: float | None, collection: str = LORA) -> Variables:
    """Return the variables of the model, with each update added to its kernel, so that it needs no extra computation.

    The sum is computed in at least `float32`, and rounded to the dtype of the kernel. Updates may be stacked along
    leading axes, as a lifted `scan` does it, if the kernels are stacked, too.

    Example:
        >>> kernel, a, b = jnp.ones((2, 2)), jnp.array([[1.0], [0.0]]), jnp.array([[0.0, 3.0]])
        >>> variables = {"params": {"dense": {"kernel": kernel}}, "lora": {"dense": {"a": a, "b": b}}}
        >>> merged = merge_lora(variables, alpha=2.0)
        >>> merged
        {'params': {'dense': {'kernel': Array([[1., 7.],
               [1., 1.]], dtype=float32)}}}

    Args:
        variables: variables with the collection `params` and the collection of the updates.
        alpha: the `alpha` of the layers. It is not stored, so it must be given again.
        collection: the collection of the updates; `"params"` if they are among the parameters.

    Returns:
        All variables but the updates.

    Raises:
        LiftArgumentError: if there are no updates, or an update has no kernel that it fits.
    """
    names, updates, rest = factor_names(collection), variables.get(collection, {}), dict(variables)
    pairs = _pairs("merge_lora", updates, collection)
    if not pairs:
        raise LiftArgumentError(
            "merge_lora",
            Expected(f'updates in the `collection` "{collection}"', given=sorted(variables)),
            f"Pass what `init` of the layer with updates made, or add them: `variables | {{'{collection}': updates}}`. "
            'If the updates are parameters, pass `collection="params"`.',
            option="collection",
            collection=collection,
        )
    params = flatten_dict(rest["params"], keep_empty_nodes=True)
    if collection == "params":
        params = {path: value for path, value in params.items() if path[-1] not in names}
    rest.pop(collection)
    return {**rest, "params": unflatten_dict(_moved("merge_lora", collection, params, pairs, alpha, jnp.add))}


def unmerge_lora(
    variables: Variables, updates: Mapping[str, Any], *, alpha: float | None, collection: str = LORA
) -> Variables:
    """Return kernels without the updates, and the updates beside them: the inverse of `merge_lora`.

    Both functions round once, so a kernel comes back within the last place of the larger of it and the merged one.

    Example:
        >>> updates = {"dense": {"a": jnp.array([[1.0]]), "b": jnp.array([[3.0]])}}
        >>> unmerge_lora({"params": {"dense": {"kernel": jnp.array([[5.0]])}}}, updates, alpha=None)["params"]
        {'dense': {'kernel': Array([[2.]], dtype=float32)}}

    Args:
        variables: the variables that `merge_lora` returned.
        updates: the collection of updates that `merge_lora` got; of `"params"`, at least the `lora_a` and `lora_b`.
        alpha: the `alpha` of the layers. It is not stored, so it must be given again.
        collection: the collection of the updates.

    Raises:
        LiftArgumentError: if an update has no kernel that it fits.
    """
    names = factor_names(collection)
    pairs = _pairs("unmerge_lora", updates, collection)
    params = flatten_dict(variables["params"], keep_empty_nodes=True)
    moved = _moved("unmerge_lora", collection, params, pairs, alpha, jnp.subtract)
    if collection != "params":
        return {**variables, "params": unflatten_dict(moved), collection: updates}
    for path, *factors in pairs:
        moved.pop(path, None)  # an empty dict
        moved |= {(*path, name): factor for name, factor in zip(names, factors, strict=True)}
    return {**variables, "params": unflatten_dict(moved)}


def _moved(
    where: str,
    collection: str,
    params: Mapping[Path, Any],
    pairs: Iterable[tuple[Path, Any, Any]],
    alpha: float | None,
    by: Callable[..., Array],
) -> dict[Path, Any]:
    """Change each kernel of the parameters that has an update by it; the other kernels stay the same objects."""
    result = dict(params)
    kernels = {place_of_update(path): path for path in sorted(params)}  # of two names in a layer, `kernel` comes last
    for path, *factors in pairs:
        if path not in kernels:
            place = "/".join((collection, *path))
            what = f'"{place}" is an update without a kernel: "params" has none there.'
            fix = "Pass the parameters of the model that the updates were made for."
            raise LiftArgumentError(where, what, fix, variable=place)
        boxed = result[kernels[path]]
        kernel, (a, b) = meta.unbox(boxed), map(meta.unbox, factors)
        wide = jnp.promote_types(jnp.float32, kernel.dtype)
        update = _product(where, path, kernel, a.astype(wide), b.astype(wide)) * lora_scale(alpha, a.shape[-1])
        result[kernels[path]] = meta.replace_boxed(boxed, by(kernel.astype(wide), update).astype(kernel.dtype))
    return result


def _pairs(where: str, updates: Mapping[str, Any], collection: str) -> list[tuple[Path, Any, Any]]:
    """Return the updates, each with the path of its layer."""
    names = factor_names(collection)
    factors = {path: value for path, value in flatten_dict(updates).items() if path[-1] in names}
    found = []
    for layer in dict.fromkeys([path[:-1] for path in factors]):
        missing = [name for name in names if (*layer, name) not in factors]
        if missing:
            place = "/".join((collection, *layer))
            what = f'"{place}" lacks the factor {missing[0]!r}.'
            raise LiftArgumentError(where, what, "Pass both factors of each update.", variable=place)
        found.append((layer, *[factors[*layer, name] for name in names]))
    return found


def _product(where: str, path: Path, kernel: Array, a: Array, b: Array) -> Array:
    """Compute `a @ b` in the shape of the kernel, for each index of the leading axes that all three share.

    The factors of an equation have all dimensions of the kernel, some with size 1, and are multiplied directly.
    """
    n = a.ndim + b.ndim - 2 - kernel.ndim
    lead, rank = a.shape[: max(n, 0)], a.shape[-1]
    if _spans(kernel.shape, a.shape[:-1], b.shape[:-1]) and b.shape[-1] == rank:
        return jnp.einsum("...r,...r->...", a, b, precision="highest")
    if n < 0 or b.shape[: n + 1] != (*lead, rank) or a.shape[:-1] + b.shape[n + 1 :] != kernel.shape:
        raise LiftArgumentError(
            where,
            f"the update at /{'/'.join(path)} has shapes {a.shape} and {b.shape}, which do not make {kernel.shape}.",
            "Stack updates and kernels in the same way, along leading axes.",
            given=(a.shape, b.shape),
            expected=kernel.shape,
        )
    left = a.reshape(*lead, math.prod(a.shape[n:-1]), rank)
    right = b.reshape(*lead, rank, math.prod(b.shape[n + 1 :]))
    return jnp.matmul(left, right, precision="highest").reshape(kernel.shape)


def _spans(shape: Shape, a: Shape, b: Shape) -> bool:
    """Return whether two shapes with as many dimensions as a third one broadcast to it."""
    if not len(a) == len(b) == len(shape):
        return False
    return all({size} <= {i, j} <= {size, 1} for size, i, j in zip(shape, a, b, strict=True))
