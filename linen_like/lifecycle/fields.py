"""Fields: each Module class is a dataclass, and its fields alone define an unbound module.

So equality, hash and text of a module depend on its class and fields. In addition to the fields that a class declares,
every module has the keyword-only fields `parent` and `name`. Modules in the value of an attribute are named after it.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Optional, Self, dataclass_transform

import jax
import numpy as np

from liftcore import nn
from liftcore.caches import bounded
from liftcore.calls import check_keywords
from liftcore.frozen_dict import FrozenDict
from liftcore.owners import Style, style_of
from liftcore.statics import Undescribed
from liftcore.typing import Path

from ..errors import ReservedModuleAttributeError, UnhashableModuleError

if TYPE_CHECKING:
    from .binding import State

_NAME_TYPES = (str, Optional[str], "str", "str | None", "Optional[str]")  # noqa: UP045
_RESERVED = ("parent", "scope")
_WIDTH = 100


class Recipe(NamedTuple):
    """How a lifted class is made, the same in each process.

    Attributes:
        name: the name of the lift.
        methods: the methods that are lifted, each with its lift.
        cls: the class that is lifted, which may be a lifted one.
        prefix: see `lift_with`.
    """

    name: str
    methods: Sequence[tuple[str, Any]]
    cls: Any
    prefix: str


def recipe_of(cls: Any) -> Recipe | None:
    """Return how a lifted class is made; None for any other class, and for a subclass of a lifted one."""
    return vars(cls).get("_recipe")


def unlifted(cls: Any) -> Any:
    """Return the class that a lifted class, or a lift of that, was made from; any other class itself."""
    while (recipe := vars(cls).get("_recipe")) is not None:
        cls = recipe.cls
    return cls


@dataclass_transform(field_specifiers=(dataclasses.field,))
class Base:
    """The attributes of a module that type checkers, and the files that `Module` is made of, rely on.

    Lifting reads those of them that begin with an underscore, and no others. It takes a module apart with
    `constructor_arguments`, makes it again with its constructor and `parent=scope`, visits modules in any pytree with
    `map_instances`, and compares modules with `liftcore.static_key`. A wrapped method has `is_module_method`, and the
    method that the user wrote as `__wrapped__`.

    Attributes:
        scope: the `liftcore.Scope` that holds its variables, or None while it is unbound.
        preserve_adopted_names: whether a module that is passed to the constructor keeps its name.
        makes_objects: whether the fields may hold objects, which become a part of the object that the module makes.
        _state: what is running, and the lifts around it; `follow` continues from the state of another module.
        _field_names: the names of the fields, without `parent` and `name`.
        _has_setup: whether the class defines `setup`, which runs again on a module that is made again.
        _has_constructor: whether making an instance may define something.
        _name_prefix: the start of automatic names, by default the name of the class.
        _recipe: of a lifted class, how it is made.
        _methods_advice: of a lifted class, advice for errors about methods that are not lifted.
    """

    __style__: ClassVar[Style] = Style("a Linen-style module")
    scope: Any = None
    preserve_adopted_names: ClassVar[bool] = False
    makes_objects: ClassVar[bool] = False
    _has_setup: ClassVar[bool] = False
    _takes_parent: ClassVar[bool] = True
    _has_constructor: ClassVar[bool] = False
    _recipe: ClassVar[Recipe | None] = None
    _methods_advice: ClassVar[str] = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make a module without fields."""
        if not kwargs.keys() <= cls.__dataclass_fields__.keys():
            check_keywords(cls, kwargs)
        return super().__new__(cls)

    def __static_fields__(self) -> dict[str, Any]:
        """Return the fields for the key of compiled code (see `liftcore.static_key`); a bound module has no key.

        A bound module reads the variables of its scope, which are not in a field.
        """
        if getattr(self, "scope", None) is not None:
            free = f"`{type(self).__name__}(…, parent=None)`"
            fix = f"Pass it as an argument; or if it is not to belong to the running module, write {free}."
            raise Undescribed(self, fix=fix)
        return {name: getattr(self, name, None) for name in (*self._field_names, "name")}

    def __eq__(self, other: object) -> bool:
        """Whether the other module is of the same class, and has equal fields and the same place."""
        if type(self) is not type(other):
            return NotImplemented
        same_place = self.name == other.name and self.parent is other.parent
        return same_place and all(getattr(self, name) == getattr(other, name) for name in self._compared_names)

    def __hash__(self) -> int:
        """Return the hash of the class and the fields.

        Raises:
            UnhashableModuleError: if the module is bound, or a field cannot be hashed.
        """
        cls = type(self)
        if self.scope is not None:
            raise UnhashableModuleError(
                f"hash of {cls.__name__} at {self.scope.path_text}",
                "a module that is bound to variables has no hash.",
                "If a JAX transformation needs it, use the lifted one of the same name, which takes modules: "
                "`nn.jit` for `jax.jit`, `nn.cond` for `jax.lax.cond`. "
                "To keep it in a dict or set, use the unbound module: `module, variables = module.unbind()`.",
                given=cls.__name__,
            )
        values = {name: getattr(self, name) for name in cls._compared_names}
        try:
            return hash((cls, self.name, *values.values()))
        except TypeError as error:
            bad = next((name for name, value in values.items() if type(value).__hash__ is None), None)
            raise UnhashableModuleError(
                f"hash of {cls.__name__}",
                f'field "{bad}" cannot be hashed ({type(values[bad]).__name__}).' if bad else f"{error}.",
                "Use a hashable value, such as a tuple instead of a list.",
                option=bad,
                given=type(values[bad]).__name__ if bad else None,
            ) from error

    def __repr__(self) -> str:
        """Return the constructor call, without fields that have their default; submodules follow as `+ name`.

        The module may be partly constructed.
        """
        cls, held = type(self), self.__dict__
        in_fields = set(map(id, modules_in([held.get(name) for name in cls._field_names])))
        children = {name: one for name, one in (self._state.children or {}).items() if id(one) not in in_fields}
        shown = {}
        for name in (*cls._field_names, "name"):
            field = cls.__dataclass_fields__[name]
            if field.repr and name in held and not _is_default(field, held[name]):
                shown[name] = _text(held[name])
        lines = [f"{name}={text}" for name, text in shown.items()]
        lines += [f"+ {name}: {child!r}" for name, child in children.items()]
        line = ", ".join(lines)
        if not children and len(line) <= _WIDTH and "\n" not in line:
            return f"{cls.__name__}({line})"
        return "\n".join((f"{cls.__name__}(", *(f"    {text},".replace("\n", "\n    ") for text in lines), ")"))

    if TYPE_CHECKING:
        name: str | None
        parent: Any
        setup: Callable[[], None]
        clone: Callable[..., Any]
        __call__: Callable[..., Any]
        sow: Callable[..., bool]
        _state: State
        _field_names: ClassVar[tuple[str, ...]]
        _frozen_names: ClassVar[frozenset[str]]
        _compared_names: ClassVar[tuple[str, ...]]
        _name_prefix: ClassVar[str]
        _plain_fields: ClassVar[Mapping[str, nn.OptionKind]]
        _option_names: ClassVar[frozenset[str]]

        @property
        def path(self) -> Path: ...  # noqa: D102

        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


def make_dataclass(cls: type[Base], kw_only: bool = False) -> None:
    """Make a class a dataclass, and store on it what its instances need to know about its fields.

    Args:
        cls: a new subclass of `Module`.
        kw_only: whether its own fields are keyword-only; see `dataclasses.dataclass`.
    """
    own = cls.__dict__.get("__init__")
    cls._takes_parent = own is None or _takes(own, "parent", "name")
    # Equality and hash are written once, in `Base`, so a class costs one generated function instead of three.
    dataclasses.dataclass(eq=False, repr=False, kw_only=kw_only)(cls)
    for name in ("parent", "name"):  # last, so that positional fields come first, in the same order
        cls.__dataclass_fields__[name] = cls.__dataclass_fields__.pop(name)
    given = [field for field in dataclasses.fields(cls) if field.init and field.name not in ("parent", "name")]
    cls._field_names = tuple(field.name for field in given)
    cls._frozen_names = frozenset((*cls._field_names, "parent", "name"))
    cls._compared_names = tuple(field.name for field in given if field.compare)
    cls._plain_fields = _plain_fields(cls)
    if _is_ours(cls):
        cls._option_names = frozenset(cls._field_names)
    if "_name_prefix" not in cls.__dict__:
        cls._name_prefix = cls.__name__


def _plain_fields(cls: type[Base]) -> dict[str, nn.OptionKind]:
    """Return the numeric fields of a layer of this package, with their kinds; fields of user classes hold anything."""
    ours, declared = _is_ours(cls), inspect.get_annotations(cls).items()
    own = {name: nn.option_kind(name, annotation) if ours else None for name, annotation in declared}
    known = {**getattr(cls, "_plain_fields", {}), **own}
    return {name: kind for name, kind in known.items() if kind is not None}


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


def options(layer: Base, fn: Callable[..., Any], **others: Any) -> dict[str, Any]:
    """Return the arguments of a function that a layer of this package has as fields; `others` replace these.

    Fields that a user's subclass of the layer adds are not among them.
    """
    return {name: getattr(layer, name) for name in _shared(fn, layer._option_names)} | others


@bounded(256)
def _shared(fn: Callable[..., Any], names: frozenset[str]) -> tuple[str, ...]:
    return tuple(name for name in inspect.signature(fn).parameters if name in names)


def _takes(fn: Any, *names: str) -> bool:
    """Return whether a function takes some keyword arguments."""
    parameters = inspect.signature(fn).parameters
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return takes_all or parameters.keys() >= set(names)


def check_annotations(cls: type[Base]) -> None:
    """Check the fields that a class declares; a default of `name` is kept as the default of the keyword-only field.

    Raises:
        ReservedModuleAttributeError: if it declares a field that every module already has.
    """
    annotations = inspect.get_annotations(cls)
    for name in _RESERVED:
        if name in annotations:
            from liftcore.problems import reserved_name  # imported here: needed only for this error

            raise reserved_name(f"class {cls.__name__}", name, ReservedModuleAttributeError)
    if "name" not in annotations:
        return
    if annotations["name"] not in _NAME_TYPES:
        where = f"class {cls.__name__}"
        what = f'it declares a field "name" of type {annotations["name"]!r}, but every module has `name: str | None`.'
        fix = "Leave the declaration out, or rename the field: `label: …`."
        raise ReservedModuleAttributeError(where, what, fix, expected="str | None", given=repr(annotations["name"]))
    default = cls.__dict__.get("name")
    if not isinstance(default, dataclasses.Field):
        cls.name = dataclasses.field(default=default, kw_only=True)


def _text(value: Any) -> str:
    if inspect.isfunction(value) or inspect.isbuiltin(value) or isinstance(value, type):
        return str(value.__qualname__)
    return repr(value)


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    default = field.default
    if value is default:
        return True
    # Only plain values are compared: comparing arrays gives an array.
    return isinstance(value, str | int | float | tuple) and type(value) is type(default) and bool(value == default)


# --- modules in the values of fields ----------------------------------------------------------------------------------

# Field values of these types hold no module and need no freezing. They are checked first, since most fields have one.
PLAIN = frozenset(
    {
        bool, bytes, complex, float, int, str, type, type(None), types.BuiltinFunctionType, types.EllipsisType,
        types.FunctionType, types.MethodType, jax.custom_jvp, np.dtype, type(jax.numpy.float32), type(jax.jit(len)),
    }
)  # fmt: skip


_ATOMS = frozenset({bool, bytes, complex, float, int, str, type(None)})
"""The types among them that are not searched for in a tree."""


class _Members(NamedTuple):
    """The members of a container, their keys, and a function that makes the container from other members."""

    keys: list[Any]
    values: list[Any]
    rebuild: Callable[[list[Any]], Any]


def _members(value: Any) -> _Members | None:
    """Return the members of a list, tuple, dict or other pytree node; None for any other value."""
    kind = type(value)
    if kind in PLAIN:
        return None
    if kind is tuple or isinstance(value, list):
        return _Members(list(range(len(value))), list(value), kind)
    if isinstance(value, dict | FrozenDict):
        keys = list(value)
        return _Members(keys, list(value.values()), lambda values: FrozenDict(zip(keys, values, strict=True)))
    if isinstance(value, Base) or jax.tree_util.all_leaves([value]):
        return None
    pairs, treedef = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)
    keys = [jax.tree_util.keystr(path, simple=True) for path, _ in pairs]
    return _Members(keys, [member for _, member in pairs], lambda values: jax.tree_util.tree_unflatten(treedef, values))


def named_modules(value: Any, adopt: Callable[[Any, str], Any], name: str) -> Any:
    """Adopt each module in an attribute's value, and make its lists and dicts immutable; return the new value.

    A module in a container is named after the attribute and the keys that lead to it: `layers_0`, `blocks_a_1`. Members
    are visited in the order of their keys as strings, which decides the name of a module that occurs twice.

    Args:
        value: a module, or any nesting of containers.
        adopt: called with a module, or an object that calls change, and its name; returns what to put in its place.
        name: the name of the attribute.
    """
    style = style_of(value)
    if style is not None and (style.is_changed or isinstance(value, Base)):
        return adopt(value, name)
    members = _members(value)
    if members is None:
        return value
    values = members.values
    for index in sorted(range(len(values)), key=lambda index: str(members.keys[index])):
        values[index] = named_modules(values[index], adopt, f"{name}_{members.keys[index]}")
    return tuple(values) if isinstance(value, list) else members.rebuild(values)


def modules_in(tree: Any) -> list[Any]:
    """Return the outermost modules in a tree, one for each place, in the order of `map_instances`."""
    found: list[Any] = []

    def note(module: Base) -> Any:
        found.append(module)
        return module

    map_instances(tree, Base, note)
    return found


def map_instances(tree: Any, kinds: type | tuple[type, ...], fn: Callable[[Any], Any]) -> Any:
    """Replace all values of some types in a container; everything else, and a tree without such values, is unchanged.

    The fields of modules are not visited: `fn` is called with the outermost ones.

    Example:
        >>> import linen_like as nn
        >>> class Scale(nn.Module):
        ...     by: float
        >>> map_instances({"a": Scale(2.0), "b": [1]}, nn.Module, lambda module: module.by)
        {'a': 2.0, 'b': [1]}

    Args:
        tree: a value of these types, or any nesting of lists, tuples, dicts and other pytree nodes.
        kinds: the types of the values to replace.
        fn: called with each of these values; returns the value to put in its place.
    """
    if type(tree) in _ATOMS:
        return tree
    if isinstance(tree, kinds):
        return fn(tree)
    members = _members(tree)
    if members is None:
        return tree
    values = [map_instances(member, kinds, fn) for member in members.values]
    if all(new is old for new, old in zip(values, members.values, strict=True)):
        return tree
    if isinstance(tree, dict):
        return dict(zip(members.keys, values, strict=True))
    return members.rebuild(values)
