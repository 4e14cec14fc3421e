"""`Module`: a frozen dataclass that is a pytree; abstract attributes, and classes that are abstract or final."""

from __future__ import annotations

import abc
import dataclasses
import functools
import inspect
import re
import types
import typing
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeAlias, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from liftcore import Rest, is_array
from liftcore.calls import check_keywords
from liftcore.errors import LiftArgumentError, shown
from liftcore.owners import Style, by_dtype, collections_of
from liftcore.problems import reserved_name
from liftcore.pytrees import checks_itself, entering
from liftcore.statics import Undescribed, is_unchanging

from .errors import FrozenModuleError, UnsetFieldError
from .formatting import fields_repr
from .methods import BoundMethod, BoundMethods
from .tree import tree_equal

__all__ = ["AbstractClassVar", "AbstractVar", "Module", "field"]


# --- nodes of pytrees -------------------------------------------------------------------------------------------------


STRUCTURE = "_structure"
"""The attribute in which a module keeps its structure."""

OPEN = "_is_open"
"""The attribute that marks a module while it is being created."""

Structure: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], Rest | None]
"""The names of the children, the names of the static fields, and the values of the static fields."""

_CHANGING = frozenset({list, dict})


def _structure_of(module: Any) -> Structure:
    """Return the static part of a module. It is not kept if a static value may change in place."""
    cls, values = type(module), module.__dict__
    if STRUCTURE in values:
        kept: Structure
        kept, seen = values[STRUCTURE]
        if all(values.get(name) is one for name, one in seen.items()):
            return kept
    names = tuple([name for name in cls._dynamic if name in values])
    static = tuple([name for name in cls._static if name in values])
    try:
        found = names, static, _rest([values[name] for name in static]) if static else None
    except Undescribed:
        raise _no_key(module, static) from None
    _keep(module, found)
    return found


def _rest(values: list[Any]) -> Rest:
    """Return the values of static fields for comparison."""
    try:
        return Rest(values)
    except Undescribed as error:
        if not isinstance(error.value, jax.Array) or isinstance(error.value, jax.core.Tracer):
            raise
        return Rest(jax.tree.map(lambda leaf: _Constant(leaf) if isinstance(leaf, jax.Array) else leaf, values))


class _Constant:
    """A JAX array in a static field, which is compared by its contents.

    Args:
        array: the array.
    """

    def __init__(self, array: Any) -> None:
        self.array = array

    def __static_fields__(self) -> dict[str, Any]:
        """Return its key for comparisons."""
        is_key = jnp.issubdtype(self.array.dtype, jax.dtypes.prng_key)
        numbers = jax.random.key_data(self.array) if is_key else self.array
        return {"dtype": str(self.array.dtype), "numbers": np.asarray(numbers)}


def _keep(module: Any, structure: Structure) -> None:
    values = module.__dict__
    if OPEN in values:  # `__init__` may set more fields
        return
    if all(is_unchanging(values[name]) for name in structure[1]):
        values[STRUCTURE] = structure, {name: values[name] for name in structure[1]}


def _no_key(module: Any, static: Iterable[str]) -> LiftArgumentError:
    for name in static:
        try:
            _rest([module.__dict__[name]])
        except Undescribed as error:
            where = f"{name} of {type(module).__name__}"
            what = f"a static field holds {shown(error.value)}, which cannot be compared: it may change unnoticed."
            fix = f"{error.fix} Or leave out `static=True`."
            return LiftArgumentError(where, what, fix, option="static", given=shown(error.value))
    raise AssertionError


def children_of(module: Any) -> list[Any]:
    """Return the children of a module."""
    values = module.__dict__
    return [values[name] for name in type(module)._dynamic if name in values]


def flatten(module: Any) -> tuple[list[Any], Structure]:
    """Return the children of a module, and its static part."""
    structure = _structure_of(module)
    values = module.__dict__
    children = [values[name] for name in structure[0]]
    if not _CHANGING.isdisjoint(map(type, children)):  # a module can contain itself only through a list or a dict
        entering(module, "Leave out the reference.")
    return children, structure


def flatten_with_keys(module: Any) -> tuple[list[tuple[Any, Any]], Structure]:
    """Return the same as `flatten`, with a key for each child: `.name`."""
    children, structure = flatten(module)
    return list(zip(map(jax.tree_util.GetAttrKey, structure[0]), children, strict=True)), structure


def unflatten(cls: Any, structure: Structure, children: Iterable[Any]) -> Any:
    """Build a module from its children and its static part."""
    names, static, rest = structure
    made = object.__new__(cls)
    made.__dict__.update(zip(names, children, strict=True))
    if rest is not None:
        fields = rest.value
        if rest.holds(_Constant):
            fields = jax.tree.map(lambda leaf: leaf.array if isinstance(leaf, _Constant) else leaf, fields)
        made.__dict__.update(zip(static, fields, strict=True))
    _keep(made, structure)
    return made


# --- abstract and final classes ---------------------------------------------------------------------------------------

T = TypeVar("T")

if TYPE_CHECKING:
    from typing import ClassVar as AbstractClassVar

    AbstractVar: TypeAlias = Annotated[T, "AbstractVar"]
else:

    class AbstractVar(Generic[T]):
        """An annotation for an attribute that each class that is not abstract must have: a field or a property.

        Example:
            >>> import equinox_like as eqx
            >>> class Layer(eqx.Module):
            ...     size: eqx.AbstractVar[int]
            ...     def volume(self):
            ...         return self.size**3
            >>> class Fixed(Layer):
            ...     size: int
            >>> Fixed(2).volume()
            8
            >>> Layer()
            Traceback (most recent call last):
            ...
            TypeError: Can't instantiate abstract class Layer ...
        """

    class AbstractClassVar(Generic[T]):
        """An annotation for a class attribute that each class that is not abstract must have.

        Example:
            >>> import equinox_like as eqx
            >>> class Layer(eqx.Module):
            ...     kind: eqx.AbstractClassVar[str]
            >>> class Dense(Layer):
            ...     kind = "dense"
            >>> Dense().kind
            'dense'
        """


_TEXT = re.compile(r"(\w+\s*\.\s*)*Abstract(Class)?Var\s*(\[|$)")


def own_abstract(cls: Any) -> set[str]:
    """Remove the abstract attributes from the annotations of a class, and return their names."""
    annotations = inspect.get_annotations(cls)
    found = {name for name, annotation in annotations.items() if _is_abstract(annotation)}
    if found:
        cls.__annotations__ = {name: one for name, one in annotations.items() if name not in found}
    return found


def _is_abstract(annotation: Any) -> bool:
    if isinstance(annotation, str):  # of a module with `from __future__ import annotations`
        return _TEXT.match(annotation) is not None
    return (typing.get_origin(annotation) or annotation) in (AbstractVar, AbstractClassVar)


def missing(cls: Any, names: Iterable[str]) -> set[str]:
    """Return the names that are neither fields nor attributes of a class."""
    return {name for name in names if name not in cls.__dataclass_fields__ and not hasattr(cls, name)}


def check_strict(cls: Any, bases: Iterable[Any], methods: Iterable[str]) -> None:
    """Check that a class inherits only from abstract modules, and overrides only their abstract methods.

    Args:
        cls: the class.
        bases: the modules among its bases.
        methods: the names of the methods that it defines.

    Raises:
        LiftArgumentError: if it does not.
    """
    for base in bases:
        if not inspect.isabstract(base):
            what = f"its base {base.__name__} is not abstract, so it is final."
            fix = "Move what both classes share into an abstract class, or leave out `strict=True`."
            raise LiftArgumentError(f"{cls.__name__}, strict", what, fix, option="strict")
        for name in methods:
            if hasattr(base, name) and name not in base.__abstractmethods__:
                raise LiftArgumentError(
                    f"{name} of {cls.__name__}, strict",
                    f"it overrides a method of {base.__name__} that is not abstract.",
                    "Give it another name, make that one abstract, or leave out `strict=True`.",
                    option="strict",
                )


# --- modules ----------------------------------------------------------------------------------------------------------


def field(*, converter: Callable[[Any], Any] | None = None, static: bool = False, **options: Any) -> Any:
    """Declare a field of a `Module`, like `dataclasses.field`, with two more options.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> class Linear(eqx.Module):
        ...     w: object = eqx.field(converter=jnp.asarray)
        ...     name: str = eqx.field(static=True, default="linear")
        >>> Linear([1.0, 2.0])
        Linear(w=float32[2], name='linear')

    Args:
        converter: a function that converts the value of the field after `__init__`.
        static: whether the value is a part of the tree structure instead of a child. If it holds arrays, there is a
            warning: they are compared by their contents, and have no gradients.
        **options: options of `dataclasses.field`, such as `default`, `default_factory`, `init` or `metadata`.

    Raises:
        LiftArgumentError: if `metadata` holds "static" or "converter".
    """
    metadata = dict(options.pop("metadata", None) or {})
    for name, value in (("static", static or None), ("converter", converter)):
        if name in metadata:
            what = f"`{name}` is an option of its own."
            fix = f"Write `field({name}=…)`, outside of `metadata`."
            raise LiftArgumentError("field, metadata", what, fix, option=name)
        if value is not None:
            metadata[name] = value
    return dataclasses.field(metadata=metadata, **options)


@dataclass_transform(field_specifiers=(dataclasses.field, field))
class ModuleMeta(abc.ABCMeta):
    """The metaclass that makes each subclass of `Module` a dataclass and a pytree."""

    _dynamic: tuple[str, ...]
    _static: tuple[str, ...]
    _converters: dict[str, Callable[[Any], Any]]
    _has_own_init: bool
    _abstract: frozenset[str]

    def __new__(
        mcs: Any, name: str, bases: tuple[type, ...], namespace: dict[str, Any], strict: bool = False, **options: Any
    ) -> Any:
        """Create a class; with `strict`, check that it is abstract or final."""
        _check_names(name, namespace)
        methods = {key: BoundMethods(one) for key, one in namespace.items() if _is_method(key, one)}
        namespace = {key: one for key, one in namespace.items() if key != "__slots__"}  # fields are in the dict
        cls: Any = super().__new__(mcs, name, bases, {**namespace, **methods}, **options)
        for key, one in _inherited(cls):
            type.__setattr__(cls, key, BoundMethods(one))
        above = next((base for base in cls.__mro__[1:] if isinstance(base, ModuleMeta)), None)
        modules = [base for base in bases if isinstance(base, ModuleMeta)]
        if strict:
            check_strict(cls, [base for base in modules if base is not Module], methods)
        cls._abstract = own_abstract(cls).union(*[base._abstract for base in modules])
        cls._has_own_init = "__init__" in namespace or (above is not None and above._has_own_init)
        _make_dataclass(cls)
        fields = dataclasses.fields(cls)
        cls._dynamic = tuple(one.name for one in fields if not one.metadata.get("static", False))
        cls._static = tuple(one.name for one in fields if one.metadata.get("static", False))
        cls._converters = {one.name: one.metadata["converter"] for one in fields if "converter" in one.metadata}
        if cls._abstract:
            cls.__abstractmethods__ |= missing(cls, cls._abstract)
        checks_itself(cls, children_of)
        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, functools.partial(unflatten, cls), flatten)
        return cls

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, BoundMethods(value) if _is_method(name, value) else value)

    @property
    def __signature__(cls) -> inspect.Signature:
        """The signature of `__init__`, without `self`."""
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Create a module, freeze it, and check it."""
        check_keywords(cls, kwargs)
        made = cls.__new__(cls, *args, **kwargs)
        made.__dict__[OPEN] = True
        made.__init__(*args, **kwargs)
        for name, converter in cls._converters.items():
            if name in made.__dict__:
                made.__dict__[name] = converter(made.__dict__[name])
        del made.__dict__[OPEN]
        _check(made)
        for one in cls.__mro__:
            check: Any = one.__dict__.get("__check_init__")
            if check is not None:
                check(made)
        return made


def _make_dataclass(cls: Any) -> None:
    """Make a class a dataclass, with an `__init__` unless the class or a base class has its own."""
    if cls._has_own_init and hasattr(cls, "__post_init__"):
        warnings.warn(
            f"{cls.__module__}.{cls.__qualname__} has an `__init__` of its own, so nothing calls `__post_init__`: the "
            "`__init__` of a dataclass would. To check modules after any `__init__`, rename it to `__check_init__`.",
            stacklevel=3,
        )
    documentation = cls.__init__.__doc__
    dataclasses.dataclass(eq=False, repr=False, init=not cls._has_own_init)(cls)
    if cls._has_own_init:
        return
    cls.__init__.__doc__ = documentation
    annotations = cls.__init__.__annotations__
    for one in dataclasses.fields(cls):
        if one.name in annotations and "converter" in one.metadata:
            annotations[one.name] = _taken_by(one.metadata["converter"])


def _taken_by(converter: Callable[[Any], Any]) -> Any:
    """Return the annotation of the argument of a converter, which is what `__init__` takes."""
    try:
        first = next(iter(inspect.signature(converter).parameters.values()), None)
    except (TypeError, ValueError):  # `str`, for example, has no signature
        return Any
    return Any if first is None or first.annotation is first.empty else first.annotation


def _is_method(name: str, value: Any) -> bool:
    special = name.startswith("__") and name.endswith("__") and name != "__call__"
    return isinstance(value, types.FunctionType) and not special


def _inherited(cls: Any) -> list[tuple[str, Any]]:
    """Return the methods that a class inherits from classes that are not modules."""
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        for name, value in vars(base).items():
            found.setdefault(name, value)
    return [(name, value) for name, value in found.items() if _is_method(name, value)]


_OURS = frozenset({STRUCTURE, OPEN, "_dynamic", "_static", "_converters", "_has_own_init", "_abstract"})


def _check_names(cls: str, namespace: dict[str, Any]) -> None:
    taken = sorted(_OURS.intersection({*namespace, *namespace.get("__annotations__", {})}))
    if taken:
        raise reserved_name(cls, taken[0])


def _check(made: Any) -> None:
    """Check that all fields are set, and that static ones hold no arrays."""
    cls = type(made)
    unset = [name for name in (*cls._dynamic, *cls._static) if not hasattr(made, name)]
    if unset:
        raise UnsetFieldError(
            cls.__name__,
            f"`__init__` did not set {unset}.",
            f"Write `self.{unset[0]} = …` in it, or give the field a default.",
            option=unset[0],
            expected=unset,
        )
    for name in cls._static:
        for array in filter(is_array, jax.tree.leaves(made.__dict__.get(name))):
            _check_static(f"{name} of {cls.__name__}", array)

    for name in cls._dynamic:
        _check_wrapper(f"{name} of {cls.__name__}", made.__dict__.get(name))


def _check_wrapper(where: str, value: Any) -> None:
    """Warn about a function of `jax.vmap` and the like that wraps a pytree: its arrays are not leaves of the module."""
    if hasattr(value, "__wrapped__") and jax.tree_util.all_leaves((value,)):
        hidden = [leaf for leaf in jax.tree.leaves(inspect.unwrap(value)) if is_array(leaf)]
        if hidden:
            warnings.warn(
                f"{where}: the function wraps {shown(hidden[0])} that is not a leaf of the module, so it is not "
                "trained. Store the wrapped module, and transform it where you call it; or write `eqx.filter_vmap(…)`, "
                "`eqx.filter_jit(…)`, …, which are pytrees.",
                stacklevel=4,
            )


def _check_static(where: str, array: Any) -> None:
    """Warn about an array in a static field; raise an error if it is traced."""
    what, fix = f"a static field holds an array, {shown(array)}", "Leave out `static=True`: arrays are leaves."
    if isinstance(array, jax.core.Tracer):
        raise LiftArgumentError(
            where, f"{what}, which is traced and would outlive the trace.", fix, option="static", given=shown(array)
        )
    warnings.warn(f"{where}: {what}. It is compared in each call, and has no gradient. {fix}", stacklevel=5)


class Module(metaclass=ModuleMeta):
    """A frozen dataclass that is a pytree: its fields are its children, except for static ones.

    A bound method is a pytree too, with the leaves of its module. A class may have its own `__init__`, which sets the
    fields. After it, the method `__check_init__(self)` of each class in the hierarchy runs. A class with an
    `AbstractVar`, an `AbstractClassVar` or an abstract method is abstract. A class with `strict=True` may inherit only
    from abstract modules, and override only abstract methods: `class Layer(AbstractLayer, strict=True)`.

    Example:
        >>> import jax, equinox_like as eqx
        >>> import jax.numpy as jnp
        >>> class Linear(eqx.Module):
        ...     w: jax.Array
        ...     act: object
        ...     def __init__(self, size, key):
        ...         self.w = jax.random.normal(key, (size, size))
        ...         self.act = jnp.tanh
        ...     def __call__(self, x):
        ...         return self.act(self.w @ x)
        >>> model = Linear(3, jax.random.key(0))
        >>> eqx.filter_grad(lambda model, x: model(x).sum())(model, jnp.ones(3)).w.shape
        (3, 3)
        >>> eqx.filter_jit(model)(jnp.ones(3)).shape
        (3,)

    Raises:
        LiftArgumentError: if `__init__` does not set a field (also a TypeError), sets an unknown field, or sets a
            static field to a traced array; if a module is changed after its creation (also an AttributeError); or if
            the value of a static field cannot be compared.
    """

    if TYPE_CHECKING:

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    __style__ = Style("a pytree module", "eqx.adopt", "key")

    def __collections__(self) -> list[str | None]:
        return collections_of(children_of(self), by_dtype)

    def __setattr__(self, name: str, value: Any) -> None:
        cls = type(self)
        if name == "__orig_class__":  # set by `Generic` after the creation of `Class[int]()`
            self.__dict__[name] = value
            return
        if OPEN not in self.__dict__:
            raise FrozenModuleError(
                f"{name} of {cls.__name__}",
                "a module is frozen after its creation.",
                f"Make a changed copy: `eqx.tree_at(lambda module: module.{name}, module, new)`.",
                given=name,
            )
        if name not in cls.__dataclass_fields__:
            what = f"there is no such field (available: {[*cls._dynamic, *cls._static]})."
            fix = f"Declare it in the class: `{name}: …`."
            raise FrozenModuleError(f"{name} of {cls.__name__}", what, fix, available=(*cls._dynamic, *cls._static))
        if isinstance(value, BoundMethod) and value.__self__ is self:
            raise LiftArgumentError(
                f"{name} of {cls.__name__}",
                "the value is a method of the module itself, so the module would contain itself.",
                "Write a method that calls it.",
                given=name,
            )
        self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        raise FrozenModuleError(
            f"{name} of {type(self).__name__}",
            "a module is frozen.",
            f"Make a copy with None in its place: `eqx.tree_at(lambda module: module.{name}, module, None)`.",
            given=name,
        )

    def __eq__(self, other: object) -> Any:
        return tree_equal(self, other) if isinstance(other, Module) else NotImplemented

    def __hash__(self) -> int:
        return hash((tuple(jax.tree.leaves(self)), jax.tree.structure(self)))

    __repr__ = fields_repr

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != STRUCTURE}
