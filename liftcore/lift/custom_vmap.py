"""Lifted `jax.custom_batching.custom_vmap`.

JAX runs a rule when it batches the function, which may be long after the lift has ended. So the rule receives separate
scopes, which hold only the variables.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from ..calls import bind_user, boundary, call_user, check_positional
from ..errors import LiftArgumentError, LiftError, check_function, name_of
from ..filters import Nothing
from ..filters.trees import merged, names_of, rooted, subtree
from ..pipeline.body import Body
from ..pipeline.splitting import closure_convert
from ..problems import no_rule
from ..runners.arguments import passing_all
from ..scopes.scope import Scope
from ..scopes.tree import Tree
from ..typing import Filter, Path, PyTree
from ..values import copied

__all__ = ["custom_vmap"]


class custom_vmap:
    """`jax.custom_batching.custom_vmap` for a function of scopes: a rule defines its result under `vmap`.

    The function may create variables and draw keys, but not write variables. Values that it sows are batched as usual,
    without the rule.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> @custom_vmap
        ... def layer(scope, x):
        ...     return x @ scope.param("w", jax.random.normal, (3, 2))
        >>> @layer.def_vmap
        ... def rule(axis_size, in_batched, scope, x):
        ...     print(axis_size, in_batched, x.shape)
        ...     return x @ scope.get_variable("params", "w"), True
        >>> elements = liftcore.vmap(layer, variable_axes={"params": None}, split_rngs=False)
        >>> y, variables = liftcore.init(elements)(jax.random.key(0), jnp.ones((5, 3)))
        5 ({'params': {'w': False}}, True) (5, 3)

    Args:
        fn: called as `fn(scopes, *args)`.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    A call `lifted(scopes, *args, **kwargs)` raises `LiftArgumentError` if there is no rule, if the body writes a
    variable, or if keyword arguments have no position.
    """

    def __init__(self, fn: Callable[..., Any], *, variables: Filter = True, rngs: Filter = True) -> None:
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._rule: Callable[..., Any] | None = None
        self._lifted = passing_all(self._transform, "custom_vmap", variables, rngs)(fn)

    def def_vmap(self, rule: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
        """Define the result of the function under `vmap`.

        Args:
            rule: called as `rule(axis_size, in_batched, scopes, *args)`; returns the result, and a pytree of bools of
                the same structure that tells which parts have a new axis 0. `scopes` have the same structure as in the
                function and are read-only. Their variables are batched, so read them with `get_variable`. `in_batched`
                is a tuple: for the scopes, a dict `{collection: {module: {name: bool}}}`; for each argument, a pytree
                of bools. If only keys are batched, `jax.vmap` maps the function itself. As in JAX, a forward
                derivative may call the rule with nothing batched, because only the tangents are.

        Returns:
            The rule.
        """
        check_function(f"def_vmap of custom_vmap({name_of(self._fn)})", rule)
        self._rule = rule
        return rule

    @boundary
    def __call__(self, scopes: PyTree, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._lifted(scopes, *args, **kwargs)

    def _transform(self, body: Body, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        if self._rule is None:
            raise no_rule(body.where, f"@{name_of(self._fn)}.def_vmap")
        args = _positional(body, args, kwargs)

        def run(body: Body, variable_groups: Any, rng_groups: Any, args: Any) -> Any:
            return body(variable_groups, rng_groups, *args)

        operands = variable_groups, rng_groups, args
        split = body.split(*operands, via=run)
        if names := names_of(split.values[0]):
            raise LiftArgumentError(
                body.where,
                f"the body writes {names}; under `vmap` the rule runs in its place, and cannot write.",
                "Return the value, and write it outside.",
                variable=names[0],
            )
        created = split.prologue(*operands)

        def rest(created: Any, *operands: Any) -> Any:
            result, (_, captured) = split.remainder(created, *operands)
            return result, captured

        converted, consts, _ = closure_convert(rest, created, *operands)
        call = jax.custom_batching.custom_vmap(converted)
        call.def_vmap(Rule(self._rule, converted, body, body.where))
        result, captured = call(consts, created, *operands)
        nothing: tuple[PyTree, ...] = tuple({} for _ in body.outers)
        return split.join(created, result, [nothing, captured])


class Rule:
    """A user's rule in the form that JAX calls. It must not refer to the lift, which has ended by then."""

    def __init__(self, rule: Callable[..., tuple[Any, Any]], run: Callable[..., Any], body: Body, where: str) -> None:
        functools.update_wrapper(self, rule)
        self._rule, self._run, self._where, self._layout = rule, run, where, body.layout
        self._places = [(outer.path, outer.tree.initializing) for outer in body.outers]

    def __call__(self, axis_size: int, in_batched: Sequence[Any], *operands: Any) -> tuple[Any, Any]:
        """Return the result of the rule, together with the values that the function itself sows."""
        _, created, (variables,), _, args = operands
        _, is_created, (is_variable,), _, is_arg = in_batched
        flags, values = merged(is_variable, is_created[0]), merged(variables, created[0])
        roots = [self._root(*both) for both in zip(self._places, values, strict=True)]
        scopes = [roots[index].below((*self._places[index][0], *route)) for index, route in self._layout.routes]
        trees = [copied(subtree(flags[index], route)) for index, route in self._layout.routes]
        seen, given = (jax.tree.unflatten(self._layout.scopes, each) for each in (trees, scopes))
        (result, sown), batched = self._mapped(axis_size, in_batched, operands)
        if any(jax.tree.leaves(in_batched)) and not any(jax.tree.leaves((seen, is_arg))):
            return (result, sown), batched  # the rule sees no keys
        try:
            result, is_result = call_user(
                f"the rule of {self._where}", self._rule, axis_size, (seen, *is_arg), given, *args
            )
        except LiftError as error:
            error.add_note(f"This is the rule of {self._where}: it may read variables, but not use scopes otherwise.")
            raise
        finally:
            for root in roots:
                root.invalidate()
        return (result, sown), (is_result, batched[1])

    def _root(self, place: tuple[Path, bool], variables: Mapping[str, Any]) -> Scope:
        """Return a read-only root scope with the variables at their absolute paths."""
        path, initializing = place
        tree = Tree(rooted(variables, path), {}, Nothing())
        tree.initializing = initializing
        return Scope.at(tree)

    def _mapped(self, axis_size: int, in_batched: Sequence[Any], operands: Sequence[Any]) -> tuple[Any, Any]:
        """Return the result of the function as `jax.vmap` maps it, and bools that tell what is batched."""
        if not any(jax.tree.leaves(in_batched)):  # `jax.vmap` refuses to map nothing
            output = self._run(*operands)
            return output, jax.tree.map(lambda _: False, output)
        axes = jax.tree.map(lambda flag: 0 if flag else None, tuple(in_batched))
        output = jax.vmap(self._run, axes, axis_size=axis_size)(*operands)
        return output, jax.tree.map(lambda _: True, output)


def _positional(body: Body, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return all arguments by position, including defaults, as a rule receives them."""
    bound = bind_user(body.where, body.fn, next(iter(body.given), None), *args, **kwargs)
    bound.apply_defaults()
    check_positional(body.where, set(bound.kwargs) & set(kwargs))
    return bound.args[1:]
