"""Flags with which XLA compiles in little time rather than well. Set them before jax is imported."""

from __future__ import annotations

import importlib.metadata

__all__ = ["QUICK"]

# Releases from 0.11 on have no older emitters, and do not begin with a flag that they do not know.
_OLDER_EMITTERS = importlib.metadata.version("jaxlib").startswith(("0.8.", "0.9.", "0.10."))

QUICK = " ".join(
    [
        # No part of a program is so large that it should be compiled on a thread of its own.
        "--xla_cpu_parallel_codegen_split_count=1",
        # The older emitters take a third of the time of the newer ones.
        *(["--xla_cpu_use_fusion_emitters=false"] if _OLDER_EMITTERS else []),
    ]
)
