"""What all derivatives share: a function of scopes as one of variables and arguments, for JAX to differentiate.

Argument number 0 stands for the scopes: for those variables below them that the filter `wrt` takes. Variables that the
body creates are made outside, so that `init` differentiates what `apply` will: with respect to them, and not through
what made them. What the body writes, draws and sows is that of the undifferentiated body.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._compat import zeros
from ..errors import LiftArgumentError
from ..filters import leaves_of, merge
from ..pipeline.packing import Lifter, Transform, transformation
from ..pipeline.stages import Layout
from ..pipeline.use import Body
from ..scopes.lifts import Advice, Captured
from ..texts import path_text
from ..typing import Filter, Path, PyTree
from ..values import copied, rewrapped
from .axes import split_arrays
from .carry import check_separate, select

__all__ = [
    "TreesByScope",
    "by_argument",
    "check_wrt",
    "derivative",
    "differentiable",
    "positive",
    "with_aux",
    "zero_tangent",
    "zero_tangents",
]

_GROUPS = ("differentiated", "passed through")
_ADVICE = Advice('"{}" to `variables`', '"{}" to `rngs`', _GROUPS, _GROUPS, ("passed through",))


def derivative(transform: Transform, name: str, wrt: Filter, variables: Filter, rngs: Filter) -> Lifter:
    """A lift with two groups of variables: those to differentiate with respect to, and the others.

    Args:
        transform: see `transformation`.
        name: that of the lift.
        wrt: a filter of the variables of the first group.
        variables: a filter of the others that are lifted.
        rngs: a filter of the RNG streams that are lifted.
    """
    filters = [wrt, variables]
    return transformation(transform, filters, [*filters, Captured(all=True)], [rngs], name, advice=_ADVICE)


class TreesByScope(NamedTuple):
    """Trees of the outermost scopes, and what they are of each scope that was given: the values a user sees.

    Attributes:
        routes: for each given scope, the index of its outermost scope and the way from there.
        scopes: the pytree structure of the given scopes.
    """

    routes: tuple[tuple[int, Path], ...]
    scopes: Any

    @classmethod
    def of(cls, layout: Layout) -> TreesByScope:
        """That of one use of a lift."""
        return cls(layout.routes, layout.scopes)

    def out(self, trees: Sequence[Any]) -> PyTree:
        """The tree below each given scope."""
        below = [copied(_below(trees[index], route)) for index, route in self.routes]
        return jax.tree.unflatten(self.scopes, below)

    def into(self, where: str, given: PyTree, like: Sequence[Any]) -> tuple[Any, ...]:
        """The inverse of `out`: of what is given for one variable through several scopes, the first counts.

        Raises:
            LiftArgumentError: where something is given for a variable that is not in `like`.
        """
        trees: list[Any] = [{} for _ in like]
        places = [{path for path, _ in leaves_of(tree)} for tree in like]
        for (index, route), tree in zip(self.routes, self.scopes.flatten_up_to(given), strict=True):
            given_tree = {} if tree is None else rewrapped(tree, _below(like[index], route))
            for path, value in leaves_of(given_tree):
                place = (path[0], *route, *path[1:])
                if place not in places[index]:
                    known = sorted(path_text(path) for path, _ in leaves_of(_below(like[index], route)))
                    raise LiftArgumentError(
                        where,
                        f'there is something for "{path_text(path)}", with respect to which nothing is '
                        f"differentiated (available: {known}).",
                        'Choose the variables with `wrt`, such as `wrt="params"`.',
                    )
                _add(trees[index], place, value)
        return tuple(trees)


def differentiable(
    body: Body,
    variable_groups: Sequence[PyTree],
    rng_groups: Any,
    argnums: Sequence[int],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[Callable[..., Any], PyTree, Callable[[Any], tuple[Any, ...]]]:
    """A function of the variables of the first group, and of arguments, for JAX to differentiate.

    Args:
        body: the function of scopes.
        variable_groups: those to differentiate with respect to, and the others.
        rng_groups: as they were given.
        argnums: the numbers of the arguments to differentiate with respect to; the others may be anything.
        args: the arguments.
        kwargs: the keyword arguments.

    Returns:
        `call(trees, *args) -> (result, output groups)`, to be run once; the trees to call it with; and what to do with
        the output groups when they have come out of the derivative.
    """
    trees, others = variable_groups
    if not body.creates:
        return lambda trees, *args: body([trees, others], rng_groups, *args, **kwargs), trees, tuple
    moving = [num - 1 for num in argnums if num]
    joins: list[Callable[..., Any]] = []

    def run(body: Body, trees: PyTree, moved: Sequence[Any]) -> Any:
        full = list(args)
        for place, arg in zip(moving, moved, strict=True):
            full[place] = arg
        result, groups = body([trees, others], rng_groups, *full, **kwargs)
        arrays, join = split_arrays(result)
        joins.append(join)
        return arrays, groups

    operands = trees, [args[place] for place in moving]
    parts = body.split(*operands, via=run)
    check_separate(body, parts.created[0])
    made = parts.prologue(*operands)

    def call(full: PyTree, *args: Any) -> Any:
        created, moved = [select(full, made[0]), *made[1:]], [args[place] for place in moving]
        arrays, values = parts.remainder(created, select(full, trees), moved)
        return joins[0](arrays), values

    return call, tuple(map(merge, trees, made[0])), lambda values: parts.join(made, None, values)[1]


def positive(where: str, argnums: int | Sequence[int], count: int, what: str = "argnums") -> tuple[int, ...]:
    """The numbers of arguments, from 0.

    Args:
        where: the lift, for the text of an error.
        argnums: as the user gave them; negative ones count from the end.
        count: how many arguments there are, the scope included.
        what: what the user calls the numbers.
    """
    given = argnums if isinstance(argnums, Sequence) else (argnums,)
    numbers = tuple(map(operator.index, given))
    if any(not -count <= number < count for number in numbers):
        raise LiftArgumentError(
            f"{where}, {what}={argnums}",
            f"there are {count} arguments that are given by position, the scope included.",
            "Count from 0, which is the scope; arguments given by name cannot be chosen.",
        )
    return tuple(number % count for number in numbers)


def with_aux(call: Callable[..., Any], has_aux: bool) -> Callable[..., tuple[Any, Any]]:
    """What `differentiable` gives as JAX takes it with `has_aux`: what is not differentiated comes second."""

    def flat(*args: Any) -> tuple[Any, Any]:
        result, groups = call(*args)
        result, aux = result if has_aux else (result, None)
        return result, (aux, groups)

    return flat


def by_argument(scoped: TreesByScope, argnums: int | Sequence[int], nums: Sequence[int], derivatives: PyTree) -> PyTree:
    """What JAX gives for several arguments, that for number 0 as the user sees it; alone, where one was asked for."""
    seen = tuple(one if num else scoped.out(one) for num, one in zip(nums, derivatives, strict=True))
    return seen if isinstance(argnums, Sequence) else seen[0]


def check_wrt(body: Body, trees: PyTree, allow_int: bool = False) -> None:
    """Checks that there are variables to differentiate with respect to, and that these can be."""
    leaves = jax.tree.leaves(trees)
    if not leaves:
        known = sorted({name for outer in body.use.outers for name in outer.tree.variables})
        raise LiftArgumentError(
            body.where,
            f"argument number 0 is the scope, and `wrt` takes no variable below it (collections there: {known}).",
            'Choose others, such as `wrt="params"`, or count arguments from 1.',
        )
    # A model has many leaves, and few dtypes: only where one is wrong is each asked, and named.
    dtypes = {leaf.dtype if isinstance(leaf, jax.Array) else jnp.result_type(leaf) for leaf in leaves}
    if allow_int or all(jnp.issubdtype(dtype, jnp.inexact) for dtype in dtypes):
        return
    for path, value in (pair for tree in trees for pair in leaves_of(tree)):
        wrong = [leaf for leaf in jax.tree.leaves(value) if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
        if wrong:
            raise LiftArgumentError(
                f'"{path_text(path)}" in {body.where}',
                f"it is differentiated with respect to, and has dtype {jnp.result_type(wrong[0])}.",
                "Leave it out of `wrt`, or pass `allow_int=True`.",
            )


def zero_tangents(values: PyTree) -> PyTree:
    """The tangents of values that do not change."""
    return jax.tree.map(lambda leaf: zero_tangent(jax.typeof(leaf)), values)


def zero_tangent(kind: Any) -> Any:
    """The tangent of something of a type, where it does not change."""
    aval = kind.to_tangent_aval()
    return np.zeros(aval.shape, aval.dtype) if aval.dtype == jax.dtypes.float0 else zeros(aval)


def _below(tree: Any, route: Path) -> dict[str, Any]:
    found = {}
    for collection, inner in tree.items():
        for name in route:
            inner = inner.get(name, {})
        if inner:
            found[collection] = inner
    return found


def _add(tree: dict[str, Any], path: Path, value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree.setdefault(path[-1], value)
