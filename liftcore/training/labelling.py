"""Turn filters into trees of labels or masks, for optax transformations that treat parameters differently."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from ..errors import LiftArgumentError, UnmatchedFilterError, shown
from ..filters import leaves_of, partition, to_predicate
from ..typing import Filter, Path, PyTree, Variables
from .parts import check_taken, listed

__all__ = ["labels", "mask"]


def labels(rules: Mapping[Any, Filter], *, collection: str | None = "params") -> Callable[[PyTree], PyTree]:
    """Return a function from parameters to a label for each of them, for `optax.multi_transform`.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from liftcore.filters import PathContains
        >>> label = labels({"frozen": PathContains("encoder"), "head": ...})
        >>> params = {"encoder": {"kernel": jnp.ones(2)}, "out": {"kernel": jnp.ones(3)}}
        >>> label(params)
        {'encoder': {'kernel': 'frozen'}, 'out': {'kernel': 'head'}}
        >>> tx = optax.multi_transform({"frozen": optax.set_to_zero(), "head": optax.adam(1e-3)}, label)
        >>> opt_state = tx.init(params)

    Args:
        rules: for each label, a filter of variables, over paths `(collection, *modules, name)`. The first filter that
            matches decides, so `...` as the last one matches the rest.
        collection: the name of the collection that the parameters belong to; None if you pass them as
            `{collection: {module: {name: value}}}`.

    Returns:
        A function of nested mappings of parameters. A parameter that is a pytree, such as a boxed one, gets one label.
        The function raises `UnmatchedFilterError` if no rule matches a parameter, and `LiftArgumentError` if a rule
        matches none.

    Raises:
        LiftArgumentError: if `rules` is not a mapping.
    """
    if not isinstance(rules, Mapping):
        what = f"expected a mapping from labels to filters, given {shown(rules)}."
        fix = 'Write `labels({"decay": PathContains("kernel"), "rest": ...})`.'
        raise LiftArgumentError("labels, rules", what, fix)
    names, predicates = list(rules), [to_predicate(filter) for filter in rules.values()]

    def label(params: PyTree) -> PyTree:
        variables = _variables("labels", params, collection)
        parts, rest = partition(variables, predicates)
        if rest:
            what = f"no rule matches {listed(rest)} (labels: {', '.join(map(repr, names))})."
            raise UnmatchedFilterError("labels", what, "Add a rule for them, or `...` as the last rule for the rest.")
        for name, predicate, part in zip(names, predicates, parts, strict=True):
            check_taken(f"labels, {name!r}", variables, predicate, part)
        return _tree(params, collection, dict(zip(names, parts, strict=True)))

    return label


def mask(filter: Filter, *, collection: str | None = "params") -> Callable[[PyTree], PyTree]:
    """Return a function from parameters to whether a filter matches each one, for optax: `masked`, `mask=…`.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from liftcore.filters import PathContains
        >>> decayed = mask(PathContains("kernel"))
        >>> decayed({"dense": {"kernel": jnp.ones(2), "bias": jnp.ones(3)}})
        {'dense': {'bias': False, 'kernel': True}}
        >>> tx = optax.adamw(1e-3, weight_decay=0.1, mask=decayed)

    Args:
        filter: a filter of variables, over paths `(collection, *modules, name)`.
        collection: the name of the collection that the parameters belong to; None if you pass them as
            `{collection: {module: {name: value}}}`.

    Returns:
        A function of nested mappings of parameters. A parameter that is a pytree, such as a boxed one, gets one
        boolean. The function raises `LiftArgumentError` if the filter matches no parameter, unless it is `None`.
    """
    predicate = to_predicate(filter)

    def of(params: PyTree) -> PyTree:
        variables = _variables("mask", params, collection)
        (part,), rest = partition(variables, [predicate])
        check_taken("mask", variables, predicate, part)
        return _tree(params, collection, {True: part, False: rest})

    return of


def _variables(where: str, params: PyTree, collection: str | None) -> Variables:
    if not isinstance(params, Mapping):
        what = f"expected nested mappings of parameters, given {shown(params)}."
        raise LiftArgumentError(where, what, "Pass the collection, such as `variables['params']`.")
    return params if collection is None else {collection: params}


def _tree(params: PyTree, collection: str | None, parts: Mapping[Any, Variables]) -> PyTree:
    """Return a tree like `params` in which each variable is replaced by the name of the part that it is in."""
    names: dict[Path, Any] = {path: name for name, part in parts.items() for path, _ in leaves_of(part)}
    prefix = () if collection is None else (collection,)
    found, treedef = jax.tree_util.tree_flatten_with_path(params, is_leaf=lambda node: not isinstance(node, Mapping))
    return jax.tree.unflatten(treedef, [names[(*prefix, *(key.key for key in path))] for path, _ in found])
