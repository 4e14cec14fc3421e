"""Calls a layer that sees its parameters changed, and stores its initial parameters changed, in one run of the layer.

The layer runs inside `liftcore.map_variables`, which makes its parameters before it computes the rest of the layer. So
variables that belong to a parameter can be made when its shape is known, without another run of the layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import liftcore
from liftcore import Scope
from liftcore.errors import Expected, LiftArgumentError
from liftcore.meta import is_box, replace_boxed, unbox
from liftcore.typing import Array, Dtype, Path

from .lifting import lift_functions
from .module import Module

__all__ = ["call_with"]

Change = Callable[[Array], Array]


def call_with(
    change: Callable[[str, tuple[int, ...]], Change | None],
    seen_dtype: Callable[[str, Array], Dtype | None],
    module: Module,
    layer: Any,
    args: Any,
    kwargs: Any,
) -> Any:
    """Call a layer that sees its parameters as a module around it changes them.

    Args:
        change: called with the name of a parameter, such as `Dense_0/kernel`, and its shape; makes its variables and
            returns the function that changes it, or returns None.
        seen_dtype: called with the name and value of a parameter; returns the dtype that the changed value would have,
            without making a variable; None if the parameter is not changed.
        module: the bound module around the layer.
        layer: the layer.
        args: the arguments of the layer.
        kwargs: the keyword arguments of the layer.
    """
    if not isinstance(layer, Module):
        where = f"{type(module).__name__} at {module.scope.path_text}"
        fix = f"Make the layer first: `{type(module).__name__}(nn.Dense(3))`."
        raise LiftArgumentError(where, Expected("a module", layer), fix, option="layer_instance")

    def call(layer: Any) -> Any:
        return layer(*args, **kwargs)

    view = _View(change, seen_dtype, module, layer)
    lift = functools.partial(_map_variables, view=view, creates=module.is_initializing())
    try:
        return lift_functions(lift, call, name=f"call of {type(layer).__name__}")(layer)
    finally:
        view.__dict__.clear()  # a compiled body may be kept, and would keep this object


def _map_variables(fn: Callable[..., Any], view: _View, creates: bool) -> Callable[..., Any]:
    @functools.wraps(fn)
    def body(scopes: Any, *args: Any, **kwargs: Any) -> Any:
        for scope in jax.tree.leaves(scopes, is_leaf=lambda value: isinstance(value, Scope)):
            view.enter(scope)
        return fn(scopes, *args, **kwargs)

    store = functools.partial(_map, view.store)
    store.by_parts = True  # type: ignore[attr-defined]  # it makes variables, so it cannot be traced by itself
    return liftcore.map_variables(body, "params", functools.partial(_map, view.see), store, init=creates)


def _map(fn: Callable[[str, Any], Any], variables: Any) -> Any:
    """Apply `fn(name, value)` to each variable, including its metadata; names are those below the collection."""
    return jax.tree_util.tree_map_with_path(lambda path, value: fn(_text(path[1:]), value), variables, is_leaf=is_box)


def _text(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


class _View:
    """The view that a layer has of its parameters in one call.

    New parameters are stored changed, in their own dtype. The change may give another dtype. The layer sees that dtype
    as soon as it makes the parameter, before the change itself is known.
    """

    def __init__(self, change: Any, seen_dtype: Any, module: Module, layer: Module) -> None:
        self._change, self._seen_dtype, self._scope, self._layer = change, seen_dtype, module.scope, layer
        self._where = f"{type(module).__name__} at {module.scope.path_text}"
        self._changes: dict[str, Change | None] = {}
        self._new: set[str] = set()
        self._entered: set[Hashable] = set()
        self._places: dict[str, Path] = {}

    def store(self, name: str, value: Any) -> Any:
        """Return the value to store for a new parameter."""
        self._new.add(name)
        return _as_before(self._changed(name, value), value)

    def see(self, name: str, value: Any) -> Any:
        """Return what the layer sees of a stored parameter; one that it made itself keeps the dtype that it saw."""
        if name not in self._new:
            return self._changed(name, value)
        wrapped_twice = self._scope.has_view  # the outer wrapper has changed it since
        return _as_before(self._changed(name, value), value) if wrapped_twice else value

    def _changed(self, name: str, value: Any) -> Any:
        name = f"{self._layer.name}/{name}"
        if name not in self._changes:
            with self._scope.outside_lift():
                self._changes[name] = self._change(name, np.shape(unbox(value)))
        change = self._changes[name]
        return value if change is None else replace_boxed(value, change(jnp.asarray(unbox(value))))

    def enter(self, scope: Scope) -> None:
        """Start in a tree that the layer runs on."""
        entry = scope.entry
        if entry.place not in self._entered:
            self._entered.add(entry.place)
            entry.view(functools.partial(self._seen, entry.path))
            params = entry.collections_below().get("params", {})
            for path, _ in jax.tree.leaves_with_path(params, is_leaf=is_box):
                self._claim(_text(path), entry.path)

    def _seen(self, base: Path, path: Path, value: Any) -> Any:
        """Return what the layer sees of a variable that it makes."""
        if path[0] != "params":
            return value
        place = "/".join(path[1 + len(base) :])

        def seen(path: Any, leaf: Any) -> Any:
            name = "/".join((place, _text(path))) if path else place
            self._claim(name, base)
            dtype = self._seen_dtype(f"{self._layer.name}/{name}", jnp.asarray(unbox(leaf)))
            return leaf if dtype is None else jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), leaf)

        return jax.tree_util.tree_map_with_path(seen, value, is_leaf=is_box)

    def _claim(self, name: str, base: Path) -> None:
        """Check that a parameter of a module from outside the layer does not have the name of another parameter."""
        if self._places.setdefault(name, base) != base:
            raise LiftArgumentError(
                self._where,
                f'two parameters of {type(self._layer).__name__} have the name "{name}": it holds a module that was '
                "made outside.",
                "Make that module inside the layer, or wrap that module instead.",
                given=name,
            )


def _as_before(new: Any, old: Any) -> Any:
    """Convert a value to the dtypes of another one."""
    return jax.tree.map(lambda new, old: jnp.asarray(new, jnp.result_type(old)), new, old)
