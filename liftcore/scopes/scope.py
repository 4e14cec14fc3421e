"""Scopes: places in a tree of variables that own collections, RNG streams and names.

A `Scope` is one view of a node of a tree. Variables that were given in are never changed: the dicts on the way to a
written variable are copied on the first write, the others stay shared with the caller.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, MappingProxyType
from typing import Any, Self

import jax

from .. import meta, rng
from .._compat import tag, trace_state
from ..errors import misfit, no_function
from ..filters import partition, to_predicate
from ..typing import Collection, Filter, Path, RNGs, Variables
from ..values import cast, copied, unwrapped, wrapped
from . import problems
from .declaring import Checking, check_creatable, check_known, check_lifted, check_one, check_shape, names_checked
from .naming import Naming
from .tree import Node, Sown, Tree
from .variable import Variable

__all__ = ["PERTURBATIONS", "Scope"]

PERTURBATIONS = "perturbations"
"""The collection that `Scope.perturb` keeps its variables in."""

_MISSING: Any = object()
_new = object.__new__
_EMPTY: Mapping[str, Any] = MappingProxyType({})


class Scope(Checking, Naming):
    """A place in a tree of variables, with its collections, its RNG streams and its path.

    `init` and `apply` make the root scope of a model, `push` and `child` the scopes below, and lifts their own. The
    constructor makes a root scope that lives until it is invalidated; a model seldom needs that.

    Example:
        >>> Scope({"params": {"w": 3}}).get_variable("params", "w")
        3

    Args:
        variables: `{collection: {module: {name: value}}}`; never changed.
        rngs: one key, which is the stream `params`, or a mapping from names to keys.
        mutable: a filter for the variables that may be written.
        initializing: what `is_initializing` answers.

    Raises:
        ApplyScopeInvalidVariablesTypeError: where `variables` is no mapping.
        ApplyScopeInvalidVariablesStructureError: where a collection is none, or all lies one level too deep.
        InvalidRngError: where something in `rngs` is no key.

    Attributes:
        tree: what this scope shares with all others of the same `init`, `apply` or lift.
        path: the names from the root to here, without those of lifts.
        name: the last of them, or None at a root.
        parent: the scope that this one was pushed on, or None at a root and at the entry of a lift.
        node: what it shares with other scopes at its path.
    """

    __slots__ = ("_ended", "name", "node", "parent", "path", "tree")

    def __init__(
        self, variables: Variables, rngs: RNGs | None = None, mutable: Filter = False, *, initializing: bool = False
    ) -> None:
        problems.check_variables(variables)
        tree = Tree(dict(variables), rng.streams(rngs), to_predicate(mutable), initializing=initializing).open()
        self._place(tree, tree.root, (), None)

    @classmethod
    def at(cls, tree: Tree, node: Node, path: Path, parent: Scope | None) -> Self:
        """A scope of a tree that is there already: how lifts make theirs, and scopes those below them."""
        return _new(cls)._place(tree, node, path, parent)

    def _place(self, tree: Tree, node: Node, path: Path, parent: Scope | None) -> Self:
        self._adopted, self._reserved, self._numbers, self._first_free, self._shared = (), {}, {}, None, False
        self._outside = set()
        self.tree, self.node, self.path, self.parent = tree, node, path, parent
        self.name, self._ended = path[-1] if path else None, False
        return self

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
    def is_valid(self) -> bool:
        """Whether the scope may still be used."""
        return self.tree.alive and not self._ended

    @property
    def is_live(self) -> bool:
        """Whether no transformation lies between the scope and here, so that it may change."""
        return self.tree.running_lift is None and trace_state() == self.tree.trace

    def invalidate(self) -> None:
        """Ends the scope; where it is the root, ends all below it as well."""
        self._ended = True
        if self.parent is None:
            self.tree.end()

    @contextlib.contextmanager
    def temporary(self) -> Iterator[Scope]:
        """The scope itself, which ends with the `with` block; until then it is of this thread."""
        self.tree.claim()
        try:
            yield self
        finally:
            self.invalidate()

    def push(self, name: str | None = None, prefix: str = "", reuse: bool = False) -> Scope:
        """A scope one level below.

        Args:
            name: its name; by default the first of `{prefix}0`, `{prefix}1`, … that is free.
            prefix: what an automatic name begins with.
            reuse: whether the name may be taken already.

        Raises:
            NameInUseError: where the name is taken and `reuse` is False.
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
    ) -> Callable[..., Any]:
        """The function with a scope below this one as its first argument.

        Each call begins with the names of that scope free again, so calling twice uses the same variables.

        Args:
            fn: a function of a scope.
            name: the name of the child; by default `prefix` and a number.
            prefix: what an automatic name begins with; by default the name of `fn` and `_`.
            named_call: whether the operations carry the name in profiles.
            **partial_kwargs: keyword arguments that are given to every call.
        """
        if not callable(fn):
            raise no_function(f"child of the scope at {self.path_text}", fn)
        fn_name = getattr(fn, "__name__", "fn")
        taken = self._take_name(name, f"{fn_name}_" if prefix is None else prefix)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.check_valid()
            with jax.named_scope(taken) if named_call else contextlib.nullcontext():
                return fn(self._inner(taken), *args, **{**partial_kwargs, **kwargs})

        call.__name__ = fn_name
        return call

    def rewound(self, rewind_rngs: bool = False) -> Scope:
        """The same place with all names free again.

        Args:
            rewind_rngs: whether to count draws from nothing too; the keys that follow were then drawn before. After
                branches of which one does so, the draws of all of them count from nothing.
        """
        self.check_valid()
        if rewind_rngs:
            self.node.rewind()
            self.tree.rewound = True
        return _new(type(self))._place(self.tree, self.node, self.path, self.parent)

    def beside(self) -> Scope:
        """The same place for another owner: the same names are taken, and `number` begins from 0."""
        scope = self.rewound()
        self._unpack()
        scope._reserved, scope._outside = self._reserved, self._outside
        self._shared = scope._shared = True
        return scope

    def below(self, path: Path) -> Scope:
        """The scope at a path from here, without taking a name."""
        scope = self
        for name in path:
            scope = scope._inner(name)
        return scope

    def _inner(self, name: str) -> Scope:
        return _new(type(self))._place(self.tree, self.node.child(name), (*self.path, name), self)

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
        """Whether a scope of that name is nothing new, so that to name it is reading.

        It was there before; or it has variables; or the variables were given without it, and no parameters can be made.
        """
        held = self.tree.variables
        if name in self.node.children or (any(held.values()) and not self.is_mutable_collection("params")):
            return True
        return any(isinstance(self.dicts(collection).get(name), Mapping) for collection in held)

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def collections(self) -> tuple[str, ...]:
        """The names of the collections of the tree."""
        return tuple(self.tree.variables)

    def collections_below(self) -> Variables:
        """The variables here and below, not copied: only to be read."""
        self.check_valid()
        return {name: self.dicts(name) for name in self.tree.variables}

    def variables(self) -> Variables:
        """The variables here and below, as plain dicts, without empty collections."""
        return dict(copied(self.collections_below()))

    def value_at(self, path: Path) -> Any:
        """The value at `(collection, *modules below this scope, name)`."""
        value: Any = self.dicts(path[0])
        for name in path[1:]:
            value = unwrapped(value)[name]
        return value

    def mutable_variables(self) -> Variables:
        """The variables here and below that may be written, as plain dicts; what `apply` returns as mutated."""
        trees, _ = partition(self.collections_below(), [self.tree.mutable], self.path, empty=True)
        return {name: copied(found, empty=True) for name, found in trees[0].items()}

    def is_mutable_collection(self, collection: str) -> bool:
        """Whether variables of a collection may be written here.

        Args:
            collection: its name.
        """
        return self.tree.writable(collection) is not False

    def is_collection_empty(self, collection: str) -> bool:
        """Whether a collection holds nothing in the whole tree.

        Args:
            collection: its name.
        """
        return not self.tree.variables.get(collection)

    def is_initializing(self) -> bool:
        """Whether this is an `init`, which makes variables, and no `apply`, which is given them."""
        return self.tree.initializing

    def has_variable(self, collection: str, name: str) -> bool:
        """Whether a variable exists here.

        Args:
            collection: the name of its collection.
            name: its name.

        Raises:
            UnliftedCollectionError: inside a lift, where it exists outside only.
        """
        self.check_valid()
        if name in self.dicts(collection):
            return True
        check_lifted(self, collection, name)
        return False

    def get_variable(self, collection: str, name: str, default: Any = None) -> Any:
        """The value of a variable, or `default` where there is none.

        Args:
            collection: the name of its collection.
            name: its name.
            default: what is returned where there is none.

        Raises:
            UnliftedCollectionError: inside a lift, where it exists outside only.
        """
        self.check_valid()
        value = self.dicts(collection).get(name, _MISSING)
        if value is _MISSING:
            check_lifted(self, collection, name)
            return default
        return unwrapped(value)

    # -- writing -----------------------------------------------------------------------------------------------------

    def put_variable(self, collection: str, name: str, value: Any) -> None:
        """Writes a variable.

        Args:
            collection: the name of its collection.
            name: its name.
            value: the new value, a pytree.

        Raises:
            ModifyScopeVariableError: where the collection is immutable.
            UnliftedCollectionError: inside a lift that no output group of which takes the variable.
            LiftArgumentError: inside a lift whose filters take parts of a dict in several groups.
            JaxTransformError: under a raw JAX transformation.
            ScopeVariableNotFoundError: where there is none, in a scope that creates nothing.
        """
        self.check_live("writing", collection, name)
        self.check_put(collection, name, value)
        check_known(self, collection, name)
        self.put_checked(collection, {name: wrapped(value)})

    def put_checked(self, collection: str, values: Mapping[str, Any]) -> None:
        """Writes variables, which were checked and are as `wrapped` gives them: what `put_variable` does last."""
        written, place = self.tree.written, (collection, *self.relative_path)
        self._keep(collection, values)
        for name in values:
            written[(*place, name)] = None

    def put_unboxed(self, collection: str, name: str, value: Any) -> None:
        """Writes what is in the box of a variable that has one (see `liftcore.meta`); others as `put_variable` does."""
        self.put_variable(collection, name, meta.replace_boxed(unwrapped(self.dicts(collection).get(name)), value))

    def create_variable(self, collection: str, name: str, value: Any, *, bound: bool = False) -> None:
        """Makes a variable that did not exist. Its first value is kept apart, since a loop has to begin from it.

        Args:
            collection: its collection.
            name: its name.
            value: its first value.
            bound: whether the value was bound, see `Use.bind`.
        """
        self.check_live("creating", collection, name)
        self.check_writable(collection, name, value, "created")
        # Cast first: the mark is on the very value that the scopes outside will hold. `sight` comes last, and what it
        # makes of the value is kept here only; `created` has the value as it goes outside.
        if self.tree.casts:
            value = cast(value, self.tree.casts.get((collection, *self.path, name), ()))
        value = tag(value) if self.tree.marks and not bound else value
        value, sight = wrapped(names_checked(self, collection, name, value, False)), self.tree.sight
        self._keep(collection, {name: value if sight is None else sight((collection, *self.path, name), value)})
        self.tree.created[(collection, *self.relative_path, name)] = value

    def param(
        self, name: str, init_fn: Callable[..., Any] | None, *init_args: Any, unbox: bool = True, **init_kwargs: Any
    ) -> Any:
        """The parameter of that name, made by `init_fn(key, *init_args, **init_kwargs)` where it does not exist.

        Args:
            name: its name in the collection `params`.
            init_fn: called with a key of the stream `params`; not called where the parameter exists and has the
                `shape` that is its first argument. None for a parameter that exists and is only read.
            *init_args: further arguments; the first is the shape, by custom.
            unbox: whether to give of a parameter in a box (see `liftcore.meta`) what is in it.
            **init_kwargs: further keyword arguments.

        Raises:
            ScopeParamShapeError: where it exists with another shape than `init_fn` makes.
            ScopeParamNotFoundError: where it does not exist, and `params` may not be written.
            NameInUseError: where the name is taken.
        """
        self.reserve(name, "params")
        found = self.node.dicts.get("params")
        value = (self.dicts("params") if found is None else found).get(name, _MISSING)
        if value is _MISSING:
            check_creatable(self, "params", name)
            value = self._make("params", name, init_fn, True, *init_args, **init_kwargs)
            if value is None or isinstance(value, FunctionType):
                raise problems.made_no_value(self, name, init_fn, value)
            self.create_variable("params", name, value)
            value = unwrapped(self.dicts("params")[name])
            return meta.unbox(value) if unbox else value
        if self._ended or not self.tree.alive:
            raise problems.ended(self)
        if self.tree.redrawn and ("params", *self.path, name) in self.tree.redrawn and init_fn is not None:
            init_fn(self._key_for(init_fn), *init_args, **init_kwargs)
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
        """The variable of that name, made by `init_fn(*init_args, **init_kwargs)` where it does not exist.

        Args:
            collection: its collection.
            name: its name.
            init_fn: makes its first value.
            *init_args: arguments of `init_fn`.
            unbox: whether, of a value in a box (see `liftcore.meta`), one reads and writes what is in it.
            **init_kwargs: keyword arguments of `init_fn`.

        Raises:
            ScopeVariableNotFoundError: where it does not exist, and there is no `init_fn` or nothing may be written.
            NameInUseError: where the name is taken.
        """
        self.reserve(name, collection)
        if name not in self.dicts(collection):
            check_creatable(self, collection, name, made=init_fn is not None)
            if init_fn is not None:
                value = self._make(collection, name, init_fn, False, *init_args, **init_kwargs)
                self.create_variable(collection, name, value)
        else:
            if isinstance(self.dicts(collection)[name], Mapping):
                check_one(self, collection, name)
            if init_fn is not None and (collection, *self.path, name) in self.tree.redrawn:
                init_fn(*init_args, **init_kwargs)
        self.check_valid()
        return Variable(self, collection, name, unbox)

    def perturb(self, name: str, value: Any, collection: str = PERTURBATIONS) -> Any:
        """The value plus a variable of its shape that is zero, so that its gradient is that of the value.

        Without the collection in what `apply` is given, the value as it is. Mappings and loops lift the collection
        `perturbations` by themselves, along a new leading axis; another one has to be listed.

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
        """
        if not self.has_variable(collection, name):
            if not self.is_mutable_collection(collection):
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
        """Keeps a value for the caller of `apply`, where that asked for it with `mutable`.

        It passes through lifts by itself: mapping and loops stack it along a new leading axis.

        Args:
            collection: such as `intermediates`.
            name: the name it is kept under.
            value: a pytree of arrays.
            init_fn: makes what the first value is added to.
            reduce_fn: adds a value to what is there; by default to a tuple.

        Returns:
            Whether the value was kept.
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
        new = reduce_fn(init_fn() if current is _MISSING else current, value)  # first: if it raises, all is as before
        if current is _MISSING:
            self.reserve(name, collection)
        self.check_put(collection, name, new)
        self.put_checked(collection, {name: wrapped(new)})
        return True

    # -- keys --------------------------------------------------------------------------------------------------------

    def has_rng(self, name: str) -> bool:
        """Whether an RNG stream of that name was given, and may be drawn from here.

        Args:
            name: the name of the stream.
        """
        return name in self.tree.rngs

    def make_rng(self, name: str = rng.DEFAULT) -> Any:
        """The next key of an RNG stream; of `params`, where one of that name was never given.

        Args:
            name: the name of the stream.

        Raises:
            InvalidRngError: where neither was given.
            UnliftedStreamError: inside a lift that does not pass the stream in.
            JaxTransformError: under a raw JAX transformation.
        """
        root, counted, count = self.count_draw(name)
        rewound = self.node.times_rewound(counted) if self.node.rewinds else 0
        return rng.fold_in(root, self.tree.fold_in_data(self.path, counted, count, rewound))

    def count_draw(self, name: str) -> tuple[Any, str, int]:
        """Counts a draw without making its key: the root of the stream, what the draw counts for, and its number."""
        self.check_live("drawing from", name)
        found = self.tree.stream(name)
        if found is None:
            raise problems.no_stream(self, name)
        counted, root = found
        counts = self.node.counts
        count = counts[counted] = counts.get(counted, 0) + 1
        return root, counted, count

    def _make(self, collection: str, name: str, init_fn: Any, keyed: bool, *args: Any, **kwargs: Any) -> Any:
        """An initial value; the initializer is given a key first where it is to be `keyed`."""
        if not callable(init_fn):
            raise problems.no_initializer(self, collection, name, init_fn)
        given = (self._key_for(init_fn), *args) if keyed else args
        try:
            return names_checked(self, collection, name, init_fn(*given, **kwargs))
        except TypeError as error:
            taken = misfit(error, init_fn, given, kwargs)
            if taken is None:
                raise
            raise problems.wrong_initializer(self, collection, name, init_fn, taken, args, kwargs) from error

    def _key_for(self, init_fn: Callable[..., Any]) -> Any:
        """The key of an initializer; None for one that does not look at it, and the draw counts all the same."""
        if rng.ignores_key(init_fn):
            self.count_draw(rng.DEFAULT)
            return None
        return self.make_rng(rng.DEFAULT)

    # -- the dicts behind it -----------------------------------------------------------------------------------------

    def dicts(self, collection: str) -> Mapping[str, Any]:
        """This scope's dict of a collection, shared with the caller as long as nothing was written there."""
        found = self.node.dicts.get(collection)
        if found is None:
            above = self.tree.variables if self.parent is None else self.parent.dicts(collection)
            found = unwrapped(above.get(collection if self.parent is None else self.path[-1]))
            if type(found) is not dict and not isinstance(found, Mapping):
                return _EMPTY
            self.node.dicts[collection] = found
        return found

    def _own(self, collection: str) -> Collection:
        """This scope's dict of a collection, as a copy that may be written."""
        node = self.node
        if collection not in node.owned:
            mine = dict(self.dicts(collection))
            if self.parent is None:
                self.tree.variables[collection] = mine
            else:
                self.parent._own(collection)[self.path[-1]] = mine
            node.dicts[collection] = mine
            node.owned = (*node.owned, collection)
        return node.dicts[collection]  # type: ignore[return-value]

    def _keep(self, collection: str, values: Mapping[str, Any]) -> None:
        """Puts values in their place; where a scope lies there, it holds what the value holds from now on."""
        self._own(collection).update(values)
        for name in self.node.children and self.node.children.keys() & values:
            self.node.children[name].forget(collection)
            place = (collection, *self.relative_path, name)
            for changed in (self.tree.written, self.tree.created):
                for path in [path for path in changed if path[: len(place)] == place]:
                    del changed[path]
