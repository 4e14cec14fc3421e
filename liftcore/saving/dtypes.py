"""The dtypes that can be written and read, by name, and the one that cannot."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["DTYPES", "is_typed_key"]

_NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *("bfloat16", "int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"),
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(name) for name in _NAMES}
"""NumPy has the small dtypes by these names as soon as JAX is imported."""


def is_typed_key(value: Any) -> bool:
    """Return whether a value is an array of typed random keys, which no format holds, or the shape of one."""
    dtype: Any = getattr(value, "dtype", None)
    return dtype is not None and not isinstance(dtype, np.dtype) and jnp.issubdtype(dtype, jax.dtypes.prng_key)
