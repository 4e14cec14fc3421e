"""Scopes: places in a tree of variables that own collections, RNG streams and names.

A `Scope` is a view of one node of a tree. The variables that a caller passes in are never changed: the first write to a
variable copies the dicts on the path to it, and the other dicts stay shared with the caller.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import FunctionType, MappingProxyType
from typing import Any, Self

import jax

from .. import meta, rng
from .._compat import trace_state
from ..calls import hide_frames
from ..errors import no_function
from ..filters import partition, to_predicate
from ..typing import Collection, Filter, Path, RNGs, Variables
from ..values import cast, copied, tag, unwrapped, wrapped
from . import problems
from .declaring import (
    check_creatable,
    check_lifted,
    check_one,
    check_shape,
    check_variables,
    initial_value,
    key_for,
)
from .scoped import Child, Variable
from .sharing import Sharing
from .tree import ANYBODY, Counter, Names, Node, Sown, Tree

__all__ = ["PERTURBATIONS", "Scope"]

PERTURBATIONS = "perturbations"
"""The default collection of `Scope.perturb`."""

_MISSING: Any = object()
_new = object.__new__
_EMPTY: Mapping[str, Any] = MappingProxyType({})


class Scope(Sharing):
    """A place in a tree of variables, with its collections, its RNG streams and its path.

    `init` and `apply` create the root scope of a model, `push` and `child` create the scopes below it, and lifts create
    the scopes inside them. The constructor makes a root scope that lives until `invalidate`; a model seldom needs it.

    Example:
        >>> Scope({"params": {"w": 3}}).get_variable("params", "w")
        3

    Args:
        variables: `{collection: {module: {name: value}}}`; never changed.
        rngs: one key for the stream `params`, or a mapping from stream names to keys.
        mutable: a filter for the variables that may be written.
        initializing: the value that `is_initializing` returns.

    Raises:
        ApplyScopeInvalidVariablesTypeError: if `variables`, or a collection, is not a mapping.
        ApplyScopeInvalidVariablesStructureError: if the variables are nested one level too deep.
        InvalidRngError: if a value in `rngs` is not a key.

    Attributes:
        tree: the state that this scope shares with all others of the same `init`, `apply` or lift.
        path: the names from the root to this scope, without the names of lifts.
        name: the last name of the path, or None at a root.
        parent: the scope that this one was pushed on, or None at a root and at the entry of a lift.
        node: the variables, which it shares with other scopes at the same path.
        counter: the counts of draws; a scope that is rewound has its own.
    """

    __slots__ = ("_ended", "counter", "name", "node", "parent", "path", "tree")

    def __init__(
        self, variables: Variables, rngs: RNGs | None = None, mutable: Filter = False, *, initializing: bool = False
    ) -> None:
        check_variables(variables)
        given = dict(variables), {} if rngs is None else rng.streams(rngs), to_predicate(mutable)
        tree = Tree(*given, initializing=initializing, thread=ANYBODY)
        self._place(tree, tree.root, tree.counter, (), None)

    @classmethod
    def at(cls, tree: Tree) -> Self:
        """Return the outermost scope of a tree; lifts use this to create theirs."""
        return _new(cls)._place(tree, tree.root, tree.counter, tree.base, None)

    @classmethod
    def over(cls, scope: Scope) -> Self:
        """Return a scope at the place of another, with all names free."""
        return _new(cls)._place(scope.tree, scope.node, scope.counter, scope.path, scope.parent)

    def _place(self, tree: Tree, node: Node, counter: Counter, path: Path, parent: Scope | None) -> Self:
        self._adopted, self._reserved, self._numbers, self._first_free, self._shared = (), {}, {}, None, False
        self.tree, self.node, self.counter, self.path, self.parent = tree, node, counter, path, parent
        self.name, self._ended, self._outside = path[-1] if path else None, False, set()
        return self

    def __scopes__(self) -> tuple[list[Scope], Callable[[Sequence[Scope]], Scope]]:
        """See `liftcore.Scoped`."""
        return [self], _the_scope

    # -- places ------------------------------------------------------------------------------------------------------

    @property
    def path_text(self) -> str:
        """The path as errors show it, with the names of lifts: `/encoder/vmap(block)/dense`."""
        return "/".join((self.tree.above, *self.relative_path)) or "/"

    @property
    def relative_path(self) -> Path:
        """The path from the entry of the innermost lift, or from the root."""
        return self.path[len(self.tree.base) :]

    @property
    def place(self) -> Hashable:
        """An object that stands for the place of the scope: scopes at one place of one tree have the same."""
        return self.node

    def holds(self, other: Scope) -> bool:
        """Whether another scope is at the place of this one or below it, in the same tree.

        Args:
            other: the other scope.
        """
        return self.tree is other.tree and self.path == other.path[: len(self.path)]

    def invalidate(self) -> None:
        """End the scope; at the root, end all scopes below it too."""
        self._ended = True
        if self.parent is None:
            self.tree.end()

    @contextlib.contextmanager
    def temporary(self) -> Iterator[Self]:
        """A context that returns the scope itself and ends it on exit; until then, this thread alone may change it."""
        self.tree.claim()
        try:
            yield self
        finally:
            self.invalidate()

    def push(self, name: str | None = None, prefix: str = "", reuse: bool = False) -> Scope:
        """Return a new scope one level below.

        Args:
            name: the name of the new scope; by default, the first of `{prefix}0`, `{prefix}1`, … that is free.
            prefix: the text before the number of an automatic name.
            reuse: whether the name may already be taken.

        Raises:
            NameInUseError: if the name is taken and `reuse` is False.
            JaxTransformError: under a raw JAX transformation.
        """
        return self._inner(self._take_name(name, prefix, reuse))

    def child(
        self,
        fn: Callable[..., Any],
        name: str | None = None,
        prefix: str | None = None,
        named_call: bool = True,
        **partial_kwargs: Any,
    ) -> Child:
        """Return the function with a child scope of this one as its first argument.

        Each call begins with all names in the child scope free, so a second call uses the same variables. It may also
        be called in the body of a lift over this scope, or be lifted itself: `liftcore.jit(lambda net: net(x))(net)`.

        Args:
            fn: a function of a scope.
            name: the name of the child; by default, `prefix` and a number.
            prefix: the text before the number of an automatic name; by default, the name of `fn` and `_`.
            named_call: whether profiles show the name of the child for its operations.
            **partial_kwargs: keyword arguments that are passed to every call.
        """
        if not callable(fn):
            raise no_function(f"child of the scope at {self.path_text}", fn)
        taken = self._take_name(name, f"{getattr(fn, '__name__', 'fn')}_" if prefix is None else prefix)
        return Child(fn, self._inner(taken), named_call, partial_kwargs)

    def entering(self, names: Names) -> Scope:
        """Return a scope at the same place for the body of a lift, with the names of the scope outside.

        The names of scopes stay taken. A variable may be declared once more: it is the same variable as outside.
        """
        scope = _new(type(self))._place(self.tree, self.node, self.counter, self.path, self.parent)
        scope._outside = set(names.taken)
        scope.take_names(names)
        return scope

    def below(self, path: Path) -> Scope:
        """Return the scope at a path below this one, without taking a name."""
        scope = self
        for name in path:
            scope = scope._inner(name)
        return scope

    def _inner(self, name: str) -> Scope:
        below = self.node.child(name), self.counter.child(name)
        return _new(type(self))._place(self.tree, *below, (*self.path, name), self)

    def _take_name(self, name: str | None, prefix: str, reuse: bool = False) -> str:
        if self._ended or not self.tree.alive:
            raise problems.ended(self)
        wanted = name or prefix
        if name is None:
            name = self.default_name(prefix)
        if (self.tree.lifts and self.tree.running_lift) or (
            not trace_state() == self.tree.trace and not self._is_known(name)
        ):
            raise problems.raw_transformed(self, f'naming "{wanted}"')
        if not reuse or not self.name_reserved(name):
            self.reserve(name)
        return name

    def _is_known(self, name: str) -> bool:
        """Whether a scope of that name already exists, so that naming it only reads.

        It counts as existing if it was named before or has variables. It also counts if the given variables do not have
        it and no parameters can be created.
        """
        held = self.tree.variables
        if name in self.node.children or (any(held.values()) and not self.is_mutable_collection("params")):
            return True
        return any(isinstance(self.dicts(collection).get(name), Mapping) for collection in held)

    # -- reading -----------------------------------------------------------------------------------------------------

    def collections_below(self) -> Variables:
        """Return the variables here and below without copying them; do not write to the result."""
        self.check_valid()
        return {name: self.dicts(name) for name in self.tree.variables}

    def variables(self) -> Variables:
        """Return the variables here and below that `has_variable` finds as plain dicts, without empty collections."""
        held = self.collections_below()
        if self.tree.redrawn:
            (held,), _ = partition(held, [lambda path, _: not self.tree.must_redraw(path)], self.path)
        return dict(copied(held))

    def mutable_variables(self) -> Variables:
        """Return the mutable variables here and below as plain dicts, as `apply` returns them."""
        trees, _ = partition(self.collections_below(), [self.tree.mutable], self.path, empty=True)
        return {name: copied(found, empty=True) for name, found in trees[0].items()}

    def is_mutable_collection(self, collection: str) -> bool:
        """Whether variables of a collection may be written here.

        Args:
            collection: the name of the collection.
        """
        return self.tree.writable(collection) is not False

    def is_initializing(self) -> bool:
        """Whether this is an `init`, which creates variables, rather than an `apply`, which receives them."""
        return self.tree.initializing

    def has_variable(self, collection: str, name: str) -> bool:
        """Whether a variable exists in this scope.

        The rule of a custom derivative gets the answers that its function gets, so code that creates what does not
        exist draws the same keys in both: a variable that the function creates exists once the rule has declared it.

        Args:
            collection: the collection of the variable.
            name: the name of the variable.

        Raises:
            UnliftedCollectionError: if the variable exists outside a lift that does not pass it in.
        """
        self.check_valid()
        held = self.dicts(collection)
        if name in held:
            return self.tree.exists((collection, *self.path, name), held[name])
        check_lifted(self, collection, name)
        return False

    def get_variable(self, collection: str, name: str, default: Any = None) -> Any:
        """Return the value of a variable, or `default` if there is none.

        Args:
            collection: the collection of the variable.
            name: the name of the variable.
            default: the value to return if there is none.

        Raises:
            UnliftedCollectionError: if the variable exists outside a lift that does not pass it in.
        """
        self.check_valid()
        value = self.dicts(collection).get(name, _MISSING)
        if value is _MISSING:
            check_lifted(self, collection, name)
            return default
        return unwrapped(value)

    # -- writing -----------------------------------------------------------------------------------------------------

    def put_variable(self, collection: str, name: str, value: Any) -> None:
        """Write a variable.

        Args:
            collection: the collection of the variable.
            name: the name of the variable.
            value: the new value, a pytree.

        Raises:
            ModifyScopeVariableError: if the collection is immutable.
            UnliftedCollectionError: if no output group of a surrounding lift takes the variable.
            LiftArgumentError: if a name cannot be part of a path, or if the value is a dict and a surrounding lift
                takes parts of it in different groups.
            JaxTransformError: under a raw JAX transformation.
            ScopeVariableNotFoundError: if the variable does not exist and the scope was bound with `creates=False`.
        """
        self.check_write(collection, name, value)
        self.put_checked(collection, {name: wrapped(value)})

    def put_checked(self, collection: str, values: Mapping[str, Any]) -> None:
        """Write values that were checked and wrapped (see `wrapped`): the last step of `put_variable`."""
        written, place = self.tree.written, (collection, *self.relative_path)
        self._keep(collection, values)
        for name in values:
            written[(*place, name)] = None

    def create_variable(self, collection: str, name: str, value: Any, *, tagged: bool = False) -> None:
        """Create a variable for which `must_create` is True. Its first value is kept apart: a loop begins from it.

        Args:
            collection: the collection of the variable.
            name: the name of the variable.
            value: the first value.
            tagged: whether the value was tagged already; see `Body.tag_outside`.
        """
        self.check_live("creating", collection, name)
        self.check_writable(collection, name, value, "created")
        if self.tree.redrawn and self.redraws(collection, name):
            return
        # Cast first: the scopes outside will hold the very value that is tagged. `sight` comes last, because its
        # result is used in this body only; `created` holds the value as it goes outside.
        if self.tree.casts:
            value = cast(value, self.tree.casts.get((collection, *self.path, name), ()))
        value = tag(value) if self.tree.tags and not tagged else value
        value, sight = wrapped(value), self.tree.sight
        self._keep(collection, {name: value if sight is None else sight((collection, *self.path, name), value)})
        self.tree.created[(collection, *self.relative_path, name)] = value

    def param(
        self, name: str, init_fn: Callable[..., Any] | None, *init_args: Any, unbox: bool = True, **init_kwargs: Any
    ) -> Any:
        """Return a parameter, created by `init_fn(key, *init_args, **init_kwargs)` if it does not exist.

        Args:
            name: the name of the parameter in the collection `params`.
            init_fn: called with a key of the stream `params`; not called if the parameter exists with the shape that is
                given as the first argument. None if the parameter must already exist.
            *init_args: further arguments of `init_fn`; by convention, the first is the shape.
            unbox: whether to return a parameter with boxed metadata (see `liftcore.meta`) without its box.
            **init_kwargs: further keyword arguments.

        Raises:
            ScopeParamShapeError: if the parameter exists with a shape other than the one that `init_fn` makes.
            ScopeParamNotFoundError: if the parameter does not exist and `params` is immutable.
            NameInUseError: if the name is taken.
        """
        self.reserve(name, "params")
        found = self.node.dicts.get("params")
        value = (self.dicts("params") if found is None else found).get(name, _MISSING)
        if value is _MISSING:
            check_creatable(self, "params", name)
            try:
                value = initial_value(self, "params", name, init_fn, True, *init_args, **init_kwargs)
            except Exception as error:
                hide_frames(error)
                raise
            if value is None or isinstance(value, FunctionType):
                raise problems.made_no_value(self, name, init_fn, value)
            self.create_variable("params", name, value)
            value = self.node.dicts["params"][name]
            if not meta.is_array_type(type(value)):
                value = meta.unbox(unwrapped(value)) if unbox else unwrapped(value)
            return value
        if self._ended or not self.tree.alive:
            raise problems.ended(self)
        if self.tree.redrawn and self.redraws("params", name) and init_fn is not None:
            init_fn(key_for(self, init_fn), *init_args, **init_kwargs)
        if not meta.is_array_type(type(value)):
            if isinstance(value, Mapping):
                check_one(self, "params", name)
            value = meta.unbox(unwrapped(value)) if unbox else unwrapped(value)
        wanted = init_args[0] if init_args else init_kwargs.get("shape")
        if type(wanted) is not tuple or getattr(value, "shape", None) != wanted:
            check_shape(self, name, value, init_fn, init_args, init_kwargs)
        return value

    def variable(
        self,
        collection: str,
        name: str,
        init_fn: Callable[..., Any] | None = None,
        *init_args: Any,
        unbox: bool = True,
        **init_kwargs: Any,
    ) -> Variable:
        """Return a `Variable`, created by `init_fn(*init_args, **init_kwargs)` if it does not exist.

        Args:
            collection: the collection of the variable.
            name: the name of the variable.
            init_fn: returns the first value.
            *init_args: arguments of `init_fn`.
            unbox: whether `value` reads and writes the content of a boxed value (see `liftcore.meta`), not the box.
            **init_kwargs: keyword arguments of `init_fn`.

        Raises:
            ScopeVariableNotFoundError: if the variable is missing, and there is no `init_fn` or nothing may be written.
            NameInUseError: if the name is taken.
        """
        self.reserve(name, collection)
        if name not in self.dicts(collection):
            check_creatable(self, collection, name, made=init_fn is not None)
            if init_fn is not None:
                try:
                    value = initial_value(self, collection, name, init_fn, False, *init_args, **init_kwargs)
                except Exception as error:
                    hide_frames(error)
                    raise
                self.create_variable(collection, name, value)
        else:
            if isinstance(self.dicts(collection)[name], Mapping):
                check_one(self, collection, name)
            if self.tree.redrawn and self.redraws(collection, name) and init_fn is not None:
                init_fn(*init_args, **init_kwargs)
        self.check_valid()
        return Variable(self, collection, name, unbox)

    def perturb(self, name: str, value: Any, collection: str = PERTURBATIONS) -> Any:
        """Return the value plus a zero variable of its shape, whose gradient is the gradient of the value.

        `init` makes the variable. If `apply` is not given the collection, the value is returned unchanged. Mappings and
        loops lift the collection `perturbations` automatically, along a new leading axis; any other collection has to
        be listed.

        Example:
            >>> import jax, liftcore
            >>> def model(scope, x):
            ...     return 3 * scope.perturb("h", x**2)
            >>> _, variables = liftcore.init(model)(jax.random.key(0), 2.0)
            >>> jax.grad(lambda variables: liftcore.apply(model)(variables, 2.0))(variables)["perturbations"]
            {'h': Array(3., dtype=float32, weak_type=True)}

        Args:
            name: the name of the variable.
            value: a pytree of arrays.
            collection: the collection of the variable.

        Raises:
            ScopeVariableNotFoundError: if `apply` is given the collection without this variable.
            ScopeCollectionNotFound: if it is given empty.
            UnliftedCollectionError: inside a lift that does not take the collection.
            ModifyScopeVariableError: inside a lift that makes it immutable.
        """
        if not self.has_variable(collection, name):
            if not self.is_mutable_collection(collection):
                given = self.tree.outermost()
                wanted = given.writable(collection) is not False
                if wanted or collection in given.variables:
                    self.variable(collection, name, (lambda: value) if wanted else None)  # raises the error
                return value
            self.reserve(name, collection)
            self.create_variable(collection, name, jax.tree.map(jax.numpy.zeros_like, value))
        return jax.tree.map(jax.numpy.add, value, self.get_variable(collection, name))

    def sow(
        self,
        collection: str,
        name: str,
        value: Any,
        init_fn: Callable[[], Any] = tuple,
        reduce_fn: Callable[[Any, Any], Any] = lambda values, value: (*values, value),
    ) -> bool:
        """Store a value for the caller of `apply`, if the caller requested the collection with `mutable`.

        The value passes through lifts automatically: mappings and loops stack it along a new leading axis.

        Args:
            collection: the collection to store it in, such as `intermediates`.
            name: the name to store it under.
            value: a pytree of arrays.
            init_fn: returns the initial value, to which the first sown value is added.
            reduce_fn: adds a value to the stored one; by default, appends it to a tuple.

        Returns:
            Whether the value was stored.
        """
        self.check_valid()
        captured = self.tree.captures((collection, *self.path, name), value)
        if not captured and not self.is_mutable_collection(collection):
            return False
        self.check_live("sowing", collection, name)
        if captured:
            self.tree.sown.append((Sown(self.relative_path, collection, name, init_fn, reduce_fn), value))
            return True
        current = unwrapped(self.dicts(collection).get(name, _MISSING))
        try:  # first: if it raises, nothing changes
            new = reduce_fn(init_fn() if current is _MISSING else current, value)
        except Exception as error:
            hide_frames(error)
            raise
        if current is _MISSING:
            self.reserve(name, collection)
        self.check_put(collection, name, new)
        self.put_checked(collection, {name: wrapped(new)})
        return True

    # -- keys --------------------------------------------------------------------------------------------------------

    def has_rng(self, name: str) -> bool:
        """Whether an RNG stream of that name was given and can be drawn from here.

        Args:
            name: the name of the stream.
        """
        return name in self.tree.rngs

    def make_rng(self, name: str = rng.DEFAULT) -> Any:
        """Return the next key of an RNG stream, or of `params` if no stream of that name was given.

        Args:
            name: the name of the stream.

        Raises:
            InvalidRngError: if neither stream was given.
            UnliftedStreamError: inside a lift that does not pass the stream in.
            JaxTransformError: under a raw JAX transformation.
        """
        root, counted, count = self.count_draw(name)
        return rng.fold_in(root, self.tree.fold_in_data(self.path, counted, count, self.counter.origin))

    def count_draw(self, name: str) -> tuple[Any, str, int]:
        """Count a draw without making its key; return the root key, the name it is counted under, and its number."""
        self.check_live("drawing from", name)
        found = self.tree.stream(name)
        if found is None:
            raise problems.no_stream(self, name)
        counted, root = found
        counts = self.counter.counts
        count = counts[counted] = counts.get(counted, 0) + 1
        return root, counted, count

    # -- the underlying dicts ----------------------------------------------------------------------------------------

    def dicts(self, collection: str) -> Mapping[str, Any]:
        """Return this scope's dict of a collection; it is shared with the caller until it is written."""
        found = self.node.dicts.get(collection)
        if found is None:
            above = self.tree.variables if self.parent is None else self.parent.dicts(collection)
            found = above.get(collection if self.parent is None else self.path[-1])
            if type(found) is not dict:
                found = unwrapped(found)
                if not isinstance(found, Mapping):
                    return _EMPTY
            self.node.dicts[collection] = found
        return found

    def _own(self, collection: str) -> Collection:
        """Return this scope's dict of a collection as a copy that may be written."""
        node = self.node
        if collection not in node.owned:
            mine = node.dicts[collection] = dict(self.dicts(collection))
            if self.parent is None:
                self.tree.variables[collection] = mine
            else:
                self.parent._own(collection)[self.path[-1]] = mine
            node.owned = (*node.owned, collection)
        return node.dicts[collection]  # type: ignore[return-value]

    def _keep(self, collection: str, values: Mapping[str, Any]) -> None:
        """Store values. A child scope with the name of a value then holds what the value holds."""
        self._own(collection).update(values)
        for name in self.node.children and self.node.children.keys() & values:
            self.node.children[name].forget(collection)
            place = (collection, *self.relative_path, name)
            for changed in (self.tree.written, self.tree.created):
                for path in [path for path in changed if path[: len(place)] == place]:
                    del changed[path]


def _the_scope(scopes: Sequence[Scope]) -> Scope:
    return scopes[0]
