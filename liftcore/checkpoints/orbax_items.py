"""Split a state into the two items that orbax stores: a tree of arrays, and a JSON text with everything else.

Orbax stores arrays, of which each host writes its part. It cannot store empty arrays, bytes and `None`, and the
implementation of random keys must be known before any array is read. So everything that is not an array is in the text,
which is read first.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from ..errors import Expected, SerializationError
from ..pytrees import is_numpy, number_type
from ..saving.dtypes import DTYPES
from ..saving.problems import printable, unwritable
from ..serialization import msgpack_restore, msgpack_serialize, to_state_dict
from ..traverse_util import flatten_dict, unflatten_dict
from ..typing import Path, PyTree
from .placing import Stored, number_of

__all__ = ["parted", "state_in"]

_ENCODED = "msgpack"


# --- writing ----------------------------------------------------------------------------------------------------------


def parted(where: str, tree: PyTree) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays of a tree as nested dicts, and everything else as data for JSON.

    Args:
        where: the calling method, for errors.
        tree: anything that `to_state_dict` accepts.

    Raises:
        SerializationError: if something cannot be written, or two arrays would have the same name.
    """
    state = to_state_dict(tree)
    if not isinstance(state, Mapping):
        what = Expected("named leaves, as orbax stores them", given=tree)
        raise SerializationError(where, what, "Put it into a dict.")
    flat = {path: number_of(leaf) for path, leaf in flatten_dict(state).items()}  # weak types, which orbax lacks
    _check_writable(where, flat)
    arrays = {path: _whole_or_parts(leaf) for path, leaf in flat.items() if _is_for_orbax(leaf)}
    _check_names(where, arrays)
    rest = [[list(path), _as_json(where, path, leaf)] for path, leaf in flat.items() if path not in arrays]
    names = [list(path) for path in arrays]
    return unflatten_dict(arrays), {"leaves": rest, "arrays": names, "checksum": _checksum(rest, names)}


def _checksum(leaves: Any, arrays: Any) -> int:
    return zlib.crc32(json.dumps([leaves, arrays]).encode())


def _check_writable(where: str, flat: Mapping[Path, Any]) -> None:
    for path, leaf in flat.items():
        if problem := unwritable("/".join(path)) or unwritable(leaf):
            name = printable("/".join(path))
            raise SerializationError(f"{where}, {name}", *problem, variable=name)


def _is_for_orbax(leaf: Any) -> bool:
    return (isinstance(leaf, jax.Array) or is_numpy(leaf)) and math.prod(leaf.shape) > 0 and leaf.dtype.name in _TAKEN


_TAKEN = DTYPES.keys() - {"uint2", "uint4", "float6_e2m3fn", "float6_e3m2fn", "float8_e4m3"}
"""The names of the dtypes that TensorStore, which orbax writes with, supports."""


def _whole_or_parts(leaf: Any) -> Any:
    """Return an array in the form that orbax expects.

    With several processes, arrays that a process holds in full become NumPy arrays. Those of NumPy lose their subclass.
    """
    local = isinstance(leaf, jax.Array) and jax.process_count() > 1 and leaf.is_fully_addressable
    return np.asarray(leaf) if local or is_numpy(leaf) else leaf


def _check_names(where: str, paths: Iterable[Path]) -> None:
    """Check that names stay distinct when orbax joins them with dots; it would store only one array of each name."""
    known: dict[str, Path] = {}
    for path in paths:
        other = known.setdefault(".".join(path), path)
        if other != path:
            what = f"{list(other)} and {list(path)} would get the same name, as orbax joins names with dots."
            raise SerializationError(where, what, "Use names without dots.", given=(list(other), list(path)))


def _as_json(where: str, path: Path, leaf: Any) -> Any:
    kind = number_type(leaf)
    if leaf is None or type(leaf) is str:
        return leaf
    if kind in (bool, int, float):
        return kind(leaf)
    try:
        data = msgpack_serialize(leaf)
    except SerializationError as error:
        raise SerializationError(f"{where}, {'/'.join(path)}", error.what, error.fix, **error.facts) from error
    return {_ENCODED: base64.b64encode(data).decode("ascii")}


# --- reading ----------------------------------------------------------------------------------------------------------


def state_in(where: str, rest: Any, arrays: Mapping[Path, Stored]) -> dict[str, Any]:
    """Return the state that consists of the arrays of a step and its other leaves.

    Args:
        where: the step, for errors.
        rest: the data of JSON. Steps of older versions hold neither the names of the arrays nor a checksum.
        arrays: the arrays that orbax found, by their paths.

    Raises:
        SerializationError: if these are not what `parted` returned.
    """
    try:
        if rest.keys() != {"leaves"}:
            _check(rest, arrays.keys())
        leaves = {tuple(map(str, path)): _of_json(value) for path, value in rest["leaves"]}
        if len(leaves) < len(rest["leaves"]) or arrays.keys() & leaves.keys():
            raise ValueError("a name is there twice")
        return unflatten_dict({**leaves, **arrays})
    except (AttributeError, KeyError, TypeError, ValueError, binascii.Error) as error:
        what = f"the part that holds no arrays cannot be read ({type(error).__name__}: {error})."
        raise SerializationError(where, what, "It is damaged, or was not written by OrbaxCheckpoints.") from error


def _check(rest: Any, arrays: Iterable[Path]) -> None:
    if rest.keys() != {"leaves", "arrays", "checksum"} or rest["checksum"] != _checksum(rest["leaves"], rest["arrays"]):
        raise ValueError("it differs from what was written")
    if (listed := {tuple(path) for path in rest["arrays"]}) != set(arrays):
        raise ValueError(f"it lists {len(listed)} arrays, but others are there")


def _of_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return msgpack_restore(base64.b64decode(value[_ENCODED], validate=True))
    if isinstance(value, list):
        raise ValueError("a list in place of a leaf")
    return value
