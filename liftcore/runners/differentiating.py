"""The common part of all derivatives: a function of scopes becomes one of variables and arguments, for JAX.

Argument number 0 stands for the scopes: for the variables below them that the filter `wrt` takes. Variables that the
body creates are created outside, so `init` differentiates the same function as `apply`: with respect to these
variables, not through their initializers. The body writes, draws and sows as without differentiation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._compat import zeros
from ..errors import LiftArgumentError, words
from ..filters.trees import by_place, leaves_of, merged, names_of, nested, rewrapped, select, subtree, under
from ..pipeline.body import Body
from ..pipeline.packing import Lifter, Transform, transformation
from ..pipeline.stages import Layout, without_created
from ..problems import checked_aux
from ..scopes.lifts import Captured
from ..texts import path_text, type_text
from ..typing import Filter, Path, PyTree
from ..values import copied
from .arguments import AS_IT_IS
from .axes import split_arrays
from .carry import not_separate

__all__ = [
    "TreesByScope",
    "by_argument",
    "check_tangents",
    "check_unnamed",
    "check_wrt",
    "derivative",
    "differentiable",
    "positive",
    "zero_tangent",
    "zero_tangents",
]

_GROUPS = ("differentiated", "passed through")
_ADVICE = AS_IT_IS._replace(into=_GROUPS, out=_GROUPS)


def derivative(transform: Transform, name: str, wrt: Filter, variables: Filter, rngs: Filter) -> Lifter:
    """Make a lift with two groups of variables: those to differentiate with respect to, and the others.

    Args:
        transform: see `transformation`.
        name: the name of the lift.
        wrt: a filter of the variables of the first group.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.
    """
    filters = [wrt, variables]
    return transformation(transform, filters, [*filters, Captured(all=True)], [rngs], name, advice=_ADVICE)


class TreesByScope(NamedTuple):
    """Converts between trees of the outermost scopes and the trees of the given scopes, which the user sees.

    Attributes:
        routes: for each given scope, the index of its outermost scope and the path from there.
        scopes: the pytree structure of the given scopes; see `Layout.bare_scopes`.
    """

    routes: tuple[tuple[int, Path], ...]
    scopes: Any

    @classmethod
    def of(cls, layout: Layout) -> TreesByScope:
        """Return the converter for one call of a lifted function."""
        return cls(layout.routes, layout.bare_scopes)

    def out(self, trees: Sequence[Any]) -> PyTree:
        """Return the tree below each given scope."""
        return jax.tree.unflatten(self.scopes, [copied(subtree(trees[index], route)) for index, route in self.routes])

    def into(self, where: str, given: PyTree, like: Sequence[Any], wrt: str = "wrt") -> tuple[Any, ...]:
        """The inverse of `out`. If several scopes give a value for one variable, the first one counts.

        Args:
            where: the place that the error names.
            given: the trees of the scopes.
            like: the trees of the outermost scopes.
            wrt: the name of the option that chooses the variables; empty if there is none.

        Raises:
            LiftArgumentError: if a value is given for a variable that is not in `like`.
        """
        flat: list[dict[Path, Any]] = [{} for _ in like]
        places = by_place(like)
        for (index, route), tree in zip(self.routes, self.scopes.flatten_up_to(given), strict=True):
            pattern = subtree(like[index], route)
            for path, value in leaves_of({} if tree is None else rewrapped(tree, pattern)):
                place = under(route, path)
                if (index, place) not in places:
                    available = names_of([pattern])
                    choose = f'Choose the variables with `{wrt}`, such as `{wrt}="params"`.'
                    raise LiftArgumentError(
                        where,
                        f"there is a value for {words().variable(path_text(path))}, but this variable is not "
                        f"differentiated (available: {words().variables(available)}).",
                        choose if wrt else "Pass tangents of existing variables only.",
                        variable=path_text(path),
                        option=wrt or None,
                        available=(*available,),
                    )
                flat[index].setdefault(place, value)
        return tuple(map(nested, flat))


def differentiable(
    body: Body,
    variable_groups: Sequence[PyTree],
    rng_groups: Any,
    argnums: Sequence[int],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    has_aux: bool,
) -> tuple[Callable[..., Any], PyTree, Callable[[Any], tuple[Any, ...]]]:
    """Return a function of the variables of the first group and of arguments, for JAX to differentiate.

    Args:
        body: the function of scopes.
        variable_groups: the variables to differentiate with respect to, and the others.
        rng_groups: the groups of RNG streams.
        argnums: the numbers of the arguments to differentiate with respect to; the others may be any values.
        args: the arguments.
        kwargs: the keyword arguments.
        has_aux: whether the function returns a pair, of which only the first part is differentiated.

    Returns:
        `call(trees, *args) -> (result, (aux, output groups))`, to be run once, in the form for JAX's `has_aux`; the
        trees to call it with; and a function that finishes the output groups after they came out of the derivative.
    """
    trees, others = variable_groups

    def outputs(result: Any, groups: Any) -> tuple[Any, tuple[Any, Any]]:
        result, aux = checked_aux(lambda: body.where, result) if has_aux else (result, None)
        return result, (aux, groups)

    if not body.creates:
        return lambda trees, *args: outputs(*body([trees, others], rng_groups, *args, **kwargs)), trees, tuple
    moving = [num - 1 for num in argnums if num]
    joins: list[Callable[..., Any]] = []

    def run(body: Body, trees: PyTree, moved: Sequence[Any], others: PyTree = others) -> Any:
        full = list(args)
        for place, arg in zip(moving, moved, strict=True):
            full[place] = arg
        result, groups = body([trees, others], rng_groups, *full, **kwargs)
        arrays, join = split_arrays(result)
        joins.append(join)
        return arrays, groups

    operands = trees, [args[place] for place in moving]
    split = body.split(*operands, via=run)
    made = split.prologue(*operands)

    def remainder(full: PyTree, moved: Sequence[Any]) -> Any:
        return split.remainder([select(full, made[0]), *made[1:]], select(full, trees), moved)

    def again(full: PyTree, moved: Sequence[Any]) -> Any:
        body.records.pop()
        return without_created(*run(body.of(body.fn, made[:2]), full, moved, merged(others, made[1])))[1]

    # A custom lift may compute the value that it stores from the one that its body uses. The result is then no function
    # of the stored value in this trace, so the body runs again, on the stored values.
    rest = again if not_separate(body, split.created[0]) else remainder

    def call(full: PyTree, *args: Any) -> Any:
        arrays, values = rest(full, [args[place] for place in moving])
        return outputs(joins[-1](arrays), values)

    return call, merged(trees, made[0]), lambda values: split.join(made, None, values)[1]


def check_unnamed(body: Body, primals: Mapping[str, Any]) -> None:
    """Check that no primal was passed by name.

    Raises:
        LiftArgumentError: if one was.
    """
    if primals:
        named = sorted(primals)
        what = f"it differentiates all its arguments by position, but {named} were passed by name."
        raise LiftArgumentError(body.where, what, "Pass them by position.", option=named[0], given=named)


def positive(body: Body, argnums: int | Sequence[int], count: int, what: str = "argnums") -> tuple[int, ...]:
    """Return the numbers of arguments, counted from 0.

    Args:
        body: the body of the lift, for error messages.
        argnums: the numbers that the user gave; negative ones count from the end.
        count: the number of arguments, the scope included.
        what: the name of the option.
    """
    given = argnums if isinstance(argnums, Sequence) else (argnums,)
    numbers = tuple(map(operator.index, given))
    if any(not -count <= number < count for number in numbers):
        raise LiftArgumentError(
            f"{body.where}, {what}={argnums}",
            f"there are {count} positional arguments, the scope included.",
            "Count from 0, which is the scope (or module); arguments passed by name cannot be chosen.",
            option=what,
            given=argnums,
        )
    return tuple(number % count for number in numbers)


def by_argument(scoped: TreesByScope, argnums: int | Sequence[int], nums: Sequence[int], derivatives: PyTree) -> PyTree:
    """Return JAX's derivatives in the user's form; a single one, without a tuple, if one argument was chosen."""
    seen = tuple(one if num else scoped.out(one) for num, one in zip(nums, derivatives, strict=True))
    return seen if isinstance(argnums, Sequence) else seen[0]


def check_wrt(body: Body, trees: PyTree, allow_int: bool = False) -> None:
    """Check that there are variables to differentiate with respect to, and that their dtypes allow it."""
    leaves = jax.tree.leaves(trees)
    if not leaves:
        known = sorted({name for outer in body.outers for name in outer.tree.variables})
        raise LiftArgumentError(
            body.where,
            "argument number 0 is the scope (or module), and `wrt` takes no variable below it (collections there: "
            f"{known}).",
            'Choose others, such as `wrt="params"`, or count arguments from 1.',
            option="wrt",
            available=(*known,),
        )
    # A model has many leaves and few dtypes, so leaves are checked one by one only to name the wrong one.
    dtypes = {leaf.dtype if isinstance(leaf, jax.Array) else jnp.result_type(leaf) for leaf in leaves}
    if allow_int or all(jnp.issubdtype(dtype, jnp.inexact) for dtype in dtypes):
        return
    for (_, path), value in by_place(trees).items():
        wrong = [leaf for leaf in jax.tree.leaves(value) if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
        if wrong:
            raise LiftArgumentError(
                f"{words().variable(path_text(path))} in {body.where}",
                f"`wrt` selects it, but {jnp.result_type(wrong[0])} has no gradient.",
                "Leave it out of `wrt`, or pass `allow_int=True`.",
                variable=path_text(path),
                option="wrt",
                given=jnp.result_type(wrong[0]),
            )


def check_tangents(where: str, given: Sequence[PyTree], like: Sequence[PyTree]) -> None:
    """Check that tangents of variables have the shapes and dtypes that the variables ask for.

    Args:
        where: the place that the error names.
        given: trees of tangents, one for each outermost scope.
        like: the trees of all variables that may have tangents.

    Raises:
        LiftArgumentError: if one has not.
    """
    values = by_place(like)
    for place, tangent in by_place(given).items():
        one: Any = jax.tree.structure(tangent)
        other: Any = jax.tree.structure(values[place])
        wanted = [jax.typeof(leaf).to_tangent_aval() for leaf in jax.tree.leaves(values[place])]
        found = [jax.typeof(leaf) for leaf in jax.tree.leaves(tangent)]
        if one == other and [(a.shape, a.dtype) for a in found] != [(a.shape, a.dtype) for a in wanted]:
            name = path_text(place[1])
            fixed = all(aval.dtype == jax.dtypes.float0 for aval in wanted)
            raise LiftArgumentError(
                f"the tangent of {words().variable(name)} in {where}",
                f"it is {_types(found)}, but a tangent of this variable is {_types(wanted)}.",
                "Leave it out." if fixed else "Give it the shape and dtype of the variable.",
                variable=name,
            )


def _types(avals: Sequence[Any]) -> str:
    return ", ".join(map(type_text, avals))


def zero_tangents(values: PyTree) -> PyTree:
    """Return the tangents of values that do not change."""
    return jax.tree.map(lambda leaf: zero_tangent(jax.typeof(leaf)), values)


def zero_tangent(kind: Any) -> Any:
    """Return the zero tangent of a value of a type."""
    aval = kind.to_tangent_aval()
    return np.zeros(aval.shape, aval.dtype) if aval.dtype == jax.dtypes.float0 else zeros(aval)
