"""Runs layers one by one: like `liftcore.scan` with stacked variables, but as a loop in Python.

Each layer runs on its own scopes, which are made of its slices of the stacked variables and of its keys. So the
function itself runs, on values that can be printed, and it may be a lifted `jit`. Written with `liftcore.pack`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import liftcore
from liftcore import Changes, Scope
from liftcore.errors import AxisSizeError, LiftArgumentError, LoopInvarianceError
from liftcore.filters import leaves_of, merge
from liftcore.meta import add_axis, remove_axis
from liftcore.problems import other_structure, other_types
from liftcore.typing import Filter, PyTree

__all__ = ["check_sizes", "one_by_one"]


def one_by_one(
    fn: Callable[..., tuple[PyTree, None]],
    length: int,
    *,
    variable_broadcast: Filter = False,
    variable_carry: Filter = False,
    split_rngs: Mapping[Any, bool] | bool = True,
    metadata_params: Mapping[Any, Any] = liftcore.NO_AXES,
) -> Callable[..., Any]:
    """Like `liftcore.scan` along axis 0 of all variables, but a loop in Python: the function runs once for each layer.

    Example:
        >>> def layer(scope, x, by):
        ...     return x * by * scope.param("w", lambda key: jnp.ones(())), None
        >>> (x, _), variables = liftcore.init(one_by_one(layer, 3))(jax.random.key(0), 1.0, jnp.arange(1.0, 4.0))
        >>> float(x), variables["params"]["w"].shape
        (6.0, (3,))

    Args:
        fn: called as `fn(scopes, carry, slices, *args)`; returns the next carry and None.
        length: the number of layers.
        variable_broadcast: a filter of the shared variables, which must exist.
        variable_carry: a filter of the carried variables.
        split_rngs: maps filters of RNG streams to bools: whether iterations draw different keys. One bool applies to
            all streams.
        metadata_params: passed to boxed metadata (see `liftcore.meta`) that gains the axis, such as the name of the
            axis, `{PARTITION_NAME: "layers"}`. Without a name, the axis is unnamed.

    Returns:
        `lifted(scopes, carry, xs, *args)`, which returns the last carry and None.

    Raises:
        AxisSizeError: when called, if variables are stacked from another number of layers.
        CarryTypeError: when called, if a layer changes the type of the carry.
        LiftArgumentError: when called, if layers make, write or sow different variables.
        LoopInvarianceError: when called, if a layer makes or writes a shared variable.
    """
    rules = {...: split_rngs} if isinstance(split_rngs, bool) else dict(split_rngs)
    filters = [variable_broadcast, variable_carry, True]

    def lifted(scopes: PyTree, carry: PyTree, xs: PyTree, *args: Any) -> tuple[PyTree, None]:
        name = f"loop({getattr(fn, '__name__', type(fn).__name__)})"
        first: Scope = jax.tree.leaves(scopes, is_leaf=lambda value: isinstance(value, Scope))[0]
        where = f"{name} at {first.path_text}"

        def transform(scope_fn: Any, repack_fn: Any, variables: Any, rngs: Any, carry: PyTree) -> Any:
            shared, carried, stacked = variables
            check_sizes(where, stacked, length)
            stacked = remove_axis(stacked, 0, metadata_params)
            keys = [_keys(group, split, length) for group, split in zip(rngs, rules.values(), strict=True)]
            layers = []
            for index in range(length):
                inner = scope_fn([shared, carried, _slice(stacked, index)], [each[index] for each in keys])
                after, _ = fn(inner, carry, _slice(xs, index), *args)
                layer = repack_fn(inner)
                _check_type(where, "carry", carry, after)
                carry, carried = after, _carried(where, carried, layer[1])
                layers.append(layer)
            return (carry, None), _together(where, layers, metadata_params)

        filled = liftcore.pack(transform, filters, [*filters, liftcore.Captured()], list(rules), name)
        return filled(scopes, carry)

    return lifted


def _slice(tree: PyTree, index: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _keys(group: PyTree, split: bool, length: int) -> list[PyTree]:
    """Return the root keys of each layer."""
    if not split:
        return [group] * length
    keys = jax.tree.map(lambda key: jax.random.split(key, length), group)
    return [_slice(keys, index) for index in range(length)]


def _carried(where: str, before: PyTree, changes: Changes) -> PyTree:
    """Return the carried variables for the next layer."""
    for old, new in zip(before, changes.values, strict=True):
        known = dict(leaves_of(old))
        for path, value in leaves_of(new):
            if path in known:
                _check_type(where, f'carried variable "{"/".join(path)}"', known[path], value)
    return tuple(merge(*trees) for trees in zip(before, changes.created, changes.values, strict=True))


def _together(where: str, layers: Sequence[Any], params: Mapping[Any, Any]) -> tuple[PyTree, ...]:
    """Combine the output groups of all layers into those of the stack."""
    shared, carried, stacked, captured = zip(*layers, strict=True)
    for changes in shared:
        names = sorted("/".join(path) for part in changes for tree in part for path, _ in leaves_of(tree))
        if names:
            what = f"{names} is shared by all layers (variable_broadcast), but a layer makes or writes it."
            fix = f'Carry it from one layer to the next: `variable_carry="{names[0].split("/")[0]}"`.'
            raise LoopInvarianceError(where, what, fix, variable=names[0], option="variable_broadcast")
    whole = [tuple(merge(*trees) for trees in zip(*part, strict=True)) for part in zip(*carried, strict=True)]
    return shared[0], Changes(*whole), add_axis(_stacked(where, stacked), 0, params), _stacked(where, captured)


def _stacked(where: str, trees: Sequence[PyTree]) -> PyTree:
    try:
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
    except (ValueError, TypeError) as error:
        raise LiftArgumentError(
            where,
            f"the layers make, write or sow different variables, which cannot be stacked: {error}",
            "Make, write and sow the same variables, with the same shapes and dtypes, in every layer.",
        ) from error


def check_sizes(where: str, stacked: PyTree, length: int) -> None:
    """Check that stacked variables have one slice for each layer.

    Args:
        where: the stack, for the error.
        stacked: the groups of variables.
        length: the number of layers.

    Raises:
        AxisSizeError: if one has more or fewer.
    """
    for tree in stacked:
        for path, value in leaves_of(tree):
            for leaf in jax.tree.leaves(value):
                if np.shape(leaf)[:1] != (length,):
                    what = f'"{"/".join(path)}" has shape {np.shape(leaf)}, but there are {length} layers along axis 0.'
                    fix = "Pass variables of that number of layers, or set `length` to their number of layers."
                    raise AxisSizeError(
                        where, what, fix, variable="/".join(path), expected=f"{length} layers", given=np.shape(leaf)
                    )


def _check_type(where: str, what: str, before: PyTree, after: PyTree) -> None:
    """Check that a layer returns a value of the type that it was given."""
    olds: Any = jax.tree.structure(before)
    news: Any = jax.tree.structure(after)
    if olds != news:
        raise other_structure(where, what, olds, news, "Return a value with the structure that the layer was given.")
    pairs = zip(jax.tree.leaves_with_path(before), jax.tree.leaves(after), strict=True)
    changed = [
        (f"{what}{jax.tree_util.keystr(path)}", _type(old), _type(new))
        for (path, old), new in pairs
        if _type(old) != _type(new) and not _is_promoted(old, new)
    ]
    if changed:
        raise other_types(where, "layer", changed, "Cast one of them, such as `x.astype(jnp.float32)`.")


def _type(value: Any) -> str:
    aval = jax.typeof(value)
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"


def _is_promoted(old: Any, new: Any) -> bool:
    """Return whether a number without a dtype of its own got one, which JAX's loops allow."""
    before, after = jax.typeof(old), jax.typeof(new)
    return before.weak_type and before.shape == after.shape and jnp.result_type(old, new) == after.dtype
