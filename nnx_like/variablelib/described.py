"""Static metadata of a variable, and the trace in which it may be changed."""

from __future__ import annotations

from typing import Any

from liftcore import trace_state

from ..errors import TraceContextError
from .metadata import named

__all__ = ["Described", "put_metadata", "put_trace"]

_MISSING: Any = object()


class Described:
    """The base of variables: static metadata, and the JAX trace that it belongs to.

    The dict of metadata is never changed in place. A change replaces it, so a reference to the old dict stays valid.
    """

    __slots__ = ("__weakref__", "_metadata", "_trace")

    _metadata: dict[str, Any]
    _trace: Any

    required_metadata: frozenset[str] = frozenset()

    def check_live(self) -> None:
        """Check that the variable may be changed in the current trace.

        Raises:
            TraceContextError: if the variable was created under another JAX trace.
        """
        if self._trace != trace_state():
            kind = type(self).__name__
            raise TraceContextError(
                f"a {kind}",
                "it is changed under a different JAX trace from the one in which it was created, and would keep a "
                "traced value.",
                f"Pass the {kind}, or the object that holds it, as an argument, and use a transformation that writes "
                "it back: `nnx.jit(fn)(model, x)`, or `nnx.lift(liftcore.jit, fn)(model, x)`. In a model of scopes, "
                "adopt the object: `nnx.bridge.adopt(scope, lambda rngs: model)(x)`. If `nnx.merge` made that object "
                "inside, copy what it is given: `nnx.merge(…, copy=True)`.",
            )

    def get_metadata(
        self, name: str | None = None, default: Any = _MISSING, *, exclude_required: bool | None = None
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
        if default is _MISSING:
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
        put_metadata(self, metadata)

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
        put_metadata(self, metadata)

    @property
    def sharding_names(self) -> Any:
        """The names of the mesh axes, one for each axis of the value, or None."""
        return self._metadata.get("out_sharding")

    def get_value(self) -> Any:
        """Return the value."""
        raise NotImplementedError

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
        hooks = self._metadata.get(name, ())
        for hook in (hooks,) if callable(hooks) else hooks:
            hook(self, axis_index, axis_name)


# Subclasses reject attributes, so slots are written through their descriptors, which is also the fastest way.
put_metadata = Described.__dict__["_metadata"].__set__
put_trace = Described.__dict__["_trace"].__set__


def _kept(name: str) -> str:
    """Return the name under which metadata is stored."""
    return "out_sharding" if name in ("sharding", "sharding_names") else name
