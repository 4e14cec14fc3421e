"""All tests run on eight simulated CPU devices, and compile in little time rather than well, each program once.

Workers of one run share what they have compiled. XLA's older emitters take a third of the time of its newer ones, and
no part of a program is so large that it should be compiled on a thread of its own.
"""

from __future__ import annotations

import atexit
import gc
import importlib.metadata
import os
import shutil
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_force_host_platform_device_count=8",
        "--xla_cpu_parallel_codegen_split_count=1",
        # Later releases have no older emitters, and do not begin with a flag that they do not know.
        "--xla_cpu_use_fusion_emitters=false"
        if importlib.metadata.version("jaxlib").startswith(("0.8.", "0.9.", "0.10."))
        else "",
        os.environ.get("XLA_FLAGS", ""),
    ]
)

import jax

if "PYTEST_XDIST_WORKER" not in os.environ:  # workers are given the directory of the process that starts them
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="programs-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.config.update("jax_compilation_cache_include_metadata_in_key", True)  # the names of scopes, which tests look at,
jax.config.update("jax_traceback_in_locations_limit", 0)  # but not the line that each operation comes from
jax.config.update("jax_disable_most_optimizations", True)


def pytest_collection_finish() -> None:
    """Looks for garbage seldom, and never in what lives as long as the run."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
