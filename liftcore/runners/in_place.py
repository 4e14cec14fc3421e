"""Stacked variables that a loop updates in place, as `InPlace` asks.

`jax.lax.scan` reads the slices of one array and stacks the new ones into another. For the cache of a model that
generates text, this copies the whole cache for each token. So the loop carries the array instead: each iteration reads
its slice, and writes the new one over it. XLA then copies nothing. The numbers are the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from ..typing import PyTree

__all__ = ["Places", "over_slices", "places_of"]

Places: TypeAlias = Mapping[tuple[Any, ...], int]
"""Where leaves are written, as JAX's paths in the values of the output groups; and their numbers among those read."""


def places_of(groups: Sequence[PyTree], outputs: Mapping[int, int]) -> Places:
    """Return the places of the variables that are updated in place.

    Args:
        groups: the input groups of stacked variables.
        outputs: for the number of each group that is updated in place, the number of its output group.
    """
    paths = [path for path, _ in jax.tree.leaves_with_path(list(groups))]
    return {
        (jax.tree_util.SequenceKey(outputs[path[0].idx]), *path[1:]): number
        for number, path in enumerate(paths)
        if path[0].idx in outputs
    }


def over_slices(scan: Callable[..., Any], places: Places) -> Callable[..., Any]:
    """Return a scan that writes new values over those that an iteration read, if they have the same shape and dtype.

    Args:
        scan: runs iterations; see `Loop.scan`. They read `(leaves, initial values)`, and return initial values that
            depend on the carry, and a tuple that begins with the values of the output groups.
        places: the places of these leaves.
    """

    def run(iteration: Any, carry: PyTree, xs: Any) -> tuple[PyTree, PyTree]:
        leaves, made = xs
        arrays = {number: leaves[number] for number in places.values() if leaves[number] is not None}
        if not arrays:  # none of them is read, so there is nothing to copy
            return scan(iteration, carry, xs)  # type: ignore[no-any-return]
        others = [None if number in arrays else leaf for number, leaf in enumerate(leaves)]
        written: list[Any] = []  # of the last trace: the structure, and for each leaf the number of its array, or None

        def step(state: Any, slices: Any) -> Any:
            (carry, arrays), (index, others, made) = state, slices
            read = {number: jax.lax.dynamic_index_in_dim(array, index, 0, False) for number, array in arrays.items()}
            leaves = [read.get(number, leaf) for number, leaf in enumerate(others)]
            carry, (late, (values, *rest)) = iteration(carry, (leaves, made))
            pairs, treedef = jax.tree.flatten_with_path(values)
            numbers = [_number(places.get(path), value, read) for path, value in pairs]
            new = {number: value for number, (_, value) in zip(numbers, pairs, strict=True) if number is not None}
            now = arrays | {at: jax.lax.dynamic_update_index_in_dim(arrays[at], new[at], index, 0) for at in new}
            written[:] = treedef, numbers
            stacked = [value if number is None else None for number, (_, value) in zip(numbers, pairs, strict=True)]
            return (carry, now), (late, (stacked, *rest))

        over = dataclasses.replace(iteration, run=step, see=lambda state: iteration.see(state[0]))
        indices = jnp.arange(len(next(iter(arrays.values()))))
        (carry, arrays), (late, (stacked, *rest)) = scan(over, (carry, arrays), (indices, others, made))
        treedef, numbers = written
        values = [one if number is None else arrays[number] for one, number in zip(stacked, numbers, strict=True)]
        return carry, (late, (treedef.unflatten(values), *rest))

    return run


def _number(number: int | None, value: Any, read: Mapping[int, Any]) -> int | None:
    """Return the number of the array that a new value can be written to."""
    if number is None or number not in read:
        return None
    known = read[number]
    return number if (jnp.shape(value), jnp.result_type(value)) == (known.shape, known.dtype) else None
