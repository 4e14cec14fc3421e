"""Binding: how a module gets its place in the tree, adopts its submodules, is set up, and is cloned elsewhere.

A module is *unbound* (a description, `scope` is None) or *bound* to a scope. It becomes bound when it is constructed
inside a running method of a bound parent, when a bound parent adopts it as an attribute, or when it is made again on a
scope: `init` and `apply` do that with the module they are called on, and lifts with those inside. `setup` runs at the
first use after that.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import jax

from liftcore import Scope
from liftcore.errors import LiftArgumentError, shown

from ..errors import (
    AssignSubModuleError,
    IncorrectPostInitOverrideError,
    SetAttributeFrozenModuleError,
    SetAttributeInModuleSetupError,
    UnboundModuleError,
)
from .context import context
from .fields import Base, check_plain
from .naming import PLAIN, map_instances, named_modules

Adopted: TypeAlias = "dict[int, tuple[weakref.ref[Base], weakref.ref[Base]]]"


class _Unspecified:
    """The default of the field `parent`: the module whose method is running, if any."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<the running module>"

    def __reduce__(self) -> str:
        return "UNSPECIFIED"


UNSPECIFIED = _Unspecified()


class State:
    """What a module remembers beside its fields.

    Attributes:
        in_setup, in_compact: whether `setup`, or a compact method, is running.
        ready: whether `setup` has run.
        open: whether attributes may be set freely, as long as the module is not bound.
        reuse: whether `setup` ran already on the module that this is a clone of.
        begins: whether a lifted method was called before `setup` ran, which then runs first inside the lift.
        children: the bound submodules by name, if there are any.
        home: where new submodules go while a method with a name scope of its own is running.
        counts: how many keys had been drawn at its scope when `setup` began.
        lifts: the lifts of its class that it is inside of.
        may_keep_arrays: whether one of these may keep arrays alive.
        adopted: the clones that stand for unbound modules in this tree; shared by all modules of the tree.
    """

    # Defaults live in the class, so that the state of a module costs nothing until something is put there.
    in_setup = in_compact = ready = reuse = begins = may_keep_arrays = False
    open = True
    children: dict[str, Base] | None = None
    home: Scope | None = None
    adopted: Adopted
    counts: Mapping[str, int] = MappingProxyType({})
    lifts: frozenset[Any] = frozenset()

    @functools.cached_property
    def methods(self) -> dict[str, Any]:
        """The bound methods that were hashed last, by name: see `cached_method`."""
        return {}

    @property
    def defines(self) -> bool:
        """Whether `setup` or a compact method is running, which may define submodules and variables."""
        return self.in_setup or self.in_compact

    def follow(self, other: State, lifts: Iterable[Any] = ()) -> None:
        """Goes on where another module stands, for a clone of it inside a lift, or inside more of them."""
        self.in_setup, self.in_compact = other.in_setup, other.in_compact
        self.reuse, self.begins = other.reuse or other.ready, other.begins
        self.lifts = other.lifts.union(lifts)
        self.may_keep_arrays = other.may_keep_arrays or True in [lift.may_keep_arrays for lift in lifts]


NEW = State()
"""The state of a module whose `__post_init__` has not run."""


class Parent:
    """The attribute `parent`: a module, a scope or None. A module is held weakly, since it holds its children."""

    def __get__(self, module: Base, cls: type | None = None) -> Any:
        if module is None:
            return self
        held = module.__dict__.get("_parent")
        return held() if type(held) is weakref.ref else held

    def __set__(self, module: Base, value: Any) -> None:
        module.__dict__["_parent"] = value  # `attach` makes it weak


def place(module: Base) -> str:
    """A module as errors show it: `MLP at /encoder`, or `MLP (unbound)`."""
    return f"{type(module).__name__} {'(unbound)' if module.scope is None else f'at {module.scope.path_text}'}"


def bound_scope(module: Base, act: str) -> Scope:
    """The scope of a bound module.

    Raises:
        UnboundModuleError: where it is unbound; `act` says what was asked of it.
    """
    if module.scope is None:
        check_constructed(module)
        raise UnboundModuleError(
            f"{act} of {place(module)}",
            "the module is a description without variables.",
            "Use it within `init` or `apply`, or bind it: `module.bind(variables)`.",
        )
    return module.scope


def check_constructed(module: Base) -> None:
    """Raises where a module's own constructor left out the one of `Module`, or cannot be called as that one is."""
    name = type(module).__name__
    if not type(module)._takes_parent:
        raise IncorrectPostInitOverrideError(
            f"class {name}",
            "its own `__init__` does not take `parent` and `name`, which modules are made and cloned with.",
            "Declare fields, such as `size: int`, in place of `__init__`, and make submodules in `setup`.",
        )
    if module._state is NEW:
        raise IncorrectPostInitOverrideError(
            f"class {name}",
            "its `__init__` or `__post_init__` does not call that of `Module`.",
            "Declare fields instead of writing `__init__`, and end `__post_init__` with `super().__post_init__()`.",
        )


# --- unbound to bound -------------------------------------------------------------------------------------------------


def attach(module: Base) -> None:
    """Gives a constructed module its place: below its parent module, on the scope given as parent, or none yet."""
    cls, held = type(module), module.__dict__
    check_plain(module)
    state = held["_state"] = State()
    parent = held["_parent"]
    if parent is UNSPECIFIED:
        parent = held["_parent"] = context.modules[-1]
    if isinstance(parent, Base):
        held["_parent"] = weakref.ref(parent)
        scope = _scope_below(module, parent, state)
    elif parent is None or isinstance(parent, Scope):
        scope = parent
        state.adopted = {}
    else:
        raise LiftArgumentError(
            f"parent of {cls.__name__}",
            f"expected a module, a scope or None, given {shown(parent)}.",
            "Leave it out: it is the module whose method is running.",
        )
    if scope is None:
        return
    held["scope"] = scope
    state.ready = not cls._has_setup
    for name in cls._field_names:
        value = held[name]
        if type(value) not in PLAIN:
            adopt(module, name, value)
    state.open = False


def _scope_below(module: Base, parent: Base, state: State) -> Scope | None:
    """The scope of a new submodule; None for one that is still to be named by an attribute."""
    above = parent._state
    if above.in_setup and module.name is None:
        return None
    if parent.scope is None:  # a method that only describes modules is running
        module.__dict__["_parent"] = None
        return None
    home = parent.scope if above.home is None else above.home
    if not (above.open or above.in_setup or above.in_compact or above.home is not None):
        raise AssignSubModuleError(
            place(parent),
            f"a submodule {type(module).__name__} was made outside `setup` and outside a compact method.",
            "Make it in `setup`, or put `@nn.compact` on the method; `parent=None` makes one that is no submodule.",
        )
    name = module.name
    if name is None:
        prefix = type(module)._name_prefix
        name = module.__dict__["name"] = f"{prefix}_{home.number(prefix)}"
    scope: Scope = home.push(name)
    if above.children is None:
        above.children = {}
    above.children[name if above.home is None else f"{home.name}/{name}"] = module
    state.adopted = above.adopted
    return scope


def adopt(owner: Base, name: str, value: Any) -> None:
    """Sets an attribute of a bound module, and makes the unattached modules in its value submodules of that name."""
    queue: list[Base] = []

    def take(module: Base, name: str) -> Base:
        if module is owner:
            raise contains_itself(module)
        kept = None
        if module.parent is None:
            kept = module.name if type(owner).preserve_adopted_names else None
            module = _clone_in_tree(module, owner._state.adopted)
        if module.name is None and module.scope is None:
            module.__dict__.update(_parent=owner, name=kept or name)
            queue.append(module)
        return module

    if isinstance(value, set | frozenset) and any(isinstance(member, Base) for member in value):
        raise LiftArgumentError(
            f'attribute "{name}" of {place(owner)}',
            "expected a module, or a list, tuple or dict of modules, given a set.",
            "Use a list: its order gives the names.",
        )
    value = named_modules(value, take, name)
    # Only now, so that a module that lies in the value itself and inside another one there is named by the value; and
    # before the attribute is set, since other threads may read it from then on.
    for module in queue:
        attach(module)
    if hasattr(type(owner), name):  # a property may have a setter
        object.__setattr__(owner, name, value)
    else:
        owner.__dict__[name] = value


def _clone_in_tree(module: Base, adopted: Adopted) -> Any:
    """The one clone that stands for an unbound module in a tree, wherever it is passed."""
    source, clone = adopted.get(id(module), (None, None))
    known = clone() if source is not None and source() is module and clone is not None else None
    if known is None:
        known = module.clone(name=None)
        adopted[id(module)] = (weakref.ref(module), weakref.ref(known))
    return known


# --- setup and attributes ---------------------------------------------------------------------------------------------


def ensure_setup(module: Base) -> None:
    """Runs `setup` of a bound module, unless it ran or is running; one that raised will run again."""
    state = module._state
    if state.open or state.ready or state.in_setup:
        return
    state.in_setup = True
    state.counts = dict(module.scope.node.counts)
    # What `setup` computes is kept, so under a raw transformation constants must not become values of its trace.
    known = contextlib.nullcontext() if module.scope.is_live else jax.ensure_compile_time_eval()
    try:
        with known:
            module.setup()
        state.ready = True
    except BaseException:
        module.__dict__["scope"] = module.scope.rewound()
        raise
    finally:
        state.in_setup = False


def set_attribute(module: Base, name: str, value: Any) -> None:
    """What `module.name = value` does once the module is bound: adoption in `setup`, else an error."""
    if not module._state.in_setup:
        raise SetAttributeFrozenModuleError(
            f'attribute "{name}" of {place(module)}',
            "a bound module is frozen, and its attributes are set in `setup` only.",
            f'Set it in `setup`; for what changes from call to call, use `self.variable("state", "{name}", …)`.',
        )
    if name in type(module)._frozen_names:
        raise SetAttributeInModuleSetupError(
            f'field "{name}" of {place(module)}',
            "`setup` sets a field of the class again, which would change what the module is.",
            f"Use another name in `setup`: `self.{name}_ = …`.",
        )
    adopt(module, name, value)


# --- clones -----------------------------------------------------------------------------------------------------------


def constructor_arguments(module: Base) -> dict[str, Any]:
    """The fields that make an equal module, `name` among them and `parent` not."""
    return {name: getattr(module, name) for name in (*type(module)._field_names, "name")}


def contains_itself(module: Base) -> LiftArgumentError:
    """The error for a module that is found within its own fields or attributes."""
    return LiftArgumentError(
        place(module),
        "the module contains itself, by way of a field or an attribute.",
        "Give it another one, such as `module.clone()`; a module holds those below it, and never one above.",
    )


def deep_clone(module: Base, parent: Any, reset_names: bool, updates: dict[str, Any], known: dict[int, Any]) -> Any:
    """A clone with clones of all modules in its fields; those that are the same stay the same.

    Args:
        module: the module.
        parent: the parent of the clone.
        reset_names: whether the modules in fields lose their names.
        updates: fields to change.
        known: the modules cloned already: `{id(module): clone}`.
    """

    def below(inner: Base) -> Any:
        if inner is module or known.get(id(inner), module) is None:
            raise contains_itself(inner)
        if id(inner) not in known:
            known[id(inner)] = None  # until it is made
            known[id(inner)] = deep_clone(inner, None, reset_names, {"name": None} if reset_names else {}, known)
        return known[id(inner)]

    arguments = {**constructor_arguments(module), **updates}
    fields = {name: map_instances(value, Base, below) for name, value in arguments.items()}
    return type(module)(parent=parent, **fields)


# --- threads ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def entered(module: Base) -> Iterator[Any]:
    """The module, which this thread has to itself within the `with` block; or its twin, where another thread has it.

    While a call runs it notes down, with the modules of a tree, which methods are running, the names that are taken and
    the attributes that `setup` sets. So a thread that calls while another one is in a call runs a twin: the same
    module, on a tree of its own with the same variables, which may be read and nothing else.
    """
    tree = module.scope.tree
    if not tree.claim():
        kept = _twin(module)
        yield kept[1]  # its root, which it holds weakly, must live as long
        return
    try:
        yield module
    finally:
        tree.open()


def _twin(module: Base) -> tuple[Any, Any]:
    """The twin of the root that a module lies below, and that of the module itself."""
    tree, root, below = module.scope.tree, module, []
    while isinstance(root.parent, Base) and root.parent.scope is not None and root.parent.scope.tree is tree:
        below.append(root)
        root = root.parent
    reader = tree.reader()
    twins = deep_clone(root, _at(reader, root.scope), False, {}, {})
    twin = twins
    for one in reversed(below):
        twin = _child(twin, one)
        if twin is None:  # made in a call, and handed out
            return twins, type(module)(parent=_at(reader, module.scope), **constructor_arguments(module))
    return twins, twin


def _child(twin: Base, module: Base) -> Any:
    """The submodule of a twin that stands at the place of another module."""
    ensure_setup(twin)
    children = (twin._state.children or {}).values()
    return next((child for child in children if child.scope.path == module.scope.path), None)


def _at(reader: Any, scope: Scope) -> Scope:
    """The place of a scope, in a reader of its tree."""
    root = scope
    while root.parent is not None:
        root = root.parent
    return Scope.at(reader, reader.root, root.path, None).below(scope.path[len(root.path) :])
