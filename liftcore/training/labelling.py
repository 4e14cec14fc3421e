"""Turn filters into trees of labels or masks, for optax transformations that treat parameters differently."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from ..errors import Expected, LiftArgumentError, UnmatchedFilterError
from ..filters import Parameters, names_in, to_predicate
from ..filters.parameters import listed
from ..typing import Filter, Path, Predicate, PyTree

__all__ = ["labels", "mask", "part_of"]


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
        A function of a pytree of parameters, such as nested dicts or a module. A boxed parameter gets one label.
        The function raises `UnmatchedFilterError` if no rule matches a parameter, and `LiftArgumentError` if a rule
        matches none.

    Raises:
        LiftArgumentError: if `rules` is not a mapping.
    """
    if not isinstance(rules, Mapping):
        fix = 'Write `labels({"decay": PathContains("kernel"), "rest": ...})`.'
        raise LiftArgumentError("labels, rules", Expected("a mapping from labels to filters", given=rules), fix)
    names, predicates = list(rules), [to_predicate(filter) for filter in rules.values()]
    prefix = _prefix(collection)

    def label(params: PyTree) -> PyTree:
        found = _seen(params, prefix)
        first = found.first(predicates)
        missed = [path for path, index in zip(found.paths, first, strict=True) if index is None]
        if missed:
            what = f"no rule matches {listed(missed)} (labels: {', '.join(map(repr, names))})."
            raise UnmatchedFilterError(
                "labels", what, "Add a rule for them, or `...` as the last rule for the rest.", available=names
            )
        for index, name in enumerate(names):
            if index not in first:
                _check_elsewhere(f"labels, {name!r}", params, prefix, predicates, index)
        return found.like([names[index] for index in first if index is not None])

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
        A function of a pytree of parameters, such as nested dicts or a module. A boxed parameter gets one boolean. The
        function raises `LiftArgumentError` if the filter matches no parameter, unless it is `None`.
    """
    predicate, prefix = to_predicate(filter), _prefix(collection)

    def of(params: PyTree) -> PyTree:
        found = _seen(params, prefix)
        first = found.first([predicate])
        if 0 not in first:
            _check_elsewhere("mask", params, prefix, [predicate], 0)
        return found.like([index is not None for index in first])

    return of


def _prefix(collection: str | None) -> Path:
    return () if collection is None else (collection,)


_WHOLE: ContextVar[Callable[[], PyTree] | None] = ContextVar(
    "returns all parameters, while an optimizer sees a part of them", default=None
)


@contextlib.contextmanager
def part_of(whole: Callable[[], PyTree]) -> Iterator[None]:
    """Call an optimizer with a part of the parameters: its masks and labels may be about the rest.

    `mask` and `labels` raise an error for a filter that matches nothing, as a misspelled one does. In this context, a
    filter may match only parameters that the optimizer does not see. `TrainState` calls its optimizer so.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from liftcore.filters import PathContains
        >>> params = {"head": {"kernel": jnp.ones(2), "bias": jnp.ones(2)}}
        >>> tx = optax.adamw(1e-3, mask=mask(PathContains("kernel")))
        >>> with part_of(lambda: params):
        ...     opt_state = tx.init({"head": {"bias": params["head"]["bias"]}})

    Args:
        whole: a function that returns all parameters.
    """
    outer = _WHOLE.set(whole)
    try:
        yield
    finally:
        _WHOLE.reset(outer)


def _seen(params: PyTree, prefix: Path) -> Parameters:
    """Return the variables in what an optimizer sees: for a filter, each is what it is in the whole.

    An optimizer may see plain arrays in place of variables that have a type.
    """
    found, whole = Parameters.of(params, prefix), _WHOLE.get()
    if whole is None:
        return found
    all_of_them = Parameters.of(whole(), prefix)
    known = dict(zip(all_of_them.paths, all_of_them.values, strict=True))
    return found._replace(values=list(map(known.get, found.paths, found.values)))


def _check_elsewhere(where: str, seen: PyTree, prefix: Path, predicates: Sequence[Predicate], index: int) -> None:
    """Check that a filter that matches no parameter here matches one that the optimizer does not see.

    Such parameters are frozen by a `TrainState`, or belong to another optimizer: optax then has a `MaskedNode`, and
    others None, in their places.

    Raises:
        LiftArgumentError: if it matches none of these either.
    """
    predicate, whole = predicates[index], _WHOLE.get()
    found = Parameters.of(seen if whole is None else whole(), prefix)
    if whole is not None and index in found.first(predicates):
        return
    hidden = set(Parameters.of(seen, prefix, gaps=True).paths) - set(Parameters.of(seen, prefix).paths)
    # Nothing is known about a hidden parameter but its name, so a filter that asks for more may mean it.
    if hidden and (not names_in(predicate) or any(predicate(path, None) for path in hidden)):
        return
    found.check(where, predicate)
