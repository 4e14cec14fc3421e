"""Low-rank updates for the kernels of any function of a scope, which computes with them as it computes anyway.

A layer of another library multiplies by its kernel itself, so it gets a kernel to which the update has been added.
Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", https://arxiv.org/abs/2106.09685.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax.nn import initializers

from .. import filters, meta
from ..errors import LiftArgumentError, check_function, name_of
from ..filters.trees import flat
from ..lift.map_variables import map_variables
from ..nn.low_rank import LORA, LowRankUpdate
from ..nn.low_rank_merging import merge_lora, place_of_update
from ..scopes.scope import Scope
from ..typing import Dtype, Filter, Initializer, Path, Shape

__all__ = ["with_lora"]

_KERNELS = ("kernel", "embedding", "w", "w_i", "w_h", "embeddings", "weight", "weight_ih", "weight_hh")
_HE_UNIFORM, _ZEROS = initializers.he_uniform(), initializers.zeros
_SHOWN = 12
"""The number of kernels that an error lists."""


def with_lora(
    fn: Callable[..., Any],
    rank: int,
    *,
    alpha: float | None = None,
    targets: Filter = True,
    names: Sequence[str] = _KERNELS,
    stacked: int = 0,
    param_dtype: Dtype = jnp.float32,
    a_init: Initializer = _HE_UNIFORM,
) -> Callable[..., Any]:
    """A function of a scope in which chosen kernels have low-rank updates: it reads `kernel + (alpha / rank) * a @ b`.

    It works for every function of a scope: models of other libraries, modules, and your own layers. The kernels keep
    their names and values, so a checkpoint of `fn` loads; the updates are in the collection "lora". A new `b` is zero,
    so a new update changes nothing. `merge_lora` returns the variables of `fn` with the same kernels that it reads.

    To keep the updates small, each is for a matrix: the axes of a kernel are divided in two where the factors `a`,
    `(*first, rank)`, and `b`, `(rank, *last)`, have the fewest numbers. For a dense layer, attention and a convolution,
    these are the axes of the inputs and those of the features.

    Example:
        >>> import jax, liftcore
        >>> from liftcore import filters, nn
        >>> model = lambda scope, x: nn.dense(scope.push("out"), nn.dense(scope.push("in"), x, 4), 2)
        >>> base = liftcore.init(model)(jax.random.key(0), jnp.ones((1, 3)))[1]
        >>> tuned = with_lora(model, rank=1, targets=filters.PathContains("out"))
        >>> _, variables = liftcore.init(tuned)(jax.random.key(1), jnp.ones((1, 3)))
        >>> jax.tree.map(jnp.shape, variables["lora"])
        {'out': {'a': (4, 1), 'b': (1, 2)}}
        >>> variables = variables | base  # a checkpoint of the model
        >>> grads = jax.grad(lambda lora: liftcore.apply(tuned)(variables | {"lora": lora}, jnp.ones((1, 3))).sum())
        >>> bool(grads(variables["lora"])["out"]["b"].any())  # only the updates are trained
        True
        >>> merged = nn.merge_lora(variables, alpha=None)  # for `model`

    Args:
        fn: called as `fn(scope, *args, **kwargs)`.
        rank: the rank of the updates, at least 1.
        alpha: each update is multiplied by `alpha / rank`; by default by 1.
        targets: a filter of the kernels that get an update, matched against `("params", *modules, name)`.
        names: the names of kernels; by default, those of flax, Haiku and Equinox. An array with fewer than two axes
            gets no update.
        stacked: the number of leading axes of these kernels along which `fn` itself stacks layers; each layer has an
            update of its own. Inside a lift it is 0, because the lift takes the axis away.
        param_dtype: the dtype of the updates. The sum has the dtype of the kernel, and is rounded to it.
        a_init: makes `a`; gets the shape of a matrix with a row for each input of the layer; for an embedding, one row.

    Returns:
        `tuned(scope, *args, **kwargs)`. A lift around it must lift the collection "lora" too.

    Raises:
        LiftArgumentError: when called, if the rank is not positive, or no kernel is a target.
        ScopeParamShapeError: when called, if a stored update is for another kernel or rank.
        ScopeVariableNotFoundError: when called, if updates are missing and must not be created.
    """
    check_function("with_lora", fn)
    chosen, kept = filters.to_predicate(targets), frozenset(names)

    def kernels(scope: Scope) -> Iterator[tuple[Path, Any]]:
        """Yield the kernels here and below that may have updates, by path from the scope."""
        for path, value in flat(meta.unbox(scope.variables())).items():
            if path[0] == "params" and path[-1] in kept and getattr(value, "ndim", 0) >= stacked + 2:
                yield path, value

    def updated(scope: Scope) -> set[Path]:
        """Create the updates that are missing; return the absolute paths of all kernels and updates."""
        found: set[Path] = set()
        for path, kernel in kernels(scope):
            absolute = ("params", *scope.path, *path[1:])
            if not chosen(absolute, kernel):
                continue
            place = place_of_update(path[1:])
            update = LowRankUpdate("with_lora", scope.below(place).rewound(), rank, LORA, param_dtype, a_init, _ZEROS)
            update.factors(None, *_factor_shapes(path[-1], kernel.shape, rank, stacked))
            found |= {absolute, *((LORA, *scope.path, *place, name) for name in ("a", "b"))}
        return found

    @functools.wraps(fn)
    def tuned(scope: Scope, *args: Any, **kwargs: Any) -> Any:
        held = updated(scope)
        seen = map_variables(fn, lambda path, _: path in held, functools.partial(merge_lora, alpha=alpha))
        result = seen(scope, *args, **kwargs)
        # Kernels that this call has created get their updates now: as zeros, which leave the result as it is.
        if not (updated(scope) or held):
            raise _no_target(scope, fn, targets, ["/".join(path) for path, _ in kernels(scope)])
        return result

    return tuned


def _factor_shapes(name: str, kernel: Shape, rank: int, stacked: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the shapes of the factors with the fewest numbers, and the number of rows that one output sums over."""
    lead, axes = tuple(kernel[:stacked]), tuple(kernel[stacked:])
    # Of equally small ones the last, where only the features are in `b`.
    at = min(range(len(axes) - 1, 0, -1), key=lambda at: math.prod(axes[:at]) + math.prod(axes[at:]))
    summed = 1 if name in ("embedding", "embeddings") else math.prod(axes[:at])  # an embedding is one row
    return (*lead, *axes[:at], rank), (*lead, rank, *axes[at:]), summed


def _no_target(scope: Scope, fn: Callable[..., Any], targets: Filter, found: Sequence[str]) -> LiftArgumentError:
    """Return the error for a function without a kernel that has an update."""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    there = f"its kernels are {', '.join(found[:_SHOWN])}{more}" if found else "it has no kernels of these `names`"
    fix = "Write a filter that matches some of these paths; `targets=True` matches all."
    return LiftArgumentError(
        f"with_lora at {scope.path_text}",
        f"{name_of(fn)} has no kernel that `targets` matches, {targets!r}: {there}.",
        fix if found else 'Pass the names of its kernels: `names=["kernel"]`.',
        option="targets" if found else "names",
        given=repr(targets),
        available=tuple(found),
    )
