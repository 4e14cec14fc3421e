"""Arguments for orbax by a pytree: the functions that `flax.training.orbax_utils` has."""

from __future__ import annotations

import importlib
from typing import Any

import jax

from ..typing import PyTree

__all__ = ["restore_args_from_target", "save_args_from_target"]


def save_args_from_target(target: PyTree) -> PyTree:
    """Return the default `SaveArgs` of orbax for each leaf, for code that passes them to `PyTreeCheckpointer.save`.

    Args:
        target: the pytree to save.
    """
    orbax = importlib.import_module("orbax.checkpoint")
    return jax.tree.map(lambda _: orbax.SaveArgs(), target)


def restore_args_from_target(target: PyTree, mesh: Any = None) -> PyTree:
    """Return the `RestoreArgs` of orbax for each leaf, so that arrays are restored with the shardings of a target.

    Args:
        target: a pytree of arrays, or of `jax.ShapeDtypeStruct`s, like the one that was saved.
        mesh: not used; the arrays of the target have their mesh.
    """
    orbax = importlib.import_module("orbax.checkpoint")

    def restore_args(leaf: Any) -> Any:
        sharding = getattr(leaf, "sharding", None)
        if sharding is None:
            return orbax.RestoreArgs()
        return orbax.ArrayRestoreArgs(restore_type=jax.Array, sharding=sharding, dtype=leaf.dtype)

    return jax.tree.map(restore_args, target)
