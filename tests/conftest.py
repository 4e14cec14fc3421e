"""All tests run on the CPU, and compile in little time rather than well."""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

jax.config.update("jax_enable_compilation_cache", False)
jax.config.update("jax_disable_most_optimizations", True)
