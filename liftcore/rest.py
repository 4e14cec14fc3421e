"""`Rest`: a pytree without leaves, which carries static values into and out of any transformation.

JAX takes a pytree apart into leaves, which it traces, and a structure. The structure is part of the key of every cache,
and comes out with each result, on cached calls too. A `Rest` consists of structure only, so its value goes with the
arrays.
"""

from __future__ import annotations

import collections
import itertools
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax

from .caches import bounded
from .calls import raise_interrupt
from .errors import Expected, LiftArgumentError
from .pytrees import Others, check_acyclic, is_traceable
from .statics import Undescribed, snapshot, static_key

__all__ = ["Rest", "flatten_static", "join_static", "split_static"]


class _Hole:
    """Marks the place of an array in a `Rest`."""

    def __repr__(self) -> str:
        return "*"

    def __reduce__(self) -> str:
        return "_HOLE"


_HOLE = _Hole()


@jax.tree_util.register_static
class Rest:
    """A static value as a pytree without leaves. Two are equal if their values are equal, by type and value.

    It may be an argument or a result of any JAX transformation. Equal ones use the same trace. `1`, `1.0` and `True`
    differ, and so do `0.0` and `-0.0`; NaN equals itself. It contains no JAX arrays, and copies of mutable values.

    Example:
        >>> import jax
        >>> @jax.jit
        ... def scaled(x, rest):
        ...     return x * rest.value["scale"], Rest(f"scaled by {rest.value['scale']}")
        >>> y, text = scaled(jax.numpy.ones(2), Rest({"scale": 3}))
        >>> y, text.value
        (Array([3., 3.], dtype=float32), 'scaled by 3')

    Args:
        value: any Python value that `static_key` describes, or a pytree of such values.

    Raises:
        Undescribed: if a part of the value, such as a JAX array, has no key.
    """

    __slots__ = ("_hash", "_key", "_others")

    _others: Others
    """The pytree without the arrays."""
    _key: Hashable
    _hash: int

    def __init__(self, value: Any) -> None:
        leaves, structure, key = _flatten(value)
        self._hold(leaves, structure, key, [leaf is _HOLE for leaf in leaves])

    def _hold(self, leaves: Sequence[Any], structure: Any, key: Hashable | None, holes: Sequence[bool]) -> None:
        static = [leaf for leaf, hole in zip(leaves, holes, strict=True) if not hole]
        try:
            self._key = (static_key(structure) if key is None else key, bytes(holes), *map(static_key, static))
        except Undescribed:
            _check_leaves(leaves, structure, holes)
            raise
        self._others = Others(structure, holes, tuple(map(snapshot, static)))
        self._hash = hash(self._key)

    def _join(self, arrays: Iterable[Any]) -> Any:
        """Return the pytree with arrays in their places. Mutable values are copied: the caller may change them."""
        return self._others.join(arrays, map(snapshot, self._others.leaves))

    @property
    def value(self) -> Any:
        """The value.

        Raises:
            LiftArgumentError: if it is the rest of a pytree that has arrays too; use `join` for those.
        """
        if any(self._others.chosen):
            raise LiftArgumentError(
                "Rest.value",
                f"{self} is the static part of a pytree with arrays.",
                "Write `rest.join(arrays)`.",
                given=str(self),
            )
        return self._join(())

    def join(self, dynamic: Any) -> Any:
        """Return the pytree that `split_static` took apart, with the given arrays.

        Args:
            dynamic: a pytree with the structure that `split_static` returned; any pytree may replace an array.

        Raises:
            LiftArgumentError: if it has another structure.
        """
        try:
            parts = self._others.treedef.flatten_up_to(dynamic)
        except (ValueError, TypeError) as error:
            given = str(jax.tree.structure(dynamic))
            raise LiftArgumentError(
                "Rest.join",
                Expected(f"arrays in place of the `*` in {self}", given, words=f"the structure {given}"),
                "Pass the pytree that `split_static` returned with it, or a result of the same structure.",
            ) from error
        return self.unflatten(list(itertools.compress(parts, self._others.chosen)))

    def unflatten(self, arrays: Sequence[Any]) -> Any:
        """Return the pytree with the arrays in a list; see `join`.

        Example:
            >>> import numpy as np
            >>> _, rest = split_static({"x": np.ones(2), "mode": "train"})
            >>> rest.unflatten(["other"])
            {'mode': 'train', 'x': 'other'}

        Args:
            arrays: the values to put in the places of the arrays, in order.

        Raises:
            LiftArgumentError: if their number differs from the number of places.
        """
        places = sum(self._others.chosen)
        if len(arrays) != places:
            raise LiftArgumentError(
                "Rest.unflatten",
                Expected(f"{places} arrays", given=len(arrays)),
                "Pass one array for each star in its text.",
            )
        return self._join(arrays)

    def holds(self, kind: type) -> bool:
        """Whether one of its static leaves has a given type.

        Example:
            >>> Rest({"mode": "train"}).holds(str), Rest({"mode": "train"}).holds(int)
            (True, False)

        Args:
            kind: the type.
        """
        return any(isinstance(leaf, kind) for leaf in self._others.leaves)

    def trace_facts(self) -> dict[str, Any]:
        """Return its static leaves by path, for `retraces` to report changes.

        Example:
            >>> Rest({"mode": "train", "depth": 2}).trace_facts()
            {"['depth']": 2, "['mode']": 'train'}
        """
        structure, holes, static = self._others
        places = jax.tree.leaves_with_path(structure.unflatten(range(len(holes))))
        paths = [path for (path, _), hole in zip(places, holes, strict=True) if not hole]
        static = [leaf() if type(leaf) is weakref.ref else leaf for leaf in static]
        return dict(zip(map(jax.tree_util.keystr, paths), static, strict=True))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Rest) and self._hash == other._hash and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Rest({self._marked()!r})"

    def __reduce__(self) -> Any:
        return Rest, (self._marked(),)

    def _marked(self) -> Any:
        """Return the pytree with `*` in the places of arrays."""
        return self._join([_HOLE] * sum(self._others.chosen))


def split_static(tree: Any, is_traced: Callable[[Any], bool] = is_traceable) -> tuple[Any, Rest]:
    """Split a pytree of any Python objects into a traced part and a static part.

    Example:
        >>> import jax
        >>> dynamic, rest = split_static({"x": jax.numpy.ones(2), "mode": "train"})
        >>> dynamic, rest
        ({'mode': None, 'x': Array([1., 1.], dtype=float32)}, Rest({'mode': 'train', 'x': *}))
        >>> join_static(jax.tree.map(jax.numpy.negative, dynamic), rest)
        {'mode': 'train', 'x': Array([-1., -1.], dtype=float32)}

    Args:
        tree: any pytree.
        is_traced: tells which leaves are traced; by default arrays and mutable arrays, so Python numbers are static.

    Returns:
        The pytree with None in place of each static leaf, so that axes and other pytree prefixes still fit; and a
        `Rest` that contains these leaves and the structure.

    Raises:
        Undescribed: if a static leaf has no key.
    """
    arrays, rest = flatten_static(tree, is_traced)
    return rest._others.join(arrays, itertools.repeat(None)), rest


def flatten_static(tree: Any, is_traced: Callable[[Any], bool] = is_traceable) -> tuple[list[Any], Rest]:
    """Split a pytree like `split_static`, but return the traced part as a list, for `rest.unflatten`.

    Example:
        >>> import numpy as np
        >>> arrays, rest = flatten_static({"x": np.float32(1), "mode": "train"})
        >>> arrays, rest.unflatten([2])
        ([np.float32(1.0)], {'mode': 'train', 'x': 2})

    Args:
        tree: any pytree.
        is_traced: tells which leaves are traced; by default arrays and mutable arrays, so Python numbers are static.

    Returns:
        The traced leaves, and a `Rest` that contains the others and the structure.

    Raises:
        Undescribed: if a static leaf has no key.
    """
    leaves, structure, key = _flatten(tree)
    # If the structure has a key, no leaf is a `Rest`.
    answers = [is_traced(leaf) if key is not None else not _is_rest(leaf) and is_traced(leaf) for leaf in leaves]
    rest = Rest.__new__(Rest)
    rest._hold(leaves, structure, key, answers)
    return list(itertools.compress(leaves, answers)), rest


def join_static(dynamic: Any, rest: Rest) -> Any:
    """Return `rest.join(dynamic)`: the inverse of `split_static`.

    Example:
        >>> join_static(*split_static(("text", None, 3)))
        ('text', None, 3)

    Args:
        dynamic: a pytree with the structure that `split_static` returned.
        rest: the static part that it returned.

    Raises:
        LiftArgumentError: if the structure differs.
    """
    return rest.join(dynamic)


def _check_leaves(leaves: Sequence[Any], structure: Any, holes: Sequence[bool]) -> None:
    """Raise the error for a static leaf without a key, with its path in the pytree."""
    paths = jax.tree.leaves_with_path(structure.unflatten(range(structure.num_leaves)))
    for (path, _), leaf, hole in zip(paths, leaves, holes, strict=True):
        try:
            static_key(None if hole else leaf)
        except Undescribed as error:
            raise Undescribed(error.value, jax.tree_util.keystr(path) + error.place, error.fix) from None


def _flatten(tree: Any) -> tuple[list[Any], Any, Hashable | None]:
    """Return the leaves and the structure of a pytree, and the key of the structure, which is itself if it is exact.

    If it is not exact, each `Rest` is a leaf. To check every node for a `Rest` takes as long as all other work.
    """
    leaves: list[Any]
    check_acyclic(tree)
    leaves, structure = jax.tree.flatten(tree)
    try:
        return leaves, structure, _exact(structure)
    except TypeError:  # it is not exact, or has no hash
        leaves, structure = jax.tree.flatten(tree, is_leaf=_is_rest)
        return leaves, structure, None
    except ValueError as error:
        raise_interrupt(error)
        raise


@bounded(256)
def _exact(structure: Any) -> Hashable:
    """Return a structure that is equal only to structures with the same values by type: all its dict keys are strings.

    Most structures are exact, and to visit each node takes as long as all other work on a pytree.

    Raises:
        TypeError: if it is not exact. It is then not cached, since it may hold objects that must not be kept alive.
    """
    node: Any = structure.node_data() or (None, None)  # a leaf has none
    kind, static = node
    if kind is Rest:
        raise TypeError
    texts = kind in (dict, collections.OrderedDict) and all(type(key) is str for key in static)
    if not (texts or _is_exact(static)):
        raise TypeError
    for child in structure.children():
        _exact(child)
    found: Hashable = structure
    return found


def _is_exact(static: Any) -> bool:
    if type(static) is tuple:
        return all(map(_is_exact, static))
    return static is None or type(static) is str or isinstance(static, type | Rest)


def _is_rest(leaf: Any) -> bool:
    return isinstance(leaf, Rest)
