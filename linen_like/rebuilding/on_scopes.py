"""Functions of modules as functions of scopes, for one use of a lift.

A function of a module becomes a `Call`, a function of scopes. Inside the lift it makes the module again there, and
runs the function on that one. Modules and variables that come along, as arguments or in closures, are made again too,
each of them once.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from liftcore import Scope
from liftcore.errors import LiftArgumentError, check_function, name_of, shown
from liftcore.statics import Undescribed, snapshot, static_key, warn_not_shared

from ..errors import TransformedMethodReturnValueError
from ..lifecycle.binding import State, bound_scope, ensure_setup
from ..lifecycle.context import context
from ..lifecycle.fields import Base
from ..lifecycle.naming import map_instances
from .closures import BOUND, closed_over, may_keep_arrays, with_closed_over
from .template import ArgumentAt, Parts, StandIn, Template, TemplateBuilder, instantiate, scopes_of

__all__ = ["NONE", "Call", "ClassLift", "OnScopes", "RebuildPlan", "lies_below", "on_scopes"]

NONE: Mapping[str, Any] = MappingProxyType({})


class OnScopes(NamedTuple):
    """What a lift is given in one use, in place of modules.

    Attributes:
        calls: the functions of the module, as functions of scopes.
        scopes: that of the module, then those of modules and variables among the arguments and in closures, and last,
            where a method with a name scope of its own is running, that.
        args: the arguments after the module, with a `ArgumentAt` for each module and variable.
        kwargs: the keyword arguments, likewise.
        subject: where not one module was given but a pytree of modules, that with a `ArgumentAt` for each of them.
        numbers: for each `ArgumentAt` the number of its scope, or None for a module without one.
        given: how many of the scopes are those of the module and of arguments.
    """

    calls: list[Call]
    scopes: list[Scope]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    subject: Any
    numbers: tuple[int | None, ...]
    given: int


class ClassLift:
    """One lift of a class; inside of it, methods that call each other run as they are.

    Attributes:
        may_keep_arrays: whether the transformations of its methods may keep arrays alive.
    """

    def __init__(self, cores: Iterable[Callable[..., Any]]) -> None:
        self.may_keep_arrays = any(map(may_keep_arrays, cores))


class RebuildPlan(NamedTuple):
    """How modules are made again inside a lift, the same for all functions of one use.

    Attributes:
        parts: what the modules are made again from.
        states: where each of them begins.
        drawn: how many keys were drawn at the scope of the first since its `setup` began, if that is run again.
        subject: where not one module was given but a pytree of modules, that with a `ArgumentAt` for each of them.
        at_home: whether the last scope is where new submodules of the first go, since a method with a name scope of its
            own is running.
    """

    parts: Parts
    states: tuple[State, ...]
    drawn: tuple[tuple[str, int], ...]
    subject: Any
    at_home: bool

    def key(self) -> Any:
        """A value that is equal for equal modules, wherever they stand; None where they may keep arrays alive.

        Raises:
            Undescribed: where a field holds something that no key stands for.
        """
        if True in [state.may_keep_arrays for state in self.states]:
            return None
        found = [static_key(part) for part in (*self.parts.templates, *self.parts.along) if part is not None]
        states = [(one.in_setup, one.in_compact, one.reuse, one.begins, one.lifts) for one in self.states]
        return (*found, *states, self.drawn, jax.tree.structure(self.subject), self.at_home)

    def made(self, scopes: Sequence[Scope]) -> tuple[Any, list[Any]]:
        """The module on other scopes, and what comes along."""
        module, along = self._on(scopes)
        module._state.follow(self.states[0])
        module._state.home = scopes[-1] if self.at_home else None
        return module, along

    def _on(self, scopes: Sequence[Scope]) -> tuple[Any, list[Any]]:
        """The same where they begin; what these define again has the names that it had."""
        if self.parts.alone:
            modules, along = instantiate(self.parts, scopes)
            return modules[0], along
        counts = scopes[0].node.counts  # those of streams that begin anew are not there
        with scopes[0].again({name: number for name, number in self.drawn if name in counts}):
            (module, *others), along = instantiate(self.parts, scopes)
            for other, state in zip(others, self.states[1:], strict=True):
                if other is not None:
                    other._state.follow(state)
            if self.states[0].reuse or self.states[0].begins:
                ensure_setup(module)
        return module, along

    def __snapshot__(self) -> RebuildPlan:
        """The same with copies of what fields hold: what is kept under its key must stay as the key says."""
        return self._replace(parts=self.parts._replace(templates=snapshot(self.parts.templates)))


def on_scopes(
    where: str,
    subject: Any,
    functions: Sequence[Callable[..., Any]],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] = NONE,
    lifts: Iterable[Any] = (),
    compared: bool = False,
) -> OnScopes:
    """Puts scopes in the place of modules.

    Modules and variables in closures are lifted too, where they are at or below what is given. Others stay as they
    are: what belongs elsewhere may be read inside, and an error says so where it is asked for more.

    Where a method of a module is running, the module inside goes on with its names and definitions.

    Args:
        where: the lift, for the text of errors.
        subject: the module, or a pytree of modules.
        functions: what is called with that first; methods that are bound to a module may go without.
        args: what may come after it.
        kwargs: the keyword arguments.
        lifts: the lifts of its class that the module inside is in, beside those of the module itself.
        compared: whether calls of equal modules are to be equal where that can be told, as a lifted `jit` asks.
    """
    for fn in functions:
        check_function(where, fn)
    module = _first_module(where, subject)
    for fn in functions:
        _check_no_module(where, fn)
    functions = [_of_a_module(fn) for fn in functions]
    scope, state = bound_scope(module, where), State()
    state.follow(module._state, lifts)
    # Modules and variables among the arguments give way to stand-ins.
    along = _Along()
    subject_places = None if module is subject else along.put(subject)
    args, kwargs = along.put((args, kwargs))
    # Of each module it is noted down what it is made of; those in closures follow those that were given.
    builder = TemplateBuilder(module)
    builder.add(along.values)
    given = [scope, *[other.scope for other in builder.others]]
    of_arguments = len(along.values)
    closed = [_numbers(fn, along, given) for fn in functions]
    builder.add(along.values[of_arguments:])
    states = [state, *map(_state_elsewhere, builder.others)]
    all_scopes = [scope, *[other.scope for other in builder.others]]
    # A method that defines things goes on where it stands; any other begins with all names free again.
    scopes = [one if there.defines else one.rewound() for one, there in zip(all_scopes, states, strict=True)]
    # `setup` runs again inside, where it must draw the keys that it drew outside: so draws since then are taken back.
    drawn: tuple[tuple[str, int], ...] = ()
    if state.reuse and type(module)._has_setup:
        before = module._state.counts
        drawn = tuple((name, count - before.get(name, 0)) for name, count in scope.node.counts.items())
    home = module._state.home
    scopes += [] if home is None else [home]
    plan = RebuildPlan(builder.parts, tuple(states), drawn, subject_places, home is not None)
    make = _comparable if compared else Call
    calls = [make(fn, plan, numbers) for fn, numbers in zip(functions, closed, strict=True)]
    return OnScopes(calls, scopes, args, kwargs, subject_places, plan.parts.numbers, len(given))


def _numbers(fn: Callable[..., Any], along: _Along, given: Sequence[Scope]) -> dict[int, int]:
    """The numbers of the modules and variables that a function closes over, by their ids."""
    return {id(value): along.number(value) for value in closed_over(fn) if _is_within(value, given)}


def _check_no_module(where: str, fn: Any) -> None:
    """Checks that what is to be called with a module is neither one itself nor a class of modules."""
    is_class = isinstance(fn, type) and issubclass(fn, Base)
    if is_class or isinstance(fn, Base):
        name = fn.__name__ if is_class else type(fn).__name__
        raise LiftArgumentError(
            where,
            f"expected a function of the module, given {'the class ' if is_class else 'a '}{name}"
            f"{'' if is_class else ', a module itself'}.",
            "Give it with the module whose variables are lifted: `lambda mdl, x: mdl.layer(x)`, or make it inside: "
            f"`lambda mdl, x: {name}(…)(x)`.",
        )


class Call:
    """A method or function of a module, as a function of scopes.

    Attributes:
        fn: the method or function.
        plan: how modules are made again inside the lift.
        closed: from the ids of the modules and variables that the function closes over to their numbers.
        without_key: the field for which there is no key, so that what is compiled is not kept.
    """

    without_key: str | None = None

    def __init__(self, fn: Callable[..., Any], plan: RebuildPlan, closed: Mapping[int, int]) -> None:
        self.fn, self.plan, self.closed = fn, plan, closed
        self.__name__, self.__wrapped__ = _name(fn, plan.parts.templates[0]), fn

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.fn)

    def __call__(self, scopes: Sequence[Scope], *args: Any, **kwargs: Any) -> Any:
        """Runs it on modules that are made on the scopes."""
        subject = self.plan.subject
        module, along = self.plan.made(scopes)

        def back(tree: Any) -> Any:
            return map_instances(tree, ArgumentAt, lambda place: along[place.index])

        def now(value: Any) -> Any:
            return along[self.closed[id(value)]] if id(value) in self.closed else value

        fn = with_closed_over(self.fn, now) if self.closed else self.fn
        if along:
            args, kwargs = back((args, kwargs))
        context.modules.append(module)
        try:
            result = fn(module if subject is None else back(subject), *args, **kwargs)
        finally:
            context.modules.pop()
        self._check_result(scopes[0], result)
        return result

    def _check_result(self, scope: Scope, result: Any) -> None:
        for leaf in jax.tree.leaves(result):
            if isinstance(leaf, BOUND):
                raise TransformedMethodReturnValueError(
                    f"{self.__name__} at {scope.path_text}",
                    f"it returned a {type(leaf).__name__}, and what belongs to scopes inside a lift ends with them.",
                    "Return arrays: what the module computes, or the value of the variable.",
                )

    def trace_facts(self) -> dict[str, Any]:
        """What it is, for `liftcore` to tell what differs from an earlier call."""
        parts, states = self.plan[:2]
        modules = {f"module {number}": _shown(one) for number, one in enumerate(parts.templates) if one is not None}
        found = {"function": self.__name__, **modules, "defining": [state.defines for state in states]}
        return found if self.without_key is None else {**found, "without a key": self.without_key}


class EqualCall(Call):
    """A `Call` that equals those of equal modules, so that they share what is compiled."""

    def __init__(self, fn: Callable[..., Any], plan: RebuildPlan, key: Any) -> None:
        super().__init__(fn, plan, {})
        self._key = fn, key, context.captures[-1]

    def __snapshot__(self) -> EqualCall:
        """The same with copies of what its fields hold: what is kept under its key must stay as the key says."""
        return EqualCall(self.fn, self.plan.__snapshot__(), self._key[1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EqualCall) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _comparable(fn: Callable[..., Any], plan: RebuildPlan, closed: Mapping[int, int]) -> Call:
    """A call that equals those of equal modules, unless it might keep arrays alive or is intercepted."""
    try:
        key = None if closed or may_keep_arrays(fn) or context.interceptors else plan.key()
    except Undescribed as error:
        call = Call(fn, plan, closed)
        call.without_key = warn_not_shared(_name(fn, plan.parts.templates[0]), error)
        return call
    return Call(fn, plan, closed) if key is None else EqualCall(fn, plan, key)


class _Along:
    """What comes along with a module: other modules, and variables.

    Attributes:
        values: these, in the order of their numbers.
    """

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[int, int] = {}

    def number(self, value: Any) -> int:
        """The number of a module or variable."""
        number = self._numbers.setdefault(id(value), len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number

    def put(self, tree: Any) -> Any:
        """A pytree with a `ArgumentAt` for each module and variable."""
        if True in [isinstance(leaf, BOUND) for leaf in jax.tree.leaves(tree)]:
            return map_instances(tree, BOUND, lambda value: ArgumentAt(self.number(value)))
        return tree


def _first_module(where: str, subject: Any) -> Any:
    """The module that is lifted: of several the first."""
    if isinstance(subject, Base):
        return subject
    leaves = jax.tree.leaves(subject)
    wrong = next((shown(leaf) for leaf in leaves if not isinstance(leaf, Base)), "no module")
    if leaves and all(isinstance(leaf, Base) for leaf in leaves):
        for module in leaves:
            bound_scope(module, where)
        return leaves[0]
    fix = "Pass the module whose variables are lifted, such as `self`"
    if any(callable(leaf) and not isinstance(leaf, Base) for leaf in leaves):
        fix += (
            ", after the functions: `nn.cond(pred, true_fn, false_fn, self, x)`, `nn.while_loop(cond, body, self, x)`"
        )
    raise LiftArgumentError(where, f"expected a module as the first argument, given {wrong}.", f"{fix}.")


def _of_a_module(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a module; of a method that is bound to one, a function that calls it on the one inside the lift."""
    if not isinstance(fn, types.MethodType) or not isinstance(fn.__self__, Base):
        return fn

    def call(mdl: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            inspect.signature(fn).bind(*args, **kwargs)
        except TypeError:  # it asks for the module as an argument too
            return fn(mdl, *args, **kwargs)
        return fn(*args, **kwargs)

    call.__name__, call.__qualname__ = fn.__name__, fn.__qualname__
    return call


def lies_below(scope: Scope, known: Iterable[Scope]) -> bool:
    """Whether a scope lies at or below one of some others."""
    return any(one.tree is scope.tree and scope.path[: len(one.path)] == one.path for one in known)


def _is_within(value: Any, given: Sequence[Scope]) -> bool:
    """Whether a module or variable leads to what lies at or below some scopes, and nowhere else."""
    scopes = scopes_of(value)
    return bool(scopes) and all(lies_below(scope, given) for scope in scopes)


def _state_elsewhere(other: Any) -> State:
    """Where a module begins that is bound elsewhere; its `setup` runs again when it is first used."""
    state = State()
    if isinstance(other, Base):
        state.follow(other._state)
        state.reuse = False
    return state


def _shown(part: Any) -> Any:
    """The class and fields of a module that is made again, for texts."""
    if not isinstance(part, Template):
        return f"module {part.index}"
    return {
        "class": part.cls,
        **{name: map_instances(value, StandIn, _shown) for name, value in part.arguments.items()},
    }


def _name(fn: Callable[..., Any], template: Any) -> str:
    name, cls = name_of(fn), template.cls
    shown: str = vars(cls).get("_lifted_class", cls).__name__
    return shown if name == "__call__" else f"{shown}.{name}" if hasattr(cls, name) else name
