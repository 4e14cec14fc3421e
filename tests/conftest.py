"""All tests run on eight simulated CPU devices, and compile in little time rather than well."""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=8 {os.environ.get('XLA_FLAGS', '')}"

import jax

jax.config.update("jax_enable_compilation_cache", False)
jax.config.update("jax_disable_most_optimizations", True)
