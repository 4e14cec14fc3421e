"""All tests run on eight simulated CPU devices, and compile in little time rather than well."""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
_DEVICES = "--xla_force_host_platform_device_count"
if _DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}=8".strip()

import jax

jax.config.update("jax_enable_compilation_cache", False)
jax.config.update("jax_disable_most_optimizations", True)
