"""`inference_mode`: copy a pytree, and set each field `inference`."""

from __future__ import annotations

from typing import Any

import jax

from liftcore.errors import LiftArgumentError

from .update import tree_at

__all__ = ["inference_mode", "tree_inference"]

_FIELD = "inference"


def inference_mode(pytree: Any, value: bool = True) -> Any:
    """Return a copy of a pytree in which every field named `inference` has the given value.

    Use it to switch off operations for training, such as dropout. Any module may have such a field, at any depth. The
    original pytree does not change. Modules of linen_like have no such field: to one in an `Applied`, pass an argument,
    such as `deterministic=True` or `use_running_average=True`.

    Example:
        >>> import equinox_like as eqx, liftcore
        >>> class Dropout(eqx.Module):
        ...     rate: float = 0.5
        ...     inference: bool = False
        ...     def __call__(self, x, *, key=None):
        ...         return x if self.inference else liftcore.nn.drop(key, x, self.rate)
        >>> model = {"layers": [Dropout(0.1), Dropout()]}
        >>> eqx.inference_mode(model)
        {'layers': [Dropout(rate=0.1, inference=True), Dropout(rate=0.5, inference=True)]}
        >>> eqx.inference_mode(eqx.inference_mode(model), value=False) == model
        True

    Args:
        pytree: the model, or any pytree.
        value: the new value of the fields.

    Returns:
        A pytree of the same structure.

    Raises:
        LiftArgumentError: if an object has an attribute `inference` that is not a child of a pytree, such as a static
            field.
    """
    for leaf in jax.tree.leaves(pytree):
        if hasattr(leaf, _FIELD):
            raise _not_a_child(leaf)
    return tree_at(_switches, pytree, replace_fn=lambda _: value, is_leaf=lambda node: node is None)


tree_inference = inference_mode
"""An older name of `inference_mode`."""


def _switches(node: Any) -> list[Any]:
    """Return the `inference` fields of a node and of all nodes below it."""
    children = [child for child in jax.tree.leaves(node, is_leaf=lambda part: part is not node) if child is not node]
    found = [switch for child in children for switch in _switches(child)]
    if not hasattr(node, _FIELD):
        return found
    own = getattr(node, _FIELD)
    if not any(child is own for child in children):
        raise _not_a_child(node)
    return [own, *found]


def _not_a_child(owner: Any) -> LiftArgumentError:
    kind = type(owner).__name__
    what = f"`{_FIELD}` of {kind} is not a leaf of the pytree, so no copy can have another value."
    fix = f"Declare `{_FIELD}: bool = False` in an `eqx.Module`, without `static=True`."
    return LiftArgumentError("inference_mode", what, fix)
