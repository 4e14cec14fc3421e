"""Pytrees: which leaves are arrays, the selected leaves, changed copies, and comparisons."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from liftcore.calls import boundary
from liftcore.errors import Expected, LiftArgumentError
from liftcore.pytrees import check_acyclic, is_array, is_array_like, number_type

from .methods import MISSING
from .split import map_prefix

__all__ = [
    "apply_updates",
    "combine",
    "filter",
    "inference_mode",
    "is_array",
    "is_array_like",
    "is_inexact_array",
    "is_inexact_array_like",
    "partition",
    "tree_at",
    "tree_equal",
    "tree_inference",
]


def is_inexact_array(element: Any) -> bool:
    """Return whether a leaf is an array of floating-point or complex numbers.

    Example:
        >>> [is_inexact_array(leaf) for leaf in (jax.numpy.ones(2), jax.numpy.arange(2), 1.0)]
        [True, False, False]

    Args:
        element: the leaf.
    """
    return is_array(element) and bool(jnp.issubdtype(element.dtype, jnp.inexact))


def is_inexact_array_like(element: Any) -> bool:
    """Return whether a leaf is a floating-point or complex number, or an array of such numbers.

    Example:
        >>> [is_inexact_array_like(leaf) for leaf in (jax.numpy.ones(2), 1.0, 1, True)]
        [True, True, False, False]

    Args:
        element: the leaf.
    """
    return is_inexact_array(element) or number_type(element) in (float, complex)


def filter(
    pytree: Any,
    filter_spec: Any,
    inverse: bool = False,
    replace: Any = None,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Replace each leaf of a pytree that is not selected, by default with None.

    Example:
        >>> import jax, equinox_like as eqx
        >>> eqx.filter({"w": jax.numpy.ones(2), "act": jax.nn.relu}, eqx.is_array)
        {'act': None, 'w': Array([1., 1.], dtype=float32)}

    Args:
        pytree: the pytree.
        filter_spec: a pytree prefix of bools, or of functions from a leaf to a bool: whether to select a leaf.
        inverse: whether to select the other leaves instead.
        replace: the value that replaces the leaves that are not selected.
        is_leaf: a function that returns whether a node is a leaf; see `jax.tree.flatten`.

    Raises:
        LiftArgumentError: if `filter_spec` is not such a prefix.
    """

    def kept(leaf: Any, is_chosen: Any) -> Any:
        if not isinstance(is_chosen, bool | np.bool_):
            what = Expected("bools, or functions from a leaf to a bool", is_chosen)
            raise LiftArgumentError("filter_spec", what, _FIX, option="filter_spec")
        return leaf if bool(is_chosen) != bool(inverse) else replace

    def below(answer: Any, subtree: Any) -> Any:
        answered = answer if callable(answer) else lambda leaf: answer
        return jax.tree.map(lambda leaf: kept(leaf, answered(leaf)), subtree, is_leaf=is_leaf)

    return map_prefix("filter_spec", below, filter_spec, pytree, _FIX, is_leaf)


_FIX = "Write `eqx.filter(tree, eqx.is_array)`."


def partition(
    pytree: Any, filter_spec: Any, replace: Any = None, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[Any, Any]:
    """Split a pytree into two of the same structure: one with the selected leaves, one with all other leaves.

    Example:
        >>> import jax, equinox_like as eqx
        >>> arrays, others = eqx.partition({"w": jax.numpy.ones(2), "steps": 5}, eqx.is_array)
        >>> arrays, others
        ({'steps': None, 'w': Array([1., 1.], dtype=float32)}, {'steps': 5, 'w': None})

    Args:
        pytree: the pytree.
        filter_spec: a pytree prefix of bools, or of functions from a leaf to a bool: whether to select a leaf.
        replace: the value that takes the place of a leaf in the other pytree.
        is_leaf: a function that returns whether a node is a leaf; see `jax.tree.flatten`.

    Raises:
        LiftArgumentError: if `filter_spec` is not such a prefix.
    """
    chosen = filter(pytree, filter_spec, replace=replace, is_leaf=is_leaf)
    return chosen, filter(pytree, filter_spec, inverse=True, replace=replace, is_leaf=is_leaf)


def combine(*pytrees: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Combine several pytrees into one: each leaf is the first one that is not None. The inverse of `partition`.

    Example:
        >>> import equinox_like as eqx
        >>> eqx.combine({"w": 1, "steps": None}, {"w": None, "steps": 5})
        {'steps': 5, 'w': 1}

    Args:
        *pytrees: pytrees of the same structure, except that any leaf may be None.
        is_leaf: a function that returns whether a node is a leaf; see `jax.tree.flatten`.

    Raises:
        ValueError: the error of JAX for pytrees of different structures.
    """
    if is_leaf is None:
        check_acyclic(pytrees)

    def first(*leaves: Any) -> Any:
        return next((leaf for leaf in leaves if leaf is not None), None)

    return jax.tree.map(first, *pytrees, is_leaf=lambda node: node is None or (is_leaf is not None and is_leaf(node)))


def apply_updates(model: Any, updates: Any) -> Any:
    """Add updates, such as those of an optimizer, to a pytree. None leaves a leaf unchanged.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> eqx.apply_updates({"w": jnp.float32(3), "act": jnp.tanh}, {"w": jnp.float32(-1), "act": None})["w"]
        Array(2., dtype=float32)

    Args:
        model: the pytree.
        updates: a pytree of the same structure, with None for each leaf that does not change.

    Raises:
        ValueError: the error of JAX if the structures differ.
    """

    def added(update: Any, leaf: Any) -> Any:
        return leaf if update is None else leaf + update

    return jax.tree.map(added, updates, model, is_leaf=lambda node: node is None)


def tree_equal(*pytrees: Any, typematch: bool = False, rtol: Any = 0.0, atol: Any = 0.0) -> Any:
    """Return whether pytrees have the same structure and equal leaves.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> eqx.tree_equal({"w": jnp.ones(2)}, {"w": jnp.ones(2)}), eqx.tree_equal({"w": 1}, {"v": 1})
        (True, False)

    Args:
        *pytrees: two or more pytrees.
        typematch: whether leaves must also have the same type: then a JAX array does not equal a NumPy array, and 1
            does not equal 1.0.
        rtol: the relative tolerance for floating-point arrays; see `jax.numpy.isclose`.
        atol: the absolute tolerance.

    Returns:
        A bool; if arrays are traced, a boolean array of shape `()`.
    """
    check_acyclic(pytrees)
    first, structure = jax.tree.flatten(pytrees[0])
    found: Any = True
    for other in pytrees[1:]:
        other_structure: Any
        leaves, other_structure = jax.tree.flatten(other)
        if other_structure != structure:
            return False
        for one, leaf in zip(first, leaves, strict=True):
            equal = _equal(one, leaf, typematch, rtol, atol)
            if equal is False:
                return False
            found = equal if found is True else found & equal
    return found if isinstance(found, jax.core.Tracer) else bool(found)


def _equal(one: Any, other: Any, typematch: bool, rtol: Any, atol: Any) -> Any:
    if typematch and type(one) is not type(other) and not all(isinstance(leaf, jax.Array) for leaf in (one, other)):
        return False
    if is_array(one) != is_array(other):
        return False
    if not is_array(one):
        is_numpy = any(isinstance(leaf, np.ndarray) for leaf in (one, other))  # of strings or objects
        return np.array_equal(one, other) if is_numpy else bool(one == other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    exact = not jnp.issubdtype(one.dtype, jnp.inexact) or (isinstance(rtol, float) and rtol == atol == 0)
    numpy: Any = np if not any(isinstance(leaf, jax.Array) for leaf in (one, other)) else jnp
    return (one == other).all() if exact else numpy.isclose(one, other, rtol=rtol, atol=atol).all()


@boundary
def tree_at(
    where: Callable[[Any], Any],
    pytree: Any,
    replace: Any = MISSING,
    replace_fn: Callable[[Any], Any] = MISSING,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Return a copy of a pytree with some nodes replaced.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> model = {"layers": [{"w": 1, "b": 2}, {"w": 3, "b": 4}], "act": None}
        >>> eqx.tree_at(lambda model: model["layers"][1]["b"], model, 5)
        {'act': None, 'layers': [{'b': 2, 'w': 1}, {'b': 5, 'w': 3}]}
        >>> eqx.tree_at(lambda model: (model["act"], model["layers"][0]), model, ("tanh", "gone"))
        {'act': 'tanh', 'layers': ['gone', {'b': 4, 'w': 3}]}

    Args:
        where: a function from the pytree to a node of it, or to a tuple or list of nodes. It is called with
            placeholders for the leaves, so it may depend only on the structure.
        pytree: the pytree.
        replace: the new node; or a sequence with one for each node.
        replace_fn: instead of `replace`, a function from the old node to the new one. It is called once for a node that
            `where` returns twice.
        is_leaf: a function that returns whether a node is a leaf; see `jax.tree.flatten`.

    Raises:
        LiftArgumentError: if both or neither of `replace` and `replace_fn` are given; if `where` does not return nodes,
            or returns a node inside another one, or with `replace` the same node twice; or if there are more or fewer
            replacements than nodes.
    """
    if (replace is MISSING) == (replace_fn is MISSING):
        what = "expected either `replace` or `replace_fn`."
        raise LiftArgumentError("tree_at", what, "Write `tree_at(where, tree, new)`.", option="replace")

    if is_leaf is None:
        check_acyclic(pytree)
    marked, nodes, several = _marked_nodes(where, pytree, is_leaf)
    chosen = {id(node): number for number, node in enumerate(nodes)}
    structure: Any
    places, structure = jax.tree.flatten(marked, is_leaf=lambda node: id(node) in chosen)
    numbers = [chosen.get(id(place)) for place in places]
    if len(chosen) != sum(number is not None for number in numbers):
        fix = "Select separate nodes."
        raise LiftArgumentError("tree_at, where", "it selected a node inside another one.", fix, option="where")
    if len(chosen) < len(nodes) and replace_fn is MISSING:
        raise LiftArgumentError("tree_at, where", "it selected a node twice.", "Select each node once.", option="where")
    current = structure.flatten_up_to(pytree)
    if replace is MISSING:
        values = [one if number is None else replace_fn(one) for one, number in zip(current, numbers, strict=True)]
        return structure.unflatten(values)
    new = list(replace) if several and isinstance(replace, tuple | list) else [replace]
    if len(new) != len(nodes):
        raise LiftArgumentError(
            "tree_at, replace",
            Expected(f"{len(nodes)} values, one for each node", given=len(new)),
            "Pass a tuple.",
            option="replace",
        )
    return structure.unflatten(
        [one if number is None else new[number] for one, number in zip(current, numbers, strict=True)]
    )


class _Place:
    """A placeholder for a leaf."""


def _marked_nodes(
    where: Callable[[Any], Any], pytree: Any, is_leaf: Callable[[Any], bool] | None
) -> tuple[Any, list[Any], bool]:
    """Return a pytree of placeholders, the nodes of it that `where` returns, and whether it returns several.

    `where` may test whether a node is None or empty, so the first call keeps such nodes. But one object, such as None,
    may be in many places of the pytree. If `where` returns such a node, a second call with placeholders for them
    finds the place.
    """

    def is_empty(node: Any) -> bool:
        kind: Any = jax.tree.structure(node)
        return kind.num_nodes == 1 or (is_leaf is not None and is_leaf(node))

    for is_place in (is_leaf, is_empty):
        structure: Any = jax.tree.structure(pytree, is_leaf=is_place)
        marked = structure.unflatten([_Place() for _ in range(structure.num_leaves)])
        nodes, several = _nodes(where, marked)
        if all(isinstance(node, _Place) or jax.tree.leaves(node) for node in nodes):
            break
    return marked, nodes, several


def _nodes(where: Callable[[Any], Any], tree: Any) -> tuple[list[Any], bool]:
    """Return the nodes that `where` returns, and whether it returns several."""
    known: dict[int, Any] = {}
    jax.tree.flatten(tree, is_leaf=lambda node: known.setdefault(id(node), node) is not node)
    found = where(tree)
    several = id(found) not in known and isinstance(found, tuple | list)
    nodes = list(found) if several else [found]
    wrong = [node for node in nodes if id(node) not in known]
    if wrong:
        _check_not_static(wrong[0], known.values())
        fix = "Return a node, or a flat tuple or list of nodes: `lambda tree: (tree.layers[0].w, tree.b)`."
        raise LiftArgumentError("tree_at, where", Expected("nodes of the pytree", wrong[0]), fix, option="where")
    return nodes, several


def _check_not_static(value: Any, nodes: Iterable[Any]) -> None:
    """Raise the error for the value of a static field, which is not a node of the pytree."""
    for node in nodes:
        for one in dataclasses.fields(node) if dataclasses.is_dataclass(node) else ():
            if one.metadata.get("static", False) and getattr(node, one.name, None) is value:
                kind = type(node).__name__
                raise LiftArgumentError(
                    "tree_at, where",
                    f"it selected {one.name} of {kind}, a static field, which belongs to the structure of the pytree.",
                    f"Make another {kind}: `dataclasses.replace(module, {one.name}=…)`, if its `__init__` takes the "
                    "fields.",
                    option="where",
                    given=one.name,
                )


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
    check_acyclic(pytree)
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
    return LiftArgumentError("inference_mode", what, fix, option=_FIELD)
