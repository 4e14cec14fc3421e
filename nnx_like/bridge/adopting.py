"""`adopt` and `object_in_scope`: objects whose variables are stored in a scope."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax

import linen_like as nn
from liftcore import Scope, unbox
from liftcore.errors import name_of
from liftcore.filters import leaves_of
from liftcore.owners import Style, check_made, check_maker
from liftcore.problems import lost_setting
from liftcore.pytrees import holds_arrays

from ..errors import StructureError
from ..graph.definition import Definition, ObjectDef, StaticDef, parts_of, path_text, static_value
from ..graph.walk import Builder, is_object
from ..rnglib.streams import Rngs
from ..transforms.uniform import eval_shape
from ..variablelib.kinds import Perturbation
from ..variablelib.variable import Variable
from .reaching import Reach, Steps, initializing
from .streams import drawn, made_with, of_abstract_key
from .variables import Names, Placed, Random, hold, kept_value, to_linen_var, to_nnx_var

__all__ = ["Adopted", "InScope", "Plan", "adopt", "object_in_scope", "plan_in", "run"]

# --- one call of an object in a scope ---------------------------------------------------------------------------------


_INTERMEDIATES = "intermediates"


@dataclasses.dataclass(frozen=True)
class Plan:
    """The static part of an object in a scope.

    Attributes:
        definition: its definition; the keys in it are names in collections.
        places: the places of its variables.
        random: the state of its RNG streams, by place.
        boxing: turns a variable into the value in a collection; with None, values are not boxed.
        strict: whether a change of a variable in an immutable collection is an error.
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


def plan_in(
    scope: Scope,
    make: Callable[..., Any],
    streams: tuple[str, ...],
    boxing: Callable[[Variable[Any]], Any] | None,
    strict: bool,
) -> Plan:
    """Return the plan of an object. Creates the variables that the scope lacks.

    Args:
        scope: the scope.
        make: called with `Rngs`; makes the object. If all its variables exist, it runs only to find the structure.
        streams: the names of the streams that it gets; empty for all streams of the scope.
        boxing: see `Plan`.
        strict: see `Plan`.
    """

    def placed(key: Any = None) -> Placed:
        with initializing(scope.is_initializing()), nn.no_parent():
            made = made_with(make, scope, streams, key)
            check_made("adopt", made, "")
            return Placed(made)

    walk = None
    if scope.is_initializing() and not any(scope.collections_below().values()):
        walk = placed()
    planned = walk or of_abstract_key(placed)
    kept = {place: kept_value(held, None) for place, held in planned.found.items() if place[0] != _INTERMEDIATES}
    scope.own(tuple(kept), kept)
    missing = [place for place in planned.found if _owner(scope, place).must_create(place[0], place[-1])]
    missing = [place for place in missing if place[0] != _INTERMEDIATES or scope.is_mutable_collection(place[0])]
    if missing:
        for collection, *names, name in missing:  # look for all of them before creating any
            if not scope.is_mutable_collection(collection):
                scope.below(tuple(names)).variable(collection, name)  # raises the error that says why it is missing
        found = (walk or placed()).found
        for place in missing:
            _owner(scope, place).create_variable(place[0], place[-1], kept_value(found[place], boxing))
    begins = any(place[0] == _INTERMEDIATES for place in planned.found)
    random = tuple(planned.random.items())
    return Plan(planned.definition, tuple(planned.found), random, boxing, strict, make if begins else None)


def _owner(scope: Scope, place: Names) -> Scope:
    return scope.below(place[1:-1])


def run(
    scope: Scope,
    plan: Plan,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    temporary: bool = False,
) -> Any:
    """Call a function of the object, and write the variables that changed into the scope.

    Args:
        scope: the scope.
        plan: the plan of the object.
        fn: called as `fn(object, *args, **kwargs)`.
        args: the arguments.
        kwargs: the keyword arguments.
        temporary: whether it may only change attributes that are not variables: the caller knows that this is lost.

    Raises:
        StructureError: if it does nothing but change such an attribute, unless it is `temporary`.
    """
    given = dict(_values(scope, plan))
    values = given | drawn(scope, dict(plan.random))
    made = Builder(lambda group, names: values[group, *names]).build(plan.definition)
    for place, value in _others(scope, given):
        variable = to_nnx_var(place[0], value)
        hold(made, place[1:], variable)
        given[place] = variable.get_raw_value()
    with initializing(scope.is_initializing()), nn.no_parent():  # modules created here belong to the object
        result = fn(made, *args, **kwargs)
    after, writes = Placed(made), False
    for place, holder in after.found.items():
        value = holder.get_raw_value() if isinstance(holder, Variable) else holder
        if place not in given or value is not given[place]:
            _write(scope, plan, place, holder, value)
            writes = True
    if not (temporary or writes or holds_arrays(result, is_object)):
        _check_settings(scope, plan.definition, after.definition)
    return result


def _check_settings(scope: Scope, before: Definition, after: Definition) -> None:
    """Raise if an attribute that is not a variable changed, such as the mode: the next call makes the object anew."""
    if before == after:
        return
    now = dict(_settings(after))
    for path, old in _settings(before):
        new = now.get(path, old)
        if new != old and static_value(new) is not static_value(old):  # the same object may differ in each walk
            name = getattr(getattr(before, "cls", None), "__name__", "an object")
            where = f"`{path_text(path)}` of {name} at {scope.path_text}"
            raise lost_setting(where, static_value(new), StructureError)


def _settings(definition: Definition, path: Names = ()) -> Iterator[tuple[Names, StaticDef]]:
    """Yield the definitions of the attributes that are neither variables nor objects, by path."""
    if type(definition) is StaticDef:
        yield path, definition
    for name, part in parts_of(definition):
        yield from _settings(part, (*path, name))


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
    """Yield the variables of the scope that calls of the object create, but its constructor does not."""
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
    elif collection == _INTERMEDIATES and type(value) is tuple:  # sown, so that it passes through lifts
        for item in value:
            owner.sow(_INTERMEDIATES, name, item)
    elif collection == _INTERMEDIATES:
        owner.sow(_INTERMEDIATES, name, value, init_fn=lambda: None, reduce_fn=lambda _, new: new)
    elif mutable or (plan.strict and not isinstance(holder, Perturbation)):
        owner.create_variable(collection, name, kept_value(holder, plan.boxing))


# --- adopted objects --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Adopted:
    """An object whose variables are stored in a scope: each call reads them and writes back those that changed.

    Call it as you would call the object. Methods and parts of the object are attributes: `adopted.encode(x)`,
    `adopted.layers[0](x)`.

    Attributes:
        scope: the scope.
        plan: the static part of the object.
    """

    scope: Scope
    plan: Plan

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the object.

        Args:
            *args: the arguments.
            **kwargs: the keyword arguments.

        Raises:
            ModifyScopeVariableError: if it changes a variable in an immutable collection.
            StructureError: if it does nothing but change an attribute that is not a variable, such as `eval`.
        """
        return run(self.scope, self.plan, _called, (Steps(), *args), kwargs)

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of the object. Attributes that it sets, such as the mode, count in this call alone.

        Example:
            >>> import jax, liftcore, nnx_like as nnx
            >>> import jax.numpy as jnp
            >>> def model(scope, x):
            ...     linear = nnx.bridge.adopt(scope.push("linear"), lambda rngs: nnx.Linear(3, 2, rngs=rngs))
            ...     return linear(x), linear.run(lambda linear: linear.kernel.get_value())
            >>> (_, kernel), variables = liftcore.init(model)(jax.random.key(0), jnp.ones(3))
            >>> variables["params"]["linear"]["kernel"] is kernel
            True

        Args:
            fn: called as `fn(object, *args, **kwargs)`. The object exists only during the call.
            *args: its arguments.
            **kwargs: the keyword arguments.

        Raises:
            ModifyScopeVariableError: if it changes a variable in an immutable collection.
        """
        return run(self.scope, self.plan, fn, args, kwargs, temporary=True)

    def __getattr__(self, name: str) -> Reach:
        if name[:1] == "_" or not self.plan.may_have(name):
            raise AttributeError(name, name=name, obj=self)
        return Reach(self._reached, Steps().attribute(name), self)

    def _reached(self, steps: Steps, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return run(self.scope, self.plan, _called, (steps, *args), kwargs)

    def __scopes__(self) -> tuple[Sequence[Scope], Callable[[Sequence[Scope]], Any]]:
        return [self.scope], functools.partial(_adopted, self.plan)


def _adopted(plan: Plan, scopes: Sequence[Scope]) -> Adopted:
    """Return an adopted object on other scopes."""
    return Adopted(scopes[0], plan)


def _called(made: Any, steps: Steps, *args: Any, **kwargs: Any) -> Any:
    return steps(made)(*args, **kwargs)


def adopt(
    scope: Scope,
    make: Callable[..., Any],
    *streams: str,
    metadata_fn: Callable[[Variable[Any]], Any] | None = to_linen_var,
) -> Adopted:
    """Use an object in a model of scopes: its variables become variables of the scope, at their paths.

    The kind of a variable decides its collection: `Param` goes into "params", `BatchStat` into "batch_stats", and a
    kind of your own into the collection that `nnx.register_variable_name` names. An object can be used in functions of
    scopes and in Linen-style modules, under any lift, and in `init`. If its variables exist already, `make` runs only
    to find the structure.

    RNG streams of the object draw their keys from the streams of the scope, new ones in each call. New variables are
    kept after a call. Other attributes are not, so a call that does nothing but change one, such as `adopted.eval()`,
    is an error: set the mode in `make`.

    Example:
        >>> import jax, liftcore, linen_like as nn, nnx_like as nnx
        >>> import jax.numpy as jnp
        >>> class Block(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x, _):
        ...         linear = nnx.bridge.adopt(self.scope.push("linear"), lambda rngs: nnx.Linear(3, 3, rngs=rngs))
        ...         return linear(x), None
        >>> blocks = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=4)()
        >>> blocks.init(jax.random.key(0), jnp.ones(3), None)["params"]["linear"]["kernel"].shape
        (4, 3, 3)

    Args:
        scope: a scope for this object alone, such as `scope.push("encoder")`.
        make: called with `nnx.Rngs`; returns the object, or a pytree of objects.
        *streams: the names of its streams. Each gets a key from the stream of that name in the scope. By default, the
            object gets all streams of the scope, and "params". It always gets "default".
        metadata_fn: turns a variable with metadata into the boxed value in the collection; with None, values are not
            boxed.

    Returns:
        An object to call as you would call the original one.

    Raises:
        ScopeVariableNotFoundError: if a variable is missing and cannot be created. The scope may raise a related error.
    """
    check_maker("adopt", make, "rngs")
    return Adopted(scope, plan_in(scope, make, streams, metadata_fn, strict=True))


@dataclasses.dataclass(frozen=True)
class InScope:
    """A function of a scope that calls an object in it, or one of its methods. Attributes select methods and parts.

    Attributes:
        make: called with `nnx.Rngs`; makes the object.
        streams: the names of the streams that it gets.
        steps: the attributes and items that lead from the object to what is called.
    """

    __style__: ClassVar[Style] = Style("a function of a scope", used="module(scope, x)")

    make: Callable[..., Any]
    streams: tuple[str, ...]
    steps: Steps

    def __post_init__(self) -> None:
        self.__dict__["__name__"] = name_of(self.make)  # lifts use it in paths

    def __call__(self, scope: Scope, *args: Any, **kwargs: Any) -> Any:
        """Call the object.

        Args:
            scope: the scope of its variables.
            *args: the arguments.
            **kwargs: the keyword arguments.
        """
        return adopt(scope, self.make, *self.streams)._reached(self.steps, args, kwargs)

    @functools.cached_property
    def _part(self) -> Any:
        """The part of the object that a call calls, with types in place of its arrays."""
        return self.steps(eval_shape(self.make, Rngs(0)))

    def __getattr__(self, name: str) -> InScope:
        if name[:1] == "_" or not hasattr(self._part, name):
            raise AttributeError(name, name=name, obj=self)
        return InScope(self.make, self.streams, self.steps.attribute(name))

    def __getitem__(self, key: Any) -> InScope:
        return InScope(self.make, self.streams, self.steps.item(key))


def object_in_scope(make: Callable[..., Any], *streams: str) -> InScope:
    """Make a function of a scope that adopts an object with `adopt` and calls it.

    Example:
        >>> import jax, liftcore, nnx_like as nnx
        >>> import jax.numpy as jnp
        >>> linear = nnx.bridge.object_in_scope(lambda rngs: nnx.Linear(3, 2, rngs=rngs))
        >>> columns = liftcore.vmap(linear, in_axes=1, variable_axes={"params": 0}, split_rngs={"params": True})
        >>> y, variables = liftcore.init(columns)(jax.random.key(0), jnp.ones((3, 5)))
        >>> y.shape, variables["params"]["kernel"].shape
        ((5, 2), (5, 3, 2))

    Args:
        make: called with `nnx.Rngs`; returns the object.
        *streams: the names of the streams that it gets; by default all streams of the scope.

    Returns:
        A function `called(scope, *args, **kwargs)`. Its attributes are functions for the methods and parts of the
        object: `object_in_scope(make).encode(scope, x)`.

    Raises:
        LiftArgumentError: if `make` cannot be called.
    """
    check_maker("object_in_scope", make, "rngs", "nnx.bridge.object_in_scope(lambda rngs: module)")
    return InScope(make, streams, Steps())
