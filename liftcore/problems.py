"""What a scope says when it is misused: each function returns the error to raise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from . import rng
from ._compat import raw_transformation
from .errors import (
    InvalidRngError,
    InvalidScopeError,
    JaxTransformError,
    LiftArgumentError,
    LiftError,
    ModifyScopeVariableError,
    NameInUseError,
    ScopeCollectionNotFound,
    ScopeParamNotFoundError,
    ScopeParamShapeError,
    ScopeVariableNotFoundError,
    UnliftedCollectionError,
    UnliftedSequenceError,
    shown,
)
from .filters import leaves_of, short_form, subtract

if TYPE_CHECKING:
    from .scope import Scope
    from .tree import Lift
    from .typing import Path

__all__ = [
    "check_in_one_group",
    "ended",
    "immutable",
    "made_a_function",
    "name_taken",
    "no_initializer",
    "no_name",
    "no_sequence",
    "not_found",
    "not_lifted",
    "not_taken",
    "raw_transformed",
    "wrong_shape",
]

_UNLIFTED = ("closure_convert", "make_jaxpr")
"""The transformations that have no lifted form of the same name."""

_IN_LAX = ("associative_scan", "cond", "fori_loop", "map", "scan", "switch", "while_loop")


def ended(scope: Scope) -> LiftError:
    """The scope is used after its time."""
    return InvalidScopeError(
        f"scope at {scope.path_text}",
        "it was used after the lift, `init` or `apply` that it belonged to had ended.",
        "Return what you need from the function instead of keeping its scope (or a module bound to it).",
    )


def raw_transformed(scope: Scope, act: str) -> LiftError:
    """The scope is used under a JAX transformation that it does not cross."""
    if scope.tree.lifts:
        lift = scope.tree.lifts[-1]
        return JaxTransformError(
            f"{act} at {scope.path_text}",
            f"it belongs outside {lift}, and was used inside, where it cannot change.",
            "Use the scope (or module) that the lifted function is given; hand others over as arguments or fields.",
        )
    name = raw_transformation()
    if name is None or name in _UNLIFTED:
        fix = "Transform a pure function instead, such as `liftcore.purify` makes."
    else:
        fix = f"Use the lifted transformation: `liftcore.{name}` (over a module: `nn.{name}`)."
    return JaxTransformError(
        f"{act} at {scope.path_text}",
        f"{_written(name)} was applied to a function that uses a live scope or module, whose state cannot cross it.",
        fix,
    )


def _written(name: str | None) -> str:
    """A transformation as one writes it."""
    if name is None:
        return "a raw JAX transformation"
    inside = {**dict.fromkeys(_IN_LAX, "lax."), "custom_vmap": "custom_batching.", "checkify": "experimental.checkify."}
    return f"jax.{inside.get(name, '')}{name}"


def name_taken(scope: Scope, name: str, wanted: str | None, held: Sequence[str]) -> LiftError:
    """A name is asked for twice, by a variable of a collection, or by a scope (None); `held` is who has it."""
    return NameInUseError(
        f'"{name}" at {scope.path_text}',
        f"{_owner(wanted)} asks for the name, and {_owner(held[0] if held else None)} has it already.",
        f'Make it once and keep it, or give one of them another name, such as "{name}_2".',
    )


def _owner(collection: str | None) -> str:
    return "a scope (or submodule)" if collection is None else f'a variable of "{collection}"'


def no_name(scope: Scope, name: Any, collection: str | None) -> LiftError:
    """A name is asked for that is no text."""
    if collection is None:
        fix = f'Write `name="{name}"`.'
    else:
        fix = f"Write `{'param(name' if collection == 'params' else 'variable(collection, name'}, init_fn)`."
    return LiftArgumentError(
        f"{_owner(collection)} at {scope.path_text}", f"expected text as its name, given {shown(name)}.", fix
    )


def no_initializer(scope: Scope, collection: str, name: str, init_fn: Any) -> LiftError:
    """Something else than a function is given to make a variable."""
    key = " of a key" if collection == "params" else ""
    return LiftArgumentError(
        f'"{collection}/{name}" at {scope.path_text}',
        f"expected an initializer, a function{key}, given {shown(init_fn)}.",
        f"Pass a function that makes the value: `lambda{' key' if key else ''}: value`.",
    )


def made_a_function(scope: Scope, name: str, init_fn: Any) -> LiftError:
    """The initializer of a parameter made another initializer."""
    text = getattr(init_fn, "__name__", "init_fn")
    return LiftArgumentError(
        f'"params/{name}" at {scope.path_text}',
        f"its initializer {text} made a function, not a value.",
        f"Call it first: `{text}()` is the initializer.",
    )


def not_taken(scope: Scope, collection: str, name: str, lift: Lift, done: str) -> LiftError:
    """A variable is written or created (`done`) that no output group of the lift takes."""
    listed = lift.groups.taken if lift.groups.taken(("", ""), None) else subtract(lift.groups.taken, "perturbations")
    return UnliftedCollectionError(
        f'"{collection}/{name}" at {scope.path_text}',
        f'collection "{collection}" was {done}, but no output group of {lift.name} takes it '
        f"(output groups: {short_form(listed)}).",
        f"Add {lift.groups.advice.collection.format(collection)}.",
    )


def not_lifted(scope: Scope, collection: str, name: str, lift: Lift) -> LiftError:
    """A variable is asked for that the lift does not take in."""
    return UnliftedCollectionError(
        f'"{collection}/{name}" at {scope.path_text}',
        f"it exists outside {lift.name}, but no input group takes it in (lifted: {list(scope.tree.variables)}).",
        f"Add {lift.groups.advice.collection.format(collection)}.",
    )


def immutable(scope: Scope, collection: str, name: str) -> LiftError:
    """A variable of an immutable collection is written."""
    return ModifyScopeVariableError(
        f'"{collection}/{name}" at {scope.path_text}',
        f'collection "{collection}" is immutable here (mutable: {short_form(scope.tree.outermost().mutable)}).',
        f'Ask for it: `apply(..., mutable=["{collection}"])`.',
    )


def check_in_one_group(scope: Scope, path: Path, value: Mapping[str, Any], lift: Lift) -> None:
    """Checks that a lift takes a variable that is a dict in one group.

    Raises:
        LiftArgumentError: where its filters tell the parts of the dict apart, or from the variable.
    """

    def group(path: Path, value: Any) -> int:
        found = (number for number, takes in enumerate(lift.groups.into) if takes(path, value))
        return next(found, len(lift.groups.into))

    parts = {path: group(path, value)} | {
        (*path, *below): group((*path, *below), leaf) for below, leaf in leaves_of(value)
    }
    if len(set(parts.values())) > 1:
        names = [*map(short_form, lift.groups.into), "not lifted"]
        told = ", ".join(f'"{"/".join(map(str, one))}" by {names[number]}' for one, number in parts.items())
        raise LiftArgumentError(
            f'"{"/".join(path)}" in {lift.name} at {scope.path_text}',
            f"it is one variable whose value is a dict, and the lift takes its parts in several groups: {told}.",
            f'Let one filter take all of it, such as PathContains("{path[-1]}").',
        )


def not_found(scope: Scope, collection: str, name: str, available: Sequence[str]) -> LiftError:
    """A variable is asked for that does not exist and may not be made."""
    where = f'"{collection}/{name}" at {scope.path_text}'
    if scope.is_mutable_collection(collection):
        kind = ScopeCollectionNotFound if scope.is_collection_empty(collection) else ScopeVariableNotFoundError
        return kind(
            where,
            f"there is no such variable (available there: {sorted(available)}), and no `init_fn` to make it.",
            f'Give one: `variable("{collection}", "{name}", init_fn)`.',
        )
    if scope.is_collection_empty(collection):
        empty = collection in scope.tree.variables
        return ScopeCollectionNotFound(
            where,
            f'the collection "{collection}" is empty, and it is immutable.'
            if empty
            else f'there is no collection "{collection}" (given: {list(scope.tree.variables)}), and it is immutable.',
            f'Give it, `apply({{"{collection}": …}})`, or let it be made: `mutable=["{collection}"]`.',
        )
    missing = ScopeParamNotFoundError if collection == "params" else ScopeVariableNotFoundError
    return missing(
        where,
        f"there is no such variable ({_available(scope, collection, available)}), and nothing may make it.",
        f'Check that the variables come from `init` of the same model, or pass `mutable=["{collection}"]`.',
    )


def _available(scope: Scope, collection: str, available: Sequence[str]) -> str:
    """What there is; where nothing is, what there is at the nearest place above that has something."""
    place: Scope | None = scope
    while not available and place is not None and place.parent is not None:
        name, place = place.name, place.parent
        found = place.collections_below().get(collection, {})
        if name in found and not isinstance(found[name], Mapping):
            return f'"{name}" at {place.path_text} is {shown(found[name])}, not the variables of a module'
        available = list(found)
    where = "there" if place is scope or place is None else f"at {place.path_text}"
    return f"available {where}: {sorted(available)}"


def wrong_shape(scope: Scope, name: str, given: Any, expected: Any) -> LiftError:
    """A stored parameter has other shapes than its initializer makes."""
    return ScopeParamShapeError(
        f'param "{name}" at {scope.path_text}',
        f"the stored value has {_shape(given)}, its initializer makes {_shape(expected)}.",
        "Check the sizes of the module and of its inputs, or call `init` again for this model.",
    )


def _shape(tree: Any) -> str:
    if tree is None:
        return "no shape, it is None"
    if jax.tree_util.all_leaves([tree]):
        return f"shape {np.shape(tree)}"
    shapes = [str(np.shape(leaf)) for leaf in jax.tree.leaves(tree)]
    return f"shapes {', '.join(shapes[:3])}{', …' if len(shapes) > 3 else ''} in a {type(tree).__name__}"


def no_sequence(scope: Scope, name: str) -> LiftError:
    """A key is drawn from a sequence that was not given, or not lifted."""
    where = f'make_rng("{name}") at {scope.path_text}'
    given, lift = scope.tree.given, scope.tree.lift
    if lift is not None and (name in given or rng.DEFAULT in given):
        return UnliftedSequenceError(
            where,
            f"the sequence was given, but {lift.name} does not pass it in (lifted: {list(scope.tree.rngs)}).",
            f"Add {lift.groups.advice.sequence.format(name)}.",
        )
    return InvalidRngError(
        where,
        f'no PRNG sequence "{name}" was given{"" if name == rng.DEFAULT else ", nor params"} (given: {list(given)}).',
        f'Pass one: `rngs={{"{name}": jax.random.key(0)}}`.',
    )
