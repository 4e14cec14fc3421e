"""Binding: gives a module its place in the tree, adopts its submodules, runs `setup`, makes clones, and shares places.

A module is *unbound* (a description, `scope` is None) or *bound* to a scope. It is bound when it is constructed inside
a running method of a bound parent, when a bound parent adopts it as an attribute, or when it is made again on a scope:
`init` and `apply` do that with the given module, and lifts with the modules inside. `setup` runs at the first use after
that.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import jax

from liftcore import Scope, nn
from liftcore.errors import Expected, LiftArgumentError
from liftcore.owners import by_dtype, collections_of, style_of

from ..errors import (
    AssignSubModuleError,
    CallShareScopeOnUnboundModuleError,
    IncorrectPostInitOverrideError,
    InvalidInstanceModuleError,
    SetAttributeFrozenModuleError,
    SetAttributeInModuleSetupError,
    UnboundModuleError,
)
from .context import context
from .fields import PLAIN, Base, map_instances, named_modules

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
    """The state of a module beside its fields.

    Attributes:
        in_setup, in_compact: whether `setup`, or a compact method, is running.
        ready: whether `setup` has run.
        open: whether attributes may be set freely, which holds until the module is bound.
        reuse: whether `setup` has already run on the module that this is a clone of.
        begins: whether a lifted method was called before `setup` ran; `setup` then runs first inside the lift.
        children: the bound submodules by name, if there are any.
        home: the scope for new submodules while a method with its own name scope is running.
        counts: how many keys had been drawn at its scope when `setup` began.
        lifts: the lifts of its class that the module is inside of.
        may_keep_arrays: whether one of these lifts may keep arrays alive.
        adopted: the clones that replace unbound modules in this tree; shared by all modules of the tree.
    """

    # Defaults are class attributes, so the state of a module costs nothing until something is stored there.
    in_setup = in_compact = ready = reuse = begins = may_keep_arrays = False
    open = True
    children: dict[str, Base] | None = None
    home: Scope | None = None
    adopted: Adopted
    counts: Mapping[str, int] = MappingProxyType({})
    lifts: frozenset[Any] = frozenset()

    @functools.cached_property
    def methods(self) -> dict[str, Any]:
        """The bound methods that were hashed last, by name; see `cached_method`."""
        return {}

    @property
    def defines(self) -> bool:
        """Whether `setup` or a compact method is running, which may define submodules and variables."""
        return self.in_setup or self.in_compact

    def follow(self, other: State, lifts: Iterable[Any] = ()) -> None:
        """Continue from the state of another module, for a clone of it inside a lift, or inside more lifts."""
        self.in_setup, self.in_compact = other.in_setup, other.in_compact
        self.reuse, self.begins = other.reuse or other.ready, other.begins
        self.lifts = other.lifts.union(lifts)
        self.may_keep_arrays = other.may_keep_arrays or True in [lift.may_keep_arrays for lift in lifts]


NEW = State()
"""The state of a module whose `__post_init__` has not run."""


class Parent:
    """The attribute `parent`: a module (held weakly, since it holds its children), a scope or None."""

    def __get__(self, module: Base, cls: type | None = None) -> Any:
        if module is None:
            return self
        held = module.__dict__.get("_parent")
        return held() if type(held) is weakref.ref else held

    def __set__(self, module: Base, value: Any) -> None:
        module.__dict__["_parent"] = value  # `attach` makes it weak


def place(module: Base) -> str:
    """Return the text for a module in errors: `MLP at /encoder`, or `MLP (unbound)`."""
    return f"{type(module).__name__} {'(unbound)' if module.scope is None else f'at {module.scope.path_text}'}"


def bound_scope(module: Base, act: str) -> Scope:
    """Return the scope of a bound module.

    Raises:
        UnboundModuleError: if it is unbound; `act` is what was requested.
    """
    if module.scope is None:
        check_constructed(module)
        raise UnboundModuleError(
            f"{act} of {place(module)}",
            "the module is a description without variables.",
            "Use it within `init` or `apply`, or bind it: `module.bind(variables)`.",
        )
    return module.scope


def check_instance(module: Any, called: str, where: str = "Module.{}", code: str = "MyModule(…).{}(…)") -> None:
    """Check that the first argument is a module whose constructor has run.

    Args:
        module: the argument.
        called: the method that was called.
        where: what was called, for the error; `{}` stands for the method.
        code: the call to write; so here.

    Raises:
        InvalidInstanceModuleError: if it is a class or another value.
        IncorrectPostInitOverrideError: see `check_constructed`.
    """
    if not isinstance(module, Base):
        what = Expected("an instance of a Module class as the first argument", given=module)
        fix = f"Make the instance first: `{code.format(called)}`."
        raise InvalidInstanceModuleError(where.format(called), what, fix)
    check_constructed(module)


def check_constructed(module: Base) -> None:
    """Raise an error if a module's own constructor does not call the one of `Module`, or takes other arguments."""
    name = type(module).__name__
    if not type(module)._takes_parent:
        raise IncorrectPostInitOverrideError(
            f"class {name}",
            "its own `__init__` does not take `parent` and `name`, which are needed to make and clone modules.",
            "Declare fields, such as `size: int`, instead of `__init__`, and make submodules in `setup`.",
            expected="parent",
        )
    if module._state is NEW:
        raise IncorrectPostInitOverrideError(
            f"class {name}",
            "its `__init__` or `__post_init__` does not call the one of `Module`.",
            "Declare fields instead of writing `__init__`, and end `__post_init__` with `super().__post_init__()`.",
            expected="super().__post_init__()",
        )


# --- unbound to bound -------------------------------------------------------------------------------------------------


def attach(module: Base) -> None:
    """Place a constructed module: below its parent module, on the scope given as parent, or nowhere yet."""
    cls, held = type(module), module.__dict__
    for name, kind in cls._plain_fields.items():  # values of other kinds would fail late, or not at all
        nn.check_option(cls.__name__, name, kind, held.get(name), cls.__name__)
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
        where = f"parent of {cls.__name__}"
        fix = "Leave it out: by default it is the module whose method is running."
        raise LiftArgumentError(where, Expected("a module, a scope or None", parent), fix, option="parent")
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
    """Return the scope of a new submodule; None if an attribute has yet to name it."""
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
            "Make it in `setup`, or put `@nn.compact` on the method; `parent=None` makes one that is not a submodule.",
            option="parent",
            given=type(module).__name__,
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
    """Set an attribute of a bound module, and make the unattached modules in its value submodules of that name."""
    queue: list[Base] = []

    def take(module: Any, name: str) -> Any:
        if not isinstance(module, Base):
            return _object(owner, name, module)
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
        where = f'attribute "{name}" of {place(owner)}'
        what = Expected("a module, or a list, tuple or dict of modules", given="a set", words="a set")
        raise LiftArgumentError(where, what, "Use a list: its order gives the names.")
    value = named_modules(value, take, name)
    # Only now: a module in the value that is also inside another module there must be named by the value. And before
    # the attribute is set, since other threads may read it from then on.
    for module in queue:
        attach(module)
    if hasattr(type(owner), name):  # a property may have a setter
        object.__setattr__(owner, name, value)
    else:
        owner.__dict__[name] = value


def _object(owner: Base, name: str, held: Any) -> Any:
    """Return a copy of a value that calls change, for the constructor of an object; elsewhere, it is an error."""
    style = style_of(held)
    if style is not None and not type(owner).makes_objects and any(collections_of(held, by_dtype)):
        raise LiftArgumentError(
            f'attribute "{name}" of {place(owner)}',
            f"it holds {style.noun}, {type(held).__name__}, of which a module keeps a copy: changes would be lost.",
            f"Pass a function that makes it, `{name}=lambda {style.given}: …`, and write "
            f'`{style.adopt}(self.scope.push("{name}"), self.{name})(x)` in a method.',
            given=f"{style.noun}, {type(held).__name__}",
        )
    return jax.tree.map(lambda leaf: leaf, held)


def _clone_in_tree(module: Base, adopted: Adopted) -> Any:
    """Return the one clone that replaces an unbound module in a tree, wherever it is passed."""
    source, clone = adopted.get(id(module), (None, None))
    known = clone() if source is not None and source() is module and clone is not None else None
    if known is None:
        known = module.clone(name=None)
        adopted[id(module)] = (weakref.ref(module), weakref.ref(known))
    return known


# --- setup and attributes ---------------------------------------------------------------------------------------------


def ensure_setup(module: Base) -> None:
    """Run `setup` of a bound module, unless it has run or is running. If it raised an error, it runs again."""
    state = module._state
    if state.open or state.ready or state.in_setup:
        return
    state.in_setup = True
    state.counts = module.scope.draws
    # Values computed in `setup` are kept, so under a raw transformation constants must not become tracers.
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
    """Implement `module.name = value` for a bound module: adopts modules in `setup`, and is an error elsewhere."""
    if not module._state.in_setup:
        raise SetAttributeFrozenModuleError(
            f'attribute "{name}" of {place(module)}',
            "a bound module is frozen; its attributes can be set only in `setup`.",
            f'Set it in `setup`. For a value that changes between calls, use `self.variable("state", "{name}", …)`.',
            given=name,
        )
    if name in type(module)._frozen_names:
        raise SetAttributeInModuleSetupError(
            f'field "{name}" of {place(module)}',
            "`setup` assigns to a field of the class, which would change the module's definition.",
            f"Use another name in `setup`: `self.{name}_ = …`.",
            given=name,
        )
    adopt(module, name, value)


# --- clones -----------------------------------------------------------------------------------------------------------


def constructor_arguments(module: Base) -> dict[str, Any]:
    """Return the fields that make an equal module, including `name` but not `parent`."""
    return {name: getattr(module, name) for name in (*type(module)._field_names, "name")}


def constructor(module: Base) -> Callable[..., Any]:
    """Return what makes modules like this one: its class or, if an alias such as `Layer[int]` made it, the alias."""
    found: Callable[..., Any] = module.__dict__.get("__orig_class__", type(module))
    return found


def contains_itself(module: Base) -> LiftArgumentError:
    """Return the error for a module that is found within its own fields or attributes."""
    return LiftArgumentError(
        place(module),
        "the module contains itself, in a field or an attribute.",
        "Use another module, such as `module.clone()`. A module can hold modules below it, but none above it.",
    )


def deep_clone(module: Base, parent: Any, reset_names: bool, updates: dict[str, Any], known: dict[int, Any]) -> Any:
    """Clone a module and all modules in its fields; a module that occurs twice is cloned once.

    Args:
        module: the module.
        parent: the parent of the clone.
        reset_names: whether the modules in fields lose their names.
        updates: fields to change.
        known: the clones made so far: `{id(module): clone}`.
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
    return constructor(module)(parent=parent, **fields)


# --- places other than a module's own ---------------------------------------------------------------------------------


@contextlib.contextmanager
def name_scope(module: Base, name: str) -> Iterator[None]:
    """Place submodules below a name, while a method with its own name scope is running."""
    state, scope = module._state, module.scope
    if scope.number(f"{name}()") == 0:  # counted like automatic names, which pass through lifts
        scope.reserve(name)
    before, state.home = state.home, scope.below((name,))
    try:
        yield
    finally:
        state.home = before


def share_scope(module: Base, other: Any, /) -> None:
    """Put two bound modules in one place: the variables and submodules of both are side by side, under one name.

    If one is a submodule of the other, it moves up to the module that holds it; otherwise the first moves to the
    second. Submodules that it already holds move with it. Call this in `setup`, before either of them is used:
    variables that already exist stay where they are.

    Example:
        >>> import jax, linen_like as nn
        >>> class WithScale(nn.Module):
        ...     base: nn.Module
        ...     def setup(self):
        ...         nn.share_scope(self, self.base)
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         return self.base(x) * self.param("scale", jax.nn.initializers.ones, ())
        >>> variables = WithScale(nn.Dense(2)).init(jax.random.key(0), jax.numpy.ones(3))
        >>> sorted(variables["params"])
        ['bias', 'kernel', 'scale']

    Args:
        module: a module.
        other: another one.

    Raises:
        CallShareScopeOnUnboundModuleError: if one of them is unbound.
        NameInUseError: later, if both use one name.
    """
    for one in (module, other):
        if not isinstance(one, Base):
            fix = "Pass `self` and a module that it holds: `nn.share_scope(self, self.base)`."
            raise LiftArgumentError("nn.share_scope", Expected("two modules", one), fix)
        if one.scope is None:
            raise CallShareScopeOnUnboundModuleError(
                f"share_scope of {place(module)} and {place(other)}",
                f"{type(one).__name__} is a description without variables.",
                "Call it in `setup`, with `self` and a module that it holds: `nn.share_scope(self, self.base)`.",
                given=type(one).__name__,
            )
    above, below = module.scope, other.scope
    moved, scope = (other, above) if above.holds(below) else (module, below)
    left = moved.scope
    if left.parent is not None and left.name is not None:
        left.parent.free(left.name)
    _move(moved, scope.beside())


def _move(module: Base, scope: Any) -> None:
    """Move a module to another scope, and the submodules that it already holds below that scope."""
    left = module.scope
    module.__dict__["scope"] = scope
    for child in (module._state.children or {}).values():
        if child.scope is not None and child.scope.parent is left:
            _move(child, scope.push(child.name))


# --- threads ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def entered(module: Base) -> Iterator[Any]:
    """Yield the module, for this thread alone within the `with` block; or its twin, if another thread is using it.

    While a call runs, it records in the modules of a tree which methods are running, which names are taken, and which
    attributes `setup` sets. So if another thread is in a call, a thread calls a twin: the same module, on a separate
    tree with the same variables, which can only be read.
    """
    scope = module.scope
    if not scope.claim():
        kept = _twin(module)
        yield kept[1]  # its root, which it holds weakly, must stay alive
        return
    try:
        yield module
    finally:
        scope.release()


def _twin(module: Base) -> tuple[Any, Any]:
    """Return the twins of a module's root and of the module itself."""
    root, below, entry = module, [], module.scope.entry
    while isinstance(root.parent, Base) and root.parent.scope is not None and entry.holds(root.parent.scope):
        below.append(root)
        root = root.parent
    reader = entry.reader()
    twins = deep_clone(root, reader.below(root.scope.relative_path), False, {}, {})
    twin = twins
    for one in reversed(below):
        twin = _child(twin, one)
        if twin is None:  # it was made in a call, and left that call
            place = reader.below(module.scope.relative_path)
            return twins, constructor(module)(parent=place, **constructor_arguments(module))
    return twins, twin


def _child(twin: Base, module: Base) -> Any:
    """Return the submodule of a twin at the place of another module."""
    ensure_setup(twin)
    children = (twin._state.children or {}).values()
    return next((child for child in children if child.scope.path == module.scope.path), None)
