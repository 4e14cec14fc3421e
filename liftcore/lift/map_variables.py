"""`map_variables`: a function sees variables in another form than the stored one, such as transposed or cast.

The body sees `map_in` of the stored variables, and `map_out` of what the body creates is stored. To make `init` and
`apply` agree, a body that may create variables is traced first. Then its parts run once each, in this order: the
initial values, their stored form, the form that the body sees, and the rest of the body. An initial value that reads a
mapped variable is computed after the body's form of that variable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UnliftedCollectionError, check_function, words
from ..filters import Nothing, intersect, subtract
from ..filters.trees import names_of
from ..pipeline.body import Body
from ..pipeline.packing import transformation
from ..pipeline.splitting import Prologue
from ..runners.axes import split_arrays
from ..runners.variable_maps import VariableMaps, make_mapped
from ..scopes.lifts import Advice, Captured
from ..typing import Filter, Variables

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
    """A function of scopes that sees some variables in another form than the stored one.

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
        mapped: a filter of the variables that are mapped. Other variables are lifted unchanged.
        map_in: maps the stored variables below a scope, `{collection: {...}}`, to the variables that the body sees;
            not called if there are none.
        map_out: maps the variables that the body created or wrote to the variables to store, which `mapped` must match
            too. If the initial value of a mapped variable reads another one, both functions are traced, as under
            `jax.jit`. If `map_out.by_parts` is true, it is called several times instead, each time with further
            variables: first those that others read.
        init: whether the body may create mapped variables.
        mutable: whether the body may write mapped variables, as well as create them.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        `lifted(scopes, *args, **kwargs)`.

    Raises:
        UnliftedCollectionError: when called, if a mapped variable is created or written without permission.
        LiftArgumentError: when called, if `map_in` does not restore a shape or dtype that `map_out` changed, if one of
            them returns an invalid value, or if an initial value reads a mapped variable that depends on that same
            value.
    """
    for function in (map_in, map_out):
        check_function("map_variables", function)
    creates = init or mutable
    outs: list[Filter] = [mapped, variables] if creates else [Nothing(), subtract(variables, mapped)]
    advice = Advice(
        '`init=True` (to create) or `mutable=True` (to write) if "{0}" is mapped, or "{0}" to `variables` if not',
        '"{}" to `rngs`',
        ("mapped for the body", "passed through"),
        ("mapped for storage", "passed through"),
        ("passed through",),
    )

    def transform(body: Body, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        maps = VariableMaps(body, mapped, map_in, map_out)

        def run(body: Body, seen: Any) -> Any:
            return body((seen, variable_groups[1]), rng_groups, *args, **kwargs)

        if not creates or all(intersect(outer.tree.mutable, mapped) == Nothing() for outer in body.outers):
            return run(body, maps.view(variable_groups[0]))
        return _traced(maps, run, variable_groups[0], mutable)

    return transformation(
        transform, [mapped, variables], [*outs, Captured(all=True)], [rngs], "map_variables", advice=advice
    )(fn)


def _traced(maps: VariableMaps, run: Callable[..., Any], before: Any, mutable: bool) -> tuple[Any, tuple[Any, ...]]:
    """Run `body(body, seen)`, which may create mapped variables besides those that already exist."""
    seen = maps.view(before)
    body = maps.redrawing(before, seen)
    joins: list[Callable[..., Any]] = []

    def flat(body: Body, seen: Any) -> Any:
        result, groups = run(body, seen)
        arrays, join = split_arrays(result)
        joins.append(join)
        return arrays, groups

    split = body.split(seen, via=flat)
    maps.note_redrawn(seen)
    prologue = Prologue(split, split.leaves((seen,)))
    stored, seen = make_mapped(maps, prologue, before, seen)
    prologue.see(split.leaves((seen,)))
    prologue.make(set(split.numbers) - prologue.values.keys())
    created = prologue.tree()
    groups = [stored, *created[1 : len(split.values)]]
    if body.observer is not None:
        body.observer.created(groups)
    arrays, (written, *values) = split.remainder(created, seen)
    if not mutable and (names := names_of(written)):
        raise UnliftedCollectionError(
            body.where,
            f"{words().variables(names)} was written, but the lift does not allow writing mapped variables.",
            f"To write them through `{words().option('map_variables', 'map_out')}`, add `mutable=True`.",
            variable=names[0],
            option="mutable",
        )
    return split.join(groups, joins[0](arrays), [maps.stored(written), *values])
