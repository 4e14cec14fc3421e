"""Builds an object from the variables of a scope for one call, and writes its changes back into the scope."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

import linen_like as nn
from liftcore import Scope, unbox
from liftcore.owners import check_made

from ..graph.build import Builder
from ..graph.definition import Definition, ObjectDef
from ..variablelib.kinds import Perturbation
from ..variablelib.variable import Variable
from .holding import hold, leaves_of
from .initializing import initializing
from .placing import RANDOM, Names, Placed, Random
from .streams import drawn, made_with
from .variables import kept_value, to_nnx_var

__all__ = ["Making", "Plan", "plan_in", "run"]

_INTERMEDIATES = "intermediates"


@dataclasses.dataclass(frozen=True)
class Making:
    """How an object in a scope is made, and how its variables are stored.

    Attributes:
        make: called with `Rngs`; makes the object.
        streams: the names of the streams that it gets; empty for all streams of the scope.
        boxing: turns a variable into the value in a collection; with None, values are not boxed.
        strict: whether a change of a variable in an immutable collection is an error.
    """

    make: Callable[..., Any]
    streams: tuple[str, ...]
    boxing: Callable[[Variable[Any]], Any] | None
    strict: bool

    def made(self, scope: Scope) -> Placed:
        """Return a new object, made with keys of the scope."""
        with initializing(scope.is_initializing()), nn.no_parent():
            return self._placed(scope)

    def abstract(self, scope: Scope) -> Placed:
        """Return the structure of the object; nothing is computed."""
        found = []

        def trace(key: Any) -> None:
            found.append(self._placed(scope, key))

        with nn.no_parent():
            jax.eval_shape(trace, jax.eval_shape(jax.random.key, 0))
        return found[0]

    def _placed(self, scope: Scope, key: Any = None) -> Placed:
        made = made_with(self.make, scope, self.streams, key)
        check_made("adopt", made, "")
        return Placed(made)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The static part of an object in a scope.

    Attributes:
        definition: its definition; the keys in it are names in collections.
        places: the places of its variables.
        random: the state of its RNG streams, by path.
        boxing: see `Making`.
        strict: see `Making`.
        make: makes the intermediates that a new object has, or None; no collection stores them.
    """

    definition: Definition
    places: tuple[Names, ...]
    random: tuple[tuple[Names, Random], ...]
    boxing: Callable[[Variable[Any]], Any] | None
    strict: bool
    make: Callable[..., Any] | None

    def may_have(self, name: str) -> bool:
        """Return whether the object has an attribute, as far as its class and its constructor tell."""
        if type(self.definition) is not ObjectDef:
            return False
        kind = self.definition.cls
        return hasattr(kind, name) or hasattr(kind, "__getattr__") or name in self.definition.names


def plan_in(scope: Scope, making: Making) -> Plan:
    """Return the plan of an object. Creates the variables that the scope lacks.

    Args:
        scope: the scope.
        making: makes the object. If all its variables exist, it runs only to find the structure.
    """
    walk = None
    if scope.is_initializing() and not any(scope.collections_below().values()):
        walk = making.made(scope)
    planned = walk or making.abstract(scope)
    kept = {place: kept_value(held, None) for place, held in planned.found.items() if place[0] != _INTERMEDIATES}
    scope.own(tuple(kept), kept)
    missing = [place for place in planned.found if _owner(scope, place).must_create(place[0], place[-1])]
    missing = [place for place in missing if place[0] != _INTERMEDIATES or scope.is_mutable_collection(place[0])]
    if missing:
        for collection, *names, name in missing:  # look for all of them before creating any
            if not scope.is_mutable_collection(collection):
                scope.below(tuple(names)).variable(collection, name)  # raises the error that says why it is missing
        found = (walk or making.made(scope)).found
        for place in missing:
            _owner(scope, place).create_variable(place[0], place[-1], kept_value(found[place], making.boxing))
    begins = any(place[0] == _INTERMEDIATES for place in planned.found)
    random = tuple(planned.random.items())
    make = making.make if begins else None
    return Plan(planned.definition, tuple(planned.found), random, making.boxing, making.strict, make)


def _owner(scope: Scope, place: Names) -> Scope:
    return scope.below(place[1:-1])


def run(scope: Scope, plan: Plan, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a function of the object, and write the variables that changed into the scope.

    Args:
        scope: the scope.
        plan: the plan of the object.
        fn: called as `fn(object, *args, **kwargs)`.
        args: the arguments.
        kwargs: the keyword arguments.
    """
    given = dict(_values(scope, plan))
    random = drawn(scope, dict(plan.random))

    def read(group: str, names: Names) -> Any:
        return random[names] if group == RANDOM else given[group, *names]

    made = Builder(read).build(plan.definition)
    for place, value in _others(scope, given):
        variable = to_nnx_var(place[0], value)
        hold(made, place[1:], variable)
        given[place] = variable.get_raw_value()
    with initializing(scope.is_initializing()), nn.no_parent():  # modules created here belong to the object
        result = fn(made, *args, **kwargs)
    for place, holder in Placed(made).found.items():
        value = holder.get_raw_value() if isinstance(holder, Variable) else holder
        if place not in given or value is not given[place]:
            _write(scope, plan, place, holder, value)
    return result


def _values(scope: Scope, plan: Plan) -> Iterator[tuple[Names, Any]]:
    """Yield the current values of the object's variables."""
    begun: Mapping[Names, Any] = {}
    for place in plan.places:
        owner = _owner(scope, place)
        if place[0] != _INTERMEDIATES or owner.has_variable(place[0], place[-1]):
            yield place, unbox(owner.get_variable(place[0], place[-1]))
        elif plan.make is not None:
            begun = begun or Placed(made_with(plan.make, scope, (), jax.random.key(0))).found
            yield place, kept_value(begun[place], None)


def _others(scope: Scope, given: Mapping[Names, Any]) -> Iterator[tuple[Names, Any]]:
    """Yield the variables of the scope that calls create and the constructor of the object does not."""
    for place, _ in leaves_of(scope.collections_below()):
        known = any(place[:size] in given for size in range(2, len(place) + 1))  # a value may itself be a dict
        if not known and place[0] != _INTERMEDIATES:
            yield place, _owner(scope, place).get_variable(place[0], place[-1])


def _write(scope: Scope, plan: Plan, place: Names, holder: Any, value: Any) -> None:
    """Write a variable that changed, or create a new one."""
    collection, *_, name = place
    owner, mutable = _owner(scope, place), scope.is_mutable_collection(collection)
    if owner.has_variable(collection, name):
        if mutable or (plan.strict and collection != _INTERMEDIATES):
            owner.put_unboxed(collection, name, value)
    elif collection == _INTERMEDIATES:
        _sow(owner, name, value)
    elif mutable or (plan.strict and not isinstance(holder, Perturbation)):
        owner.create_variable(collection, name, kept_value(holder, plan.boxing))


def _sow(owner: Scope, name: str, value: Any) -> None:
    """Sow intermediate values for the caller of `apply`; they pass through lifts without an option."""
    if type(value) is tuple:
        for item in value:
            owner.sow(_INTERMEDIATES, name, item)
    else:
        owner.sow(_INTERMEDIATES, name, value, init_fn=lambda: None, reduce_fn=lambda _, new: new)
