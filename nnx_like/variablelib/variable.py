"""A variable: a value that is changed in place, with a kind (its class), metadata, and the trace it belongs to."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NoReturn, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from liftcore import trace_state
from liftcore.errors import Expected, LiftArgumentError
from liftcore.owners import Style
from liftcore.pytrees import Size, is_numpy

from ..errors import TraceContextError
from .metadata import HOOKS, StaticMetadata, VariableMetadata, called, merged, named, several, without_models
from .values import MISSING, Operators, block

__all__ = ["ByReference", "Variable", "is_object"]


# --- items ------------------------------------------------------------------------------------------------------------


def _with_item(value: Any, index: Any, item: Any) -> Any:
    """Return a copy of a value with another item.

    Example:
        >>> _with_item({"a": 1}, "b", 2), _with_item(3, ..., 4)
        ({'a': 1, 'b': 2}, 4)

    Args:
        value: the value: an array, a list, a dict.
        index: the index of the item; `...` selects a whole array, or a value without items.
        item: the new item. An array is broadcast and cast to the type of the value.

    Returns:
        A new value. If the item replaces the whole value and is an array of the same type, the item itself.
    """
    if isinstance(value, jax.Array):
        if index is ... and isinstance(item, jax.Array) and jax.typeof(item) == jax.typeof(value):
            return item
        return value.at[index].set(item)
    if is_numpy(value):
        if isinstance(item, jax.core.Tracer):
            return jnp.asarray(value).at[index].set(item)
        value = np.array(value)
    elif index is ...:
        return item
    else:
        value = copy.copy(value)
    value[index] = item
    return value


# --- the variable ----------------------------------------------------------------------------------------------------

A = TypeVar("A")


class ByReference:
    """The base class of objects and variables, which are shared by reference."""

    __slots__ = ()


is_object: Callable[[Any], bool] = ByReference.__instancecheck__
"""Returns whether a value is a variable or an object with attributes. JAX calls it on each leaf, so it runs in C."""


class Variable(Operators, ByReference, Generic[A]):
    """A value with a kind and metadata, held by reference.

    The kind is the class; transformations and filters select variables by it. The value may be an array, a number, a
    string, None or a pytree; it is one value. A variable supports the operators of its value.

    To write a value, assign it. A change inside the value, such as in a dict, is not noticed: assign a new dict, or
    assign an item by `variable[key] = item`.

    Example:
        >>> import jax.numpy as jnp
        >>> class Scale(Variable): ...
        >>> scale = Scale(jnp.ones(2), tag="x")
        >>> scale.tag, scale.shape
        ('x', (2,))
        >>> scale[...] = scale * 3
        >>> scale += 1
        >>> scale.value
        Array([4., 4.], dtype=float32)

    Args:
        value: the value, or a `VariableMetadata`, which an initializer with metadata returns.
        **metadata: static metadata by name, readable as attributes. The names `sharding`,
            `sharding_names` and `out_sharding` mean the same. The names `on_get_value`, `on_set_value`,
            `on_create_value`, `on_add_axis` and `on_remove_axis` are hooks, one function or a sequence of them. A
            subclass may have hooks as methods.
    """

    __slots__ = ("__weakref__", "_metadata", "_trace", "_value")
    __style__ = Style("a variable", "nnx.bridge.adopt", "rngs", is_changed=True)
    __collections__: Any  # see the registry
    __one_variable__ = True  # for filters of liftcore over pytrees, such as `training.mask`

    required_metadata: frozenset[str] = frozenset()

    _value: Any
    _metadata: dict[str, Any]
    """Never changed in place: a change replaces it, so a reference to the old dict stays valid."""
    _trace: Any
    """The JAX trace in which the variable may be changed."""

    def __init__(self, value: A | VariableMetadata, **metadata: Any) -> None:
        if isinstance(value, VariableMetadata):
            value, metadata = merged(value, metadata)
        if isinstance(value, Variable):
            value = value.get_value()
        metadata = named(without_models(type(self), metadata))
        kind = type(self)
        for hook in HOOKS:
            if hook not in metadata and hasattr(kind, hook):
                metadata[hook] = getattr(kind, hook)
        _put_metadata(self, metadata)
        _put_trace(self, trace_state())
        if "on_create_value" in metadata:
            value = called(metadata["on_create_value"], self, value)
        _put_value(self, self.create_value(value))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _register(cls)

    @classmethod
    def made(cls, value: Any, metadata: dict[str, Any], trace: Any) -> Self:
        """Return a variable of this kind without hooks or checks, for code that builds objects.

        Args:
            value: the raw value.
            metadata: the metadata, under the names that it is stored by. It is not copied, and must not be changed.
            trace: the trace state that the variable belongs to.
        """
        made = _new(cls)
        _put_value(made, value)
        _put_metadata(made, metadata)
        _put_trace(made, trace)
        return made

    @classmethod
    def from_metadata(cls, value: A, attributes: Mapping[str, Any]) -> Self:
        """Return a variable of this kind with a raw value and metadata; hooks are not called.

        Args:
            value: the raw value.
            attributes: the metadata, as returned by `get_metadata()`.
        """
        return cls.made(value, named(dict(attributes)), trace_state())

    def check_live(self) -> None:
        """Check that the variable may be changed in the current trace.

        Raises:
            TraceContextError: if the variable was created under another JAX trace.
        """
        if self._trace != trace_state():
            kind, value = type(self).__name__, self._value
            of = f" of {jax.typeof(value).str_short(short_dtypes=False)}" if isinstance(value, jax.Array) else ""
            raise TraceContextError(
                f"a {kind}{of}",
                "it is changed under a different JAX trace from the one in which it was created, and would keep a "
                "traced value.",
                f"Pass the {kind}, or the object that holds it, as an argument, and use a transformation that writes "
                "it back: `nnx.jit(fn)(model, x)`, or `nnx.lift(liftcore.jit, fn)(model, x)`. In a model of scopes, "
                "adopt the object: `nnx.bridge.adopt(scope, lambda rngs: model)(x)`. If `nnx.merge` made that object "
                "inside, copy what it is given: `nnx.merge(…, copy=True)`.",
                given=kind,
            )

    # --- the value

    def get_value(self, *, index: Any = MISSING) -> Any:
        """Return the value, after the hook `on_get_value`.

        Args:
            index: the index of an item to read instead, if given.
        """
        value, metadata = self._value, self._metadata
        if index is not MISSING and index is not ...:
            value = value[index]
        if metadata and "on_get_value" in metadata:
            return called(metadata["on_get_value"], self, value)
        return value

    def set_value(self, value: Any, *, index: Any = MISSING) -> None:
        """Assign the value, after the hook `on_set_value`.

        Args:
            value: the new value; for a variable, its value. It is not copied.
            index: the index of an item to assign instead, if given.

        Raises:
            TraceContextError: if the variable was created under another JAX trace.
        """
        self.check_live()
        if isinstance(value, Variable):
            value = value.get_value()
        metadata = self._metadata
        if metadata and "on_set_value" in metadata:
            value = called(metadata["on_set_value"], self, value)
        _put_value(self, value if index is MISSING else _with_item(self._value, index, value))

    # Not `property(get_value, …)`: a subclass may override the two methods.
    value = property(
        lambda self: self.get_value(),
        lambda self, value: self.set_value(value),
        doc="The value, read and written with hooks.",
    )

    def get_raw_value(self) -> Any:
        """Return the value; hooks are not called."""
        return self._value

    def set_raw_value(self, value: Any) -> None:
        """Assign the value; hooks are not called.

        Args:
            value: the new value, stored without hooks.

        Raises:
            TraceContextError: if the variable was created under another JAX trace.
        """
        self.check_live()
        _put_value(self, value)

    raw_value = property(get_raw_value, set_raw_value, doc="The value, read and written without hooks.")

    def create_value(self, value: Any) -> Any:
        """Return the initial value. A subclass may override this.

        Args:
            value: the value that the constructor got, after the hook `on_create_value`.
        """
        return value

    def __getitem__(self, key: Any) -> Any:
        return self.get_value(index=key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.set_value(value, index=key)

    def __delitem__(self, key: Any) -> None:
        self.check_live()
        value = copy.copy(self._value)
        del value[key]
        _put_value(self, value)

    # --- metadata

    def get_metadata(
        self, name: str | None = None, default: Any = MISSING, *, exclude_required: bool | None = None
    ) -> Any:
        """Return all metadata as a new dict, or the metadata of one name.

        Args:
            name: the name, or None for all.
            default: the value to return if there is no such metadata.
            exclude_required: has no effect: no metadata is required here.

        Raises:
            KeyError: if there is no such metadata and no default.
        """
        if name is None:
            return dict(self._metadata)
        if default is MISSING:
            return self._metadata[_kept(name)]
        return self._metadata.get(_kept(name), default)

    def set_metadata(self, *args: Any, **kwargs: Any) -> None:
        """Set metadata: `set_metadata(name, value)`, `set_metadata(name=value, …)`, or all of it from a dict.

        Example:
            >>> from nnx_like.variablelib.kinds import Param
            >>> variable = Param(1, a=1)
            >>> variable.set_metadata(b=2)
            >>> variable.set_metadata("c", 3)
            >>> variable.get_metadata()
            {'a': 1, 'b': 2, 'c': 3}
            >>> variable.set_metadata({"d": 4})
            >>> variable.get_metadata()
            {'d': 4}

        Args:
            *args: a name and its value; or a dict, which replaces all metadata.
            **kwargs: names and values.

        Raises:
            TypeError: if the arguments have another form.
            TraceContextError: if the variable was created under another JAX trace.
        """
        self.check_live()
        if args and kwargs:
            raise TypeError("set_metadata: give positional or keyword arguments, not both.")
        if len(args) == 1:
            metadata = named(dict(args[0]))
        elif len(args) == 2:
            metadata = {**self._metadata, _kept(args[0]): args[1]}
        elif kwargs:
            metadata = {**self._metadata, **named(kwargs)}
        else:
            raise TypeError("set_metadata: give a name and a value, a dict, or keyword arguments.")
        _put_metadata(self, metadata)

    def has_metadata(self, name: str) -> bool:
        """Return whether there is metadata with this name.

        Args:
            name: the name.
        """
        return _kept(name) in self._metadata

    def del_metadata(self, name: str) -> None:
        """Delete metadata.

        Args:
            name: the name.

        Raises:
            KeyError: if there is no metadata of this name.
            TraceContextError: if the variable was created under another JAX trace.
        """
        self.check_live()
        metadata = dict(self._metadata)
        del metadata[_kept(name)]
        _put_metadata(self, metadata)

    @property
    def sharding_names(self) -> Any:
        """The names of the mesh axes, one for each axis of the value, or None."""
        return self._metadata.get("out_sharding")

    @property
    def sharding(self) -> Any:
        """The names of the mesh axes if the metadata has them; otherwise the sharding of the value."""
        metadata = self._metadata
        return metadata["out_sharding"] if "out_sharding" in metadata else self.get_value().sharding

    def add_axis(self, axis_index: int, axis_name: str | None) -> None:
        """Call the hook `on_add_axis`, for a lift that adds an axis to the value.

        Args:
            axis_index: the new axis.
            axis_name: the name of the mesh axis, or None.
        """
        self._call_axis_hooks("on_add_axis", axis_index, axis_name)

    def remove_axis(self, axis_index: int, axis_name: str | None) -> None:
        """Call the hook `on_remove_axis`, for a lift that removes an axis from the value.

        Args:
            axis_index: the axis that is removed.
            axis_name: the name of the mesh axis, or None.
        """
        self._call_axis_hooks("on_remove_axis", axis_index, axis_name)

    def _call_axis_hooks(self, name: str, axis_index: int, axis_name: str | None) -> None:
        for hook in several(self._metadata.get(name, ())):
            hook(self, axis_index, axis_name)

    # --- one variable from another

    @property
    def var_type(self) -> type[Self]:
        """The kind: the class of the variable."""
        return type(self)

    def copy(self, value: Any = MISSING, **updates: Any) -> Self:
        """Return a copy: a new variable of the same kind, raw value and metadata.

        Args:
            value: another raw value, if given; for a variable, its value. Containers are copied, arrays are not.
            **updates: other metadata, by name.
        """
        if value is MISSING:
            value = jax.tree.map(lambda leaf: leaf, self._value)
        elif isinstance(value, Variable):
            value = value.get_value()
        metadata = {**self._metadata, **named(updates)} if updates else self._metadata
        return self.made(value, metadata, trace_state())

    def replace(self, value: Any = MISSING, **updates: Any) -> Self:
        """Return a new variable of the same kind with another raw value or other metadata.

        Args:
            value: another raw value, if given; for a variable, its value.
            **updates: other metadata, by name.
        """
        return self.copy(value, **updates)

    def to_state(self, value: Any = MISSING, **updates: Any) -> Self:
        """Return a copy of the variable, for a state.

        Args:
            value: another raw value, if given.
            **updates: other metadata, by name.
        """
        return self.copy(value, **updates)

    def copy_from(self, other: Variable[A]) -> None:
        """Take the raw value and the metadata of another variable of the same kind.

        Args:
            other: the other variable.

        Raises:
            LiftArgumentError: if the other variable has another kind.
            TraceContextError: if the variable was created under another JAX trace.
        """
        if type(other) is not type(self):
            where = f"copy_from of {type(self).__name__}"
            given = f"a {type(other).__name__}"
            fix = "Write `variable.value = other.value`, or `variable.update_from_state(other)`."
            raise LiftArgumentError(where, Expected("a variable of the same kind", given, words=given), fix)
        self.update_from_state(other)

    def update_from_state(self, variable_state: Variable[A]) -> None:
        """Take the raw value and the metadata of another variable, of any kind.

        Args:
            variable_state: the other variable.

        Raises:
            TraceContextError: if the variable was created under another JAX trace.
        """
        self.check_live()
        _put_value(self, variable_state._value)
        _put_metadata(self, variable_state._metadata)

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = self.made(None, copy.deepcopy(self._metadata, memo), trace_state())
        memo[id(self)] = made
        _put_value(made, copy.deepcopy(self._value, memo))
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self._value, self._metadata)

    # --- attributes

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        shape: tuple[int, ...] = self.get_value().shape
        return shape

    def __getattr__(self, name: str) -> Any:
        # Python's and JAX's protocols look for methods of the variable, not of the value; a slot may be unset at first.
        if name[:2] == "__" or name in ("_metadata", "_value", "_trace"):
            raise AttributeError(name)
        metadata = self._metadata
        if name in metadata:
            return metadata[name]
        return getattr(self.get_value(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "value":
            self.set_value(value)
        elif name == "raw_value":
            self.set_raw_value(value)
        else:
            _refuse(self, name, f"set_metadata({name}=…)")

    def __delattr__(self, name: str) -> None:
        _refuse(self, name, f"del_metadata({name!r})")

    def __jax_array__(self) -> jax.Array:
        return jnp.asarray(self.get_value())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = np.asarray(self.get_value(), dtype)
        return np.array(array) if copy else array

    def __repr__(self) -> str:
        value = self.get_value()
        parts, size = {"value": value, **self._metadata}, str(Size.of(value))
        left = f"{type(self).__name__}({f' # {size}' if size else ''}"
        return block(left, (f"{name}={part!r}" for name, part in parts.items()), ")")

    # At the end of the class, since `type` in later annotations would refer to this property.
    type = property(lambda self: self.var_type, doc="The kind: the class of the variable.")

    def __treescope_repr__(self, path: str, subtree_renderer: Any) -> Any:
        render = importlib.import_module("treescope.repr_lib").render_object_constructor
        return render(type(self), {"value": self.get_value(), **self._metadata}, path, subtree_renderer)


# `__setattr__` rejects everything but the value, so slots are written through descriptors, which is also fastest.
_new = object.__new__
_put_value, _put_metadata, _put_trace = [Variable.__dict__[name].__set__ for name in ("_value", "_metadata", "_trace")]


def _kept(name: str) -> str:
    """Return the name under which metadata is stored."""
    return "out_sharding" if name in ("sharding", "sharding_names") else name


def _refuse(variable: Variable[Any], name: str, instead: str) -> NoReturn:
    kind = type(variable).__name__
    raise AttributeError(
        f"{kind}.{name}: a variable has no attributes but its value and metadata. Write `variable.{instead}`."
    )


def _unpickled(kind: type[Variable[Any]], value: Any, metadata: dict[str, Any]) -> Variable[Any]:
    return kind.made(value, metadata, trace_state())


def _flatten(variable: Variable[Any]) -> tuple[tuple[Any], StaticMetadata]:
    return (variable._value,), StaticMetadata(variable._metadata)


def _flatten_with_keys(variable: Variable[Any]) -> tuple[tuple[Any], StaticMetadata]:
    return ((_VALUE_KEY, variable._value),), StaticMetadata(variable._metadata)


_VALUE_KEY = jax.tree_util.GetAttrKey("value")


def _register(kind: type[Variable[Any]]) -> None:
    """Register a kind as a pytree: the value is its child, everything else is static."""

    def unflatten(static: StaticMetadata, children: Iterable[Any]) -> Variable[Any]:
        return kind.made(next(iter(children)), static.metadata, trace_state())

    jax.tree_util.register_pytree_with_keys(kind, _flatten_with_keys, unflatten, _flatten)


_register(Variable)
