"""Declaring variables: the checks of a scope before it is used, and the initial values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from .. import errors, meta, rng
from .._compat import trace_state
from ..errors import note_call, refused, shown
from ..typing import Path
from ..values import shapes
from . import problems
from .tree import Tree

if TYPE_CHECKING:
    from .scope import Scope

__all__ = [
    "Checking",
    "check_creatable",
    "check_lifted",
    "check_one",
    "check_shape",
    "check_variables",
    "initial_value",
    "key_for",
]


class Checking:
    """Checks that a scope has not ended, that it may change here, and that a variable may be written."""

    __slots__ = ()

    path: Path
    tree: Tree
    _ended: bool

    def check_valid(self) -> None:
        """Check that the scope has not ended."""
        if self._ended or not self.tree.alive:
            raise problems.ended(cast("Scope", self))

    def check_live(self, act: str, *names: str) -> None:
        """Check that the scope has not ended, and that no transformation is between the scope and the caller."""
        if self._ended or not self.tree.alive:
            raise problems.ended(cast("Scope", self))
        tree = self.tree
        if (tree.lifts and tree.running_lift) or not trace_state() == tree.trace:  # `!=` would take longer than `==`
            raise problems.raw_transformed(cast("Scope", self), f'{act} "{"/".join(names)}"')
        if (tree.thread != get_ident() or tree.reads) and not tree.may_change():
            raise problems.two_threads(cast("Scope", self), f'{act} "{"/".join(names)}"')

    def is_collection_empty(self, collection: str) -> bool:
        """Whether a collection is empty in the whole tree.

        Args:
            collection: the name of the collection.
        """
        held = self.tree.variables.get(collection)
        return not (held and self.tree.exists((collection, *self.tree.base), held))

    def must_create(self, collection: str, name: str) -> bool:
        """Whether code that creates a variable must run here.

        It must if the variable does not exist, see `has_variable`. In the rule of a custom derivative,
        `create_variable` then keeps the value that the function created.

        Args:
            collection: the collection of the variable.
            name: the name of the variable.
        """
        return not cast("Scope", self).has_variable(collection, name)

    def redraws(self, collection: str, name: str) -> bool:
        """Whether a variable that exists is declared for the first time, so that its draws count again; record that."""
        path = (collection, *self.path, name)
        if not self.tree.must_redraw(path):
            return False
        self.tree.made_again.add(path)
        return True

    def check_put(self, collection: str, name: str, value: Any) -> None:
        """Check that a value may be written here."""
        if isinstance(value, Mapping):
            check_one(cast("Scope", self), collection, name)
        self.check_writable(collection, name, value, "written")

    def check_writable(self, collection: str, name: str, value: Any, done: str) -> None:
        """Check that the collection, or the variable, is mutable."""
        decided, path = self.tree.writable(collection), (collection, *self.path, name)
        if not decided and not (decided is None and self.tree.mutable(path, value)):
            inside = self.tree.without_output(path, value)
            if inside is not None:
                raise problems.not_taken(cast("Scope", self), collection, name, inside, done)
            raise problems.immutable(cast("Scope", self), collection, name)
        if done == "created" and not self.tree.creates:
            raise problems.creates_nothing(cast("Scope", self), collection, name)


def check_variables(variables: Any) -> None:
    """Check that variables have the form `{collection: {module: {name: value}}}`.

    Raises:
        ApplyScopeInvalidVariablesTypeError: if `variables`, or a collection, is not a mapping.
        ApplyScopeInvalidVariablesStructureError: if the variables are nested one level too deep.
    """
    if not isinstance(variables, Mapping):
        raise errors.ApplyScopeInvalidVariablesTypeError(
            "variables",
            f"expected a mapping {{collection: {{name: value}}}}, given {shown(variables)}.",
            'Pass the variables that `init` returned, such as `{"params": {…}}`.',
        )
    inner = variables.get("params")
    if isinstance(inner, Mapping) and isinstance(inner.get("params"), Mapping):
        raise errors.ApplyScopeInvalidVariablesStructureError(
            'variables["params"]',
            'it contains another "params", so the variables are nested one level too deep.',
            'Pass `variables` instead of `{"params": variables}`.',
        )
    for name, found in variables.items():
        if not isinstance(name, str):
            raise errors.ApplyScopeInvalidVariablesTypeError(
                "variables", f"expected names of collections, given {shown(name)}.", 'Name it: `{"params": {…}}`.'
            )
        if not isinstance(found, Mapping):
            raise errors.ApplyScopeInvalidVariablesTypeError(
                f'variables["{name}"]',
                f"expected a collection (a mapping from names), given {shown(found)}.",
                'Pass `{"params": params}`, not `params` alone.',
            )


def check_lifted(scope: Scope, collection: str, name: str) -> None:
    """Raise if a variable exists outside, but a lift does not pass it in. The error names the outermost such lift."""
    asking, path = scope, (collection, *scope.path, name)
    while scope.tree.outer is not None and scope.tree.lift is not None:
        outside = scope.tree.outer.below(scope.relative_path)
        found = outside.dicts(collection)
        if name in found and not any(takes(path, found[name]) for takes in scope.tree.lift.into):
            raise problems.not_lifted(asking, collection, name, scope.tree)
        scope = outside


def check_one(scope: Scope, collection: str, name: str) -> None:
    """Raise if a variable is a dict, and a lift around takes parts of it in different groups.

    If the dict was given to `apply`, it is known to be one variable only when the body declares it.
    """
    while scope.tree.outer is not None and scope.tree.lift is not None:
        lift = scope.tree.lift
        scope = scope.tree.outer.below(scope.relative_path)
        value = scope.dicts(collection).get(name)
        if isinstance(value, Mapping):
            problems.check_in_one_group(scope, (collection, *scope.path, name), value, lift)


def check_creatable(scope: Scope, collection: str, name: str, made: bool = True) -> None:
    """Raise if a missing variable must not be created; `made` tells whether there is an initializer."""
    scope.check_valid()
    check_lifted(scope, collection, name)
    if made and scope.tree.writable(collection) is not False:
        if not scope.tree.creates and name not in scope.dicts(collection):
            raise problems.creates_nothing(scope, collection, name)
        return
    inside = scope.tree.without_output((collection, *scope.path, name), None) if made else None
    if inside is not None:
        raise problems.not_taken(scope, collection, name, inside, "created")
    raise problems.not_found(scope, collection, name, list(scope.dicts(collection)))


def initial_value(
    scope: Scope, collection: str, name: str, init_fn: Any, keyed: bool, *args: Any, **kwargs: Any
) -> Any:
    """Return an initial value; if `keyed`, the initializer receives a key first."""
    if not callable(init_fn):
        raise problems.no_initializer(scope, collection, name, init_fn)
    given = (key_for(scope, init_fn), *args) if keyed else args
    try:
        value = init_fn(*given, **kwargs)
    except TypeError as error:
        note_call(error, f'"{collection}/{name}" at {scope.path_text}', init_fn, given, kwargs)
        if not keyed and refused(init_fn, given, kwargs):
            error.add_note("It receives no key. To use one, draw it in the function, with `make_rng()`.")
        raise
    shape = getattr(value.value, "shape", None) if isinstance(value, meta.Partitioned) else None
    if shape is not None and len(value.names) > len(shape):  # as in a `PartitionSpec`, axes beyond the last have none
        raise problems.wrong_names(scope, collection, name, value.names, shape)
    return value


def key_for(scope: Scope, init_fn: Callable[..., Any]) -> Any:
    """Return the key for an initializer, or None if it ignores its key; the draw is counted in both cases."""
    if rng.ignores_key(init_fn):
        scope.count_draw(rng.DEFAULT)
        return None
    return scope.make_rng(rng.DEFAULT)


def check_shape(
    scope: Scope, name: str, value: Any, init_fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise if an existing parameter has a different shape from the one that its initializer would make."""
    if init_fn is None:  # it is only read, so only a requested shape can differ
        wanted = args[0] if args else kwargs.get("shape")
        if type(wanted) is tuple and np.shape(meta.unbox(value)) != wanted:
            raise problems.wrong_shape(scope, name, meta.unbox(value), wanted, asked=True)
        return
    if not callable(init_fn):
        raise problems.no_initializer(scope, "params", name, init_fn)
    value, expected = (
        meta.unbox(value),
        meta.unbox(jax.eval_shape(lambda: init_fn(jax.random.key(0), *args, **kwargs))),
    )
    if shapes(value) != shapes(expected):
        raise problems.wrong_shape(scope, name, value, expected)
