"""Variables in a file of safetensors, which other frameworks read and write as well."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LiftArgumentError, SerializationError
from ..meta import replace_boxed, unbox
from ..saving.dtypes import DTYPES
from ..saving.problems import printable, unwritable
from ..serialization import to_state_dict
from ..traverse_util import flatten_dict, unflatten_dict
from ..typing import Filter, PyTree
from .disk import errors_about, make_folder, mode_of, sync_folder
from .matching import match_state
from .placing import Stored

__all__ = ["load_safetensors", "safetensors_metadata", "save_safetensors"]

_FLOAT8 = {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
"""The dtypes that the package finds no name for in NumPy when it reads, though it writes them."""

_BITS = (8, 16, 32, 64)
_NAMES = (
    {"BOOL": "bool", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64"}
    | {f"I{bits}": f"int{bits}" for bits in _BITS}
    | {f"U{bits}": f"uint{bits}" for bits in _BITS}
    | _FLOAT8
)
"""The dtypes of the format that NumPy has too, each with its name there."""


def _package() -> Any:
    try:
        importlib.import_module("safetensors.numpy")
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
    """Saves arrays in a file of safetensors, each under its path.

    The file is there with all that is in it, or as it was before. Metadata of axes is left out: what is saved is what
    `unbox` gives.

    Example:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/model.safetensors"
        >>> save_safetensors(path, {"params": {"dense": {"bias": np.zeros(2)}}}, {"format": "np"})
        >>> load_safetensors(path)
        {'params': {'dense': {'bias': array([0., 0.])}}}

    Args:
        path: the file, which keeps its permissions if it is there; its folder is made if it is missing.
        variables: anything that `to_state_dict` takes apart, with arrays and numbers in it.
        metadata: texts by name, which are stored at the front of the file.
        separator: what the names of a path are joined by; PyTorch has `"."`.

    Raises:
        SerializationError: if there is something else than arrays in it, an array of a dtype that the format lacks, or
            a name that contains the separator. One error lists all.
        ImportError: if safetensors is not installed.
    """
    package = _package()
    where = f'save_safetensors("{os.fspath(path)}")'
    to_state_dict(variables)  # first, as this finds a tree that contains itself
    flat = flatten_dict(to_state_dict({"": unbox(variables)}))
    arrays = {names[1:]: _array(leaf) for names, leaf in flat.items()}
    problems = {names: text for names, leaf in arrays.items() if (text := _problem(names, leaf, separator))}
    if problems:
        lines = "".join(f"\n  {printable('/'.join(names)) or '.'}: {text}" for names, text in problems.items())
        fix = "Leave those out, save the data of random keys, or choose another `separator`."
        raise SerializationError(where, f"these cannot be saved:{lines}\n", fix)
    # The package writes the bytes as they are in memory; of an array without dimensions NumPy would make one with one.
    named = {separator.join(names): np.ascontiguousarray(array).reshape(array.shape) for names, array in arrays.items()}
    _replace(
        Path(os.path.realpath(path)), lambda file: package.numpy.save_file(named, file, dict(metadata or {}) or None)
    )


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    """Writes a file of another name, and gives it this one when its bytes are on the disk."""
    mode = mode_of(path)
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with errors_about(path, temporary):
        try:
            temporary.touch()
            mode = stat.S_IMODE(temporary.stat().st_mode) if mode is None else mode
            write(temporary)  # the package makes a file that nobody else can read
            os.chmod(temporary, mode)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        sync_folder(path.parent)


def _array(leaf: Any) -> Any:
    """A leaf as an array of NumPy, if it is an array or a number, and has a value."""
    is_array = hasattr(leaf, "dtype") and not unwritable(leaf)
    return np.asarray(leaf) if is_array or isinstance(leaf, bool | int | float | complex) else leaf


def _problem(names: tuple[str, ...], leaf: Any, separator: str) -> str | None:
    if problem := unwritable("".join(names)) or unwritable(leaf):
        return " ".join(problem)
    if not isinstance(leaf, np.ndarray):
        return f"a {type(leaf).__name__}, no array"
    if leaf.dtype.name not in _NAMES.values():
        return f"safetensors has no dtype {leaf.dtype}"
    if not names or separator.join(names) == "__metadata__":
        return "an array needs a name here, other than `__metadata__`"
    return f"a name contains {separator!r}" if any(separator in name for name in names) else None


# --- reading ----------------------------------------------------------------------------------------------------------


def load_safetensors(
    path: str | os.PathLike[str],
    target: PyTree = None,
    *,
    separator: str | None = "/",
    filter: Filter = True,
    strict: bool = True,
    cast: bool = False,
) -> Any:
    """The arrays in a file of safetensors, as nested dicts or in the places of a target.

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
        target: a tree of the structure to restore, of arrays or of their shapes, as from `jax.eval_shape`; see
            `match_state` for what each leaf becomes, and for `filter`, `strict` and `cast`. `None` gives nested dicts
            of NumPy arrays.
        separator: what the names of a path are joined by in the file; `None` for a flat dict of whole names, which
            `load_weights` takes.
        filter: which leaves to take; the others stay as in the target, and are not read.
        strict: whether the names must be the same.
        cast: whether floating-point numbers, and integers, become those of the target's dtype.

    Raises:
        SerializationError: if the bytes are no file of safetensors, hold a dtype that NumPy lacks, or do not fit.
        FileNotFoundError: if there is no such file.
        ImportError: if safetensors is not installed.
    """
    where = f'"{os.fspath(path)}"'
    if target is None and not (filter is True and strict and not cast):
        what = "`filter`, `strict` and `cast` are about a target, and none is given."
        raise LiftArgumentError(f"load_safetensors({where})", what, "Give the tree to restore into.")
    with _opened(path) as file:
        flat = {name: _stored(path, file, name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
        if target is None:
            arrays = {name: one.read() for name, one in flat.items()}
            return arrays if separator is None else _nested(where, arrays, separator)
        state = flat if separator is None else _nested(where, flat, separator)
        found = match_state(unbox(target), state, where=where, filter=filter, strict=strict, cast=cast)
        return replace_boxed(target, found)


def safetensors_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The texts at the front of a file of safetensors, by name.

    Example:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/model.safetensors"
        >>> save_safetensors(path, {"w": np.ones(2)}, {"format": "pt"})
        >>> safetensors_metadata(path)
        {'format': 'pt'}

    Args:
        path: the file.

    Raises:
        SerializationError: if the bytes are no file of safetensors.
        FileNotFoundError: if there is no such file.
    """
    with _opened(path) as file:
        return dict(file.metadata() or {})


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    """An open file, whose header the package has checked against the size; its errors become ours."""
    package = _package()
    try:
        with package.safe_open(os.fspath(path), framework="numpy") as file:
            yield file
    except (SerializationError, LiftArgumentError):
        raise
    except (package.SafetensorError, ValueError, OverflowError, MemoryError) as error:
        what = f"this is no file of safetensors, or a damaged one ({error})."
        raise SerializationError(f'"{os.fspath(path)}"', what, "Fetch it again.") from error


def _stored(path: str | os.PathLike[str], file: Any, name: str) -> Stored:
    part = file.get_slice(name)
    kind, shape = part.get_dtype(), tuple(part.get_shape())
    if kind not in _NAMES:
        what = f'"{name}" is of dtype {kind}, which NumPy has no array for.'
        raise SerializationError(f'"{os.fspath(path)}"', what, f"Convert it to one of {', '.join(_NAMES)}.")
    dtype = DTYPES[_NAMES[kind]]
    if kind in _FLOAT8:
        return Stored(shape, dtype, lambda: _read_bytes(path, name, dtype).reshape(shape))
    return Stored(shape, dtype, lambda: file.get_tensor(name))


def _read_bytes(path: str | os.PathLike[str], name: str, dtype: Any) -> Any:
    """An array from its bytes; the header, a length and JSON, has been checked when the file was opened."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        begin, end = json.loads(file.read(size))[name]["data_offsets"]
        return np.fromfile(file, dtype, (end - begin) // dtype.itemsize, offset=begin)


def _nested(where: str, flat: Mapping[str, Any], separator: str) -> dict[str, Any]:
    try:
        return unflatten_dict(flat, sep=separator)
    except ValueError as error:
        what = f"its names are no paths with {separator!r} between ({error})."
        raise SerializationError(where, what, "Load it with `separator=None`.") from error
