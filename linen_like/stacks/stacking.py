"""Converts stacked layers in trees of variables to layers with separate names, and back.

A checkpoint may hold equal layers stacked along an axis, as `Stack` and `scan` make them, or each under its own name,
such as `Block_0`, `Block_1`, …, as a loop over modules does. The conversion changes no bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from liftcore import NO_AXES
from liftcore.errors import Expected, LiftArgumentError
from liftcore.filters import check_names, leaves_of, merge, partition
from liftcore.meta import add_axis, remove_axis
from liftcore.typing import Filter, Path, PyTree, Variables

__all__ = ["stack_layers", "unstack_layers"]


def stack_layers(
    variables: Variables,
    layers: str,
    stacked: str,
    *,
    axis: int = 0,
    shared: Filter = False,
    metadata_params: Mapping[Any, Any] = NO_AXES,
) -> dict[str, Any]:
    """Stack layers with separate names under one name; everything else is unchanged.

    Example:
        >>> variables = {"params": {"Dense_0": {"bias": np.ones(2)}, "Dense_1": {"bias": np.zeros(2)}}}
        >>> stacked = stack_layers(variables, "Dense_{}", "Stack_0/block")
        >>> jax.tree.map(np.shape, stacked)
        {'params': {'Stack_0': {'block': {'bias': (2, 2)}}}}

    Args:
        variables: `{collection: {module: {name: value}}}`; every collection that holds one of the layers must hold all.
        layers: the path of each layer in a collection, with `{}` for its number: `"encoder/Block_{}"`.
        stacked: the path for the stacked layers.
        axis: the axis of layers, which all arrays gain.
        shared: a filter of variables that all layers share. They must be equal in all layers, and gain no axis.
        metadata_params: passed to boxed metadata that gains the axis; see `nn.scan`.

    Returns:
        New variables, as plain dicts.

    Raises:
        LiftArgumentError: if layers are missing or differ in names, shapes or dtypes, a name is taken, or `shared` asks
            for a name and matches nothing.
    """
    where = f'stack_layers("{layers}", "{stacked}")'
    _template(where, layers)
    found = {name: _numbers(tree, layers) for name, tree in variables.items()}
    length = 1 + max((max(numbers) for numbers in found.values() if numbers), default=-1)
    if not length:
        raise _nothing(where, "no collection holds such layers", variables, _before(layers))
    first = {name: _at(tree, _path(layers, 0)) for name, tree in variables.items() if found[name]}
    _check_shared_names(where, first, shared, _path(stacked))
    result = {}
    for collection, tree in variables.items():
        below = _copied(tree)
        if found[collection]:
            _check_complete(f"{where} in {collection}", layers, found[collection], length)
            each = [_removed(below, _path(layers, number)) for number in range(length)]
            _check_equal(f"{where} in {collection}", layers, each)
            whole, parts = zip(*[_shared(collection, one, shared, _path(stacked)) for one in each], strict=True)
            _check_shared(f"{where} in {collection}", layers, whole)
            stack = add_axis(jax.tree.map(lambda *leaves: _stack(leaves, axis), *parts), axis, metadata_params)
            _insert(where, below, (collection, *_path(stacked)), merge(whole[0], stack))
        result[collection] = below
    return result


def unstack_layers(
    variables: Variables,
    stacked: str,
    layers: str,
    *,
    axis: int = 0,
    shared: Filter = False,
    metadata_params: Mapping[Any, Any] = NO_AXES,
) -> dict[str, Any]:
    """Give stacked layers separate names: the inverse of `stack_layers`.

    Example:
        >>> variables = {"params": {"Stack_0": {"block": {"bias": np.ones((2, 3))}}, "Dense_0": {"bias": np.ones(1)}}}
        >>> jax.tree.map(np.shape, unstack_layers(variables, "Stack_0/block", "Block_{}"))
        {'params': {'Block_0': {'bias': (3,)}, 'Block_1': {'bias': (3,)}, 'Dense_0': {'bias': (1,)}}}

    Args:
        variables: `{collection: {module: {name: value}}}`.
        stacked: the path of the stacked layers in a collection.
        layers: the path for each layer, with `{}` for its number.
        axis: the axis of layers, which all arrays lose.
        shared: a filter of variables that all layers share; each layer gets them.
        metadata_params: passed to boxed metadata that loses the axis; see `nn.scan`.

    Returns:
        New variables, as plain dicts.

    Raises:
        LiftArgumentError: if there are no such layers, the sizes of the axis differ, a name is taken, or `shared` asks
            for a name and matches nothing.
    """
    where = f'unstack_layers("{stacked}", "{layers}")'
    _template(where, layers)
    holding = [name for name, tree in variables.items() if _at(tree, _path(stacked))]
    if not holding:
        raise _nothing(where, "no collection holds anything at this path", variables, _path(stacked)[:-1])
    _check_shared_names(where, {name: _at(variables[name], _path(stacked)) for name in holding}, shared, _path(stacked))
    result = {name: _copied(tree) for name, tree in variables.items()}
    taken = {name: _shared(name, _removed(result[name], _path(stacked)), shared, _path(stacked)) for name in holding}
    length = _length(where, {name: stack for name, (_, stack) in taken.items()}, axis)
    for name, (whole, stack) in taken.items():
        plain = remove_axis(stack, axis, metadata_params)
        for number in range(length):
            layer = jax.tree.map(lambda leaf, number=number: _slice(leaf, number, axis), plain)
            _insert(where, result[name], (name, *_path(layers, number)), merge(_copied(whole), layer))
    return result


_SLASHES = 'Pass paths of modules, such as "encoder/Block_{}" for layers and "encoder/Stack_0/block" for a stack.'


# --- paths ------------------------------------------------------------------------------------------------------------


def _path(text: str, number: int | None = None) -> Path:
    return tuple((text if number is None else text.replace("{}", str(number))).split("/"))


def _before(layers: str) -> Path:
    """Return the modules above the numbered one."""
    path = _path(layers)
    return path[: next(index for index, name in enumerate(path) if "{}" in name)]


def _template(where: str, layers: str) -> None:
    if layers.count("{}") != 1:
        what = Expected("a path with one `{}` for the number of the layer", given=layers)
        raise LiftArgumentError(where, what, 'Write it like "encoder/Block_{}".')


def _numbers(tree: Any, layers: str) -> list[int]:
    """Return the numbers of the existing layers, in order."""
    above = _before(layers)
    name, below = _path(layers)[len(above)], _path(layers)[len(above) + 1 :]
    pattern = re.compile(re.escape(name).replace(re.escape("{}"), "(0|[1-9][0-9]*)"))
    siblings = _at(tree, above)
    matches = [pattern.fullmatch(str(key)) for key in (siblings or ())]
    return sorted(int(match[1]) for match in matches if match and _at(siblings[match[0]], below) is not None)


def _at(tree: Any, path: Path) -> Any:
    """Return the value at a path, or None."""
    for name in path:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def _removed(tree: dict[str, Any], path: Path) -> Any:
    """Remove the value at a path from a tree, and modules that are then empty; return the value."""
    name, *below = path
    if not below:
        return tree.pop(name)
    found = _removed(tree[name], tuple(below))
    if not tree[name]:
        del tree[name]
    return found


def _insert(where: str, tree: dict[str, Any], path: Path, value: Any) -> None:
    """Insert a value at a free path, which begins with the collection."""
    inner: Any = tree
    for name in path[1:-1]:
        inner = inner.setdefault(name, {}) if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or path[-1] in inner:
        what = f'"{"/".join(path)}" is already taken.'
        raise LiftArgumentError(where, what, "Choose a free name, or remove that entry first.", variable="/".join(path))
    inner[path[-1]] = value


def _copied(tree: Any) -> Any:
    return {name: _copied(below) for name, below in tree.items()} if isinstance(tree, Mapping) else tree


def _nothing(where: str, what: str, variables: Variables, path: Path) -> LiftArgumentError:
    """Return the error for modules that no collection holds, with the names below a path."""
    found = {name: _at(tree, path) for name, tree in variables.items()}
    there = "/".join(path) or "the top"
    shown = {name: sorted(map(str, below)) for name, below in found.items() if isinstance(below, Mapping)}
    names = f"available at {there}: {shown}" if shown else f"there is nothing at {there}"
    available = tuple(name for below in shown.values() for name in below)
    return LiftArgumentError(where, f"{what} ({names}).", _SLASHES, available=available or None)


# --- arrays -----------------------------------------------------------------------------------------------------------


def _stack(leaves: Sequence[Any], axis: int) -> Any:
    # numpy arrays stay numpy arrays: JAX might narrow their dtype.
    in_jax = any(isinstance(leaf, jax.Array) for leaf in leaves)
    return jnp.stack(leaves, axis) if in_jax else np.stack(leaves, axis)


def _slice(leaf: Any, number: int, axis: int) -> Any:
    slices = (*(slice(None) for _ in range(axis % np.ndim(leaf))), number)
    return leaf[slices] if isinstance(leaf, jax.Array) else np.asarray(leaf[slices])


def _check_shared_names(where: str, layers: Mapping[str, Any], shared: Filter, path: Path) -> None:
    """Raise an error if a filter asks for a name that no variable of a layer has."""
    known = leaves_of({collection: tree for collection, tree in layers.items() if tree})
    pairs = [((*names[:1], *path, *names[1:]), leaf) for names, leaf in known]
    check_names(f"{where}, shared", shared, pairs)


def _shared(collection: str, tree: Any, shared: Filter, path: Path) -> tuple[Any, Any]:
    """Return the variables that all layers share, and the others."""
    (one,), others = partition({collection: tree}, [shared], path)
    return one.get(collection, {}), others.get(collection, {})


def _length(where: str, stacks: Mapping[str, Any], axis: int) -> int:
    sizes = {}
    for path, leaf in _arrays(stacks):
        shape = np.shape(leaf)
        if not -len(shape) <= axis < len(shape):
            what = f'"{path}" has shape {shape}, so it has no axis {axis} of layers.'
            fix = f'If all layers share it, pass `shared="{path.split("/")[0]}"`.'
            raise LiftArgumentError(where, what, fix, variable=path, option="shared", given=shape)
        sizes[path] = shape[axis]
    if not sizes:
        raise LiftArgumentError(
            where,
            "nothing there is stacked, so the number of layers is unknown.",
            "Leave variables that have an axis of layers out of `shared`.",
            option="shared",
        )
    if len(set(sizes.values())) > 1:
        raise LiftArgumentError(
            where,
            f"the sizes of axis {axis} differ ({', '.join(f'{path}: {size}' for path, size in sizes.items())}).",
            "Pass the axis of layers, `axis=…`, and a filter of the variables that all layers share, `shared=…`.",
            option="axis",
        )
    return next(iter(sizes.values()))


def _arrays(tree: Variables) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of variables, each with its path as a string."""
    for path, value in leaves_of(tree):
        for key, leaf in jax.tree.leaves_with_path(value):
            yield "/".join(path) + jax.tree_util.keystr(key), leaf


# --- checks -----------------------------------------------------------------------------------------------------------


def _check_complete(where: str, layers: str, numbers: Sequence[int], length: int) -> None:
    missing = [layers.replace("{}", str(number)) for number in range(length) if number not in numbers]
    if missing:
        found = [layers.replace("{}", str(number)) for number in numbers]
        what = f"layers are missing: {missing} (found: {found})."
        fix = "Number the layers from 0. A collection must hold all of them or none."
        raise LiftArgumentError(where, what, fix, expected=missing[0], available=tuple(found))


def _check_equal(where: str, layers: str, each: Sequence[PyTree]) -> None:
    """Check that all layers have the variables of the first, with the same shapes and dtypes."""
    first = {path: _type(leaf) for path, leaf in _arrays(each[0])}
    for number, tree in enumerate(each):
        types = {path: _type(leaf) for path, leaf in _arrays(tree)}
        wrong = {
            path: (first.get(path, "none"), types.get(path, "none"))
            for path in {**first, **types}
            if first.get(path) != types.get(path)
        }
        for path, (expected, given) in wrong.items():
            pairs = [f"{path}: {old} in layer 0, {new} in layer {number}" for path, (old, new) in wrong.items()]
            raise LiftArgumentError(
                where,
                f'"{layers.replace("{}", str(number))}" differs from layer 0 ({"; ".join(pairs)}).',
                "Only layers with the same names, shapes and dtypes can be stacked.",
                variable=path,
                expected=expected,
                given=given,
            )


def _check_shared(where: str, layers: str, each: Sequence[PyTree]) -> None:
    first = dict(_arrays(each[0]))
    for number, tree in enumerate(each):
        for path, leaf in _arrays(tree):
            if np.asarray(leaf).tobytes() != np.asarray(first[path]).tobytes():
                what = (
                    f'"{path}" is shared by all layers, but in "{layers.replace("{}", str(number))}" it differs from '
                    "the one in layer 0."
                )
                fix = "Leave it out of `shared`, so that it is stacked."
                raise LiftArgumentError(where, what, fix, variable=path, option="shared")


def _type(leaf: Any) -> str:
    return f"{getattr(leaf, 'dtype', type(leaf).__name__)}[{','.join(map(str, np.shape(leaf)))}]"
