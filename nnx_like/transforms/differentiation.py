"""The base of derivatives: which variables are differentiated, and how they cross with `argnums`.

Variables cross in two groups: those that are differentiated, and the rest.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import liftcore
from liftcore.caches import bounded
from liftcore.calls import boundary, call_user
from liftcore.errors import LiftArgumentError
from liftcore.filters import check_names, names_in
from liftcore.problems import checked_aux
from liftcore.pytrees import check_acyclic, is_array, is_array_like, number_type

from ..crossing.groups import Choose, Group, Groups, Ref, Still, in_call, is_ref
from ..crossing.inside import Inside
from ..crossing.outside import Outside
from ..filterlib import Filter, OfType, to_predicate
from ..graph.definition import Definition, VariableDef, entries, metadata_of, path_text, static
from ..graph.functions import flatten, listed
from ..graph.walk import is_object, value_of, value_parts
from ..objects.pytree import Pytree
from ..statelib.state import FlatState, State
from ..variablelib.kinds import Param
from ..variablelib.variable import Variable
from .base import checked, named

__all__ = [
    "DIFFERENTIATED",
    "EVERYTHING",
    "REST",
    "ChosenArguments",
    "Derivative",
    "DiffState",
    "check_diff_states",
    "differentiated",
    "group_by_filter",
    "in_two_groups",
    "outline",
    "state_of",
    "tangents_in",
    "veiled",
    "with_states",
]


DIFFERENTIATED = Group("differentiated", None, "differentiated")
REST = Group("not differentiated", None, "not differentiated")


@dataclasses.dataclass(frozen=True)
class DiffState:
    """Selects the variables of an argument that are differentiated. Use it in place of an argument number.

    Example:
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(2.0), scale=nnx.BatchStat(3.0))
        >>> grad = nnx.grad(lambda model: model.w * model.scale, argnums=nnx.DiffState(0, nnx.BatchStat))
        >>> float(grad(model).scale)
        2.0

    Args:
        argnum: the number of the argument; a negative one counts from the end.
        filter: a filter for variables, and for arrays that are attributes. Values that are not floating are never
            differentiated.
    """

    argnum: int
    filter: Filter


@dataclasses.dataclass(frozen=True, repr=False)
class _Differentiated:
    """A predicate for the variables that are differentiated: the floating ones among those that were selected.

    Attributes:
        wanted: a predicate for the variables that were selected.
        alone: whether a variable that is not an attribute always matches.
        allow_int: whether integers are differentiated too.
    """

    wanted: Callable[..., bool]
    alone: bool
    allow_int: bool

    def __call__(self, path: tuple[Any, ...], value: Any) -> bool:
        if not (self.alone and not path) and not self.wanted(path, value):
            return False
        raw = value.get_raw_value() if isinstance(value, Variable) else value
        return _moves(raw, self.allow_int)

    def __repr__(self) -> str:
        return f"floating values of {self.wanted!r}"


def _moves(raw: Any, allow_int: bool = False) -> bool:
    """Return whether a raw value contains numbers, and all of them are floating.

    Args:
        raw: an array, a number, or a pytree.
        allow_int: whether integers count too.
    """
    if hasattr(raw, "dtype"):
        return _is_moving_type(raw.dtype, allow_int)
    check_acyclic(raw)
    leaves = list(filter(is_array_like, jax.tree.leaves(raw)))
    types: list[Any] = [leaf.dtype if is_array(leaf) else number_type(leaf) for leaf in leaves]
    return bool(leaves) and all(_is_moving_type(one, allow_int) for one in types)


@bounded(256)
def _is_moving_type(dtype: Any, allow_int: bool) -> bool:
    if jnp.issubdtype(dtype, jnp.inexact):
        return True
    return allow_int and bool(jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_))


def group_by_filter(filter: Filter, alone: bool = False, allow_int: bool = False) -> Choose:
    """Return the prefix for an argument that is differentiated.

    Args:
        filter: a filter of the variables.
        alone: whether a variable that is not an attribute of an object is differentiated even if the filter does not
            match it.
        allow_int: whether integers are differentiated too.
    """
    wanted = _Differentiated(to_predicate(filter), alone, allow_int)
    return Choose((dataclasses.replace(DIFFERENTIATED, filter=wanted), REST), many=True)


def check_diff_states(where: str, given: Sequence[DiffState], args: Sequence[Any]) -> None:
    """Check that no filter asks for a name that the variables of its argument lack.

    Args:
        where: the name of the transformation in errors.
        given: the filters, with the numbers of their arguments.
        args: the positional arguments.

    Raises:
        LiftArgumentError: if one does, and matches nothing.
    """
    for one in given:
        if names_in(predicate := to_predicate(one.filter)):
            check_names(f"{where}, argument {one.argnum}", predicate, listed(args[one.argnum])[1])


EVERYTHING = group_by_filter(...)
"""The prefix that differentiates every floating variable."""


def in_two_groups(name: str, f: Any) -> Groups:
    """Return the groups of a derivative, after checking its function."""
    return Groups(checked(name, f), "group", groups=[DIFFERENTIATED, REST])


class ChosenArguments:
    """The arguments that are differentiated, and which of their variables.

    Args:
        where: the name of the transformation in errors.
        argnums: a number or a `DiffState`, or several.
        allow_int: whether integers are differentiated too.

    Attributes:
        single: whether one argument was given instead of a sequence; then the derivative is not a tuple.
        numbers: the numbers, as the user gave them.
        by_filter: each `DiffState` among them.
    """

    def __init__(self, where: str, argnums: Any, allow_int: bool = False) -> None:
        self._where = f"{where}, argnums={argnums!r}"
        self.single = not isinstance(argnums, Sequence)
        given = (argnums,) if self.single else tuple(argnums)
        self.by_filter = [one for one in given if isinstance(one, DiffState)]
        self.numbers = tuple([one.argnum if isinstance(one, DiffState) else self._number(one) for one in given])
        params = group_by_filter(OfType(Param), True, allow_int)
        self._groups = [
            group_by_filter(one.filter, False, allow_int) if isinstance(one, DiffState) else params for one in given
        ]
        if not given:
            raise self._error("no argument is selected.", "Select one: `argnums=0`.")

    def prefix(self, count: int) -> tuple[Any, ...]:
        """Return the groups of each argument.

        Args:
            count: the number of positional arguments.

        Raises:
            LiftArgumentError: if one does not exist, or is named twice.
        """
        prefix: list[Any] = [REST] * count
        for number, group in zip(self.numbers, self._groups, strict=True):
            if not -count <= number < count:
                raise self._error(
                    f"there is no argument {number}; the call has {count} positional arguments.",
                    "Count from 0. Keyword-only arguments cannot be selected.",
                    number,
                )
            if prefix[number] is not REST:
                raise self._error(
                    f"argument {number} is named twice.", "Name it once; `DiffState` takes a tuple of filters.", number
                )
            prefix[number] = group
        return tuple(prefix)

    def _number(self, given: Any) -> int:
        try:
            return operator.index(given)
        except TypeError:
            what = f"{type(given).__name__} is not an argument number."
            fix = "Give an int, a `DiffState`, or several."
            raise self._error(what, fix, type(given).__name__) from None

    def _error(self, what: str, fix: str, given: Any = None) -> LiftArgumentError:
        return LiftArgumentError(self._where, what, fix, option="argnums", given=given)


def _bound(f: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the arguments: positional ones if the signature has a position for them, all others by name."""
    if not kwargs:
        return args, {}
    try:
        found = inspect.signature(f).bind(*args, **kwargs)
    except (TypeError, ValueError):  # the call itself will raise a better error
        return args, kwargs
    return found.args, found.kwargs


def _plain_result(where: str, result: Any, has_aux: bool) -> tuple[Any, Any]:
    """Split a result into the part that is differentiated and the rest.

    Raises:
        LiftArgumentError: if the result is not a pair, or its first part holds objects.
    """
    aux = None
    if has_aux:
        result, aux = checked_aux(lambda: where, result)
    objects = [type(leaf).__name__ for leaf in jax.tree.leaves(result, is_leaf=is_object) if is_object(leaf)]
    if objects:
        states = [part for part in jax.tree.leaves(result, is_leaf=_is_state) if _is_state(part)]
        given = "a State" if states else f"a {objects[0]}"
        raise LiftArgumentError(
            where,
            f"the differentiated result contains {given}.",
            "Return its values, `nnx.to_pure_dict(state)`."
            if states
            else "Return its value, such as `variable[...]`; return objects as the second part, with `has_aux=True`.",
            given=given,
        )
    return result, aux


def _is_state(part: Any) -> bool:
    return isinstance(part, State | FlatState)


def veiled(tree: Any, is_kept: Callable[[Any], bool] = is_array_like) -> Any:
    """Make all leaves of a pytree acceptable to JAX: a leaf that is not an object, array or number becomes static.

    Args:
        tree: a pytree that may hold objects.
        is_kept: which leaves stay, beside objects.
    """

    def still(leaf: Any) -> Any:
        return leaf if is_object(leaf) or is_kept(leaf) else Still(static(leaf, ()))

    return jax.tree.map(still, tree, is_leaf=is_object)


class Derivative:
    """A function of objects as a derivative of the core needs it, and how its arguments cross.

    Args:
        name: the name of the transformation in errors.
        f: the function.
        has_aux: whether the function returns a pair, of which only the first is differentiated.

    Attributes:
        body: the function for the core, with `has_aux`; the first argument is the scope.
    """

    def __init__(self, name: str, f: Callable[..., Any], has_aux: bool) -> None:
        self.groups = groups = in_two_groups(name, f)

        @named(f)
        def body(scope: liftcore.Scope, *args: Any, **kwargs: Any) -> Any:
            inside = Inside(scope, groups)
            args, kwargs = inside.decode((args, kwargs))
            result, aux = _plain_result(groups.where, call_user(groups.where, f, *args, **kwargs), has_aux)
            return result, (jax.tree.map(lambda _: 0, result), inside.encode(veiled(aux), REST, stays=True))

        self.body = body

    def run(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], prefix: Any, what: str, lifted: Callable[..., Any]
    ) -> tuple[Any, Any, Any, Any, Any]:
        """Run the derivative for some arguments.

        Args:
            args: the arguments.
            kwargs: the keyword arguments.
            prefix: the groups of `args`.
            what: the name of the prefix in errors.
            lifted: called as `lifted(scope, args, kwargs, groups)`, with refs and the names of the groups that have
                values; returns the result, the derivative, and the second part of the result of `body`.

        Returns:
            The arguments with refs, a pytree with the structure of the result, the result, the derivative, and the
            second part of the function's result.
        """
        prefixes = prefix, dict.fromkeys(kwargs, REST)
        outside = Outside(self.groups, (args, kwargs), prefixes, what, cached=False, name=in_call)
        with outside.scope() as scope:
            result, derivative, (like, home) = lifted(scope, *outside.args, outside.values)
            return outside.args[0], like, result, derivative, outside.leave(scope, *home)


def differentiated(
    name: str,
    f: Callable[..., Any],
    arguments: ChosenArguments,
    has_aux: bool,
    lift: Callable[..., Any],
    parted: Callable[[Any, Any], tuple[Any, Any, Any]],
    finish: Callable[..., Any],
) -> Callable[..., Any]:
    """Return the derivative of a function with respect to some of its arguments, with objects in any argument.

    Args:
        name: the name of the transformation in errors.
        f: the function.
        arguments: which arguments are differentiated.
        has_aux: whether the function returns a pair, of which only the first is differentiated.
        lift: the derivative of the core.
        parted: called with the two parts that this returns; returns the result or None, the derivatives, and the rest.
        finish: called as `finish(args, like, result, derivatives, aux)`; returns the final result. `args` are the
            differentiated arguments with refs, and `like` is a pytree with the structure of the result. The first of
            the derivatives is with respect to variables, unless none is differentiated.
    """
    derivative = Derivative(name, f, has_aux)
    numbers = tuple([number + 1 if number >= 0 else number for number in arguments.numbers])  # number 0 is the scope

    @bounded(2)  # made at the first call: most functions need one of the two
    def lifted(of_variables: bool) -> Callable[..., Any]:
        chosen = (0, *numbers) if of_variables else numbers
        return lift(derivative.body, argnums=chosen, has_aux=True, wrt=DIFFERENTIATED.name)

    @functools.wraps(f)
    @boundary
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        def run(scope: liftcore.Scope, args: Any, kwargs: Any, groups: Collection[str]) -> Any:
            return parted(*lifted(DIFFERENTIATED.name in groups)(scope, *args, **kwargs))

        args, kwargs = _bound(f, args, kwargs)
        prefix = arguments.prefix(len(args))
        check_diff_states(derivative.groups.where, arguments.by_filter, args)
        given, *results = derivative.run(args, kwargs, prefix, "argnums", run)
        return finish([given[number] for number in arguments.numbers], *results)

    return wrapped


# --- gradients and tangents as states ---------------------------------------------------------------------------------


def _variable_of(definition: Definition, value: Any) -> Any:
    """Return a variable that a definition describes, with another value; for an array, the value itself."""
    if type(definition) is not VariableDef:
        return value
    return definition.cls.made(value, metadata_of(definition.metadata), liftcore.trace_state())


def state_of(
    ref: Ref,
    read: Callable[[str, Any], Any],
    make: Callable[[Definition, Any], Any] = _variable_of,
    convert: Callable[[Any], Any] = lambda value: value,
    only: Group | None = DIFFERENTIATED,
) -> Any:
    """Return the state of an object, with each value once, at its first path. `make` makes its leaves.

    Args:
        ref: the reference to the object.
        read: returns the traced value of a group and a key.
        make: the leaf of the state for a definition and a value.
        convert: applied to each array first.
        only: the group whose values are in the state; None for all groups.
    """
    pairs = []
    for path, one in entries(ref.definition):
        group, key = one.slot
        if group is not None and (only is None or group == only.name):
            value, form = read(group, key), one.form if type(one) is VariableDef else None
            value = convert(value) if form is None else value_of([convert(part) for part in value], form)
            pairs.append((path, make(one, value)))
    if pairs and not pairs[0][0]:  # a variable that is not an attribute
        return pairs[0][1]
    return State.from_flat_path(pairs)


def with_states(tree: Any, read: Callable[[str, Any], Any], **options: Any) -> Any:
    """Return a pytree with a state in place of each `Ref`.

    Args:
        tree: the pytree.
        read: see `state_of`.
        options: the other arguments of `state_of`.
    """
    return jax.tree.map(
        lambda leaf: state_of(leaf, read, **options) if type(leaf) is Ref else leaf, tree, is_leaf=is_ref
    )


_PLACE = Still(())


def outline(tree: Any) -> Any:
    """Return a pytree with its refs, and with leafless placeholders in place of leaves."""
    return jax.tree.map(lambda leaf: leaf if type(leaf) is Ref else _PLACE, tree, is_leaf=is_ref)


def tangents_in(where: str, tree: Any, given: Any, what: str) -> tuple[dict[str, dict[Any, Any]], Any]:
    """Split tangents into values for variables and the rest: the inverse of `with_states`.

    Args:
        where: the name of the transformation, for errors.
        tree: a pytree with refs, or its outline.
        given: the same pytree with tangents in place of leaves. For a ref: a state, an object of the same
            structure, a variable or value (if it refers to one variable), or None for zero.
        what: the name of the tangents in errors.

    Returns:
        The floating values by group and key; and the pytree with refs.

    Raises:
        LiftArgumentError: if the structures differ.
    """
    leaves = jax.tree.leaves(tree, is_leaf=is_ref)
    structure: Any = jax.tree.structure(tree, is_leaf=is_ref)
    try:
        parts = structure.flatten_up_to(given)
    except ValueError as error:
        text = f"the {what} do not have the structure of the arguments: {error}."
        raise LiftArgumentError(where, text, "Give one for each.", option=what) from None
    found: dict[Any, Any] = {}
    for place, (leaf, part) in enumerate(zip(leaves, parts, strict=True)):
        if type(leaf) is Ref:
            for group, key, value in _values_in(where, leaf, part, what):
                found.setdefault(group, {})[key] = value
            parts[place] = leaf
    return found, structure.unflatten(parts)


def _values_in(where: str, ref: Ref, given: Any, what: str) -> Iterator[tuple[str, str, Any]]:
    if given is None:
        return
    pairs = _pairs_in(where, ref, given, what)
    known = dict(entries(ref.definition))
    unknown = [path_text(path) for path in pairs if path not in known]
    if unknown and not isinstance(given, Pytree):  # in a copy of an object, a shared variable may be two
        raise LiftArgumentError(
            where,
            f"the {what} have unknown paths, {', '.join(unknown)}; {ref!r} has no such variables.",
            "Use the paths of its variables; for a shared variable, the first path.",
            variable=unknown[0],
        )
    for path, definition in known.items():
        value = pairs.get(path)
        value = value.get_raw_value() if isinstance(value, Variable) else value
        group, key = definition.slot
        if group is not None and _moves(value):
            yield group, key, value_parts(value)[0]


def _pairs_in(where: str, ref: Ref, given: Any, what: str) -> dict[Any, Any]:
    if type(ref.definition) is VariableDef and not isinstance(given, Mapping | Pytree):
        return {(): given}
    if isinstance(given, Mapping):
        return dict((given if isinstance(given, State) else State(given)).flat_state())
    if isinstance(given, FlatState):
        return dict(given)
    if isinstance(given, Pytree):
        return dict(flatten(given)[1])
    raise LiftArgumentError(
        where,
        f"the {what} of {ref!r} are of type {type(given).__name__}.",
        "Give a `State`, or None for zeros.",
        expected="a `State`",
        given=type(given).__name__,
    )
