"""What a scope says when it is misused: each function returns the error to raise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .. import errors, rng
from .._compat import raw_transformation
from ..errors import LiftError, name_of, shown
from ..filters import leaves_of, short_form, subtract

if TYPE_CHECKING:
    from ..typing import Path
    from .scope import Scope
    from .tree import Lift, Tree

__all__ = [
    "check_in_one_group",
    "check_variables",
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
    "wrong_function",
    "wrong_initializer",
    "wrong_names",
    "wrong_shape",
]

_UNLIFTED = ("closure_convert", "make_jaxpr")
"""The transformations that have no lifted form of the same name."""

_IN_LAX = ("associative_scan", "cond", "fori_loop", "map", "scan", "switch", "while_loop")


def ended(scope: Scope) -> LiftError:
    """The scope is used after its time."""
    return errors.InvalidScopeError(
        f"scope at {scope.path_text}",
        "it was used after the lift, `init` or `apply` that it belonged to had ended.",
        "Return what you need from the function instead of keeping its scope (or a module bound to it).",
    )


def raw_transformed(scope: Scope, act: str) -> LiftError:
    """The scope is used under a JAX transformation that it does not cross."""
    lift = scope.tree.running_lift
    if lift is not None:
        return errors.JaxTransformError(
            f"{act} at {scope.path_text}",
            f"it belongs outside {lift}, and was used inside, where it cannot change.",
            "Use the scope (or module) that the lifted function is given; hand others over as arguments or fields.",
        )
    name = raw_transformation()
    if name is None or name in _UNLIFTED:
        fix = "Transform a pure function instead, such as `liftcore.purify` makes."
    else:
        fix = f"Use the lifted transformation: `liftcore.{name}`."
    return errors.JaxTransformError(
        f"{act} at {scope.path_text}",
        f"{_written(name)} was applied to a function that uses a live scope or module, whose state cannot cross it.",
        fix,
    )


def two_threads(scope: Scope, act: str) -> LiftError:
    """The scope is changed in one thread while another one has it."""
    return errors.ThreadError(
        f"{act} at {scope.path_text}",
        "another thread uses the same bound module or scope; both may read it, and only one may change it.",
        "Bind one for each thread, `liftcore.bind(variables, …)`, or call `liftcore.apply(fn)(variables, …)` in each.",
    )


def _written(name: str | None) -> str:
    """A transformation as one writes it."""
    if name is None:
        return "a raw JAX transformation"
    inside = {**dict.fromkeys(_IN_LAX, "lax."), "custom_vmap": "custom_batching.", "checkify": "experimental.checkify."}
    return f"jax.{inside.get(name, '')}{name}"


def name_taken(scope: Scope, name: str, wanted: str | None, held: Sequence[str], outside: bool = False) -> LiftError:
    """A name is asked for twice, by a variable of a collection, or by a scope (None).

    `held` is who has it, and `outside` whether that is a scope that was named before the lift around.
    """
    once = "Make it once, before the lift, and use that one inside" if outside else "Make it once and keep it"
    return errors.NameInUseError(
        f'"{name}" at {scope.path_text}',
        f"{_owner(wanted)} asks for the name, and {_owner(held[0] if held else None)} has it already"
        f"{', outside of the lift' if outside else ''}.",
        f'{once}, or give one of them another name, such as "{name}_2".',
    )


def _owner(collection: str | None) -> str:
    return "a scope (or submodule)" if collection is None else f'a variable of "{collection}"'


def no_name(scope: Scope, name: Any, collection: str | None) -> LiftError:
    """A name is asked for that is no text, or no part of a path."""
    if isinstance(name, str):
        return errors.LiftArgumentError(
            f"{_owner(collection)} at {scope.path_text}",
            f"expected a name that is one part of a path, given {name!r}.",
            "Give it a name that is not empty and has no `/` in it; for levels, nest scopes (or modules)."
            if collection is None
            else "Give it a name that is not empty.",
        )
    if collection is None:
        fix = f'Write `name="{name}"`.'
    else:
        fix = f"Write `scope.{'param(name' if collection == 'params' else 'variable(collection, name'}, init_fn)`."
    return errors.LiftArgumentError(
        f"{_owner(collection)} at {scope.path_text}", f"expected text as its name, given {shown(name)}.", fix
    )


def no_collection(scope: Scope, name: str, collection: Any) -> LiftError:
    """A variable is asked for in what can be the name of no collection."""
    return errors.LiftArgumentError(
        f'the collection of "{name}" at {scope.path_text}',
        f"expected a name that is one part of a path, given {shown(collection)}.",
        'Write `scope.variable(collection, name, init_fn)`, with a collection such as "state".',
    )


def no_initializer(scope: Scope, collection: str, name: str, init_fn: Any) -> LiftError:
    """Something else than a function is given to make a variable."""
    key = " of a key" if collection == "params" else ""
    return errors.LiftArgumentError(
        f'"{collection}/{name}" at {scope.path_text}',
        f"expected an initializer, a function{key}, given {shown(init_fn)}.",
        f"Pass a function that makes the value: `lambda{' key' if key else ''}: value`.",
    )


def wrong_initializer(
    scope: Scope, collection: str, name: str, init_fn: Any, taken: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> LiftError:
    """An initializer cannot take what it is called with; `taken` are its parameters."""
    text, keyed = name_of(init_fn), collection == "params"
    given = [*(["key"] if keyed else []), *map(shown, args), *(f"{key}=…" for key in kwargs)]
    parameters = [*(["key"] if keyed else []), *(["shape"] if args and isinstance(args[0], tuple) else [])]
    rest = ["*args"] if len(args) + keyed > len(parameters) else []
    return errors.LiftArgumentError(
        f'"{collection}/{name}" at {scope.path_text}',
        f"its initializer {text} is called as `{text}({', '.join(given)})`, and takes `{taken}`.",
        f"Write `lambda {', '.join([*parameters, *rest])}: value`."
        if keyed
        else "Leave the parameters out, `lambda: value`; for a key, draw one: `lambda: init_fn(scope.make_rng())`.",
    )


def made_no_value(scope: Scope, name: str, init_fn: Any, made: Any) -> LiftError:
    """The initializer of a parameter made nothing, or another initializer."""
    text = name_of(init_fn)
    if made is None:
        what = "returned None"
        fix = "Return an array, or a pytree of arrays; where there is to be no parameter, do not ask for one."
    else:
        what, fix = "made a function, not a value", f"Call it first: `{text}()` is the initializer."
    return errors.LiftArgumentError(f'"params/{name}" at {scope.path_text}', f"its initializer {text} {what}.", fix)


def _lift_of(scope: Scope, inside: Tree) -> str:
    """The lift that a tree is inside of, for the text of an error of a scope in it, or further in.

    Where it is not the innermost one around the scope, its place is shown too: equal lifts may be nested.
    """
    lift, outer = _lift(inside), inside.outer
    assert outer is not None
    return lift.name if inside is scope.tree else f"{lift.name} at {outer.path_text}"


def _lift(inside: Tree) -> Lift:
    assert inside.lift is not None, "only trees inside lifts are asked about"
    return inside.lift


def wrong_function(where: str, fn: Any, taken: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> LiftError:
    """A function of scopes cannot take what it is called with; `taken` are its parameters."""
    text = name_of(fn)
    given = ["scope", *map(shown, args), *(f"{key}={shown(value)}" for key, value in kwargs.items())]
    return errors.LiftArgumentError(
        where,
        f"{text} takes `{taken}`, and is called with the scope (or module) first: `{text}({', '.join(given)})`.",
        "Give it the scope (or module) as its first parameter, and after that one for each argument of the call.",
    )


def returned(where: str, fn: Any, kind: str) -> LiftError:
    """A function of scopes returned a scope, or a variable: the `kind`."""
    return errors.LiftArgumentError(
        where,
        f"{name_of(fn)} returned a {kind}, which ends with the lift.",
        "Return arrays: what is computed with it, or the value of the variable.",
    )


def not_taken(scope: Scope, collection: str, name: str, inside: Tree, done: str) -> LiftError:
    """A variable is written or created (`done`) that the lift does not let out which a tree is inside of."""
    lift, where = _lift(inside), f'"{collection}/{name}" at {scope.path_text}'
    if lift.taken((collection, *scope.path, name), None):
        return errors.ModifyScopeVariableError(
            where,
            f'collection "{collection}" was {done}, but {_lift_of(scope, inside)} made its scopes without leave to.',
            f'Let it be written: `scope_fn(variable_groups, rng_groups, mutable="{collection}")`.',
        )
    listed = lift.taken if lift.taken(("", ""), None) else subtract(lift.taken, "perturbations")
    return errors.UnliftedCollectionError(
        where,
        f'collection "{collection}" was {done}, but no output group of {_lift_of(scope, inside)} takes it '
        f"(output groups: {short_form(listed)}).",
        f"Add {lift.advice.collection.format(collection)}.",
    )


def not_lifted(scope: Scope, collection: str, name: str, inside: Tree) -> LiftError:
    """A variable is asked for that the lift does not take in which a tree is inside of."""
    return errors.UnliftedCollectionError(
        f'"{collection}/{name}" at {scope.path_text}',
        f"it exists outside {_lift_of(scope, inside)}, but no input group takes it in "
        f"(lifted: {list(inside.variables)}).",
        f"Add {_lift(inside).advice.collection.format(collection)}.",
    )


def creates_nothing(scope: Scope, collection: str, name: str) -> LiftError:
    """A variable is created in a scope that creates nothing."""
    missing = errors.ScopeParamNotFoundError if collection == "params" else errors.ScopeVariableNotFoundError
    return missing(
        f'"{collection}/{name}" at {scope.path_text}',
        f"there is no such variable ({_available(scope, collection, list(scope.dicts(collection)))}), and the scope "
        "was bound with `creates=False`.",
        "Give it, or bind the scope without `creates=False`.",
    )


def immutable(scope: Scope, collection: str, name: str) -> LiftError:
    """A variable of an immutable collection is written."""
    return errors.ModifyScopeVariableError(
        f'"{collection}/{name}" at {scope.path_text}',
        f'collection "{collection}" is immutable here (mutable: {short_form(scope.tree.outermost().mutable)}).',
        f'Ask for it: `apply(..., mutable=["{collection}"])`.',
    )


def wrong_names(scope: Scope, collection: str, name: str, names: Sequence[Any], shape: tuple[int, ...]) -> LiftError:
    """A new variable has more names of axes than axes, or fewer."""
    fitting = (*names, *[None] * len(shape))[: len(shape)]
    return errors.LiftArgumentError(
        f'"{collection}/{name}" at {scope.path_text}',
        f"it has {len(names)} names of axes, {tuple(names)}, and {len(shape)} axes: its shape is {tuple(shape)}.",
        f"Give each axis a name, and None to one that is not split: `with_partitioning(init_fn, {fitting})`; a "
        "lift names the axes that it adds itself.",
    )


def check_in_one_group(scope: Scope, path: Path, value: Mapping[str, Any], lift: Lift) -> None:
    """Checks that a lift takes a variable that is a dict in one group.

    Raises:
        LiftArgumentError: where its filters tell the parts of the dict apart, or from the variable.
    """

    def group(path: Path, value: Any) -> int:
        found = (number for number, takes in enumerate(lift.into) if takes(path, value))
        return next(found, len(lift.into))

    parts = {path: group(path, value)} | {
        (*path, *below): group((*path, *below), leaf) for below, leaf in leaves_of(value)
    }
    if len(set(parts.values())) > 1:
        names = [*map(short_form, lift.into), "not lifted"]
        told = ", ".join(f'"{"/".join(map(str, one))}" by {names[number]}' for one, number in parts.items())
        raise errors.LiftArgumentError(
            f'"{"/".join(path)}" in {lift.name} at {scope.path_text}',
            f"it is one variable whose value is a dict, and the lift takes its parts in several groups: {told}.",
            f'Let one filter take all of it, such as PathContains("{path[-1]}").',
        )


def not_found(scope: Scope, collection: str, name: str, available: Sequence[str]) -> LiftError:
    """A variable is asked for that does not exist and may not be made."""
    where = f'"{collection}/{name}" at {scope.path_text}'
    is_empty = scope.is_collection_empty(collection)
    if scope.is_mutable_collection(collection):
        kind = errors.ScopeCollectionNotFound if is_empty else errors.ScopeVariableNotFoundError
        return kind(
            where,
            f"there is no such variable (available there: {sorted(available)}), and no `init_fn` to make it.",
            f'Give one: `scope.variable("{collection}", "{name}", init_fn)`.',
        )
    if is_empty:
        return errors.ScopeCollectionNotFound(
            where,
            f'the collection "{collection}" is empty, and it is immutable.'
            if collection in scope.tree.variables
            else f'there is no collection "{collection}" (given: {list(scope.tree.variables)}), and it is immutable.',
            f'Give it, `apply({{"{collection}": …}})`, or let it be made: `mutable=["{collection}"]`.',
        )
    missing = errors.ScopeParamNotFoundError if collection == "params" else errors.ScopeVariableNotFoundError
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


def wrong_shape(scope: Scope, name: str, given: Any, expected: Any, asked: bool = False) -> LiftError:
    """A stored parameter has other shapes than its initializer makes, or another one than was `asked` for."""
    shape = f"shape {expected} was asked for" if asked else f"its initializer makes {_shape(expected)}"
    return errors.ScopeParamShapeError(
        f'param "{name}" at {scope.path_text}',
        f"the stored value has {_shape(given)}, {shape}.",
        "Check the sizes of the module and of its inputs, or call `init` again for this model.",
    )


def _shape(tree: Any) -> str:
    if tree is None:
        return "no shape, it is None"
    if jax.tree_util.all_leaves([tree]):
        return f"shape {np.shape(tree)}"
    shapes = [str(np.shape(leaf)) for leaf in jax.tree.leaves(tree)]
    return f"shapes {', '.join(shapes[:3])}{', …' if len(shapes) > 3 else ''} in a {type(tree).__name__}"


def no_stream(scope: Scope, name: str) -> LiftError:
    """A key is drawn from a stream that was not given, or not lifted."""
    where = f'make_rng("{name}") at {scope.path_text}'
    given, inside = scope.tree.given, scope.tree.without_stream(name)
    if inside is not None:
        return errors.UnliftedStreamError(
            where,
            f"the stream was given, but {_lift_of(scope, inside)} does not pass it in (lifted: {list(inside.rngs)}).",
            f"Add {_lift(inside).advice.stream.format(name)}.",
        )
    return errors.InvalidRngError(
        where,
        f'no RNG stream "{name}" was given{"" if name == rng.DEFAULT else ", nor params"} (given: {list(given)}).',
        f'Pass one: `rngs={{"{name}": jax.random.key(0)}}`.',
    )


def check_variables(variables: Any) -> None:
    """Checks that a root scope is made of `{collection: {module: {name: value}}}`.

    Raises:
        ApplyScopeInvalidVariablesTypeError: where `variables`, or a collection, is no mapping.
        ApplyScopeInvalidVariablesStructureError: where all lies one level too deep.
    """
    if not isinstance(variables, Mapping):
        raise errors.ApplyScopeInvalidVariablesTypeError(
            "variables",
            f"expected a mapping {{collection: {{name: value}}}}, given {shown(variables)}.",
            'Pass the variables that `init` returned, such as {"params": {…}}.',
        )
    inner = variables.get("params")
    if isinstance(inner, Mapping) and isinstance(inner.get("params"), Mapping):
        raise errors.ApplyScopeInvalidVariablesStructureError(
            'variables["params"]',
            'it holds another "params", so the variables lie one level too deep.',
            'Pass `variables` where you pass `{"params": variables}`.',
        )
    for name, found in variables.items():
        if not isinstance(name, str):
            raise errors.ApplyScopeInvalidVariablesTypeError(
                "variables", f"expected names of collections, given {shown(name)}.", 'Name it: {"params": {…}}.'
            )
        if not isinstance(found, Mapping):
            raise errors.ApplyScopeInvalidVariablesTypeError(
                f'variables["{name}"]',
                f"expected a collection (a mapping from names), given {shown(found)}.",
                'Pass {"params": params}, not params alone.',
            )
