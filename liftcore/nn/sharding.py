"""Shardings that are part of an array's type: functions to read the sharding of inputs, and to shard results.

On a mesh with Explicit axes, which `jax.make_mesh` gives since JAX 0.9, the type of an array says along which axes of
the mesh each of its dimensions is sharded, and JAX rejects an operation whose result could be sharded in more than one
way. Each function here decides such a case, and does nothing to arrays that are not sharded by their types: on one
device, and on a mesh of Auto axes, no operation is added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from .._compat import auto_axes
from ..errors import Expected, LiftArgumentError
from ..typing import Array, ArrayLike, Shape

__all__ = [
    "Entry",
    "Labels",
    "agree",
    "align",
    "check_out_sharding",
    "distinct",
    "gather",
    "is_sharded",
    "is_sharding_error",
    "on_auto_axes",
    "on_each_device",
    "on_rest_axes",
    "place",
    "product_sharding",
    "reshape",
    "reshard",
    "shard_like",
    "sharding_entries",
    "sharding_with",
    "to_spec",
]

T = TypeVar("T")

reshard: Callable[..., Array] = jax.sharding.reshard
"""Changes the sharding of an array to exactly one that a user requested."""

to_spec: Callable[..., Any] = P
"""A `PartitionSpec` of entries; JAX has no type for it."""

Entry: TypeAlias = str | tuple[str, ...] | None
"""The mesh axis that one dimension of an array is sharded along; or several, or None."""


Labels: TypeAlias = tuple[Sequence[Hashable], Sequence[Hashable], Sequence[Hashable]]
"""A name for each dimension of the left operand of a product, of the right one, and of the result."""


def sharding_entries(x: ArrayLike) -> tuple[Entry, ...]:
    """Return one entry for each dimension of an array: the Explicit axes of the mesh that it is sharded along.

    Example:
        >>> sharding_entries(jnp.ones((2, 3)))
        (None, None)

    Args:
        x: the array.
    """
    kind = jax.typeof(x)
    spec = getattr(kind.sharding, "spec", None) or ()
    return (*spec, *(None,) * (len(kind.shape) - len(spec)))


def is_sharded(*arrays: Any) -> bool:
    """Return whether one of the arrays is sharded by its type.

    Example:
        >>> is_sharded(jnp.ones(3), None)
        False

    Args:
        *arrays: arrays, or pytrees of them.
    """
    return any(any(sharding_entries(leaf)) for leaf in jax.tree.leaves(arrays))


def shard_like(x: Array, like: Array) -> Array:
    """Shard an array like another one with the same number of dimensions.

    Example:
        >>> shard_like(jnp.ones(2), jnp.zeros(2))
        Array([1., 1.], dtype=float32)

    Args:
        x: the array.
        like: the other one.
    """
    return place(x, sharding_entries(like), like)


def place(x: Array, entries: Sequence[Entry], *arrays: Any) -> Array:
    """Change the sharding of an array.

    Example:
        >>> place(jnp.ones(2), [None])
        Array([1., 1.], dtype=float32)

    Args:
        x: the array.
        entries: one for each dimension. An entry that uses an axis of the mesh a second time, or does not divide the
            dimension, is left out.
        *arrays: arrays that give the mesh, if `x` is not sharded itself.
    """
    padded = (*entries, *(None,) * (jnp.ndim(x) - len(entries)))
    if padded == sharding_entries(x):
        return x
    mesh = _mesh_of(x, *arrays)
    return reshard(x, NamedSharding(mesh, _fitting(mesh, entries, x.shape)))


def align(x: Any, like: Any, shape: Shape | None = None) -> Array:
    """Shard an array that broadcasts to another one in the same way as that one, so that the two can be combined.

    An array that is not sharded stays so.

    Example:
        >>> align(jnp.ones(3), jnp.zeros((2, 3)))
        Array([1., 1., 1.], dtype=float32)

    Args:
        x: the array, such as a bias.
        like: the array that it will be added to.
        shape: the shape to give it first; by default it has such a shape already.
    """
    if not is_sharded(x):
        return x if shape is None else jnp.reshape(x, shape)
    x = x if shape is None else reshape(x, shape)
    entries = sharding_entries(like)[-x.ndim :]
    return place(x, [None if size == 1 else entry for size, entry in zip(x.shape, entries, strict=True)])


def gather(x: Array, axes: Iterable[int]) -> Array:
    """Return an array of which each device has all elements along some axes.

    Example:
        >>> gather(jnp.ones(2), [0])
        Array([1., 1.], dtype=float32)

    Args:
        x: the array.
        axes: the axes, not negative.
    """
    whole = tuple(axes)
    entries = sharding_entries(x)
    return place(x, [None if axis in whole else entry for axis, entry in enumerate(entries)])


def reshape(x: ArrayLike, shape: Shape) -> Array:
    """Like `jnp.reshape`, but dimensions that are merged or split stay sharded as far as their sizes allow.

    Example:
        >>> reshape(jnp.arange(4), (2, 2))
        Array([[0, 1],
               [2, 3]], dtype=int32)

    Args:
        x: the array.
        shape: the new sizes; all of them must be given.
    """
    if not is_sharded(x):
        return jnp.reshape(x, shape)
    x = jnp.asarray(x)
    mesh = _mesh_of(x)
    entries: list[Entry] = []
    for before, after in _groups(x.shape, shape):
        names = [name for axis in before for name in _names(sharding_entries(x)[axis])]
        for axis in after:
            fitting: list[str] = []
            while names and shape[axis] % math.prod(mesh.shape[name] for name in (*fitting, names[0])) == 0:
                fitting.append(names.pop(0))
            entries.append(_entry(fitting))
    return jnp.reshape(x, shape, out_sharding=NamedSharding(mesh, to_spec(*entries)))


def _groups(old: Shape, new: Shape) -> list[tuple[range, range]]:
    """Groups the dimensions of two shapes into the smallest groups with the same number of elements."""
    groups = []
    i = j = 0
    while i < len(old) or j < len(new):
        k, n = min(i + 1, len(old)), min(j + 1, len(new))
        while math.prod(old[i:k]) != math.prod(new[j:n]) and (k, n) != (len(old), len(new)):
            if (math.prod(old[i:k]) < math.prod(new[j:n]) and k < len(old)) or n == len(new):
                k += 1
            else:
                n += 1
        groups.append((range(i, k), range(j, n)))
        i, j = k, n
    return groups


def agree(left: Any, right: Any, labels: Labels) -> tuple[Any, Any]:
    """Return the two operands of a product, sharded alike along their batch dimensions, as JAX 0.12 requires.

    If one operand is not sharded along a batch dimension, it takes the sharding of the other. If both are sharded, but
    along different axes of the mesh, the right operand takes the sharding of the left one, along summed dimensions too.
    A summed dimension may be sharded in one operand only.

    Example:
        >>> agree(jnp.ones(2), jnp.zeros(2), ("b", "b", "b"))
        (Array([1., 1.], dtype=float32), Array([0., 0.], dtype=float32))

    Args:
        left: the first operand.
        right: the second operand.
        labels: a name for each dimension of the left operand, of the right one, and of the result.
    """
    if not is_sharded(left, right):
        return left, right
    ours, theirs = [*sharding_entries(left)], [*sharding_entries(right)]
    for label in labels[0]:
        if label not in labels[1]:
            continue
        i, j = labels[0].index(label), labels[1].index(label)
        entry, other, summed = ours[i], theirs[j], label not in labels[2]
        if entry == other or jnp.shape(left)[i] != jnp.shape(right)[j] or (summed and None in (entry, other)):
            continue
        if entry is not None:
            theirs = [None if {*_names(one)} & {*_names(entry)} else one for one in theirs]
            theirs[j] = entry
        elif any({*_names(one)} & {*_names(other)} for one in ours):
            theirs[j] = None  # the left operand has that axis of the mesh along another dimension
        else:
            ours[i] = other
    return place(left, ours, right), place(right, theirs, left)


def product_sharding(left: ArrayLike, right: ArrayLike, labels: Labels) -> Any:
    """Return the sharding of a product of two arrays, such as `jax.lax.dot_general`; None if JAX needs none.

    Each dimension of the result is sharded like the operand's dimension that it comes from. If two would be sharded
    along one axis of the mesh, those of the left operand come first, and then those that come first in the result.
    Summed dimensions may be sharded in both operands: then the devices add their sums.

    Example:
        >>> product_sharding(jnp.ones((2, 3)), jnp.ones((3, 4)), ("ab", "bc", "ac")) is None
        True

    Args:
        left: the first operand.
        right: the second operand.
        labels: a name for each dimension of the left operand, of the right one, and of the result.
    """
    if not is_sharded(left, right):
        return None
    of_left = dict(zip(labels[0], sharding_entries(left), strict=True))
    of_right = dict(zip(labels[1], sharding_entries(right), strict=True))
    shared = [(of_left[label], of_right[label]) for label in of_left if label in of_right]
    wanted = {label: of_left.get(label) or of_right.get(label) for label in labels[2]}
    first = sorted(wanted, key=lambda label: label not in of_left)
    found = dict(zip(first, distinct([wanted[label] for label in first]), strict=True))
    summed = [(of_left[label], of_right[label]) for label in of_left if label in of_right and label not in wanted]
    open_sums = any(one and other for one, other in summed)
    if found == wanted and not open_sums and all(None in pair or pair[0] == pair[1] for pair in shared):
        return None  # JAX decides in the same way, and a user's function in its place need not know of shardings
    return NamedSharding(_mesh_of(left, right), to_spec(*(found[label] for label in labels[2])))


def on_auto_axes(fn: Callable[..., T], specs: Any, *args: Any, out_sharding: Any = None) -> T:
    """Call a function with Auto mesh axes inside, so that the compiler decides how values inside are sharded.

    Use it for operations without a rule for Explicit axes, such as convolutions with sharded features. If no argument
    is sharded, this is `fn(*args)`.

    Example:
        >>> on_auto_axes(jnp.cumsum, jax.sharding.PartitionSpec("data"), jnp.arange(3))
        Array([0, 1, 3], dtype=int32)

    Args:
        fn: a pure function of arrays, which closes over no sharded arrays.
        specs: the sharding of its result: a `PartitionSpec` for each array. An entry that uses an axis of the mesh a
            second time, or does not divide the dimension, is left out.
        *args: pytrees of arrays.
        out_sharding: the exact sharding that a user requested instead.
    """
    if out_sharding is not None:
        mesh = getattr(out_sharding, "mesh", None) or jax.sharding.get_abstract_mesh()
    elif is_sharded(args):
        mesh = _mesh_of(*args)

        def fitting(spec: Any, result: Any) -> NamedSharding:
            return NamedSharding(mesh, _fitting(mesh, tuple(spec), result.shape))

        struct: Any = jax.ShapeDtypeStruct  # untyped
        plain = jax.tree.map(lambda leaf: struct(jnp.shape(leaf), jax.typeof(leaf).dtype), args)
        shapes = jax.eval_shape(fn, *plain)
        out_sharding = jax.tree.map(fitting, specs, shapes, is_leaf=lambda leaf: isinstance(leaf, P))
    else:
        return fn(*args)
    run: Callable[..., T] = auto_axes(fn, axes=_explicit(mesh), out_sharding=out_sharding)
    return run(*args)


def on_rest_axes(fn: Callable[..., Array], *args: Any) -> Array:
    """Call a function of arrays that do not look sharded, but in a `jax.vmap` may be, along the mapped axis.

    On a mesh of Explicit axes, these axes are Auto inside.

    Args:
        fn: the function; JAX has no rule for a part of it in that case.
        *args: the arrays.
    """
    if not _explicit(jax.sharding.get_abstract_mesh()):
        return fn(*args)
    return on_auto_axes(fn, None, *args, out_sharding=to_spec())


def on_each_device(
    fn: Callable[..., Array], specs: Sequence[Sequence[Entry]], out: Sequence[Entry], *args: Any
) -> Array:
    """Call a function on each device with its part of each array; dimensions without an entry are whole there.

    Args:
        fn: a function of arrays.
        specs: the sharding of each array inside.
        out: the sharding of the result.
        *args: the arrays, one of them sharded by its type; or None.
    """
    names = {name for spec in (*specs, out) for entry in spec for name in _names(entry)}
    placed = [arg if arg is None else place(arg, spec, *args) for arg, spec in zip(args, specs, strict=True)]
    if not names:
        return fn(*placed)
    mesh, in_specs = _mesh_of(*args), tuple(to_spec(*spec) for spec in specs)
    run = jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=to_spec(*out), axis_names=frozenset(names))
    return run(*placed)


def sharding_with(entries: Sequence[Entry], *arrays: Any) -> NamedSharding | None:
    """Return a sharding on the mesh of one of the arrays; None if no entry names an axis of it.

    Args:
        entries: one for each dimension.
        *arrays: arrays, of which one is sharded if an entry is not None.
    """
    return NamedSharding(_mesh_of(*arrays), to_spec(*entries)) if any(entries) else None


def check_out_sharding(where: str, out_sharding: Any) -> None:
    """Check that the sharding that a user requested for a result names Explicit axes of the mesh.

    Example:
        >>> check_out_sharding("dense at /", None)

    Args:
        where: the layer.
        out_sharding: a `PartitionSpec`, a `NamedSharding`, or None.

    Raises:
        LiftArgumentError: if it is something else, if there is no mesh, or if the mesh has no such Explicit axis.
    """
    if out_sharding is None:
        return
    if not isinstance(out_sharding, P | NamedSharding):
        raise LiftArgumentError(
            where,
            Expected("a PartitionSpec or a NamedSharding", given=out_sharding),
            'For example, `out_sharding=PartitionSpec("data")`.',
            option="out_sharding",
        )
    spec: Any = getattr(out_sharding, "spec", out_sharding)
    mesh: Any = getattr(out_sharding, "mesh", None) or jax.sharding.get_abstract_mesh()
    if mesh.empty:
        fix = "Call the layer in a block `with jax.set_mesh(mesh):`, or pass a `NamedSharding`."
        raise LiftArgumentError(
            where, "`out_sharding` is a PartitionSpec, but there is no mesh.", fix, option="out_sharding"
        )
    known = _explicit(mesh)
    wrong = [name for entry in spec for name in _names(entry) if name not in known]
    if wrong:
        what = f"`out_sharding` names the axis {wrong[0]!r}, but the Explicit axes of the mesh are {list(known)}."
        fix = (
            "Name one of these, or leave it out. All axes are Auto while `init_sharded` runs a module: write "
            "`out_sharding=None if self.is_initializing() else …`."
        )
        raise LiftArgumentError(where, what, fix, option="out_sharding", given=wrong[0], available=known)


def is_sharding_error(error: BaseException) -> bool:
    """Return whether JAX raised an error because it cannot decide how a result is sharded."""
    return type(error).__name__ == "ShardingTypeError"  # a class that JAX does not export


def _mesh_of(*arrays: Any) -> Any:
    """Return the mesh of the first sharded array."""
    leaf = next(leaf for leaf in jax.tree.leaves(arrays) if any(sharding_entries(leaf)))
    return jax.typeof(leaf).sharding.mesh


def _explicit(mesh: Any) -> tuple[str, ...]:
    pairs = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(name for name, kind in pairs if kind == AxisType.Explicit)


def distinct(entries: Sequence[Entry]) -> list[Entry]:
    """Return entries in which each axis of the mesh is used once, where it comes first.

    Example:
        >>> distinct(["data", ("data", "model"), "model"])
        ['data', 'model', None]

    Args:
        entries: the entries.
    """
    used: set[str] = set()
    result = []
    for entry in entries:
        names = [name for name in _names(entry) if name not in used]
        used.update(names)
        result.append(_entry(names) if len(names) < len(_names(entry)) else entry)
    return result


def _fitting(mesh: Any, entries: Sequence[Entry], shape: Shape) -> Any:
    """Return entries as a spec, without those that use an axis again or do not divide their dimension."""
    pairs = zip(shape, distinct([*entries, *(None,) * (len(shape) - len(entries))]), strict=True)
    return to_spec(
        *(None if n % math.prod(mesh.shape[name] for name in _names(entry)) else entry for n, entry in pairs)
    )


def _names(entry: Entry) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _entry(names: Sequence[str]) -> Entry:
    return None if not names else names[0] if len(names) == 1 else tuple(names)
