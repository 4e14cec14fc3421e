"""`fold_rngs`: RNG streams start again at a scope, so that its draws do not depend on the scopes above it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax

from .. import rng
from ..pipeline.body import Body
from ..runners.arguments import AS_IT_IS, passing_all
from ..scopes.scope import Scope
from ..typing import Filter
from .with_rngs import begin_anew

__all__ = ["fold_rngs"]

_ADVICE = AS_IT_IS._replace(rngs=("folded into a new root",))

_PLACE = "fold_rngs"
"""The name of the child scope under which new root keys are drawn and counted."""


def fold_rngs(fn: Callable[..., Any], *, variables: Filter = True, rngs: Filter = True) -> Callable[..., Any]:
    """A function of scopes whose RNG streams start again at its scope.

    Each stream starts again from a root key that is drawn for this call: inside, the path starts at the scope and the
    count starts at zero. So the draws of a block depend on the scopes above it only through that root key. Two calls
    have different root keys. The counts outside do not change.

    Example:
        >>> import jax, liftcore
        >>> def draw(scope):
        ...     return jax.random.normal(scope.make_rng("noise"))
        >>> def model(scope):
        ...     first = fold_rngs(draw)(scope)
        ...     return first, fold_rngs(draw)(scope), draw(scope)
        >>> len(set(map(float, liftcore.apply(model)({}, rngs={"noise": jax.random.key(0)}))))
        3

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted, and start again.

    Returns:
        `lifted(scopes, *args, **kwargs)`.
    """

    def transform(body: Body, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        folded, draws = [], []
        for index, (outer, group) in enumerate(zip(body.outers, rng_groups[0], strict=True)):
            roots, drawn = _fold(outer, group)
            folded.append(roots)
            draws += [((index, (_PLACE,), name), count) for name, count in drawn.items()]
        names = frozenset({name for _, _, name in (place for place, _ in draws)})
        output = begin_anew(body, names, variable_groups, (tuple(folded),), args, kwargs)
        record = body.records.pop()
        body.records.append(dataclasses.replace(record, draws=(*record.draws, *draws)))
        return output

    return passing_all(transform, "fold_rngs", variables, rngs, _ADVICE)(fn)


def _fold(outer: Scope, roots: dict[str, Any]) -> tuple[dict[str, Any], Counter[str]]:
    """Return new root keys, and how many keys were drawn for them.

    They are drawn as in a child scope, so no other draw has their fold-in data. They are not counted yet, since the
    body may raise.
    """
    before = outer.counter.child(_PLACE)
    drawn: Counter[str] = Counter()
    folded = {}
    for name, root in roots.items():
        counted = name if name in outer.tree.rngs else rng.DEFAULT
        drawn[counted] += 1
        count = before.counts.get(counted, 0) + drawn[counted]
        fold_in_data = outer.tree.fold_in_data((*outer.path, _PLACE), counted, count, before.origin)
        folded[name] = jax.random.fold_in(root, fold_in_data)
    return folded, drawn
