"""The devices that tests take, and how exactly they compute.

On the CPU, tests have eight simulated devices. A test that takes more devices than there are, or that describes what
only the CPU does, is skipped with its reason. With `LIFTCORE_REQUIRE_DEVICES=1`, as in CI, it fails instead.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

__all__ = ["assert_equal", "devices", "make_mesh", "need_cpu", "tolerance"]


def devices(number: int) -> list[jax.Device]:
    """The first devices; skips the test, or the module that calls it while it is imported, if there are fewer."""
    if jax.device_count() < number:
        _skip(f"needs {number} devices, and there are {jax.device_count()}")
    return jax.devices()[:number]


def make_mesh(shape: tuple[int, ...], *names: str, kind: AxisType = AxisType.Auto) -> Mesh:
    """A mesh of the first devices, with axes of one kind; skips as `devices` does."""
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(names), devices=devices(int(np.prod(shape))))


def need_cpu(reason: str) -> None:
    """Skips a test that describes what only the CPU does."""
    if jax.default_backend() != "cpu":
        _skip(f"runs on the CPU: {reason}")


def _skip(reason: str) -> None:
    if os.environ.get("LIFTCORE_REQUIRE_DEVICES") == "1":
        pytest.fail(reason)
    pytest.skip(reason, allow_module_level=True)


_ROUNDING = {
    "float64": 1e-12,
    "complex128": 1e-12,
    "float32": 1e-4,
    "complex64": 1e-4,
    "float16": 4e-3,
    "bfloat16": 3e-2,
}
_ROUNDING_OF_8_BITS = 1e-2  # accelerators sum products of 8 bits in fewer bits than float32 has


def tolerance(dtype: Any, on_cpu: float = 0.0) -> float:
    """The relative tolerance of what is computed in a dtype: `on_cpu` on the CPU, elsewhere at least its rounding.

    Integers and keys have none. An accelerator may choose another algorithm for the same product of another shape.
    """
    if jax.default_backend() == "cpu" or not jnp.issubdtype(dtype, jnp.inexact):
        return on_cpu
    return max(on_cpu, _ROUNDING.get(jnp.dtype(dtype).name, _ROUNDING_OF_8_BITS))


def assert_equal(found: Any, expected: Any, place: str = "") -> None:
    """Checks that two arrays are equal: on the CPU exactly, elsewhere floats up to the rounding of their dtype."""
    rounding = tolerance(getattr(found, "dtype", bool))
    if not rounding:
        np.testing.assert_array_equal(found, expected, err_msg=place)
        return
    wide = np.complex128 if jnp.issubdtype(found.dtype, jnp.complexfloating) else np.float64
    found, expected = (np.asarray(x).astype(wide) for x in (found, expected))
    largest = np.abs(expected).max(initial=0, where=np.isfinite(expected))
    np.testing.assert_allclose(found, expected, rounding, rounding * largest, err_msg=place)
