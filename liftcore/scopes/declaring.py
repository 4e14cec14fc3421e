"""What a scope checks: when a body declares a variable, and before it is used, drawn from or written to."""

from __future__ import annotations

from collections.abc import Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from .. import meta
from .._compat import trace_state
from ..typing import Path
from ..values import shapes
from . import problems
from .tree import Tree

if TYPE_CHECKING:
    from .scope import Scope

__all__ = ["Checking", "check_creatable", "check_known", "check_lifted", "check_one", "check_shape", "names_checked"]


class Checking:
    """The checks of a scope: that it has not ended, that it may change here, and that a variable may be written."""

    __slots__ = ()

    path: Path
    tree: Tree
    _ended: bool

    def check_valid(self) -> None:
        """Checks that the scope has not ended."""
        if self._ended or not self.tree.alive:
            raise problems.ended(cast("Scope", self))

    def check_live(self, act: str, *names: str) -> None:
        """Checks that the scope has not ended, and that no transformation lies between it and the caller."""
        if self._ended or not self.tree.alive:
            raise problems.ended(cast("Scope", self))
        tree = self.tree
        if (tree.lifts and tree.running_lift) or not trace_state() == tree.trace:  # `!=` would take longer than `==`
            raise problems.raw_transformed(cast("Scope", self), f'{act} "{"/".join(names)}"')
        if (tree.thread != get_ident() or tree.reads) and not tree.may_change():
            raise problems.two_threads(cast("Scope", self), f'{act} "{"/".join(names)}"')

    def check_put(self, collection: str, name: str, value: Any) -> None:
        """Checks that a value may be written here."""
        if isinstance(value, Mapping):
            check_one(cast("Scope", self), collection, name)
        self.check_writable(collection, name, value, "written")

    def check_writable(self, collection: str, name: str, value: Any, done: str) -> None:
        """Checks that the collection, or the variable, is mutable."""
        decided, path = self.tree.writable(collection), (collection, *self.path, name)
        if not decided and not (decided is None and self.tree.mutable(path, value)):
            inside = self.tree.without_output(path, value)
            if inside is not None:
                raise problems.not_taken(cast("Scope", self), collection, name, inside, done)
            raise problems.immutable(cast("Scope", self), collection, name)
        if done == "created" and not self.tree.creates:
            raise problems.creates_nothing(cast("Scope", self), collection, name)


def check_lifted(scope: Scope, collection: str, name: str) -> None:
    """Raises where a variable is missing only since a lift does not take it in: of several, the outermost."""
    asking, path = scope, (collection, *scope.path, name)
    while scope.tree.outer is not None and scope.tree.lift is not None:
        outside = scope.tree.outer.below(scope.relative_path)
        found = outside.dicts(collection)
        if name in found and not any(takes(path, found[name]) for takes in scope.tree.lift.into):
            raise problems.not_lifted(asking, collection, name, scope.tree)
        scope = outside


def check_one(scope: Scope, collection: str, name: str) -> None:
    """Raises where a variable is a dict of which lifts around take parts in several groups.

    Where the dict was given to `apply`, only a body that declares the variable tells that it is one.
    """
    while scope.tree.outer is not None and scope.tree.lift is not None:
        lift = scope.tree.lift
        scope = scope.tree.outer.below(scope.relative_path)
        value = scope.dicts(collection).get(name)
        if isinstance(value, Mapping):
            problems.check_in_one_group(scope, (collection, *scope.path, name), value, lift)


def check_creatable(scope: Scope, collection: str, name: str, made: bool = True) -> None:
    """Raises where a variable that does not exist may not be made; `made` says whether there is an initializer."""
    scope.check_valid()
    check_lifted(scope, collection, name)
    if scope.is_mutable_collection(collection) and made:
        check_known(scope, collection, name)
        return
    inside = scope.tree.without_output((collection, *scope.path, name), None) if made else None
    if inside is not None:
        raise problems.not_taken(scope, collection, name, inside, "created")
    raise problems.not_found(scope, collection, name, list(scope.dicts(collection)))


def check_known(scope: Scope, collection: str, name: str) -> None:
    """Raises where a variable is missing in a scope that creates nothing."""
    if not scope.tree.creates and name not in scope.dicts(collection):
        raise problems.creates_nothing(scope, collection, name)


def names_checked(scope: Scope, collection: str, name: str, box: Any, initial: bool = True) -> Any:
    """The value of a new variable, which may be in a `Partitioned`: that has as many names as the array has axes.

    Inside a lift it may have fewer, since one around may name an axis that is there, or one that will not be there (see
    `liftcore.add_metadata_axis`): `initial` says whether this is what the initializer made. One may name nothing.
    """
    if isinstance(box, meta.Partitioned) and hasattr(box.value, "shape"):
        count, size = len(box.names), len(box.value.shape)
        if (count > size and initial) or (count < size and scope.tree.lift is None and any(box.names)):
            raise problems.wrong_names(scope, collection, name, box.names, box.value.shape)
    return box


def check_shape(
    scope: Scope, name: str, value: Any, init_fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raises where a parameter that exists has another shape than its initializer would make."""
    if init_fn is None:  # it is only read: there is nothing but the shape asked for that it might differ from
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
