"""The common part of `custom_vjp` and `custom_jvp`: JAX may run their functions long after the lift has ended.

Therefore user code must not run later: the function and its rule are traced once each when the lifted function is
called, and JAX receives the traces. Variables that the function creates are created outside, and the rule finds them
there.

A rule may call the lifted function itself, as the examples in JAX's documentation do. The derivative of that call,
which only derivatives of higher order need, is the rule that is being traced.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from ..calls import bind_user, boundary, call_user, check_positional
from ..errors import Expected, LiftArgumentError, name_of, words
from ..filters.trees import by_place, merged, select
from ..pipeline.body import Body
from ..pipeline.splitting import Split, trace
from ..pipeline.stages import without_created
from ..pytrees import Others, is_array_like, split_leaves
from ..texts import path_text, types_text
from ..typing import Filter, PyTree
from .arguments import parameter_names
from .branching import Slots
from .differentiating import derivative, positive

__all__ = ["Operands", "Ruled", "WithRule", "by_number", "pair", "split_held", "with_defaults"]


class WithRule:
    """A lifted function of scopes with a rule for its derivative; a subclass passes the rule to JAX.

    Attributes:
        identity: identifies all copies of it.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        nondiff_argnums: Sequence[int] = (),
        nondiff_argnames: Sequence[str] = (),
        *,
        wrt: Filter = "params",
        variables: Filter = True,
        rngs: Filter = True,
    ) -> None:
        self._fn, self._nondiff = fn, by_number(fn, nondiff_argnums, nondiff_argnames)
        self.identity: object = self
        self._lifted = derivative(self._transform, type(self).__name__, wrt, variables, rngs)(fn)
        functools.update_wrapper(self, fn, updated=())

    @boundary
    def __call__(self, scopes: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the function; if it is differentiated, its rule runs instead."""
        return self._lifted(scopes, *with_defaults(self._where, self._fn, self._nondiff, (scopes, *args), kwargs))

    @property
    def _where(self) -> str:
        return f"{type(self).__name__}({name_of(self._fn)})"

    def _transform(self, body: Body, variable_groups: Any, rng_groups: Any, *args: Any) -> Any:
        raise NotImplementedError


def split_held(body: Body, args: Sequence[Any], nondiff_argnums: Sequence[int]) -> tuple[list[Any], Others]:
    """Return the arguments that JAX sees, and the others, which only Python code sees (`nondiff_argnums`).

    Raises:
        LiftArgumentError: if number 0 is among them.
    """
    numbers = positive(body, nondiff_argnums, len(args) + 1, "nondiff_argnums")
    if 0 in numbers:
        wrt = words().option(body.layout.lift.name, "wrt")
        raise LiftArgumentError(
            f"{body.where}, nondiff_argnums={tuple(nondiff_argnums)}",
            "number 0 is the scope (or module) itself.",
            f"Count from 1; choose its variables with `{wrt}`.",
            option="nondiff_argnums",
            given=tuple(nondiff_argnums),
        )
    is_seen = [num not in numbers for num in range(1, len(args) + 1)]
    return split_leaves(args, is_seen, is_leaf=lambda one: one is not args)  # each argument is a leaf


class Operands(NamedTuple):
    """The values that JAX sees: variables to differentiate, other variables, keys, arguments, and closed-over arrays.

    `effects` are the results of effects that initial values use.
    """

    wrt: PyTree
    others: PyTree
    rngs: Any
    args: list[Any]
    effects: Any = ()
    consts: tuple[Any, ...] = ()


class Ruled:
    """A function of scopes and its rule, both traced.

    Attributes:
        operands: the operands of both, created variables included.
        function: `operands -> (result, output values)`; like the rule, it keeps no arrays.
    """

    def __init__(self, body: Body, variable_groups: Any, rng_groups: Any, seen: list[Any], held: Others) -> None:
        self._function, self._held = body.tagging(), held
        operands = Operands(variable_groups[0], variable_groups[1], rng_groups, seen)
        self._rule: Callable[..., tuple[Any, Any]] | None = None

        def run(body: Body, operands: Operands) -> Any:
            return self._run(body, operands, *held.join(operands.args))

        self._split = body.split(operands, via=run)
        self._begins = self._counts_of_draws()
        self._slots = Slots()
        self._written = self._note(self._split.values)
        self._created = self._split.prologue(operands)
        wrt, others = map(merged, variable_groups, self._created[:2])
        constants, split_of = _without_constants(self._split)
        self.operands = operands._replace(wrt=wrt, others=others, effects=self._created[-1], consts=(constants,))
        shapes = jax.tree.map(lambda _: None, (operands.wrt, operands.others))
        self.function = functools.partial(_function, split_of, shapes, self._slots)

    def rule(
        self, identity: object, rule: Callable[..., Any], arguments: Callable[..., Sequence[Any]], *more: PyTree
    ) -> Callable[..., Any]:
        """Trace another function of the same scopes, which replaces the first one if it is differentiated.

        Args:
            identity: the identity of the lifted function: equal calls of it inside the rule use the rule, too.
            rule: called as `rule(scopes, *arguments(args, *more))`.
            arguments: maps the arguments and `more` to the arguments of the rule.
            *more: pytrees of types.

        Returns:
            `(operands, *more) -> (result, output values)`.
        """
        for other, outer in _ruling.get():
            if other is identity and self._is_same(outer):
                self._check_draws(rule, outer)
                return functools.partial(self._ruled_as, outer)
        body = self._function.of(rule, self._created[:2])

        def run(operands: Operands, *more: Any) -> Any:
            args = self._held.join(operands.args)
            return without_created(*self._run(body, operands, *arguments(args, *more)))

        before = _ruling.set(((identity, self), *_ruling.get()))
        try:
            split = trace(run, self.operands._replace(effects=(), consts=()), *more)
        finally:
            _ruling.reset(before)
        constants, split_of = _without_constants(split)
        self.operands = self.operands._replace(consts=(*self.operands.consts, constants))
        self._check_same(rule, "creates", _names(split.created), set())
        self._check_same(rule, "writes", self._note(split.outputs[1]), self._written)
        self._rule = functools.partial(_rule, split_of, self._slots)
        return self._rule

    def _is_same(self, outer: Ruled) -> bool:
        """Whether this is the very call, with equal arguments, for which the rule of an outer one is being traced."""
        here, there = self._function.outers, outer._function.outers
        if [one.path for one in here] != [one.path for one in there]:
            return False
        held = zip(self._held.leaves, outer._held.leaves, strict=True)
        mine, theirs = (one.operands._replace(effects=(), consts=()) for one in (self, outer))
        return _types(mine) == _types(theirs) and all(one is other or _equal(one, other) for one, other in held)

    def _counts_of_draws(self) -> list[int]:
        """Return the counts from which the draws of the function continue."""
        outers, draws = self._function.outers, self._function.records[-1].draws
        return [outers[index].below(path).counter.counts.get(name, 0) for (index, path, name), _ in draws]

    def _check_draws(self, rule: Callable[..., Any], outer: Ruled) -> None:
        if self._begins != outer._begins:
            raise LiftArgumentError(
                f"{name_of(rule)}, the rule of {outer._function.where}",
                "it draws keys before it calls the function itself, so the function draws different keys than it would "
                "without the rule.",
                "Call the function first, and draw afterwards.",
            )

    def _ruled_as(self, outer: Ruled, operands: Operands, *more: Any) -> tuple[Any, Any]:
        """Return the result of the rule of an outer call, which is traced by now, for the operands of this call."""
        assert outer._rule is not None, "JAX differentiates no call while the rule around it is traced"
        consts = operands.consts[:1]
        output, values = outer._rule(operands._replace(consts=outer.operands.consts), *more)
        if any(self._slots.sown):  # a rule sows other values than its function: use those of the function
            captured = self.function(operands._replace(consts=consts))[1][-1]
            return output, [*values[:-1], captured]
        return output, [*values[:-1], self._slots.fill(0, [[] for _ in self._slots.sown])]

    def groups(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the output groups, from the values that came out."""
        self._function.capture(self._slots.sown)
        return self._split.join(self._created, None, values)[1]

    def _run(self, body: Body, operands: Operands, *args: Any) -> Any:
        return body([operands.wrt, operands.others], operands.rngs, *args)

    def _note(self, values: Sequence[Any]) -> set[str]:
        self._slots.add(self._function.records[-1].sown, values[-1])
        return _names(values[:-1])

    def _check_same(self, rule: Callable[..., Any], does: str, given: set[str], expected: set[str]) -> None:
        if given != expected:
            raise LiftArgumentError(
                f"{name_of(rule)}, the rule of {self._function.where}",
                f"it {does} {sorted(given)}, but {sorted(expected)} was expected: a rule must have the same effects as "
                "its function.",
                "Create variables in the function, and write in the rule the variables that the function writes.",
                given=sorted(given),
                expected=sorted(expected),
            )


_ruling: contextvars.ContextVar[tuple[tuple[object, Ruled], ...]] = contextvars.ContextVar("rules traced", default=())
"""The calls whose rules are being traced, the innermost first, each with the identity of its lifted function."""


def _types(operands: Operands) -> Any:
    leaves, structure = jax.tree.flatten(operands)
    return structure, list(map(jax.typeof, leaves))


def _equal(one: Any, other: Any) -> bool:
    """Whether two arguments that only Python code sees are equal; False if they cannot tell."""
    return type(one) is type(other) and (one == other) is True


def _is_constant(value: Any) -> bool:
    """Whether a closed-over value has no derivative; JAX raises for the others."""
    return not (isinstance(value, jax.core.Tracer) and jax.numpy.issubdtype(value.dtype, jax.numpy.inexact))


def _without_constants(split: Split) -> tuple[list[Any], Callable[[Sequence[Any]], Split]]:
    """Return the closed-over constants, and the split as a function of them."""
    constants, others = split_leaves(split.consts, _is_constant)
    split = split.closed_over(())
    return constants, lambda constants: split.closed_over(others.join(constants))


def _function(
    split_of: Callable[[Sequence[Any]], Split], shapes: PyTree, slots: Slots, operands: Operands
) -> tuple[Any, Any]:
    wrt, others, split = operands.wrt, _opaque(operands.others), split_of(operands.consts[0])
    created = [select(wrt, split.created[0]), select(others, split.created[1]), [], operands.effects]
    operands = Operands(select(wrt, shapes[0]), select(others, shapes[1]), operands.rngs, operands.args)
    result, values = split.remainder(created, operands)
    return result, _opaque([*values[:-1], slots.fill(0, values[-1])])


def _rule(split_of: Callable[[Sequence[Any]], Split], slots: Slots, operands: Operands, *more: Any) -> tuple[Any, Any]:
    split = split_of(operands.consts[1])
    operands = operands._replace(others=_opaque(operands.others), effects=(), consts=())
    result, values = split.remainder(split.created, operands, *more)
    return result, _opaque([*values[:-1], slots.fill(1, values[-1])])


def by_number(fn: Callable[..., Any], argnums: Sequence[int], argnames: Sequence[str]) -> tuple[int, ...]:
    """Return `nondiff_argnums` and `nondiff_argnames` as numbers in the signature of a function.

    Raises:
        LiftArgumentError: if the function has no such argument.
    """
    known = parameter_names(fn) if argnames else []
    for name in argnames:
        if name not in known:
            raise LiftArgumentError(
                f"{name_of(fn)}, nondiff_argnames={tuple(argnames)}",
                f'it has no argument "{name}" that may be passed by position (available: {known[1:]}).',
                "Choose one of these.",
                option="nondiff_argnames",
                given=name,
                available=known[1:],
            )
    return (*argnums, *map(known.index, argnames))


def with_defaults(
    where: str, fn: Callable[..., Any], nondiff_argnums: Sequence[int], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Return the arguments after the scopes by position, with their defaults, as the rule receives them.

    Defaults that are not numbers, and all later ones, are left to the function.

    Raises:
        LiftArgumentError: if an argument can be passed only by name.
    """
    bound = bind_user(where, fn, *args, **kwargs)
    passed = len(bound.args) - 1
    bound.apply_defaults()
    check_positional(where, bound.kwargs)
    full = bound.args[1:]
    ends = (
        place
        for place in range(passed, len(full))
        if place + 1 not in nondiff_argnums and not all(map(is_array_like, jax.tree.leaves(full[place])))
    )
    return full[: next(ends, len(full))]


def pair(where: str, rule: Callable[..., Any], expected: str) -> Callable[..., Any]:
    """Return a rule that raises if the given rule does not return a pair.

    Args:
        where: the lift.
        rule: the rule.
        expected: the expected result, written as in a `return` statement.
    """

    @functools.wraps(rule)
    def checked(*args: Any) -> Any:
        given = call_user(f"the rule of {where}", rule, *args)
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise LiftArgumentError(
                f"{name_of(rule)}, the rule of {where}",
                Expected(f"the pair `{expected}`", given=given),
                f"Write `return {expected}`.",
            )
        return tuple(given)

    return checked


def _opaque(tree: PyTree) -> PyTree:
    """Return arrays through which no gradient of any order flows."""
    return jax.tree.map(jax.lax.stop_gradient, tree)


def _names(groups: Sequence[PyTree]) -> set[str]:
    leaves = [leaf for group in groups for leaf in by_place(group).items()]
    return {f"{path_text(path)}: {types_text(value)}" for (_, path), value in leaves}
