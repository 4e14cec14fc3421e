"""Variables in safetensors files, which other frameworks also read and write."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import Expected, LiftArgumentError, SerializationError, shown
from ..meta import replace_boxed, unbox
from ..pytrees import is_number
from ..saving.dtypes import DTYPES
from ..saving.encoding import checked
from ..saving.problems import printable, several, unwritable
from ..serialization import to_state_dict
from ..traverse_util import flatten_dict, unflatten_dict
from ..typing import Filter, PyTree
from .disk import open_plain, replace_file
from .matching import about_boxes, compare, options_of
from .placing import Stored, naming
from .streams import check_path

__all__ = ["load_safetensors", "safetensors_metadata", "save_safetensors"]

_BITS = (8, 16, 32, 64)
_NAMES = (
    {"BOOL": "bool", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64"}
    | {f"I{bits}": f"int{bits}" for bits in _BITS}
    | {f"U{bits}": f"uint{bits}" for bits in _BITS}
    | {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz"}
    | {"F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu"}
)
"""The dtypes of the format that NumPy has too, with their NumPy names."""

_CODES = {name: code for code, name in _NAMES.items()}


def _package() -> Any:
    try:
        return importlib.import_module("safetensors")
    except ImportError as error:
        raise ImportError("This needs safetensors: pip install 'liftcore[safetensors]'") from error


# --- writing ----------------------------------------------------------------------------------------------------------


def save_safetensors(
    path: str | os.PathLike[str],
    variables: PyTree,
    metadata: Mapping[str, str] | None = None,
    *,
    separator: str = "/",
) -> None:
    """Save arrays in a safetensors file, each under its path.

    If anything goes wrong, an existing file is unchanged; see `save_file`. Boxed metadata is not saved: the arrays are
    those that `unbox` returns.

    Example:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/model.safetensors"
        >>> save_safetensors(path, {"params": {"dense": {"bias": np.zeros(2)}}}, {"format": "np"})
        >>> load_safetensors(path)
        {'params': {'dense': {'bias': array([0., 0.])}}}

    Args:
        path: the file; missing folders are created. A file that replaces another keeps its permissions; a new one gets
            the permissions that the umask allows.
        variables: anything that `to_state_dict` accepts, with arrays and numbers as leaves.
        metadata: texts by name, which are stored at the beginning of the file.
        separator: the text that joins the names of a path; PyTorch uses `"."`.

    Raises:
        SerializationError: if a leaf is not an array, if the format lacks its dtype, or if a name contains the
            separator (one error lists all such leaves), or if metadata are not texts.
        LiftArgumentError: if `path` is not a path, or `separator` is not a text.
        CheckpointInUseError: if another writer is writing this file.
        OSError: if the system cannot write, for instance because the disk is full.
    """
    check_path("save_safetensors(path, variables)", path)
    where = f'save_safetensors("{os.fspath(path)}")'
    _check_separator(where, separator)
    to_state_dict(variables)  # before `unbox`: it has the better error for a tree that contains itself
    flat = flatten_dict(to_state_dict({"": unbox(variables)}))
    arrays = {names[1:]: _array(leaf) for names, leaf in flat.items()}
    problems = {names: text for names, leaf in arrays.items() if (text := _problem(names, leaf, separator))}
    if problems:
        lines = several((f"{'/'.join(names) or '.'}: {text}" for names, text in problems.items()), "\n  ")
        fix = "Leave these out, save `jax.random.key_data(key)` instead of a key, or choose another `separator`."
        what, first = f"these entries cannot be saved:\n  {lines}\n", "/".join(next(iter(problems)))
        raise SerializationError(where, what, fix, variable=first or None, option="separator")
    header = _checked_metadata(f"{where}, metadata", metadata or {})
    parts = _parts({separator.join(names): array for names, array in arrays.items()}, header)
    replace_file(Path(os.path.realpath(path)), parts)


def _check_separator(where: str, separator: Any) -> None:
    if not isinstance(separator, str) or not separator:
        wrong = Expected("the text that joins names", given=separator)
        fix = 'Write `separator="."`, or leave it out for slashes.'
        raise LiftArgumentError(f"{where}, separator", wrong, fix, option="separator")


def _checked_metadata(where: str, metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata, after checking that it consists of texts."""
    if not isinstance(metadata, Mapping):
        wrong, fix = Expected("texts by name", given=metadata), 'Write `metadata={"format": "np"}`.'
        raise SerializationError(where, wrong, fix, option="metadata")
    for item in metadata.items():
        for text in item:
            if not isinstance(text, str) or unwritable(text):
                what = f"{printable(str(item[0]))!r} and its value must be texts, given {printable(shown(text))}."
                fix = "Convert it to a text, for instance by `json.dumps`."
                raise SerializationError(where, what, fix, given=text, expected="texts")
    return dict(metadata)


def _parts(arrays: Mapping[str, np.ndarray[Any, Any]], metadata: Mapping[str, str]) -> Iterator[Any]:
    """Yield the bytes of a file: the length of the header, the header, and the bytes of one array after the other.

    The package can write files too. But if the process is killed, it leaves a temporary file, under a new name each
    time; and all arrays must be contiguous at once.
    """
    # As in files of the package, large dtypes come first, so that each array begins at a multiple of its dtype's size.
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        array, begin, end = arrays[name], end, end + arrays[name].nbytes
        header[name] = {
            "dtype": _CODES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        array = arrays[name]
        yield np.asarray(array, array.dtype.newbyteorder("<"), order="C").reshape(-1).view(np.uint8).data


def _array(leaf: Any) -> Any:
    """Return a leaf as a NumPy array, if it is a number or an array with a value."""
    is_array = hasattr(leaf, "dtype") and not unwritable(leaf)
    return np.asarray(leaf) if is_array or is_number(leaf) else leaf


def _problem(names: tuple[str, ...], leaf: Any, separator: str) -> str | None:
    if problem := unwritable("".join(names)) or unwritable(leaf):
        return " ".join(problem)
    if not isinstance(leaf, np.ndarray):
        return f"a {type(leaf).__name__}, not an array"
    if leaf.dtype.name not in _NAMES.values():
        return f"safetensors has no dtype {leaf.dtype}"
    if not names or separator.join(names) == "__metadata__":
        return "the array needs a name other than `__metadata__`"
    return f"a name contains {separator!r}" if any(separator in name for name in names) else None


# --- reading ----------------------------------------------------------------------------------------------------------


_RENAMING = "in the dict of `load_safetensors(path)` and pass it to `match_state(target, …)`"


def load_safetensors(
    path: str | os.PathLike[str],
    target: PyTree = None,
    *,
    separator: str | None = "/",
    filter: Filter = True,
    strict: bool = True,
    cast: bool = False,
) -> Any:
    """Load the arrays in a safetensors file, as nested dicts or in the structure of a target.

    Example:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/model.safetensors"
        >>> save_safetensors(path, {"layer": {"weight": np.ones((1, 2))}}, separator=".")
        >>> load_safetensors(path, separator=None)
        {'layer.weight': array([[1., 1.]])}
        >>> load_safetensors(path, {"layer": {"weight": np.zeros((1, 2))}}, separator=".")
        {'layer': {'weight': array([[1., 1.]])}}

    Args:
        path: the file.
        target: a tree with the structure to restore, of arrays or of their shapes, as from `jax.eval_shape`; see
            `match_state` for what each leaf becomes, and for `filter`, `strict` and `cast`. `None` returns nested dicts
            of NumPy arrays.
        separator: the text that joins the names of a path in the file; `None` returns a flat dict of whole names, as
            `load_weights` expects.
        filter: which leaves to restore; the others keep the value of the target, and are not read.
        strict: whether the names must be the same.
        cast: whether to convert floating-point numbers and integers to the target's dtype.

    Raises:
        SerializationError: if it is not a safetensors file, has a dtype that NumPy lacks, or does not fit.
        LiftArgumentError: if `path` is not a path, or `separator` is not a text; or if an option needs a target and
            there is none.
        FileNotFoundError: if there is no such file.
        ImportError: if safetensors is not installed.
    """
    check_path("load_safetensors(path, target)", path)
    where = f'"{os.fspath(path)}"'
    options = options_of(f"load_safetensors({where})", target, filter, strict, cast)
    if separator is not None:
        _check_separator(f"load_safetensors({where})", separator)
    with _opened(path) as (file, start, header):
        header.pop("__metadata__", None)
        flat = {name: _stored(path, file, start, name, header[name]) for name in sorted(header)}
        if target is None:
            arrays = {name: _whole(where, name, one) for name, one in flat.items()}
            return arrays if separator is None else _nested(where, arrays, separator)
        state = flat if separator is None else _nested(where, flat, separator)
        options |= {"filter": about_boxes(target, filter), "renaming": _RENAMING}
        return replace_boxed(target, compare(unbox(target), state, where=where, **options).converted())


def safetensors_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata of a safetensors file: texts by name.

    Example:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/model.safetensors"
        >>> save_safetensors(path, {"w": np.ones(2)}, {"format": "pt"})
        >>> safetensors_metadata(path)
        {'format': 'pt'}

    Args:
        path: the file.

    Raises:
        SerializationError: if the file is not a safetensors file.
        FileNotFoundError: if there is no such file.
    """
    with _opened(path) as (_, _, header):
        return dict(header.get("__metadata__") or {})


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[Any, int, dict[str, Any]]]:
    """Open a file, after the package has checked its header against its size.

    Yields:
        The file, the position at which its arrays begin, and the header.
    """
    package = _package()
    if os.path.isdir(path):
        names = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
        what = f"this is a folder, not a safetensors file (such files in it: {several(names) or 'none'})."
        fix = "Pass the path of one file. To join several, load each with `separator=None`, and merge the dicts."
        raise SerializationError(f'"{os.fspath(path)}"', what, fix, option="separator", available=names)
    if str(path).endswith(".index.json"):
        what = "this is the index of a model in several files, not a safetensors file."
        fix = "Load each file that its `weight_map` names with `separator=None`, and merge the dicts."
        raise SerializationError(f'"{os.fspath(path)}"', what, fix, option="separator")
    with open_plain(path) as file:
        with _about_the_file(path), package.safe_open(os.fspath(path), framework="numpy"):
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        yield file, 8 + size, header


@contextlib.contextmanager
def _about_the_file(path: str | os.PathLike[str], name: str = "") -> Iterator[None]:
    """Translate what the package raises about a file. Nothing else may run inside: its errors are not about the file.

    Args:
        path: the file.
        name: the array that is being read.
    """
    try:
        yield
    except (_package().SafetensorError, ValueError, OverflowError) as error:
        what = f"this is not a safetensors file, or it is damaged ({error})."
        where = f'"{os.fspath(path)}"' + (f", {name}" if name else "")
        fix = "Download or copy it again."
        raise SerializationError(where, what, fix, variable=name or None, expected="a safetensors file") from error


def _whole(where: str, name: str, stored: Stored) -> Any:
    with naming(where, (name,)):
        return stored.read()


def _stored(path: str | os.PathLike[str], file: Any, start: int, name: str, entry: Mapping[str, Any]) -> Stored:
    """Return an array, given the position at which the arrays begin and its entry in the header."""
    kind, shape = entry["dtype"], tuple(entry["shape"])
    if kind not in _NAMES:
        what, fix = f'"{name}" has dtype {kind}, which NumPy lacks.', f"Convert it to one of {', '.join(_NAMES)}."
        raise SerializationError(f'"{os.fspath(path)}"', what, fix, given=kind, available=_NAMES)
    dtype = DTYPES[_NAMES[kind]]

    def read() -> Any:
        with _about_the_file(path, name):
            file.seek(start + entry["data_offsets"][0])
            return checked(np.fromfile(file, dtype, math.prod(shape)).reshape(shape))

    return Stored(shape, dtype, read)


def _nested(where: str, flat: Mapping[str, Any], separator: str) -> dict[str, Any]:
    try:
        return unflatten_dict(flat, sep=separator)
    except ValueError as error:
        what = f"the names are not paths joined by {separator!r} ({error})."
        fix = "Load it with `separator=None`."
        raise SerializationError(where, what, fix, option="separator", given=separator) from error
