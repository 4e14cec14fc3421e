"""Compare one saved leaf with the leaf of the target, and convert it to the target's type."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import LiftError
from ..pytrees import is_number, number_type
from ..saving.problems import TRACER, printable
from ..typing import Path

__all__ = [
    "KeyTarget",
    "Mismatch",
    "SavedKey",
    "Stored",
    "converted",
    "misfit",
    "naming",
    "number_of",
    "shown_type",
    "unmarked",
]


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """An array that has not been read.

    Attributes:
        shape: the shape of the array.
        dtype: its NumPy dtype.
        read: a function that reads it, as a NumPy array that nothing else refers to.
    """

    shape: tuple[int, ...]
    dtype: Any
    read: Callable[[], Any]


class SavedKey(NamedTuple):
    """Saved typed random keys: the name of their implementation, and their data."""

    impl: Any
    data: Any


@dataclasses.dataclass(frozen=True, slots=True)
class KeyTarget:
    """The typed random keys of a target, or their shape, as one leaf."""

    key: Any


@contextlib.contextmanager
def naming(where: str, path: Path) -> Iterator[None]:
    """Add the leaf to errors of others: of JAX, of the system, of a filter. Errors of liftcore name it already.

    Args:
        where: what is being read.
        path: the path of the leaf.
    """
    try:
        yield
    except LiftError:
        raise
    except Exception as error:
        error.add_note(f'This happened at "{printable("/".join(path))}" of {where}.')
        raise


def unmarked(leaf: Any) -> Any:
    """Return the leaf of the target itself, without its `KeyTarget`."""
    return leaf.key if isinstance(leaf, KeyTarget) else leaf


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def shown_type(value: Any) -> str:
    """Return the type of a leaf, for errors.

    Example:
        >>> shown_type(np.zeros((2, 3))), shown_type(3), shown_type(None)
        ('float64[2,3]', 'int', 'None')
    """
    value = unmarked(value)
    if isinstance(value, SavedKey):
        return f"a random key of impl {value.impl!r}"
    if _is_array(value):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return "None" if value is None else (number_type(value) or type(value)).__name__


# --- whether it fits --------------------------------------------------------------------------------------------------


class Mismatch(NamedTuple):
    """Why an entry does not fit the target.

    Attributes:
        kind: `names`, `type`, `dtype` or `traced`.
        text: the reason, in words.
    """

    kind: str
    text: str


def misfit(target: Any, saved: Any, cast: bool) -> Mismatch | None:
    """Describe why `saved` does not fit `target`; return `None` if it fits."""
    if isinstance(unmarked(target), jax.core.Tracer) or isinstance(saved, jax.core.Tracer):
        return Mismatch("traced", TRACER)
    if isinstance(target, KeyTarget):
        return _key_misfit(target.key, saved)
    if _is_array(target) or is_number(target):
        return _array_misfit(target, saved, cast)
    if (target is None or isinstance(target, str | bytes)) and type(target) is not type(saved):
        return _other(target, shown_type(saved))
    return None


def _other(target: Any, found: str) -> Mismatch:
    return Mismatch("type", f"expected {shown_type(target)}, found {found}")


def _array_misfit(target: Any, saved: Any, cast: bool) -> Mismatch | None:
    if not _is_array(saved) and not is_number(saved):
        return _other(target, shown_type(saved))
    if np.shape(target) != np.shape(saved):
        return Mismatch("type", f"shape {np.shape(saved)}, not {np.shape(target)} as in the target")
    if is_number(target) or is_number(saved):
        same = _kind(target) is _kind(saved) and _fits(target, saved)
    else:
        same = bool(_native(target.dtype) == _native(saved.dtype))
    if same:
        return None
    if not _castable(target, saved):
        return _other(target, f"{shown_type(saved)}{_out_of_range(target, saved)}")
    if cast:
        return None
    names = [value.dtype if _is_array(value) else shown_type(value) for value in (saved, target)]
    return Mismatch("dtype", f"dtype {names[0]}, not {names[1]} as in the target")


def _native(dtype: Any) -> Any:
    """Return a dtype in the byte order of the machine, in which everything is saved."""
    return dtype.newbyteorder("=") if isinstance(dtype, np.dtype) else dtype


_KINDS = ((bool, np.bool_), (int, np.integer), (float, np.floating), (complex, np.complexfloating))


def _kind(value: Any) -> type | None:
    if is_number(value):
        return number_type(value)
    if not _is_array(value):
        return type(value)
    return next((kind for kind, group in _KINDS if jnp.issubdtype(value.dtype, group)), None)


def _castable(target: Any, saved: Any) -> bool:
    kinds = _kind(saved), _kind(target)
    return kinds in ((float, float), (float, complex), (complex, complex), (int, float)) or (
        kinds == (int, int) and _fits(target, saved)
    )


def _out_of_range(target: Any, saved: Any) -> str:
    same = _kind(saved) is _kind(target)
    return " with a number that is out of range" if same and not _fits(target, saved) else ""


def _fits(target: Any, saved: Any) -> bool:
    """Return whether integers are within the range of the target's dtype."""
    if not _is_array(target) or _kind(target) is not int:
        return True
    if _is_array(saved):
        (low, high), (least, most) = _range(target.dtype), _range(saved.dtype)
        if low <= least and most <= high:
            return True
    value, (low, high) = _read(saved), _range(target.dtype)
    return not np.size(value) or bool(low <= int(np.min(value)) and int(np.max(value)) <= high)


def _range(dtype: Any) -> tuple[int, int]:
    info: Any = jnp.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(info.min), int(info.max)


def _key_misfit(target: Any, saved: Any) -> Mismatch | None:
    if not isinstance(saved, SavedKey) or not isinstance(saved.impl, str):
        return _other(target, shown_type(saved))
    try:
        data = jax.ShapeDtypeStruct(saved.data.shape, saved.data.dtype)  # type: ignore[no-untyped-call]
        found = jax.eval_shape(lambda data: jax.random.wrap_key_data(data, impl=saved.impl), data)
    except (AttributeError, TypeError, ValueError) as error:
        return _other(target, f"data that is no random key of impl {saved.impl!r} ({error})")
    if (found.dtype, found.shape) != (target.dtype, target.shape):
        return _other(target, shown_type(found))
    return None


# --- conversion to the target's type ----------------------------------------------------------------------------------


def _read(saved: Any) -> Any:
    return saved.read() if isinstance(saved, Stored) else saved


def number_of(leaf: Any) -> Any:
    """Return the number that a weakly typed scalar of JAX stands for, to save it; return any other leaf unchanged.

    No format has weak types, but a restored number is weakly typed again as soon as JAX takes it.
    """
    if isinstance(leaf, jax.core.Tracer) or not isinstance(leaf, jax.Array) or not leaf.weak_type or leaf.shape:
        return leaf
    if leaf.is_deleted() or not leaf.is_fully_replicated or not leaf.addressable_shards:
        return leaf
    number = np.asarray(leaf).item()
    return number if jnp.asarray(number).dtype == leaf.dtype else leaf


def converted(target: Any, saved: Any) -> Any:
    """Convert a saved leaf to the type of the target's: a number, a NumPy array, or a JAX array on the same devices.

    If the target is weakly typed, as Python numbers are, the saved leaf decides whether the result is.
    """
    if isinstance(target, KeyTarget):
        key = jax.random.wrap_key_data(jnp.asarray(_read(saved.data)), impl=saved.impl)
        return _on_devices(target.key, key)
    value = _read(saved)
    if is_number(target):
        return _number(target, value)
    if not _is_array(target):
        return value
    if isinstance(target, jax.Array | jax.ShapeDtypeStruct):
        weak = _is_weak(target) and _is_weak(value)
        return _on_devices(target, _weak(value, target.dtype) if weak else _sole(saved, value, target.dtype))
    array = np.asarray(value, target.dtype)
    return array[()] if isinstance(target, np.generic) else array


def _sole(saved: Any, value: Any, dtype: Any) -> Any:
    """Return an array whose memory JAX may take over: a NumPy array that others may change is copied."""
    if isinstance(value, jax.Array):
        return value.astype(dtype)
    return np.asarray(value, dtype) if isinstance(saved, Stored) else np.array(value, dtype)


def _number(target: Any, value: Any) -> Any:
    kind: Any = number_type(target)
    if is_number(value) or _kind(value) is not kind:
        number = kind(value if is_number(value) else value.item())
        try:
            return type(target)(number)
        except (TypeError, ValueError):  # a class of JAX that takes a dtype too, or an enumeration without this number
            return number
    return value if isinstance(value, jax.Array) else _in_jax(np.asarray(value))


def _is_weak(value: Any) -> bool:
    return bool(getattr(value, "weak_type", False)) or is_number(value)


def _weak(value: Any, dtype: Any) -> Any:
    """Return a weakly typed JAX array, if the dtype is JAX's default for a number; else one of that dtype."""
    if isinstance(value, jax.Array):
        return value if value.dtype == dtype else value.astype(dtype)
    array = jnp.asarray(np.asarray(value, dtype).item())
    return array if array.dtype == dtype else jnp.asarray(value, dtype)


def _in_jax(array: np.ndarray[Any, Any]) -> Any:
    """Return a JAX array, in the same memory if it is aligned; the NumPy array if JAX would narrow its dtype."""
    return jax.device_put(array) if jax.dtypes.canonicalize_dtype(array.dtype) == array.dtype else array


def _on_devices(target: Any, array: Any) -> Any:
    sharding = target.sharding
    if isinstance(target, jax.Array) and not target.committed:
        sharding = None  # an uncommitted array moves to the devices of the computation; its replacement should too
    if sharding is not None:
        return jax.device_put(array, sharding)
    return _in_jax(array) if isinstance(array, np.ndarray) else array
