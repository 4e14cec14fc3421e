"""The errors of scopes: each function returns the error to raise for one kind of misuse."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .. import errors, rng
from .._compat import raw_transformation
from ..errors import LiftError, name_of, shown, words
from ..filters import short_form, subtract
from ..filters.predicates import Any as AnyOf
from ..filters.predicates import Nothing, WithTag
from ..filters.trees import flat
from ..texts import closest

if TYPE_CHECKING:
    from ..typing import Path
    from .lifts import Lift
    from .scope import Scope
    from .tree import Tree

__all__ = [
    "check_in_one_group",
    "creates_nothing",
    "ended",
    "immutable",
    "made_no_value",
    "name_taken",
    "no_collection",
    "no_initializer",
    "no_name",
    "no_stream",
    "not_found",
    "not_lifted",
    "not_taken",
    "raw_transformed",
    "returned",
    "two_threads",
    "wrong_names",
    "wrong_shape",
]

_UNLIFTED = ("closure_convert", "make_jaxpr")
"""The transformations that have no lifted form with the same name."""

_IN_LAX = ("associative_scan", "cond", "fori_loop", "map", "scan", "switch", "while_loop")


def _variable(scope: Scope, collection: str, name: str) -> dict[str, Any]:
    """Return the facts about a variable of a scope, for an error."""
    return {"variable": "/".join(map(str, (collection, *scope.path, name))), "collection": collection}


def ended(scope: Scope) -> LiftError:
    """The error for a scope that is used after it has ended."""
    return errors.InvalidScopeError(
        f"scope at {scope.path_text}",
        "it was used after the lift, `init` or `apply` that it belonged to had ended.",
        "Return what you need from the function instead of keeping its scope (or a module bound to it).",
    )


def raw_transformed(scope: Scope, act: str) -> LiftError:
    """The error for a scope that is used under a JAX transformation that it does not cross."""
    lift = scope.tree.running_lift
    if lift is not None:
        fix = "Use the scope (or module) that the lifted function receives; pass others as arguments or fields."
        if lift.startswith("map_variables("):
            fix += " A function that maps variables receives none: compute what it needs before the lift."
        return errors.JaxTransformError(
            f"{act} at {scope.path_text}",
            f"it belongs outside {lift}, but was used inside it, where it cannot change.",
            fix,
            given=lift,
        )
    name = raw_transformation()
    if name is None or name in _UNLIFTED:
        fix = f"Transform a pure function instead, for example one made by `{words().function('purify')}`."
    else:
        fix = f"Use the lifted transformation: `{words().function(name)}`."
    return errors.JaxTransformError(
        f"{act} at {scope.path_text}",
        f"{_written(name)} was applied to a function that uses a live scope or module, whose state cannot cross it.",
        fix,
        given=_written(name),
    )


def two_threads(scope: Scope, act: str) -> LiftError:
    """The error for a scope that is changed in one thread while another thread uses it."""
    bind, apply = map(words().function, ("bind", "apply"))
    return errors.ThreadError(
        f"{act} at {scope.path_text}",
        "another thread uses the same bound module or scope; both may read it, but only one may change it.",
        f"Bind one for each thread, `{bind}(variables, …)`, or call `{apply}(variables, …)` in each.",
    )


def _written(name: str | None) -> str:
    """Return a transformation as it is written in code."""
    if name is None:
        return "a raw JAX transformation"
    inside = {**dict.fromkeys(_IN_LAX, "lax."), "custom_vmap": "custom_batching.", "checkify": "experimental.checkify."}
    return f"jax.{inside.get(name, '')}{name}"


def name_taken(scope: Scope, name: str, wanted: str | None, held: Sequence[str], outside: bool = False) -> LiftError:
    """The error for a name that is taken.

    `wanted` is the collection of the variable that asks for it, or None for a scope. `held` has the collections of the
    variables that have it, and is empty if a scope has it. `outside` tells whether that scope was named before the
    surrounding lift.
    """
    once = "Create it once, before the lift, and use it inside" if outside else "Create it once and keep it"
    again = ""
    if not outside and wanted is None and not held and words().scope == "scope":
        again = " To run the same code again on the same variables, give it `scope.rewound()`."
    return errors.NameInUseError(
        f'"{name}" at {scope.path_text}',
        f"{_owner(wanted)} asks for the name, but {_owner(held[0] if held else None)} has it already"
        f"{', outside the lift' if outside else ''}.",
        f'{once}, or give one of them another name, such as "{name}_2".{again}',
        given=name,
        collection=wanted,
    )


def _owner(collection: str | None) -> str:
    return "a scope (or submodule)" if collection is None else f'a variable of "{collection}"'


def no_name(scope: Scope, name: Any, collection: str | None, written: bool = False) -> LiftError:
    """The error for a name that is not a string, or cannot be one part of a path."""
    if isinstance(name, str):
        return errors.LiftArgumentError(
            f"{_owner(collection)} at {scope.path_text}",
            errors.Expected("a name that is one part of a path", given=name),
            "Give it a name that is not empty and contains no `/`; to add levels, nest scopes (or modules)."
            if collection is None
            else "Give it a name that is not empty.",
            collection=collection,
        )
    return errors.LiftArgumentError(
        f"{_owner(collection)} at {scope.path_text}",
        errors.Expected("a string as its name", given=name),
        f'Write `name="{name}"`.' if collection is None else f"Write `{_call(collection, written)}`.",
        collection=collection,
    )


def no_collection(scope: Scope, name: str, collection: Any, written: bool = False) -> LiftError:
    """The error for a value that cannot be the name of a collection."""
    return errors.LiftArgumentError(
        f'the collection of "{name}" at {scope.path_text}',
        errors.Expected("a name that is one part of a path", given=collection),
        f'Write `{_call("state", written)}`, with a collection such as "state".',
    )


def _call(collection: str, written: bool) -> str:
    """Return the call that writes or declares a variable of a collection."""
    if written:
        call = "put_variable(collection, name, value)"
    else:
        call = "param(name, init_fn)" if collection == "params" else "variable(collection, name, init_fn)"
    return f"{words().scope}.{call}"


def no_initializer(scope: Scope, collection: str, name: str, init_fn: Any) -> LiftError:
    """The error for an initializer that is not callable."""
    key = " of a key" if collection == "params" else ""
    return errors.LiftArgumentError(
        f'"{collection}/{name}" at {scope.path_text}',
        errors.Expected(f"an initializer, a function{key}", given=init_fn),
        f"Pass a function that makes the value: `lambda{' key' if key else ''}: value`.",
        **_variable(scope, collection, name),
    )


def made_no_value(scope: Scope, name: str, init_fn: Any, made: Any) -> LiftError:
    """The error for an initializer of a parameter that returned None or another initializer."""
    text = name_of(init_fn)
    if made is None:
        what = "returned None"
        fix = "Return an array or a pytree of arrays; if there is to be no parameter, do not declare one."
    else:
        what, fix = "returned a function, not a value", f"Call it first: `{text}()` is the initializer."
    where = f'"params/{name}" at {scope.path_text}'
    return errors.LiftArgumentError(where, f"its initializer {text} {what}.", fix, **_variable(scope, "params", name))


def _lift_of(scope: Scope, inside: Tree) -> str:
    """Return the name of the lift around the tree `inside`, for an error about a scope in that tree or further in.

    If it is not the innermost lift around the scope, the text has its path too, since equal lifts may be nested.
    """
    lift, outer = _lift(inside), inside.outer
    assert outer is not None
    return lift.name if inside is scope.tree else f"{lift.name} at {outer.path_text}"


def _lift(inside: Tree) -> Lift:
    assert inside.lift is not None, "only trees inside lifts are asked about"
    return inside.lift


def returned(where: str, fn: Any, kind: str) -> LiftError:
    """The error for a function of scopes that returned a scope or a variable (`kind`)."""
    return errors.LiftArgumentError(
        where,
        f"{name_of(fn)} returned {'an' if kind[0] in 'AEIOU' else 'a'} {kind}, which ends with the lift.",
        "Return arrays: results computed with it, or the value of the variable.",
        given=kind,
    )


def not_taken(scope: Scope, collection: str, name: str, inside: Tree, done: str) -> LiftError:
    """The error for a variable that is written or created (`done`), but not passed out by the lift around `inside`."""
    lift, where = _lift(inside), f'"{collection}/{name}" at {scope.path_text}'
    variable = _variable(scope, collection, name)
    if lift.taken((collection, *scope.path, name), None):
        return errors.ModifyScopeVariableError(
            where,
            f'collection "{collection}" was {done}, but it is immutable in the scopes of {_lift_of(scope, inside)}.',
            f'Make it mutable: `scope_fn(variable_groups, rng_groups, mutable="{collection}")`.',
            **variable,
            option="mutable",
        )
    listed = lift.taken if lift.taken(("", ""), None) else subtract(lift.taken, "perturbations")
    fix = f"Add {lift.to_take(collection, _known(inside))}."
    if "variable_axes" in fix and any(takes((collection, *scope.path, name), None) for takes in lift.into):
        fix = f'Write `"{collection}": axis` in place of `"{collection}": In(axis)`, which passes nothing out.'
    return errors.UnliftedCollectionError(
        where,
        f'collection "{collection}" was {done}, but no output group of {_lift_of(scope, inside)} takes it '
        f"(output groups: {short_form(listed)}).",
        fix,
        **variable,
        available=(short_form(listed),),
    )


def _known(inside: Tree) -> set[str]:
    """Return the names of the collections in a tree and in those around it."""
    tree, known = inside, {*inside.variables}
    while tree.outer is not None:
        tree = tree.outer.tree
        known.update(tree.variables)
    return known


def not_lifted(scope: Scope, collection: str, name: str, inside: Tree) -> LiftError:
    """The error for a variable that exists outside, but is not passed in by the lift around `inside`."""
    return errors.UnliftedCollectionError(
        f'"{collection}/{name}" at {scope.path_text}',
        f"it exists outside {_lift_of(scope, inside)}, but no input group takes it in "
        f"(lifted: {list(inside.variables)}).",
        f"Add {_lift(inside).to_take(collection, _known(inside))}.",
        **_variable(scope, collection, name),
        available=(*inside.variables,),
    )


def creates_nothing(scope: Scope, collection: str, name: str) -> LiftError:
    """The error for a variable that is created in a scope that must not create any."""
    missing = errors.ScopeParamNotFoundError if collection == "params" else errors.ScopeVariableNotFoundError
    return missing(
        f'"{collection}/{name}" at {scope.path_text}',
        f"there is no such variable ({_available(scope, collection, list(scope.dicts(collection)))}), and the scope "
        "was bound with `creates=False`.",
        "Pass the variable, or bind the scope without `creates=False`.",
        **_variable(scope, collection, name),
    )


def immutable(scope: Scope, collection: str, name: str) -> LiftError:
    """The error for a variable of an immutable collection that is written."""
    what = f'collection "{collection}" is immutable here (mutable: {short_form(scope.tree.outermost().mutable)}).'
    fix = f"Make it mutable: `apply(..., mutable={_mutable_too(scope, collection)})`."
    facts: dict[str, Any] = {"option": "mutable"}
    known = scope.tree.outermost().variables
    module_in = next((one for one in known if _is_module_in(scope, one, collection)), None)
    meant = closest(collection, known)
    if collection not in known and (module_in or meant):
        what = f'there is no collection "{collection}" (given: {list(known)}), and none can be made here.'
        facts["available"] = known
        fix = f'Write `"{meant}"` in its place; or, for a new collection, `mutable={_mutable_too(scope, collection)}`.'
        if module_in:
            del facts["option"]
            fix = f'The name of a collection comes first: write `{{"{module_in}": {{"{collection}": …}}}}`.'
    return errors.ModifyScopeVariableError(
        f'"{collection}/{name}" at {scope.path_text}', what, fix, **_variable(scope, collection, name), **facts
    )


def _is_module_in(scope: Scope, collection: str, name: str) -> bool:
    """Whether a name that was written as a collection is one in that collection, here or in a scope above."""
    place: Scope | None = scope
    while place is not None and name not in place.collections_below().get(collection, {}):
        place = place.parent
    return place is not None


def _mutable_too(scope: Scope, collection: str) -> str:
    """Return the code of a filter for a collection and for all that is mutable already."""
    mutable = scope.tree.outermost().mutable
    parts = () if isinstance(mutable, Nothing) else mutable.filters if isinstance(mutable, AnyOf) else (mutable,)
    names = [one.tag for one in parts if isinstance(one, WithTag)]
    if len(names) == len(parts):
        typo = closest(collection, [name for name in names if name not in scope.tree.outermost().variables])
        return json.dumps([*[name for name in names if name != typo], collection])
    return f'({short_form(mutable)}, "{collection}")'


def wrong_names(scope: Scope, collection: str, name: str, names: Sequence[Any], shape: tuple[int, ...]) -> LiftError:
    """The error for a new variable that has more axis names than axes."""
    code = f"{words().function('with_partitioning')}(init_fn, {tuple(names[: len(shape)])})"
    return errors.LiftArgumentError(
        f'"{collection}/{name}" at {scope.path_text}',
        f"it has {len(names)} axis names, {tuple(names)}, but {len(shape)} axes: its shape is {tuple(shape)}.",
        f"Give at most one name for each axis: `{code}`; a lift names the axes that it adds itself.",
        **_variable(scope, collection, name),
        given=tuple(names),
    )


def check_in_one_group(scope: Scope, path: Path, value: Mapping[str, Any], lift: Lift) -> None:
    """Check that a lift takes a variable whose value is a dict in one group.

    Raises:
        LiftArgumentError: if its filters put the dict, or parts of it, into different groups.
    """

    def group(path: Path, value: Any) -> int:
        found = (number for number, takes in enumerate(lift.into) if takes(path, value))
        return next(found, len(lift.into))

    parts = {below: group(below, leaf) for below, leaf in ({path: value} | flat(value, path)).items()}
    if len(set(parts.values())) > 1:
        names = [*map(short_form, lift.into), "not lifted"]
        told = ", ".join(f'"{"/".join(map(str, one))}" by {names[number]}' for one, number in parts.items())
        raise errors.LiftArgumentError(
            f'"{"/".join(path)}" in {lift.name} at {scope.path_text}',
            f"the value of this variable is a dict, and the lift takes parts of it in different groups: {told}.",
            f'Make one filter match all of it, such as PathContains("{path[-1]}").',
            variable="/".join(path),
            collection=path[0],
        )


def not_found(scope: Scope, collection: str, name: str, available: Sequence[str]) -> LiftError:
    """The error for a variable that does not exist and must not be created."""
    where, variable = f'"{collection}/{name}" at {scope.path_text}', _variable(scope, collection, name)
    is_empty = scope.is_collection_empty(collection)
    if scope.is_mutable_collection(collection):
        kind = errors.ScopeCollectionNotFound if is_empty else errors.ScopeVariableNotFoundError
        return kind(
            where,
            f"there is no such variable (available there: {sorted(available)}), and no `init_fn` to make it.",
            f'Pass one: `{words().scope}.variable("{collection}", "{name}", init_fn)`.',
            **variable,
            available=(*sorted(available),),
        )
    if is_empty:
        return errors.ScopeCollectionNotFound(
            where,
            f'the collection "{collection}" is empty, and it is immutable.'
            if collection in scope.tree.variables
            else f'there is no collection "{collection}" (given: {list(scope.tree.variables)}), and it is immutable.',
            f'Pass it, `apply({{"{collection}": …}})`, or allow its creation: '
            f"`mutable={_mutable_too(scope, collection)}`.",
            **variable,
            option="mutable",
            available=(*scope.tree.variables,),
        )
    missing = errors.ScopeParamNotFoundError if collection == "params" else errors.ScopeVariableNotFoundError
    return missing(
        where,
        f"there is no such variable ({_available(scope, collection, available)}), and it must not be created here.",
        f"Check that the variables come from `init` of the same model, or pass "
        f"`mutable={_mutable_too(scope, collection)}`.",
        **variable,
        option="mutable",
        available=(*sorted(available),),
    )


def _available(scope: Scope, collection: str, available: Sequence[str]) -> str:
    """Describe the available variables: those here or, if there are none, those of the nearest scope above."""
    place: Scope | None = scope
    while not available and place is not None and place.parent is not None:
        name, place = place.name, place.parent
        found = place.collections_below().get(collection, {})
        if name in found and not isinstance(found[name], Mapping):
            return f'"{name}" at {place.path_text} is {shown(found[name])}, not the variables of a module'
        available = list(found)
    where = "there" if place is scope or place is None else f"at {place.path_text}"
    return f"available {where}: {sorted(available)}"


def wrong_shape(scope: Scope, name: str, given: Any, expected: Any, asked: bool = False) -> LiftError:
    """The error for a parameter whose shape differs from the initializer's, or from the one that was `asked` for."""
    shape = f"but shape {expected} was requested" if asked else f"but its initializer makes {_shape(expected)}"
    what = f"the stored value has {_shape(given)}, {shape}."
    fix = "Check the sizes of the module and of its inputs, or call `init` again for this model."
    if any((base.__module__, base.__name__) == _FLAX_BOX for base in type(given).__mro__):
        what = f"the stored value is in a box of flax, `{type(given).__name__}`, which only flax can open."
        fix = (
            "Open the boxes, `flax.linen.unbox(variables)`; or, to get those of a Linen-style model, write "
            "`from_flax(model, variables, x)`, from `linen_like.convert`."
        )
    elif scope.is_initializing():
        fix = "This `init` created it in an earlier call of the layer. For inputs of another size, make another layer."
    return errors.ScopeParamShapeError(
        f'param "{name}" at {scope.path_text}',
        what,
        fix,
        **_variable(scope, "params", name),
        given=jax.tree.map(np.shape, given),
        expected=expected if asked else jax.tree.map(np.shape, expected),
    )


_FLAX_BOX = ("flax.core.meta", "AxisMetadata")
"""The module and the name of the class that all boxes of flax derive from."""


def _shape(tree: Any) -> str:
    if tree is None:
        return "no shape (it is None)"
    if jax.tree_util.all_leaves([tree]):
        return f"shape {np.shape(tree)}"
    shapes = [str(np.shape(leaf)) for leaf in jax.tree.leaves(tree)]
    return f"shapes {', '.join(shapes[:3])}{', …' if len(shapes) > 3 else ''} in a {type(tree).__name__}"


def no_stream(scope: Scope, name: str) -> LiftError:
    """The error for a key drawn from a stream that was not passed, or not lifted."""
    where = f'make_rng("{name}") at {scope.path_text}'
    given, inside = scope.tree.given, scope.tree.without_stream(name)
    if inside is not None:
        return errors.UnliftedStreamError(
            where,
            f"the stream was given, but {_lift_of(scope, inside)} does not pass it in (lifted: {list(inside.rngs)}).",
            f"Add {_lift(inside).advice.stream.format(name)}.",
            stream=name,
            available=(*inside.rngs,),
        )
    return errors.InvalidRngError(
        where,
        f'no RNG stream "{name}" was given{"" if name == rng.DEFAULT else ", and neither was params"} '
        f"(given: {list(given)}).",
        f'Pass one: `rngs={{"{name}": jax.random.key(0)}}`.',
        stream=name,
        option="rngs",
        available=(*given,),
    )
