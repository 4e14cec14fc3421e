"""Metadata of variables: hooks, names of mesh axes, metadata that an initializer gives, and metadata as a key."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from liftcore import static_key
from liftcore.errors import LiftArgumentError
from liftcore.statics import Alike, Undescribed

__all__ = [
    "HOOKS",
    "A",
    "M",
    "StaticMetadata",
    "VarDefaults",
    "VariableMetadata",
    "called",
    "key_of",
    "merged",
    "named",
    "several",
    "var_defaults",
    "with_metadata",
    "with_partitioning",
    "without_models",
]


HOOKS = ("on_get_value", "on_set_value", "on_create_value", "on_add_axis", "on_remove_axis")

_SHARDINGS = ("sharding", "sharding_names")


def named(metadata: dict[str, Any]) -> dict[str, Any]:
    """Rename metadata to the names that it is stored under: `sharding` and `sharding_names` become `out_sharding`.

    Args:
        metadata: the metadata from the user. It is not changed.

    Returns:
        The dict itself if no name changes, else a new one.
    """
    if not metadata or not any(name in metadata for name in _SHARDINGS):
        return metadata
    metadata = dict(metadata)
    for name in _SHARDINGS:
        if name in metadata:
            metadata["out_sharding"] = metadata.pop(name)
    return metadata


_MODELS = {
    "hijax": "Remove it: every transformation already changes variables by reference.",
    "ref": "Remove it: every transformation already changes variables by reference.",
    "eager_sharding": "Place the value with `jax.device_put`, or make the object in a `jit` with `out_shardings`.",
}
"""Options of flax's other state models, each with what to do here."""


def without_models(kind: type[Any], metadata: dict[str, Any]) -> dict[str, Any]:
    """Return metadata without the options that choose another state model, which must be off.

    Args:
        kind: the kind of the variable, for errors.
        metadata: the metadata from the user. It is not changed.

    Raises:
        LiftArgumentError: if one of them is on.
    """
    chosen = _MODELS.keys() & metadata.keys()
    for name in chosen:
        if metadata[name]:
            where = f"{kind.__name__}({name}={metadata[name]!r})"
            what = "this option is not supported."
            raise LiftArgumentError(where, what, _MODELS[name], option=name, given=repr(metadata[name]))
    return {name: value for name, value in metadata.items() if name not in chosen} if chosen else metadata


def called(hooks: Any, variable: Any, value: Any) -> Any:
    """Apply hooks to a value.

    Args:
        hooks: a hook `(variable, value) -> value`, or a sequence of them, called in order.
        variable: the variable.
        value: the value that is read or written.
    """
    for hook in several(hooks):
        value = hook(variable, value)
    return value


@dataclasses.dataclass
class VariableMetadata:
    """A value, and the metadata of the variable that will hold it: what a wrapped initializer returns.

    Example:
        >>> from nnx_like.variablelib.kinds import Param
        >>> Param(VariableMetadata(1.0, metadata={"tag": "scale"})).tag
        'scale'

    Attributes:
        raw_value: the value.
        on_set_value: hooks `(variable, value) -> value` for each assigned value.
        on_get_value: hooks `(variable, value) -> value` for each reading.
        on_create_value: hooks `(variable, value) -> value` for the first value.
        on_add_axis: hooks `(variable, axis index, axis name)`, called when a lift adds an axis.
        on_remove_axis: hooks `(variable, axis index, axis name)`, called when a lift removes an axis.
        metadata: all other metadata.
    """

    raw_value: Any
    on_set_value: tuple[Callable[..., Any], ...] = ()
    on_get_value: tuple[Callable[..., Any], ...] = ()
    on_create_value: tuple[Callable[..., Any], ...] = ()
    on_add_axis: tuple[Callable[..., Any], ...] = ()
    on_remove_axis: tuple[Callable[..., Any], ...] = ()
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def merged(value: VariableMetadata, metadata: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the value that an initializer returned, and the metadata of the variable made from it.

    Args:
        value: the result of the initializer. If initializers are wrapped more than once, the outermost wins.
        metadata: the metadata from the constructor of the variable. Its hooks win; otherwise the initializer's metadata
            does.
    """
    metadata, own = dict(metadata), dict(metadata)
    told: list[VariableMetadata] = []
    while isinstance(value, VariableMetadata):
        told.insert(0, value)
        value = value.raw_value
    for one in told:
        metadata.update(one.metadata)
        metadata.update({hook: getattr(one, hook) for hook in HOOKS if getattr(one, hook) and hook not in own})
    return value, metadata


_Hooks = Callable[..., Any] | Sequence[Callable[..., Any]]


def with_metadata(
    initializer: Callable[..., Any],
    on_set_value: _Hooks = (),
    on_get_value: _Hooks = (),
    on_create_value: _Hooks = (),
    on_add_axis: _Hooks = (),
    on_remove_axis: _Hooks = (),
    **metadata: Any,
) -> Callable[..., Any]:
    """Wrap an initializer to also give metadata to the variable that will hold its value.

    Example:
        >>> import jax
        >>> from nnx_like.variablelib.kinds import Param
        >>> init = with_metadata(jax.nn.initializers.zeros, sharding=("embed", None), frozen=True)
        >>> weight = Param(init(jax.random.key(0), (4, 2)))
        >>> weight.frozen, weight.sharding
        (True, ('embed', None))

    Args:
        initializer: the initializer, such as `(key, shape, dtype) -> array`.
        on_set_value: one hook or several, `(variable, value) -> value`, for each assigned value.
        on_get_value: one hook or several, `(variable, value) -> value`, for each reading.
        on_create_value: one hook or several, `(variable, value) -> value`, for the first value.
        on_add_axis: one hook or several, `(variable, axis index, axis name)`, called when a lift adds an axis.
        on_remove_axis: one hook or several, `(variable, axis index, axis name)`, called when a lift removes an axis.
        **metadata: all other metadata.

    Returns:
        A function with the arguments of the initializer that returns a `VariableMetadata`.
    """
    given = (on_get_value, on_set_value, on_create_value, on_add_axis, on_remove_axis)
    hooks = dict(zip(HOOKS, map(several, given), strict=True))

    @functools.wraps(initializer)
    def wrapped(*args: Any, **kwargs: Any) -> VariableMetadata:
        return VariableMetadata(initializer(*args, **kwargs), metadata=dict(metadata), **hooks)

    return wrapped


def several(hooks: _Hooks) -> tuple[Callable[..., Any], ...]:
    """Return one hook, or several, as a tuple."""
    return (hooks,) if callable(hooks) else tuple(hooks)


def with_partitioning(
    initializer: Callable[..., Any],
    sharding: Any,
    mesh: Any = None,
    **metadata: Any,
) -> Callable[..., Any]:
    """Wrap an initializer to also name the mesh axes of its value.

    Example:
        >>> import jax
        >>> from nnx_like.variablelib.kinds import Param
        >>> init = with_partitioning(jax.nn.initializers.zeros, ("embed", "mlp"))
        >>> Param(init(jax.random.key(0), (4, 2))).sharding
        ('embed', 'mlp')

    Args:
        initializer: the initializer, such as `(key, shape, dtype) -> array`.
        sharding: for each axis of the value, a mesh axis, a tuple of mesh axes, or None.
        mesh: the mesh of these axes; by default the mesh at the time of use.
        **metadata: all other metadata, including hooks.

    Returns:
        A function with the arguments of the initializer that returns a `VariableMetadata`.
    """
    if mesh is not None:
        metadata["mesh"] = mesh
    return with_metadata(initializer, out_sharding=sharding, **metadata)


# --- static values as keys --------------------------------------------------------------------------------------------


def key_of(value: Any, check: Callable[[], None] | None = None) -> Hashable:
    """Return the key of a static value: by type and value, or by `==` for a value that has no such key.

    Args:
        value: the value.
        check: called for a value without a key; may raise an error.
    """
    if type(value) is str:
        return value
    if type(value) is tuple:  # such as names of axes; this is faster
        return tuple, *[key_of(one, check) for one in value]
    try:
        return static_key(value)
    except Undescribed:
        if check is not None:
            check()
        return Alike(value)


class StaticMetadata:
    """The static part of a variable, which JAX stores in the tree definition.

    Args:
        metadata: the metadata of the variable, which is never changed in place. The order of names does not matter.
    """

    __slots__ = ("key", "metadata")

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.metadata = metadata
        self.key = tuple([(name, key_of(metadata[name])) for name in sorted(metadata)]) if metadata else ()

    def __eq__(self, other: object) -> bool:
        return type(other) is StaticMetadata and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return repr(self.metadata)

    def __reduce__(self) -> Any:
        return StaticMetadata, (self.metadata,)


# --- defaults of variables in NNX: its other models of state, which do not exist here ---------------------------------

A = TypeVar("A")
M = TypeVar("M")


@dataclasses.dataclass(frozen=True)
class VarDefaults(Mapping[str, bool]):
    """Which of NNX's two other models of state is the default for variables: neither.

    Attributes:
        hijax: whether variables are hijax values.
        ref: whether variables hold JAX references.
    """

    hijax: bool = False
    ref: bool = False

    def __getitem__(self, key: str) -> bool:
        return bool(dataclasses.asdict(self)[key])

    def __iter__(self) -> Iterator[str]:
        return iter(dataclasses.asdict(self))

    def __len__(self) -> int:
        return len(dataclasses.fields(self))


class _Defaults(contextlib.nullcontext[None], contextlib.ContextDecorator):
    """A `with` block, and a decorator, that changes nothing."""


def var_defaults(*, hijax: bool | None = None, ref: bool | None = None) -> Any:
    """Return the models of state that variables use by default, or a `with` block or decorator that sets them.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.var_defaults()
        VarDefaults(hijax=False, ref=False)
        >>> with nnx.var_defaults(hijax=False):
        ...     variable = nnx.Param(1.0)

    Args:
        hijax: must not be True: transformations already change variables by reference.
        ref: must not be True, for the same reason.

    Raises:
        LiftArgumentError: if one of them is True.
    """
    for name, chosen in (("hijax", hijax), ("ref", ref)):
        if chosen:
            what = "this model of state is not supported."
            fix = f"Write `{name}=False`, or leave it out: every transformation changes variables by reference."
            raise LiftArgumentError(f"var_defaults({name}=True)", what, fix, option=name)
    return VarDefaults() if hijax is None and ref is None else _Defaults()
