"""Turns functions of modules into functions of scopes, for one call of a lift.

A function of a module becomes a `Call`, a function of scopes. Inside the lift it makes the module again, and runs the
function on it. Other modules and variables that the call uses, as arguments or in closures, are also made again, each
of them once. In any other transformation, a module among the arguments is made again in the same way.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from liftcore import Scope
from liftcore.calls import note_call
from liftcore.errors import Expected, LiftArgumentError, check_function, name_of, shown
from liftcore.statics import Undescribed, snapshot, static_key, warn_not_shared

from ..errors import TransformedMethodReturnValueError
from ..lifecycle.binding import State, bound_scope, ensure_setup
from ..lifecycle.context import context
from ..lifecycle.fields import Base, map_instances, unlifted
from .splitting import (
    BOUND,
    ArgumentAt,
    Parts,
    StandIn,
    Template,
    TemplateBuilder,
    closed_over,
    instantiate,
    may_keep_arrays,
    scopes_of,
    with_closed_over,
)

__all__ = [
    "NONE",
    "Call",
    "ClassLift",
    "OnScopes",
    "RebuildPlan",
    "functions_of_a_module",
    "lies_below",
    "of_a_module",
    "on_scopes",
    "split_module",
]

NONE: Mapping[str, Any] = MappingProxyType({})


class OnScopes(NamedTuple):
    """The inputs of one call of a lift, with scopes in place of modules.

    Attributes:
        calls: the functions of the module, as functions of scopes.
        scopes: the scope of the module, then those of modules and variables among the arguments and in closures; last,
            if a method with its own name scope is running, that scope.
        args: the arguments after the module, with an `ArgumentAt` for each module and variable.
        kwargs: the keyword arguments, in the same form.
        subject: if a pytree of modules was given instead of one module, that pytree with an `ArgumentAt` for each
            module.
        numbers: for each `ArgumentAt` the number of its scope, or None for a module without one.
        given: the number of scopes that belong to the module and to arguments.
    """

    calls: list[Call]
    scopes: list[Scope]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    subject: Any
    numbers: tuple[int | None, ...]
    given: int


class ClassLift:
    """One lift of a class. Inside it, methods that call each other are not lifted again.

    Attributes:
        may_keep_arrays: whether the transformations of its methods may keep arrays alive.
    """

    def __init__(self, lifts: Iterable[Callable[..., Any]]) -> None:
        self.may_keep_arrays = any(map(may_keep_arrays, lifts))


class RebuildPlan(NamedTuple):
    """A plan to make modules again inside a lift, the same for all functions of one call.

    Attributes:
        parts: the parts to make the modules from.
        states: the state in which each of them starts.
        drawn: the number of keys drawn at the scope of the first since its `setup` began, if that runs again.
        subject: if a pytree of modules was given instead of one module, that pytree with an `ArgumentAt` for each
            module.
        at_home: whether the last scope is where new submodules of the first go, since a method with its own name scope
            is running.
    """

    parts: Parts
    states: tuple[State, ...]
    drawn: tuple[tuple[str, int], ...]
    subject: Any
    at_home: bool

    def key(self) -> Any:
        """Return a value that is equal for equal modules, wherever they are; None if they may keep arrays alive.

        Raises:
            Undescribed: if a field holds a value that has no key.
        """
        if True in [state.may_keep_arrays for state in self.states]:
            return None
        found = [static_key(part) for part in (*self.parts.templates, *self.parts.along) if part is not None]
        states = [(one.in_setup, one.in_compact, one.reuse, one.begins, one.lifts) for one in self.states]
        return (*found, *states, self.drawn, jax.tree.structure(self.subject), self.at_home)

    def made(self, scopes: Sequence[Scope]) -> tuple[Any, list[Any]]:
        """Make the module on other scopes, and what comes along, in the states in which they start."""
        state, *states = self.states
        if self.parts.alone:
            (module, *_), along = instantiate(self.parts, scopes)
        else:  # what they define again gets the same names and keys
            counts = scopes[0].draws  # streams that start again have no count here
            with scopes[0].again({name: number for name, number in self.drawn if name in counts}):
                (module, *others), along = instantiate(self.parts, scopes)
                for other, other_state in zip(others, states, strict=True):
                    if other is not None:
                        other._state.follow(other_state)
                if state.reuse or state.begins:
                    ensure_setup(module)
        module._state.follow(state)
        module._state.home = scopes[-1] if self.at_home else None
        return module, along

    def __snapshot__(self) -> RebuildPlan:
        """Return a copy with copies of what fields hold: a plan that is kept must not change after its key is made."""
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
    """Replace modules with their scopes.

    Modules and variables in closures are lifted too, if they are at or below the given ones. Others are unlifted:
    inside, they can be read; anything else is an error.

    If a method of a module is running, the module inside continues with its names and definitions.

    Args:
        where: the lift, for errors.
        subject: the module, or a pytree of modules.
        functions: called with that as the first argument; see `of_a_module`.
        args: the arguments after it.
        kwargs: the keyword arguments.
        lifts: lifts of its class that the module inside is in, in addition to those of the module itself.
        compared: whether calls of equal modules are to be equal if that can be decided, as a lifted `jit` needs.
    """
    module = _first_module(where, subject, functions)
    apart = TemplateBuilder(module)
    places = None if module is subject else apart.put(subject)
    args, kwargs = apart.put((args, kwargs))
    given = [*apart.scopes]
    closed = [
        {id(value): apart.along(value) for value in closed_over(fn) if _is_within(value, given)} for fn in functions
    ]
    plan, scopes = _plan(apart, places, lifts)
    make = _comparable if compared else Call
    calls = [make(fn, plan, numbers) for fn, numbers in zip(functions, closed, strict=True)]
    return OnScopes(calls, scopes, args, kwargs, places, plan.parts.numbers, len(given))


def _plan(apart: TemplateBuilder, subject: Any, lifts: Iterable[Any]) -> tuple[RebuildPlan, list[Scope]]:
    """Return the plan to make the modules again, and the scopes on which they start: of these, and their home."""
    module, *others = apart.owners
    state = State()
    state.follow(module._state, lifts)
    states = [state, *map(_state_elsewhere, others)]
    # A method that defines submodules or variables continues; any other starts with all names free.
    scopes = [one if there.defines else one.rewound() for one, there in zip(apart.scopes, states, strict=True)]
    # `setup` runs again inside, and must draw the same keys as outside: so draws since then are taken back.
    drawn: tuple[tuple[str, int], ...] = ()
    if state.reuse and type(module)._has_setup:
        before = module._state.counts
        drawn = tuple((name, count - before.get(name, 0)) for name, count in module.scope.draws.items())
    home = [] if module._state.home is None else [module._state.home]
    return RebuildPlan(apart.parts, tuple(states), drawn, subject, bool(home)), [*scopes, *home]


class Call:
    """A method or function of a module, as a function of scopes.

    Attributes:
        fn: the method or function.
        plan: the plan to make modules again inside the lift.
        closed: the numbers of the modules and variables that the function closes over, by their ids.
        without_key: the field that has no key, so that compiled code is not kept.
    """

    without_key: str | None = None

    def __init__(self, fn: Callable[..., Any], plan: RebuildPlan, closed: Mapping[int, int]) -> None:
        self.fn, self.plan, self.closed = fn, plan, closed
        self.__name__, self.__wrapped__ = _name(fn, plan.parts.templates[0]), fn

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.fn)

    def __call__(self, scopes: Sequence[Scope], *args: Any, **kwargs: Any) -> Any:
        """Run it on modules that are made on the scopes."""
        fn, closed, subject = self.fn, self.closed, self.plan.subject
        module, along = self.plan.made(scopes)
        first = module if subject is None else subject
        if along:
            first, args, kwargs = map_instances((first, args, kwargs), ArgumentAt, lambda place: along[place.index])
        if closed:
            fn = with_closed_over(fn, lambda value: along[closed[id(value)]] if id(value) in closed else value)
        context.modules.append(module)
        try:
            result = fn(first, *args, **kwargs)
        except TypeError as error:
            note_call(error, f"{self.__name__} at {scopes[0].path_text}", fn, (first, *args), kwargs)
            raise
        finally:
            context.modules.pop()
        for leaf in jax.tree.leaves(result):
            if isinstance(leaf, BOUND):
                raise TransformedMethodReturnValueError(
                    f"{self.__name__} at {scopes[0].path_text}",
                    f"it returned a {type(leaf).__name__}, but modules and variables inside a lift end with it.",
                    f"Return arrays: results of the module, or the value of the variable.{_pass_it(scopes[0])}",
                    given=f"a {type(leaf).__name__}",
                )
        return result

    def trace_facts(self) -> dict[str, Any]:
        """Return its parts by name, so that `liftcore` can say what differs from an earlier call."""
        parts, states = self.plan[:2]
        modules = {f"module {number}": _shown(one) for number, one in enumerate(parts.templates) if one is not None}
        found = {"function": self.__name__, **modules, "defining": [state.defines for state in states]}
        return found if self.without_key is None else {**found, "not comparable by its contents": self.without_key}


def _pass_it(scope: Scope) -> str:
    """Return how a loop passes a module to each iteration, after a space; an empty string outside loops."""
    in_scan = scope.path_text.rpartition("/")[2].startswith("scan(")
    return " To use a module in each iteration, pass it with `in_axes=nn.broadcast`." if in_scan else ""


class EqualCall(Call):
    """A `Call` that equals calls of equal modules, so that they share compiled code."""

    def __init__(self, fn: Callable[..., Any], plan: RebuildPlan, key: Any) -> None:
        super().__init__(fn, plan, {})
        self._key = fn, key, context.captures[-1]

    def __snapshot__(self) -> EqualCall:
        """Return a copy with copies of what fields hold: a call that is kept must not change after its key is made."""
        return EqualCall(self.fn, self.plan.__snapshot__(), self._key[1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EqualCall) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _comparable(fn: Callable[..., Any], plan: RebuildPlan, closed: Mapping[int, int]) -> Call:
    """Return a call that equals those of equal modules, unless it may keep arrays alive or is intercepted."""
    try:
        key = None if closed or may_keep_arrays(fn) or context.interceptors else plan.key()
    except Undescribed as error:
        call = Call(fn, plan, closed)
        call.without_key = warn_not_shared(_name(fn, plan.parts.templates[0]), error)
        return call
    return Call(fn, plan, closed) if key is None else EqualCall(fn, plan, key)


def _first_module(where: str, subject: Any, functions: Sequence[Any]) -> Any:
    """Return the lifted module, which is bound; of several, the first. Check that no function is a module."""
    modules = [subject] if isinstance(subject, Base) else jax.tree.leaves(subject)
    wrong = next((shown(leaf) for leaf in modules if not isinstance(leaf, Base)), None if modules else "no module")
    if wrong is not None:
        fix = "Pass the module whose variables are lifted, such as `self`"
        if any(callable(leaf) and not isinstance(leaf, Base) for leaf in modules):
            fix += ", after the functions: `nn.cond(pred, true_fn, false_fn, self, x)`, "
            fix += "`nn.while_loop(cond, body, self, x)`"
        raise LiftArgumentError(where, Expected("a module as the first argument", wrong, words=wrong), f"{fix}.")
    for fn in functions:
        cls = fn if isinstance(fn, type) else type(fn)
        if issubclass(cls, Base):
            given = f"the class {cls.__name__}" if cls is fn else f"a {cls.__name__}, a module itself"
            raise LiftArgumentError(
                where,
                Expected("a function of the module", given, words=given),
                "Write a function of the module that is lifted: `lambda mdl, …: mdl.layer(x)`, or make it inside: "
                f"`lambda mdl, …: {cls.__name__}(…)(x)`.",
            )
    for module in modules:
        bound_scope(module, where)
    return modules[0]


def functions_of_a_module(where: str, functions: Sequence[Any]) -> list[Callable[..., Any]]:
    """Return checked functions as functions of a module; see `of_a_module`.

    Args:
        where: the lift, for errors.
        functions: the functions.

    Raises:
        LiftArgumentError: if one cannot be called.
    """
    for fn in functions:
        check_function(where, fn)
    return list(map(of_a_module, functions))


def of_a_module(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a module; a bound method is called on the module inside the lift."""
    if not isinstance(fn, types.MethodType) or not isinstance(fn.__self__, Base):
        return fn

    def call(mdl: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            inspect.signature(fn).bind(*args, **kwargs)
        except TypeError:  # it also takes the module as an argument
            return fn(mdl, *args, **kwargs)
        return fn(*args, **kwargs)

    call.__name__, call.__qualname__ = fn.__name__, fn.__qualname__
    return call


def lies_below(scope: Scope, known: Iterable[Scope]) -> bool:
    """Return whether a scope is at or below one of some others."""
    return any(one.holds(scope) for one in known)


def _is_within(value: Any, given: Sequence[Scope]) -> bool:
    """Return whether all scopes of a module or variable are at or below some scopes."""
    scopes = scopes_of(value)
    return bool(scopes) and all(lies_below(scope, given) for scope in scopes)


def _state_elsewhere(other: Any) -> State:
    """Return the state in which a module starts that is bound elsewhere; its `setup` runs again at its first use."""
    state = State()
    if isinstance(other, Base):
        state.follow(other._state)
        state.reuse = False
    return state


def _shown(part: Any) -> Any:
    """Return the class and fields of a module that is made again, for texts."""
    if not isinstance(part, Template):
        return f"module {part.index}"
    return {
        "class": part.cls,
        **{name: map_instances(value, StandIn, _shown) for name, value in part.arguments.items()},
    }


def _name(fn: Callable[..., Any], template: Any) -> str:
    """Return the name of a call; for a class lifted twice alike, the outer lift has that of the class inside."""
    name, cls = name_of(fn), template.cls
    lifted = [one for one in cls.__mro__ if "_recipe" in vars(one) and one is not Base]
    lifts = [one._recipe.name for one in lifted]
    inside = next((number for number, one in enumerate(lifted) if number and vars(one).get(name) is fn), 0)
    is_repeated = inside > 0 and lifts[inside - 1] in lifts[inside:]
    shown: str = (lifted[inside] if is_repeated else unlifted(cls)).__name__
    return shown if name == "__call__" else f"{shown}.{name}" if hasattr(cls, name) else name


# --- modules among arguments ------------------------------------------------------------------------------------------


def split_module(module: Base) -> tuple[Sequence[Scope], Callable[[Sequence[Scope]], Any]]:
    """Return the scopes of a module and a function that makes it again on others; an unbound module has no scopes."""
    if module.scope is None:
        return [], UnboundModule(module)
    given = on_scopes(f"a {type(module).__name__} among arguments", module, [_itself])
    return given.scopes, OnOtherScopes(given.calls[0].plan)


def _itself(module: Any) -> Any:
    return module


@dataclasses.dataclass(frozen=True)
class UnboundModule:
    """Returns a module that has no scopes.

    Attributes:
        module: the module.
    """

    module: Any

    def __call__(self, scopes: Sequence[Scope]) -> Any:
        """Return the module."""
        return self.module


class OnOtherScopes:
    """Makes a module on other scopes.

    Attributes:
        plan: the plan to make it.
    """

    def __init__(self, plan: RebuildPlan) -> None:
        self.plan = plan

    def __call__(self, scopes: Sequence[Scope]) -> Any:
        """Make the module on some scopes."""
        return self.plan.made(scopes)[0]

    def __static_fields__(self) -> dict[str, Any]:
        key = self.plan.key()
        return {"module": object() if key is None else key, "captures": context.captures[-1]}

    def __snapshot__(self) -> OnOtherScopes:
        return OnOtherScopes(self.plan.__snapshot__())
