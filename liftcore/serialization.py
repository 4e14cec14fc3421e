"""Trees as state dicts and as bytes, and back. Reading never runs code from the data.

There are two steps, each of which can be used alone:

    to_state_dict / from_state_dict          containers -> nested dicts with string keys, and back into a target's shape
    msgpack_serialize / msgpack_restore      nested dicts of arrays and scalars -> msgpack bytes, and back

`to_bytes` and `from_bytes` do both. The format is that of `flax.serialization`, so each can read the other's files.

Example:
    >>> import numpy as np
    >>> data = to_bytes({"params": [np.arange(2), np.float32(3)]})
    >>> restored = from_bytes({"params": [np.zeros(2), np.float32(0)]}, data)
    >>> restored["params"]
    [array([0, 1]), np.float32(3.0)]
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .errors import Expected, SerializationError
from .frozen_dict import FrozenDict
from .meta import AxisMetadata
from .pytrees import is_number, is_numpy
from .saving.dtypes import is_typed_key
from .saving.encoding import decode, encode
from .saving.problems import StateError, several
from .struct import optional_names

__all__ = [
    "current_path",
    "from_bytes",
    "from_state_dict",
    "msgpack_restore",
    "msgpack_serialize",
    "register_serialization_state",
    "to_bytes",
    "to_state_dict",
]


_DEEP = 128  # the same limit as for bytes; Python itself allows a little more

# --- state dicts ------------------------------------------------------------------------------------------------------


class _Rule(NamedTuple):
    """A pair of functions that split one kind of container into named children, and rebuild it from restored ones."""

    children: Callable[[Any], dict[str, Any]]
    rebuild: Callable[[Any, dict[str, Any]], Any]


_PATH: ContextVar[tuple[str, ...]] = ContextVar("the names from the root of the tree to the current part", default=())


def _at(name: Any, fn: Callable[..., Any], *args: Any) -> Any:
    """Return `fn(*args)`; inside, `name` is added to `current_path()`, and to the path of a `StateError`."""
    outside = _PATH.set((*_PATH.get(), str(name)))
    try:
        return fn(*args)
    except StateError as error:
        raise error.below(name) from error.__cause__
    finally:
        _PATH.reset(outside)


def current_path() -> str:
    """Return the path in the tree that `from_state_dict` is at, for the errors of a registered type.

    Example:
        >>> class Span:
        ...     start, stop = 0, 9
        >>> def restore(target, state):
        ...     if set(state) != {"start", "stop"}:
        ...         raise ValueError(f"no span at {current_path()}")
        >>> register_serialization_state(Span, vars, restore)
        >>> from_state_dict({"layers": [Span()]}, {"layers": {"0": {"start": 3}}})
        Traceback (most recent call last):
        ValueError: no span at ./layers/0

    Returns:
        The names from the root, which is `.`, joined by slashes.
    """
    return "/".join((".", *_PATH.get()))


def _named(items: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    pairs = [(str(key), value) for key, value in items]
    named = dict(pairs)
    if len(named) < len(pairs):
        twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        what = f"several keys are written as {twice[0]!r}."
        raise StateError(what, "Use keys that differ as strings.", given=twice[0])
    return named


def _of_dict(items: Mapping[Any, Any]) -> dict[str, Any]:
    return _named(items.items())


def _of_sequence(items: Any) -> dict[str, Any]:
    return {str(index): item for index, item in enumerate(items)}


def _of_partial(target: functools.partial[Any]) -> dict[str, Any]:
    """Return the parts of a `functools.partial`, with its function if that is a pytree, such as an Equinox module."""
    held = {"args": target.args, "keywords": target.keywords}
    return held if _rule(target.func) is None else {"func": target.func, **held}


def _rebuild_partial(target: functools.partial[Any], new: dict[str, Any]) -> functools.partial[Any]:
    return type(target)(new.get("func", target.func), *new["args"], **new["keywords"])


def _pytree_rule(target: Any) -> _Rule:
    """Return the rule for any pytree known to JAX: its children by key, and the static part of the target."""
    found, treedef = jax.tree_util.tree_flatten_with_path(target, is_leaf=lambda part: part is not target)

    kinds = optional_names(target)
    paths = [jax.tree_util.keystr(path, simple=True) for path, _ in found]
    named = [(name, child, kinds.get(name, "whole")) for name, (_, child) in zip(paths, found, strict=True)]

    def children(_: Any) -> dict[str, Any]:
        pairs: list[tuple[Any, Any]] = []
        for name, child, kind in named:
            pairs += child.items() if kind == "spread" else [(name, child)] if kind == "whole" else []
        return _named(pairs)

    def rebuild(_: Any, new: dict[str, Any]) -> Any:
        spread = {name: _RULES.get(type(child), _DICT) for name, child, kind in named if kind == "spread"}
        leaves = [spread[name].rebuild(child, new) if name in spread else new.get(name) for name, child, _ in named]
        return jax.tree.unflatten(treedef, leaves)

    return _Rule(children, rebuild)


_DICT = _Rule(_of_dict, lambda target, new: {key: new[str(key)] for key in target})
_RULES: dict[type, _Rule] = {
    dict: _DICT,
    FrozenDict: _Rule(_of_dict, lambda target, new: FrozenDict(_DICT.rebuild(target, new))),
    **dict.fromkeys((list, tuple), _Rule(_of_sequence, lambda target, new: type(target)(new.values()))),
    jax.tree_util.Partial: _Rule(lambda target: {"args": target.args, "keywords": target.keywords}, _rebuild_partial),
    functools.partial: _Rule(_of_partial, _rebuild_partial),
}
_HOOKS: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {}
"""The two functions that a user registered for a type."""


def _key_children(key: Any) -> dict[str, Any]:
    if isinstance(key, jax.Array):
        return {"impl": str(jax.random.key_impl(key)), "data": jax.random.key_data(key)}
    return {"impl": "", "data": None}  # a target that is a `jax.ShapeDtypeStruct`


def _rebuild_key(target: Any, new: dict[str, Any]) -> Any:
    impl, data = new["impl"], new["data"]
    try:
        if getattr(data, "dtype", None) != np.uint32:
            raise TypeError("they are not an array of uint32")
        key = jax.random.wrap_key_data(jnp.asarray(data), impl=impl)
    except (TypeError, ValueError) as error:
        what = f"this is not the data of a random key of impl {impl!r} ({error})."
        raise StateError(what, "Restore a key that to_bytes wrote.") from error
    if key.dtype != target.dtype:
        what = f"expected a random key of type {target.dtype}, found one of type {key.dtype}."
        raise StateError(what, f"Make the target's key with impl={impl!r}.", given=key.dtype, expected=target.dtype)
    return key


_KEY = _Rule(_key_children, _rebuild_key)


def _rule(target: Any) -> _Rule | None:
    """Return the rule for `target`, or `None` if it is a leaf."""
    cls = type(target)
    if cls in _RULES:
        return _RULES[cls]
    if _is_leaf(target) or target is None or cls is jax.ShapeDtypeStruct:
        return _KEY if is_typed_key(target) else None
    return None if jax.tree_util.all_leaves([target]) else _pytree_rule(target)


def register_serialization_state(
    ty: type,
    ty_to_state_dict: Callable[[Any], Any],
    ty_from_state_dict: Callable[[Any, Any], Any],
    override: bool = False,
) -> None:
    """Register how values of exactly the type `ty` are converted to state dicts and restored from them.

    Args:
        ty: the type.
        ty_to_state_dict: `(value) -> state`; calls `to_state_dict` on the contents.
        ty_from_state_dict: `(target, state) -> value`; calls `from_state_dict(..., name=key)` on the contents.
        override: whether to replace an existing registration.

    Raises:
        SerializationError: if `ty` is registered and `override` is false.
    """
    if not override and (ty in _HOOKS or ty in _RULES):
        what, fix = "it is already registered.", "Pass override=True to replace it."
        raise SerializationError(f"type {ty.__name__}", what, fix, option="override")
    _HOOKS[ty] = ty_to_state_dict, ty_from_state_dict


def to_state_dict(target: Any) -> Any:
    """Return the state of a tree as nested dicts with string keys; leaves are unchanged.

    Every pytree that JAX knows is split: dicts, lists, named tuples (so optax states), and classes made by
    `liftcore.struct` or registered with JAX, without their static parts. So are `functools.partial`, typed random keys,
    and types registered here. Children have the names of JAX's paths; for a class that is registered without keys,
    these are `0`, `1`, and so on.

    Example:
        >>> to_state_dict({"layers": [1, 2]})
        {'layers': {'0': 1, '1': 2}}

    Args:
        target: a pytree.

    Raises:
        SerializationError: if two keys of a dict are the same string, or the tree contains itself.
    """
    hooks, rule = _HOOKS.get(type(target)), _rule(target)
    if hooks:
        return hooks[0](target)
    if rule is None:
        return target
    try:
        return {name: _at(name, to_state_dict, child) for name, child in rule.children(target).items()}
    except RecursionError:
        # Only the outermost call has enough stack left to find the reason.
        if _PATH.get() or (error := _endless(target)) is None:
            raise
    raise error


def _endless(tree: Any, above: tuple[Any, ...] = ()) -> StateError | None:
    """Return the error for the first part of a tree that contains itself or is too deep, or `None`."""
    kind = type(tree).__name__
    for levels, one in enumerate(reversed(above), 1):
        if one is tree:
            what = f"the tree contains itself: this {kind} is also {levels} level{'s' * (levels > 1)} further up."
            return StateError(what, "Remove one of the two.")
    if len(above) > _DEEP:
        return StateError(f"the tree is more than {_DEEP} levels deep.", "Flatten it before you save it.")
    rule = None if type(tree) in _HOOKS else _rule(tree)
    for name, child in rule.children(tree).items() if rule else ():
        if error := _endless(child, (*above, tree)):
            return error.below(name)
    return None


def from_state_dict(target: Any, state: Any, name: str | None = None) -> Any:
    """Return a tree like `target` with the leaves of `state`.

    Only the structure of `target` is used. Its names and those of `state` must be the same, and an array or number must
    be restored from an array or number. As in flax, shapes and dtypes are not compared: a target may consist of zeros
    or of `jax.ShapeDtypeStruct`s, and the model knows best whether a shape fits. To compare them, call
    `liftcore.checkpoints.match_state`. If a part of `target` is `None` or of an unknown type, it takes any value.

    Example:
        >>> from_state_dict({"layers": [0, 0]}, {"layers": {"0": 1, "1": 2}})
        {'layers': [1, 2]}

    Args:
        target: a tree with the structure to restore.
        state: a state from `to_state_dict`.
        name: the name of this part in its container, if a registered type calls this function; for error messages.

    Returns:
        A new tree.

    Raises:
        SerializationError: if the structures differ; it names the path and the names on both sides.
    """
    if name is not None:
        return _at(name, from_state_dict, target, state)
    hooks, rule = _HOOKS.get(type(target)), _rule(target)
    if hooks:
        return hooks[1](target, state)
    if rule is None:
        _check_leaf(target, state)
        return state
    children = rule.children(target)
    _check_names(target, children, state)
    return rule.rebuild(target, {key: _at(key, from_state_dict, child, state[key]) for key, child in children.items()})


def _check_names(target: Any, children: dict[str, Any], state: Any) -> None:
    kind = type(target).__name__
    if not isinstance(state, Mapping):
        if isinstance(target, AxisMetadata) and _kind(state) == _KINDS[0]:
            what = f"the target has axis metadata here ({kind}), but what was saved is {_KINDS[0]} without it."
            raise StateError(what, "Restore into `unbox(target)`, and put the metadata back with `replace_boxed`.")
        what = f"expected a dict for the {kind} here, found {_kind(state)}."
        raise StateError(what, _SAME_STRUCTURE, given=_kind(state), expected="a dict")
    missing, extra = [n for n in children if n not in state], [n for n in state if n not in children]
    if missing or extra:
        lacks = f"lacks {_listed(missing)}" if missing else ""
        has = f"has {_listed(extra)} besides" if extra else ""
        what = (
            f"the state {' and '.join(filter(None, (lacks, has)))} "
            f"(the {kind} expects {_listed(children)}; the state has {_listed(state)})."
        )
        raise StateError(what, "Restore into a target with the names that were saved, or rename them in the state.")


def _check_leaf(target: Any, state: Any) -> None:
    expected, found = _kind(target), _kind(state)
    if expected not in _KINDS:  # None, a class, a function or any object: as in flax, it takes what was saved
        return
    if expected == _KINDS[0] and isinstance(state, Mapping) and set(state) == {"value"}:
        what = f"the target is {expected}, but what was saved has axis metadata (a dict with `value`)."
        fix = "Restore into the boxed variables that `init` returned, and `unbox` the result."
        raise StateError(what, fix)
    if found != expected:
        raise StateError(f"expected {expected}, found {found}.", _SAME_STRUCTURE, given=found, expected=expected)


def _listed(names: Iterable[Any]) -> str:
    return several(map(repr, names)) or "nothing"


_SAME_STRUCTURE = (
    "Restore into a target with the structure that was saved; for a custom container, call "
    "register_serialization_state."
)
_KINDS = ("an array or number", "a string", "bytes")


def _is_leaf(value: Any) -> bool:
    return is_number(value) or is_numpy(value) or isinstance(value, jax.Array | np.generic | str | bytes)


def _kind(value: Any) -> str:
    """Return which of `_KINDS` a leaf is, or its type; leaves of different kinds do not match."""
    if (hasattr(value, "shape") and hasattr(value, "dtype")) or is_number(value):
        return _KINDS[0]
    if isinstance(value, str):
        return _KINDS[1]
    return _KINDS[2] if isinstance(value, bytes) else f"a value of type {type(value).__name__}"


# --- bytes ------------------------------------------------------------------------------------------------------------


def to_bytes(target: Any) -> bytes:
    """Return the state of a tree as msgpack bytes; see `to_state_dict` for its possible contents.

    Args:
        target: a pytree of arrays and numbers, in containers that have a state dict.

    Raises:
        SerializationError: if a value in it cannot be split or written.
    """
    return msgpack_serialize(to_state_dict(target))


def from_bytes(target: Any, encoded_bytes: bytes | bytearray | memoryview, *, copy: bool = True) -> Any:
    """Return a tree like `target` with the leaves of `encoded_bytes`; see `from_state_dict`.

    Arrays are read-only NumPy arrays. As in flax, their shapes and dtypes are not compared with those of the target,
    and a damaged number is not detected; `liftcore.checkpoints.load_file` does both.

    Args:
        target: a tree with the structure that was saved; `None` returns the state dict itself.
        encoded_bytes: bytes from `to_bytes`.
        copy: if false, arrays are views of the bytes and take no additional memory. Each view keeps all of the bytes
            alive; see `msgpack_restore`.

    Raises:
        SerializationError: if the bytes cannot be read, or do not fit the target.
    """
    return from_state_dict(target, msgpack_restore(encoded_bytes, copy=copy))


def msgpack_serialize(pytree: Any) -> bytes:
    """Return nested dicts and lists of arrays and scalars as msgpack bytes.

    It needs the memory of its result, and little more.

    Args:
        pytree: dicts with string or integer keys, lists, arrays, numbers, strings, bytes and `None`.

    Raises:
        SerializationError: if it contains any other value.
    """
    return encode(pytree)


def msgpack_restore(encoded_pytree: bytes | bytearray | memoryview, *, copy: bool = True) -> Any:
    """Return the nested dicts and lists that `msgpack_serialize` wrote, with read-only NumPy arrays.

    It is safe for bytes from an untrusted source: it returns only plain data, takes dtypes from a fixed list, checks
    sizes against the bytes, and bounds the depth.

    Args:
        encoded_pytree: the bytes, or the `memoryview` of an `mmap`, to read a file only when its arrays are used.
        copy: if false, arrays are views of the bytes and take no additional memory. Each view keeps all of the bytes
            alive, which must not change meanwhile. The views may be unaligned: NumPy and JAX accept this, but other
            libraries may require `flags.aligned`. Scalars, and arrays of over 1 GiB, which are written in pieces, are
            always copied.

    Raises:
        SerializationError: if the bytes do not have the form that `msgpack_serialize` writes.
    """
    if not isinstance(encoded_pytree, bytes | bytearray | memoryview):
        wrong = Expected("bytes", given=encoded_pytree)
        raise SerializationError("msgpack", wrong, "Pass bytes from msgpack_serialize.")
    view = memoryview(encoded_pytree).toreadonly()
    if not view.c_contiguous:
        what = "the bytes are not contiguous in memory."
        raise SerializationError("msgpack", what, "Pass bytes(...) of them.", expected="contiguous")
    return decode(view.cast("B"), copy)


def __getattr__(name: str) -> Any:
    from .lazy import unknown  # imported here: only errors need it

    raise unknown(__name__, name, "liftcore.elsewhere")
