"""`purify`: turns a function of scopes into a pure function, for JAX code that needs one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .. import rng
from ..calls import boundary, call_user
from ..entry import bind
from ..errors import LazyInitError, LiftArgumentError, name_of, words
from ..filters.trees import merge, rooted
from ..pipeline.body import Body
from ..pipeline.packing import transformation
from ..pipeline.stages import Changes
from ..pytrees import split_leaves
from ..runners.arguments import AS_IT_IS
from ..runners.axes import split_arrays
from ..scopes.lifts import Captured
from ..scopes.scope import Scope
from ..scopes.tree import Tree
from ..texts import path_text
from ..typing import Filter, Path, PyTree, RNGs, Variables
from ..values import copied

__all__ = ["purify"]

_ADVICE = AS_IT_IS._replace(out=("created if missing",))


@boundary
def purify(
    fn: Callable[..., Any], scope: PyTree, *example_args: Any, **example_kwargs: Any
) -> tuple[Callable[..., Any], Variables]:
    """A function of scopes as a pure function, and its variables: for ODE solvers, optimizers and similar code.

    Use both inside any JAX transformation or lift, and also after the scope has ended.

    Example:
        >>> import jax, liftcore
        >>> from liftcore.nn import dense
        >>> def field(scope, x, t):
        ...     return t * dense(scope, x, x.shape[-1])
        >>> def flow(scope, x):
        ...     pure, variables = purify(field, scope.push("field"), x, 0.0)
        ...     return jax.lax.fori_loop(0, 10, lambda i, x: x + 0.1 * pure(variables, x, 0.1 * i), x)
        >>> y, variables = liftcore.init(flow)(jax.random.key(0), jax.numpy.ones((1, 3)))
        >>> jax.tree.map(jax.numpy.shape, variables["params"])
        {'field': {'bias': (3,), 'kernel': (3, 3)}}

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`.
        scope: a scope, or a pytree of scopes of one `init`, `apply` or lift.
        *example_args: example arguments of `fn`. If they are given and variables may be created, `fn` is traced once,
            and its variables are created in the scope. An array may be a `jax.ShapeDtypeStruct` if no initial value
            depends on it.
        **example_kwargs: example keyword arguments of `fn`.

    Returns:
        `pure_fn(variables, *args, rngs=None, mutable=False, **kwargs)`, which is like `apply(fn)`, and the variables
        below the scope. For several scopes, these are the variables below their common scope.

    Raises:
        LazyInitError: if an initial value depends on an example that is only a shape.
        LiftArgumentError: if the scopes belong to different trees.
    """
    transform = _create if example_args or example_kwargs else _leave
    lifted = transformation(transform, [True], [True, Captured()], [True], "purify", advice=_ADVICE)(fn)
    body: Body = lifted(scope, *example_args, **example_kwargs)
    outers, structure = body.outers, body.layout.scopes
    base = _common([outer.path for outer in outers])
    places = [(one.path, one.names()) for one in body.given]

    @boundary
    def pure_fn(
        variables: Variables, *args: Any, rngs: RNGs | None = None, mutable: Filter = False, **kwargs: Any
    ) -> Any:
        with _root(base, variables, rngs, mutable).temporary() as root:
            scopes = [root.below(path).entering(names) for path, names in places]
            result = call_user(f"purify({name_of(fn)})", fn, jax.tree.unflatten(structure, scopes), *args, **kwargs)
            if mutable is False or mutable is None:
                return result
            return result, root.below(base).mutable_variables()

    pure_fn.__name__ = name_of(fn)
    below = (rooted(copied(outer.collections_below()), outer.path[len(base) :]) for outer in outers)
    return pure_fn, merge(*below)


def _leave(body: Body, variable_groups: Any, rng_groups: Any) -> tuple[Body, tuple[Any, ...]]:
    """Find the scopes and do nothing else."""
    outers = body.outers
    if len({id(outer.tree) for outer in outers}) > 1:
        raise LiftArgumentError(
            body.where,
            f"the scopes belong to different trees of variables: {[outer.path_text for outer in outers]}.",
            "Pass scopes of one `init`, `apply` or lift.",
            given=[outer.path_text for outer in outers],
        )
    return body, body.unchanged


def _create(
    body: Body, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any
) -> tuple[Body, tuple[Any, ...]]:
    """Create the variables that a function creates, and drop its other effects."""
    body, (unchanged, captured) = _leave(body, variable_groups, rng_groups)
    if not body.writes:
        return body, (unchanged, captured)
    arrays, join = split_arrays((args, kwargs))
    numbers, shapes = split_leaves(arrays, lambda leaf: isinstance(leaf, jax.Array))

    def run(body: Body, *parts: Sequence[Any]) -> Any:
        args, kwargs = join(shapes.join(*parts))
        return (), body(variable_groups, rng_groups, *args, **kwargs)[1]

    split = body.split(numbers, shapes.leaves, via=run)
    for path, reads in jax.tree.leaves_with_path(split.reads()[:-1]):
        if 1 in reads:
            raise LazyInitError(
                f"{words().variable(path_text(path[2:]))} in {body.where}",
                "its initial value depends on the values of an example that is given as a shape only.",
                "Pass an array for that example.",
                variable=path_text(path[2:]),
            )
    created = split.prologue(numbers, None)
    names = tuple(scope.names() for scope in body.given)
    record = body.records.pop()
    body.records.append(dataclasses.replace(record, names=names, sown=tuple(() for _ in record.sown)))
    return body, (Changes(unchanged.values, created[0]), captured)


def _common(paths: Sequence[Path]) -> Path:
    """Return the longest common prefix of the paths."""
    if not paths:
        return ()
    return next(paths[0][:size] for size in range(len(paths[0]), -1, -1) if len({path[:size] for path in paths}) == 1)


def _root(base: Path, variables: Variables, rngs: RNGs | None, mutable: Filter) -> Scope:
    """Return a root scope above the variables, so that paths are absolute; keys depend on the path below `base`."""
    checked = bind(variables, rngs, mutable).tree

    def fold_in_data(path: Path, name: str, count: int, origin: object) -> Any:
        return rng.fold_in_data((*path[len(base) :], count))

    tree = Tree(rooted(variables, base), checked.rngs, checked.mutable, fold_in_data=fold_in_data)
    return Scope.at(tree)
