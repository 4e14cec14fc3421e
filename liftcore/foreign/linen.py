"""`from_linen`: a module of `flax.linen` as a function of a scope.

A module of flax does all that it does through a scope of flax. `FlaxScope` is such a scope, but its variables, keys and
sown values are those of a scope of ours. So names, keys and numbers are what flax makes, and each draw, each new
variable and each write is subject to our lifts.
"""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax

from .. import meta
from ..filters import names_in
from ..scopes.declaring import check_creatable, check_shape, initial_value
from ..scopes.scope import Scope
from ..struct import PyTreeNode
from .keeping import INTERMEDIATES, called, check_model, named
from .parts import noted, running

__all__ = ["from_linen"]


def from_linen(module: Any, *, method: str | Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Turn a module of `flax.linen` into a function of a scope.

    Its collections are collections of the scope, with flax's names. The keys of initial values and of draws are those
    of `flax.linen` with `FLAX_FIX_RNG_SEPARATOR=1`: at the root of a model, `init` gives what the module's own `init`
    gives. A lift of flax inside the module is the exception: it starts from keys that the scope draws.

    Example:
        Four stacked layers::

            dense = from_linen(flax.linen.Dense(3))
            layers = liftcore.scan(
                lambda scope, x, _: (dense(scope, x), None),
                length=4,
                variable_axes={"params": 0},
                split_rngs={"params": True},
            )
            (y, _), variables = liftcore.init(layers)(jax.random.key(0), jnp.ones(3), None)
            assert variables["params"]["kernel"].shape == (4, 3, 3)

    Args:
        module: a module, not bound to variables.
        method: the name of a method to call; or a function, which is called as `method(module, *args, **kwargs)`.

    Returns:
        `fn(scope, *args, **kwargs)`.

    Raises:
        LiftArgumentError: if it is not a module of `flax.linen`.
    """
    import flax.linen

    fits = isinstance(module, flax.linen.Module)
    check_model("from_linen", module, fits, "a module of flax.linen", "from_linen(flax.linen.Dense(3))")

    def fn(scope: Scope, *args: Any, **kwargs: Any) -> Any:
        with _scope_class()(scope, owner=module).temporary() as theirs, _noted():
            return called(module.clone(parent=theirs, _deep_clone=True), method)(*args, **kwargs)

    return named(fn, type(module).__name__)


def _noted() -> Any:
    """A context in which flax tells the calls of modules, if they are noted."""
    import flax.linen

    def intercept(run: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        scope = context.module.scope
        if context.method_name == "setup" or not isinstance(scope, FlaxScope):
            return run(*args, **kwargs)
        unbound = context.module.clone(parent=None)  # what is noted must hold no values
        return running(scope.ours, unbound, context.method_name, run, args, kwargs)

    return noted(flax.linen.intercept_methods, intercept)


@functools.cache
def _scope_class() -> Any:
    """Return the class of scopes of flax that stand on scopes of ours."""
    return type("Scope", (FlaxScope, _core().Scope), {})


def _core() -> Any:
    import flax.core

    return flax.core


class FlaxScope:
    """What a scope of flax does on a scope of ours. Names are reserved in flax's way.

    Args:
        ours: the scope with the variables and the streams.
        owner: at the root, who uses the names there.
        parent: the scope above; None at the root.
        root: the scope at the root; None at the root.
    """

    root: Any
    _check_valid: Callable[[], None]
    default_name: Callable[[str], str]

    def __init__(self, ours: Scope, *, owner: Any = None, parent: Any = None, root: Any = None) -> None:
        self.ours, self._owner, self.parent, self._root = ours, owner, parent, root
        self.name = None if parent is None else ours.name
        self.path = self.debug_path = () if parent is None else (*parent.path, ours.name)
        self.mutable = _mutable(ours) if root is None else root.mutable
        self.flags = _core().freeze({"initializing": ours.is_initializing()})
        self.reservations = collections.defaultdict[str, set[str | None]](set)
        self.trace_level = _core().tracers.current_trace()
        self._invalid = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FlaxScope) and self.root is other.root and self.path == other.path

    def __hash__(self) -> int:
        return hash((id(self.root), self.path))

    # -- places and names ----------------------------------------------------------------------------------------------

    def push(self, name: str | None = None, prefix: str = "", reuse: bool = False) -> Any:
        """Return a scope one level below."""
        self._check_valid()
        name = self.default_name(prefix) if name is None else name
        if not reuse or name not in self.reservations:
            self.reserve(name)
        return type(self)(self.ours.below((name,)), owner=self._owner, parent=self, root=self.root)

    def rewound(self, rewind_rngs: bool = False) -> Any:
        """Return a scope at the same place with all names free."""
        self._check_valid()
        root = self.root if rewind_rngs is False else None
        return type(self)(self.ours.rewound(rewind_rngs), owner=self._owner, parent=self.parent, root=root)

    def reserve(self, name: str, col: str | None = None) -> None:
        """Reserve a name. At the root, no other model may use it in our scope."""
        super().reserve(name, col)  # type: ignore[misc]
        if self.parent is None:
            self.ours.own_name(name, col, self._owner)

    # -- variables -----------------------------------------------------------------------------------------------------

    @property
    def _variables(self) -> dict[str, Any]:
        return {name: _theirs(held) for name, held in self.ours.variables().items()}

    def _populate_collections(self) -> None:
        """Do nothing: `_variables` has all collections."""

    def variables(self) -> dict[str, Any]:
        """Return the variables here and below."""
        return self._variables

    def is_mutable_collection(self, col: str) -> bool:
        """Return whether variables of a collection may be written, or sown and passed out of all lifts."""
        return _is_mutable(self.ours, col)

    def has_variable(self, col: str, name: str) -> bool:
        """Return whether a variable exists."""
        return self.ours.has_variable(col, name)

    def get_variable(self, col: str, name: str, default: Any = None) -> Any:
        """Return a variable, or the default."""
        return _theirs(self.ours.get_variable(col, name, default))

    def put_variable(self, col: str, name: str, value: Any) -> None:
        """Write or sow a variable, or all variables below a name, as the lifts of flax do."""
        if isinstance(value, Mapping) and not self.ours.has_variable(col, name):
            below = type(self)(self.ours.below((name,)), parent=self, root=self.root)
            for each, inner in value.items():
                below.put_variable(col, each, inner)
        elif not self.ours.is_mutable_collection(col) and self.is_mutable_collection(col):
            self._sow(col, name, value)
        elif self.ours.must_create(col, name):
            self.ours.create_variable(col, name, _ours(value))
        elif not (self.ours.is_mutable_collection(col) and self._holds(col, name, value)):
            self.ours.put_variable(col, name, _ours(value))

    def _holds(self, col: str, name: str, value: Any) -> bool:
        """Return whether a variable has this value already: a lift of flax writes back what it only read."""
        if not self.ours.has_variable(col, name):
            return False
        held = self.get_variable(col, name)
        treedef: Any = jax.tree.structure(held)
        same = treedef == jax.tree.structure(value)
        return same and all(map(operator.is_, jax.tree.leaves(held), jax.tree.leaves(value)))

    def _sow(self, col: str, name: str, value: Any) -> None:
        """Sow what a lift passes out by itself. Inside the lift, no variable holds what was sown before."""
        if isinstance(value, tuple):
            for item in value:
                self.ours.sow(col, name, item)
        else:
            self.ours.sow(col, name, value, init_fn=lambda: None, reduce_fn=lambda _, new: new)

    def param(self, name: str, init_fn: Callable[..., Any], *args: Any, unbox: bool = True, **kwargs: Any) -> Any:
        """Return a parameter; create it if there is none."""
        self.reserve(name, "params")
        self._create("params", name, init_fn, True, args, kwargs)
        value = _ours(self.ours.get_variable("params", name))  # weights of flax may come in boxes of flax
        wanted = args[0] if args else kwargs.get("shape")
        if type(wanted) is not tuple or getattr(meta.unbox(value), "shape", None) != wanted:
            check_shape(self.ours, name, value, _boxed(init_fn), args, kwargs)
        return meta.unbox(value) if unbox else _theirs(value)

    def variable(
        self,
        col: str,
        name: str,
        init_fn: Callable[..., Any] | None = None,
        *args: Any,
        unbox: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Return a variable of flax; create it if there is none."""
        self.reserve(name, col)
        self._create(col, name, init_fn, False, args, kwargs)
        return _core().scope.Variable(self, col, name, unbox=unbox)

    def _create(self, col: str, name: str, init_fn: Any, keyed: bool, args: Any, kwargs: Any) -> None:
        """Create a variable if there is none."""
        if self.ours.must_create(col, name):
            check_creatable(self.ours, col, name, made=init_fn is not None)
            value = initial_value(self.ours, col, name, _boxed(init_fn), keyed, *args, **kwargs)
            self.ours.create_variable(col, name, value)

    # -- keys ----------------------------------------------------------------------------------------------------------

    def has_rng(self, name: str) -> bool:
        """Return whether there is a stream of that name."""
        return self.ours.has_rng(name)

    def make_rng(self, name: str = "params") -> Any:
        """Return the next key of a stream."""
        return self.ours.make_rng(name)

    @property
    def rngs(self) -> dict[str, Any]:
        """The streams for a lift of flax: each begins from a new key of ours."""
        names = [name for name in self.ours.given_rngs if self.ours.has_rng(name)]
        return {name: _core().scope.LazyRng.create(self.ours.make_rng(name)) for name in names}

    @rngs.setter
    def rngs(self, _: Any) -> None:
        """Do nothing: a lift of flax that replaces the streams for a while gets new keys anyway."""

    @property
    def rng_counters(self) -> dict[str, int]:
        """The counts for a lift of flax: each of its streams is new."""
        return {name: 0 for name in self.ours.given_rngs if self.ours.has_rng(name)}


# --- collections that a module may write ------------------------------------------------------------------------------


def _is_mutable(scope: Scope, collection: str) -> bool:
    if collection == INTERMEDIATES and scope.is_initializing():
        return False  # as in the `init` of flax
    return scope.is_mutable_collection(collection) or scope.tree.captures((collection, *scope.path, ""), None)


def _mutable(scope: Scope) -> Any:
    """Return flax's filter of the mutable collections."""
    names = {*names_in(scope.tree.outermost().mutable), *scope.collections, INTERMEDIATES}
    if _is_mutable(scope, "any other"):
        return _core().DenyList(sorted(name for name in names if not _is_mutable(scope, name)))
    return sorted(name for name in names if _is_mutable(scope, name))


# --- boxes ------------------------------------------------------------------------------------------------------------


class Boxed(PyTreeNode, meta.AxisMetadata):
    """A box of flax as one of ours.

    Attributes:
        box: the box of flax.
    """

    box: Any

    def unbox(self) -> Any:
        """Return the content."""
        return self.box.unbox()

    def replace_boxed(self, value: Any) -> Boxed:
        """Return the same metadata for another content."""
        return self.replace(box=self.box.replace_boxed(value))

    def add_axis(self, index: int, params: Mapping[Any, Any]) -> Boxed:
        """Return the box with metadata for one axis more."""
        return self.replace(box=self.box.add_axis(index, params))

    def remove_axis(self, index: int, params: Mapping[Any, Any]) -> Boxed:
        """Return the box with metadata for one axis less."""
        return self.replace(box=self.box.remove_axis(index, params))

    def get_partition_spec(self) -> Any:
        """Return the `PartitionSpec` of the content."""
        return self.box.get_partition_spec()


def _boxed(init_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return an initializer that makes boxes of ours in place of those of flax."""
    return functools.wraps(init_fn)(lambda *args, **kwargs: _ours(init_fn(*args, **kwargs)))


def _ours(value: Any) -> Any:
    """Return a value with boxes of ours in place of those of flax."""
    if meta.is_array_type(type(value)):
        return value
    boxes = _core().meta

    def ours(leaf: Any) -> Any:
        if type(leaf) is boxes.Partitioned:
            return meta.Partitioned(leaf.value, leaf.names, leaf.mesh)
        return Boxed(leaf) if boxes.is_axis_metadata(leaf) else leaf

    return jax.tree.map(ours, value, is_leaf=boxes.is_axis_metadata)


def _theirs(value: Any) -> Any:
    """Return a value with boxes of flax in place of ours: the inverse of `_ours`."""
    if not meta.has_boxes(value):
        return value

    def theirs(leaf: Any) -> Any:
        if isinstance(leaf, Boxed):
            return leaf.box
        if isinstance(leaf, meta.Partitioned):
            return _core().meta.Partitioned(leaf.value, leaf.names, leaf.mesh)
        return leaf

    return jax.tree.map(theirs, value, is_leaf=meta.is_box)
