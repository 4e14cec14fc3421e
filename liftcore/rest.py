"""`Rest`: a pytree without leaves, which carries what is static into any transformation and home again.

JAX takes a pytree apart into leaves, which it traces, and a structure, which is part of the key of every cache and
comes out with each result, on cached calls too. A `Rest` is all structure: what it holds goes where the arrays go.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np

from .errors import LiftArgumentError
from .statics import Undescribed, snapshot, static_key

__all__ = ["Rest", "is_array", "join_static", "split_static"]


class _Hole:
    """Marks the place of an array in a `Rest`."""

    def __repr__(self) -> str:
        return "*"

    def __reduce__(self) -> str:
        return "_HOLE"


_HOLE = _Hole()


@jax.tree_util.register_static
class Rest:
    """A static value as a pytree without leaves, equal to another one where both hold the same by type and value.

    It may be an argument or a result of any JAX transformation. Equal ones find the same trace again; `1`, `1.0` and
    `True` differ, `0.0` and `-0.0` too, and NaN equals itself. It holds no JAX array, and copies of what may change.

    Example:
        >>> import jax
        >>> @jax.jit
        ... def scaled(x, rest):
        ...     return x * rest.value["scale"], Rest(f"scaled by {rest.value['scale']}")
        >>> y, told = scaled(jax.numpy.ones(2), Rest({"scale": 3}))
        >>> y, told.value
        (Array([3., 3.], dtype=float32), 'scaled by 3')

    Args:
        value: any Python value that `static_key` describes, or a pytree of such values.

    Raises:
        Undescribed: where no key stands for a part of the value, such as a JAX array.
    """

    __slots__ = ("_hash", "_key", "_leaves", "_structure")

    _leaves: tuple[Any, ...]
    _structure: Any
    _key: Hashable
    _hash: int

    def __init__(self, value: Any) -> None:
        self._set(*jax.tree.flatten(value, is_leaf=_is_rest))

    @classmethod
    def _of(cls, leaves: Sequence[Any], structure: Any) -> Rest:
        rest = cls.__new__(cls)
        rest._set(leaves, structure)
        return rest

    def _set(self, leaves: Sequence[Any], structure: Any) -> None:
        keys = [_key(leaf, number, structure) for number, leaf in enumerate(leaves)]
        self._key, self._structure = (static_key(structure), *keys), structure
        self._leaves = tuple(map(snapshot, leaves))
        self._hash = hash(self._key)

    @property
    def value(self) -> Any:
        """What it holds.

        Raises:
            LiftArgumentError: where it is the rest of a pytree that has arrays too; those are for `join`.
        """
        if any(map(_is_hole, self._leaves)):
            raise LiftArgumentError(
                "Rest.value",
                f"{self} is what `split_static` left of a pytree with arrays.",
                "Write `rest.join(arrays)`.",
            )
        return self._structure.unflatten(map(snapshot, self._leaves))  # copies again: the caller may change them

    def join(self, dynamic: Any) -> Any:
        """The pytree that `split_static` took apart, with the arrays that are given.

        Args:
            dynamic: of the structure that `split_static` gave; what is in the place of an array may be any pytree.

        Raises:
            LiftArgumentError: where it has another structure.
        """
        try:
            parts = self._structure.flatten_up_to(dynamic)
        except (ValueError, TypeError) as error:
            given = jax.tree.structure(dynamic)
            raise LiftArgumentError(
                "Rest.join",
                f"expected arrays in the places of the `*` in {self}, given the structure {given}.",
                "Pass what `split_static` returned beside it, or a result of the same structure.",
            ) from error
        return self.unflatten([part for leaf, part in zip(self._leaves, parts, strict=True) if _is_hole(leaf)])

    def unflatten(self, arrays: Sequence[Any]) -> Any:
        """`join` for arrays in a list.

        Example:
            >>> _, rest = split_static({"x": np.ones(2), "mode": "train"})
            >>> rest.unflatten(["other"])
            {'mode': 'train', 'x': 'other'}

        Args:
            arrays: what is put in the places of the arrays, in order.

        Raises:
            LiftArgumentError: where there are more or fewer than it has places.
        """
        places = sum(map(_is_hole, self._leaves))
        if len(arrays) != places:
            raise LiftArgumentError(
                "Rest.unflatten",
                f"expected {places} arrays, given {len(arrays)}.",
                "Give one for each `*` that it shows.",
            )
        left = iter(arrays)
        return self._structure.unflatten([next(left) if _is_hole(leaf) else snapshot(leaf) for leaf in self._leaves])

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Rest) and self._hash == other._hash and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Rest({self._structure.unflatten(self._leaves)!r})"

    def __reduce__(self) -> Any:
        return Rest, (self._structure.unflatten(self._leaves),)


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array of JAX or NumPy, or a scalar of NumPy, that JAX can trace.

    Example:
        >>> import jax
        >>> [is_array(leaf) for leaf in (jax.numpy.ones(2), np.ones(2), np.float32(1), 1.0, "text", np.array("text"))]
        [True, True, True, False, False, False]
    """
    if isinstance(leaf, jax.Array):
        return True
    return isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind not in "OSUMm" and leaf.dtype.fields is None


def split_static(tree: Any, is_traced: Callable[[Any], bool] = is_array) -> tuple[Any, Rest]:
    """Splits a pytree of any Python objects into what is traced, and the rest, which is static.

    Example:
        >>> import jax
        >>> dynamic, rest = split_static({"x": jax.numpy.ones(2), "mode": "train"})
        >>> dynamic, rest
        ({'mode': None, 'x': Array([1., 1.], dtype=float32)}, Rest({'mode': 'train', 'x': *}))
        >>> join_static(jax.tree.map(jax.numpy.negative, dynamic), rest)
        {'mode': 'train', 'x': Array([-1., -1.], dtype=float32)}

    Args:
        tree: any pytree.
        is_traced: which leaves are traced: by default arrays. Numbers of Python are static then.

    Returns:
        The pytree with None in the place of each leaf that is static, so that axes and other pytree prefixes fit as
        before; and a `Rest` that holds these leaves, and the structure.

    Raises:
        Undescribed: where no key stands for a static leaf.
    """
    leaves: list[Any]
    structure: Any
    leaves, structure = jax.tree.flatten(tree, is_leaf=_is_rest)
    answers = [not _is_rest(leaf) and is_traced(leaf) for leaf in leaves]
    pairs = list(zip(leaves, answers, strict=True))
    rest = Rest._of([_HOLE if traced else leaf for leaf, traced in pairs], structure)
    return structure.unflatten([leaf if traced else None for leaf, traced in pairs]), rest


def join_static(dynamic: Any, rest: Rest) -> Any:
    """`rest.join(dynamic)`: the inverse of `split_static`.

    Example:
        >>> join_static(*split_static(("text", None, 3)))
        ('text', None, 3)

    Args:
        dynamic: of the structure that `split_static` gave.
        rest: what it gave beside that.

    Raises:
        LiftArgumentError: where the structure is another one.
    """
    return rest.join(dynamic)


def _key(leaf: Any, number: int, structure: Any) -> Hashable:
    """The key of a leaf; the error that there is none says where in the pytree the leaf is."""
    try:
        return _Hole if _is_hole(leaf) else static_key(leaf)
    except Undescribed as error:
        path = jax.tree.leaves_with_path(structure.unflatten(range(structure.num_leaves)))[number][0]
        raise Undescribed(error.value, jax.tree_util.keystr(path) + error.place) from None


def _is_hole(leaf: Any) -> bool:
    return leaf is _HOLE


def _is_rest(leaf: Any) -> bool:
    return isinstance(leaf, Rest)
