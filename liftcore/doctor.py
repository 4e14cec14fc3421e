"""A report for bug reports: `python -m liftcore.doctor` prints versions and devices, and runs a short self-test.

It asks JAX for its devices. If JAX fails, it fails too, with JAX's error. The exit status is 1 if the self-test fails.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import nn
from .entry import apply, init
from .lift.remat import remat
from .lift.scan import scan
from .scopes.scope import Scope
from .typing import Array

__all__ = ["main", "report", "self_test"]

_NEEDED = ("liftcore", "jax", "jaxlib", "numpy", "msgpack")
_OPTIONAL = ("optax", "orbax-checkpoint", "safetensors", "rich", "treescope", "flax", "equinox")
_FURTHER = ("tokenizers", "scikit-learn", "matplotlib", "tqdm", "jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu")
_VARIABLES = ("JAX_", "XLA_", "LIBTPU_", "CUDA_VISIBLE_DEVICES")


def report() -> Iterator[tuple[str, str]]:
    """Yield the facts about an installation, as pairs of a name and a text.

    Example:
        >>> facts = dict(report())
        >>> facts["jax"] == jax.__version__, facts["backend"] == jax.default_backend()
        (True, True)
    """
    yield "python", f"{platform.python_version()} on {platform.platform()}"
    for name in _NEEDED:
        yield name, _version(name) or "not installed as a package"
    devices = jax.devices()
    yield "backend", jax.default_backend()
    yield "devices", f"{len(devices)} x {devices[0].device_kind}, {jax.process_count()} process(es)"
    found = {name: _version(name) for name in (*_OPTIONAL, *_FURTHER)}
    yield "optional", ", ".join(f"{name} {version}" for name, version in found.items() if version) or "none"
    yield "missing", ", ".join(name for name in _OPTIONAL if not found[name]) or "none"
    variables = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)]
    yield "environment", " ".join(variables) or "no variables for JAX"


def self_test() -> None:
    """Compare the value and the gradient of three scanned layers with those of a plain loop.

    Example:
        >>> self_test()

    Raises:
        AssertionError: if the numbers differ.
    """

    def layer(scope: Scope, x: Array) -> tuple[Array, None]:
        return jnp.tanh(nn.dense(scope, x, 8)), None

    def model(scope: Scope, x: Array) -> Array:
        layers = scan(remat(layer), length=3, variable_axes={"params": 0}, split_rngs={"params": True})
        return jnp.sum(scope.child(layers, "layers")(x)[0])

    def by_hand(variables: dict[str, dict[str, dict[str, Array]]], x: Array) -> Array:
        layers = variables["params"]["layers"]
        for kernel, bias in zip(layers["kernel"], layers["bias"], strict=True):
            x = jnp.tanh(x @ kernel + bias)
        return jnp.sum(x)

    x = _numbers((2, 8))
    shapes = jax.eval_shape(lambda: init(model)(jax.random.key(0), x)[1])
    variables = jax.tree.map(lambda leaf: _numbers(leaf.shape), shapes)  # random ones take seconds to compile
    lifted = jax.jit(jax.value_and_grad(apply(model)))(variables, x)
    expected = jax.jit(jax.value_and_grad(by_hand))(variables, x)
    for one, other in zip(jax.tree.leaves(lifted), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-2, atol=1e-2)  # some devices multiply in less than float32


def main() -> int:
    """Print the report and the result of the self-test.

    Returns:
        The exit status: 0, or 1 if the self-test fails.
    """
    print("To report a problem, paste this and the smallest program that reproduces it:\n")
    for name, text in report():
        print(f"{name:<12} {text}")
    began = time.perf_counter()
    try:
        self_test()
    except Exception:
        print(f"self-test    FAILED\n\n{traceback.format_exc()}")
        return 1
    print(f"self-test    passed in {time.perf_counter() - began:.1f} s")
    return 0


def _numbers(shape: tuple[int, ...]) -> Any:
    return np.linspace(-0.5, 0.5, math.prod(shape), dtype=np.float32).reshape(shape)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
