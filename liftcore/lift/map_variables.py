"""Variables that a function sees other than they are stored: transposed, normalised, cast, renamed.

What is stored is `map_out` of what the body made, and what the body sees is `map_in` of what is stored. So that `init`
gives what `apply` gives, a body that may create variables is traced first. Then come, once each: what it creates, the
stored form of that, what the body sees of it, and the rest of the body, computed from what it sees.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax

from ..bodies.axes import split_arrays
from ..bodies.changes import names_of
from ..bodies.lens import Lens
from ..errors import LiftArgumentError, UnliftedCollectionError, no_function
from ..filters import Nothing, intersect, merge, subtract
from ..groups import Advice, Captured
from ..hoist import Prologue, Traced
from ..pure import Pure, lift
from ..split import split
from ..typing import Filter, PyTree, Variables

__all__ = ["map_variables"]


def _same(variables: Any) -> Any:
    return variables


def map_variables(
    fn: Callable[..., Any],
    mapped: Filter,
    map_in: Callable[[Any], Variables] = _same,
    map_out: Callable[[Any], Variables] = _same,
    *,
    init: bool = False,
    mutable: bool = False,
    variables: Filter = True,
    rngs: Filter = True,
) -> Callable[..., Any]:
    """A function of scopes that sees some variables other than they are stored.

    Example:
        >>> import jax, liftcore
        >>> from liftcore.nn import dense
        >>> def transpose(variables):
        ...     return jax.tree.map(lambda leaf: leaf.T, variables)
        >>> def autoencoder(scope, x):
        ...     layer = scope.push("layer")
        ...     decode = map_variables(dense, "params", transpose)
        ...     return decode(layer.rewound(), dense(layer, x, 2, use_bias=False), 3, use_bias=False)
        >>> _, variables = liftcore.init(autoencoder)(jax.random.key(0), jax.numpy.ones((1, 3)))
        >>> jax.tree.map(jax.numpy.shape, variables["params"])
        {'layer': {'kernel': (3, 2)}}

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`.
        mapped: a filter of the variables that are mapped. Others are lifted as they are.
        map_in: from the mapped variables below a scope as they are stored, `{collection: {...}}`, to what the body
            sees; not called where there are none.
        map_out: from what the body made or wrote to what is stored, which `mapped` must take too.
        init: whether the body may create mapped variables.
        mutable: whether it may write them, and create them.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the PRNG sequences that are lifted.

    Returns:
        `lifted(scopes, *args, **kwargs)`.

    Raises:
        UnliftedCollectionError: when called, where a mapped variable is created or written and may not be.
        LiftArgumentError: when called, where `map_in` does not undo what `map_out` does to a shape or dtype, and where
            one of them returns something that cannot be used.
    """
    for function in (map_in, map_out):
        if not callable(function):
            raise no_function("map_variables", function)
    creates = init or mutable
    outs: list[Filter | Captured] = [
        mapped if creates else Nothing(),
        variables if creates else subtract(variables, mapped),
    ]
    advice = Advice(
        '`init=True` (made) or `mutable=True` (written) if "{0}" is mapped, "{0}" to `variables` if not',
        '"{}" to `rngs`',
        ("seen through `map_in`", "as it is"),
        ("stored as `map_out` makes it", "as it is"),
        ("as it is",),
    )

    def transform(pure: Pure, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        lens = Lens(pure, mapped, map_in, map_out)

        def body(pure: Pure, seen: Any) -> Any:
            return pure((seen, variable_groups[1]), rng_groups, *args, **kwargs)

        if not creates or all(intersect(outer.tree.mutable, mapped) == Nothing() for outer in pure.crossing.outers):
            return body(pure, lens.view(variable_groups[0]))
        return _traced(lens, body, variable_groups[0], mutable)

    return lift(transform, fn, [mapped, variables], [*outs, Captured(all=True)], [rngs], "map_variables", advice)


def _traced(lens: Lens, body: Callable[..., Any], before: Any, mutable: bool) -> tuple[Any, tuple[Any, ...]]:
    """Runs `body(pure, seen)`, which may create mapped variables beside those that were there before."""
    pure, seen = lens.pure, lens.view(before)
    joins: list[Callable[..., Any]] = []

    def flat(pure: Pure, seen: Any) -> Any:
        result, groups = body(pure, seen)
        arrays, join = split_arrays(result)
        joins.append(join)
        return arrays, groups

    parts = split(pure, flat, seen)
    traced = parts.traced
    prologue = Prologue(traced, traced.leaves((seen,)))
    mapped, early = _before_mapped(pure, traced)
    pure.make(prologue, early)
    prologue.make(mapped)
    stored = pure.crossing.bind(lens.stored(prologue.tree(mapped)[0]))
    if jax.tree.leaves(stored):
        view = lens.view(tuple(merge(*trees) for trees in zip(before, stored, strict=True)))
        fitting, seen = lens.fitting(view, traced.created[0]), lens.fitting(view, seen)
        for number, value in enumerate(jax.tree.leaves(fitting)):  # they are the first of all initial values
            prologue.know(number, value)
            prologue.values[number] = value
        prologue.see(traced.leaves((seen,)))
    pure.make(prologue, [not (one or other) for one, other in zip(mapped, early, strict=True)])
    created = prologue.tree()
    groups = [stored, *created[1 : len(parts.values)]]
    pure.made(groups)
    arrays, (written, *values) = parts.remainder(created, seen)
    _check_unwritten(pure, () if mutable else written)
    return parts.join(groups, joins[0](arrays), [lens.stored(written), *values])


def _before_mapped(pure: Pure, traced: Traced) -> tuple[list[bool], list[bool]]:
    """The mapped initial values, and those others that these read and that read none of them: these are made first.

    All mapped ones are made in one go, since `map_out` is given them at once.

    Raises:
        LiftArgumentError: inside another lift, which could not see what one of them depends on: where it reads a mapped
            one of another collection, or what reads a mapped one.
    """
    mapped = [part == 0 for part in traced.parts]
    paths = [path[2:] for path, _ in jax.tree.leaves_with_path(traced.created)]
    early = [False for _ in mapped]
    for number in itertools.compress(range(len(mapped)), mapped):
        for other in traced.earlier[number]:
            through = not mapped[other] and any(mapped[one] for one in traced.earlier[other])
            early[other] = not mapped[other] and not through
            if pure.nested and (through or (mapped[other] and paths[other][0] != paths[number][0])):
                reader, read = (jax.tree_util.keystr(paths[one], simple=True, separator="/") for one in (number, other))
                raise LiftArgumentError(
                    f'"{reader}" in {pure.where}',
                    f'its initial value reads "{read}", which is mapped, or reads what is; '
                    "`map_out` is given all mapped variables at once.",
                    "Create what is read before the lift.",
                )
    return mapped, early


def _check_unwritten(pure: Pure, written: PyTree) -> None:
    names = names_of(written)
    if names:
        raise UnliftedCollectionError(
            pure.where,
            f"{names} was written, and is mapped.",
            "Let it be stored as `map_out` makes it: `mutable=True`.",
        )
