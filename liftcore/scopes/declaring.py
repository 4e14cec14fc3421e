"""Declaring variables: the names in a scope, the checks before it is used, and the initial values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from .. import errors, meta, rng
from .._compat import trace_state
from ..calls import note_call, refused
from ..statics import Undescribed
from ..typing import Path
from ..values import shapes
from . import problems
from .tree import Counter, Names, Tree

if TYPE_CHECKING:
    from .scope import Scope

__all__ = [
    "Declaring",
    "check_creatable",
    "check_lifted",
    "check_one",
    "check_shape",
    "check_variables",
    "create_missing",
    "initial_value",
    "key_for",
]

_NO_NAMES = Names()


class Declaring:
    """Takes the names in a scope, of its child scopes and of its variables, and checks that it may be used and change.

    A name is taken once. Numbers of automatic names are counted for each prefix.
    """

    __slots__ = ("_adopted", "_first_free", "_numbers", "_outside", "_reserved", "_shared")

    _adopted: tuple[Names, ...]
    _reserved: dict[str, set[str | None]]
    _outside: set[tuple[str, str | None]]  # names taken outside the lift, less the variables declared inside as well
    _numbers: dict[str, int]
    _shared: bool
    tree: Tree
    counter: Counter
    path: Path
    _ended: bool
    _first_free: dict[str, int] | None  # by prefix of `default_name`: a number below which all are taken

    # -- checks --------------------------------------------------------------------------------------------------------

    @property
    def is_valid(self) -> bool:
        """Whether the scope may still be used."""
        return self.tree.alive and not self._ended

    @property
    def is_claimed(self) -> bool:
        """Whether this thread owns the tree, as while its `init`, `apply` or `claim` lasts."""
        return self.tree.thread == get_ident()

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

    def check_write(self, collection: str, name: str, value: Any) -> None:
        """Check that a value may be written here and now."""
        self.check_live("writing", collection, name)
        self.check_put(collection, name, value)
        if not self.tree.creates and name not in cast("Scope", self).dicts(collection):
            raise problems.creates_nothing(cast("Scope", self), collection, name)

    def check_put(self, collection: str, name: str, value: Any) -> None:
        """Check that a value may be written here."""
        if isinstance(value, Mapping):
            check_one(cast("Scope", self), collection, name)
        self.check_writable(collection, name, value, "written")

    def check_writable(self, collection: str, name: str, value: Any, done: str) -> None:
        """Check that the collection, or the variable, is mutable, and that both can be parts of a path."""
        if not isinstance(name, str) or not name:
            raise problems.no_name(cast("Scope", self), name, collection, done == "written")
        if not isinstance(collection, str) or not collection or "/" in collection:
            raise problems.no_collection(cast("Scope", self), name, collection, done == "written")
        decided, path = self.tree.writable(collection), (collection, *self.path, name)
        if not decided and not (decided is None and self.tree.mutable(path, value)):
            inside = self.tree.without_output(path, value)
            if inside is not None:
                raise problems.not_taken(cast("Scope", self), collection, name, inside, done)
            raise problems.immutable(cast("Scope", self), collection, name)
        if done == "created" and not self.tree.creates:
            raise problems.creates_nothing(cast("Scope", self), collection, name)

    # -- names ---------------------------------------------------------------------------------------------------------

    def __static_fields__(self) -> dict[str, Any]:
        """Refuse to be compared (see `liftcore.static_key`): a scope holds variables, and changes."""
        raise Undescribed(self, fix="Pass it as an argument of a lift.")

    def name_reserved(self, name: str, collection: str | None = None) -> bool:
        """Whether a name is taken by a scope, or by a variable of the given collection (any, if it is None).

        Args:
            name: the name.
            collection: the collection to look in; by default, all of them. Names of scopes always count.
        """
        if self._adopted:
            self._unpack()
        held = self._reserved.get(name)
        return held is not None and (collection is None or collection in held or None in held)

    def reserve(self, name: str, collection: str | None = None) -> None:
        """Reserve a name for a scope, or for a variable of a collection.

        The body of a lift may declare a variable again that was declared outside: both are the same variable.

        Args:
            name: the name.
            collection: the collection of the variable; None for a scope.

        Raises:
            NameInUseError: if the name is taken.
            LiftArgumentError: if the name cannot be one part of a path. Only a variable may have a `/` in its name,
                because some Linen layers use such names.
        """
        if not isinstance(name, str) or not name or (collection is None and "/" in name):
            raise problems.no_name(cast("Scope", self), name, collection)
        if collection is not None and (not isinstance(collection, str) or not collection or "/" in collection):
            raise problems.no_collection(cast("Scope", self), name, collection)
        if self._adopted:
            self._unpack()
        if self.tree.owners:
            cast("Scope", self).check_unowned(name, collection)
        held = self._reserved.get(name)
        if held is None:
            self._reserved[name] = {collection}
        elif collection is not None and (name, collection) in self._outside:
            self._outside.discard((name, collection))
        else:
            self.check_free(name, collection)
            held.add(collection)

    def check_free(self, name: str, collection: str | None = None) -> None:
        """Check that a name is free; see `reserve`."""
        if self.name_reserved(name, collection):
            cast("Scope", self).check_valid()
            held = sorted(filter(None, self._reserved[name]))
            outside = collection is None and (name, None) in self._outside
            raise problems.name_taken(cast("Scope", self), name, collection, held, outside)

    def free(self, name: str, collection: str | None = None) -> None:
        """Release a name that `reserve` took."""
        self._unpack()
        self._first_free = None
        self._reserved.get(name, set()).discard(collection)
        self._outside.discard((name, collection))
        if not self._reserved.get(name, True):
            del self._reserved[name]

    def free_all(self, numbers: bool = True) -> None:
        """Release all names; if `numbers` is True, `number` begins from 0 again too."""
        if numbers:
            self._adopted, self._numbers = (), {}
        else:
            self._unpack()
        self._reserved, self._outside, self._first_free = {}, set(), None

    def rewound(self, rewind_rngs: bool = False) -> Scope:
        """Return a scope at the same place with all names free, for code that runs again on the same variables.

        Example:
            >>> import liftcore
            >>> scope = liftcore.bind({"params": {"w": 3.0}})
            >>> scope.param("w", lambda key: 0.0) + scope.rewound().param("w", lambda key: 0.0)
            6.0

        Args:
            rewind_rngs: whether draws from it and from scopes pushed on it count from zero, apart from those of others.
        """
        self.check_valid()
        scope = cast("Scope", self)
        rewound = type(scope).over(scope)
        if rewind_rngs:
            rewound.counter = Counter()
        return rewound

    def names(self) -> Names:
        """Return the names that are taken, the counters of automatic names, and the owners of names."""
        owners = tuple(self._owners()) if self.tree.owners else ()
        if not self._reserved and not self._numbers and not owners and len(self._adopted) < 2:
            return self._adopted[0] if self._adopted else _NO_NAMES
        self._unpack()
        taken = frozenset((name, collection) for name, held in self._reserved.items() for collection in held)
        return Names(taken, tuple(self._numbers.items()), owners)

    def _owners(self) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Yield the names that adopted values use here and below, with the owner of each; see `Names`."""
        depth = len(self.path)
        for path, held in dict(self.tree.owners).items():
            if path[:depth] == self.path:
                yield from [((*path[depth:], *name), owner) for name, owner in held.items()]

    def take_names(self, names: Names) -> None:
        """Add the names of another scope at the same place, and continue after the highest of their numbers.

        A name may come with several owners, from branches or runs of one body: the last one keeps it.
        """
        if names is _NO_NAMES:
            return
        self._adopted = (*self._adopted, names)  # unpacked only if needed: after most lifts, it never is
        if self._shared:  # another scope uses the same dict of names, and must see these
            self._unpack()
        for (*path, name, collection), owner in names.owners:
            self.tree.owners.setdefault((*self.path, *path), {})[name, collection] = owner

    @contextlib.contextmanager
    def again(self, drawn: Mapping[str, int]) -> Iterator[None]:
        """A context to run definitions a second time, with the names and the keys of the first run.

        Args:
            drawn: how many keys of each stream were drawn here since the first run began.
        """
        self._unpack()
        taken, self._reserved, self._first_free = self._reserved, {}, None
        counts = dict(self.counter.counts)
        self.counter.counts.update({name: counts[name] - number for name, number in drawn.items()})
        try:
            yield
        finally:
            self._unpack()
            self._outside -= {(name, one) for name, held in self._reserved.items() for one in held}
            for name, held in taken.items():
                self._reserved.setdefault(name, set()).update(held)
            for name, count in counts.items():
                self.counter.counts[name] = max(count, self.counter.counts.get(name, 0))

    def stand_for(self, other: Declaring) -> None:
        """Begin in place of another scope, with the names that are taken there."""
        self.take_names(other.names())
        self._outside = other._outside

    def _unpack(self) -> None:
        adopted, self._adopted = self._adopted, ()
        for names in adopted:
            for name, collection in names.taken:
                self._reserved.setdefault(name, set()).add(collection)
            for prefix, number in names.numbers:
                self._numbers[prefix] = max(number, self._numbers.get(prefix, 0))

    def number(self, prefix: str) -> int:
        """Return the next number of a prefix, from 0, to form automatic names such as `Dense_0`, `Dense_1`."""
        if self._adopted:
            self._unpack()
        number = self._numbers.get(prefix, 0)
        self._numbers[prefix] = number + 1
        return number

    def default_name(self, prefix: str) -> str:
        """Return the first of `{prefix}0`, `{prefix}1`, … that is free.

        Args:
            prefix: the text before the number.
        """
        if self._first_free is None or self._shared:  # a scope that shares the names may have released some
            self._first_free = {}
        index = self._first_free.get(prefix, 0)
        while self.name_reserved(f"{prefix}{index}"):
            index += 1
        self._first_free[prefix] = index
        return f"{prefix}{index}"


def check_variables(variables: Any) -> None:
    """Check that variables have the form `{collection: {module: {name: value}}}`.

    Raises:
        ApplyScopeInvalidVariablesTypeError: if `variables`, or a collection, is not a mapping.
        ApplyScopeInvalidVariablesStructureError: if the variables are nested one level too deep.
    """
    if not isinstance(variables, Mapping):
        raise errors.ApplyScopeInvalidVariablesTypeError(
            "variables",
            errors.Expected("a mapping {collection: {name: value}}", given=variables),
            'Pass the variables that `init` returned, such as `{"params": {…}}`.',
            option="variables",
        )
    inner = variables.get("params")
    if isinstance(inner, Mapping) and isinstance(inner.get("params"), Mapping):
        raise errors.ApplyScopeInvalidVariablesStructureError(
            'variables["params"]',
            'it contains another "params", so the variables are nested one level too deep.',
            'Pass `variables` instead of `{"params": variables}`.',
            collection="params",
        )
    for name, found in variables.items():
        if not isinstance(name, str):
            raise errors.ApplyScopeInvalidVariablesTypeError(
                "variables", errors.Expected("names of collections", given=name), 'Name it: `{"params": {…}}`.'
            )
        if not isinstance(found, Mapping):
            raise errors.ApplyScopeInvalidVariablesTypeError(
                f'variables["{name}"]',
                errors.Expected("a collection (a mapping from names)", given=found),
                'Pass `{"params": params}`, not `params` alone.',
                collection=name,
                option="variables",
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


def create_missing(scope: Scope, paths: Iterable[Path], make: Callable[[], Mapping[Path, Any]]) -> None:
    """Create those of some variables that a scope lacks.

    Args:
        scope: the scope.
        paths: for each variable, `(collection, *modules below the scope, name)`.
        make: returns the values by path; called only if one is missing, and all that are may be created.

    Raises:
        ScopeVariableNotFoundError: if a variable is missing and must not be created, or a related error.
    """
    missing = []
    for path in paths:
        below = scope.below(path[1:-1])
        if below.must_create(path[0], path[-1]):
            check_creatable(below, path[0], path[-1])
            missing.append((below, path))
    made = make() if missing else {}
    for below, path in missing:
        below.create_variable(path[0], path[-1], made[path])


_ARRAY_MODULES: dict[Any, str] = {"jax.numpy": "jnp", "numpy": "np"}
"""Modules whose functions make arrays, but take no key."""


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
        elif keyed and (module := _ARRAY_MODULES.get(getattr(init_fn, "__module__", None))):
            code = f"lambda key, shape: {module}.{init_fn.__name__}(shape)"
            error.add_note(f"The initializer of a parameter receives a key first. Write `{code}`.")
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
