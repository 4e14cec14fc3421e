"""Records the calls of objects in one run of a method, with the types of their inputs and outputs.

Nothing is computed: the run is traced, with copies of the objects. The copies belong to subclasses that record each
call. Their paths are attributes, so transformations inside the model carry them along.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from liftcore.pytrees import is_array, is_array_like, is_array_or_struct, split_leaves

from ..errors import StructureError
from ..graph.functions import merge, split
from ..graph.walk import is_object
from ..objects.pytree import Pytree
from ..objects.traversal import iter_graph
from ..rnglib.streams import Rngs, RngStream

__all__ = ["RecordedCall", "record"]

_MARK = "__recorded__"


def _types_of(tree: Any) -> Any:
    """Return a pytree with types in place of its arrays; objects and other values do not change."""
    return jax.tree.map(lambda leaf: _type(leaf) if is_array(leaf) else leaf, tree, is_leaf=is_object)


def _type(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.eval_shape(lambda: leaf)


def _is_traced(leaf: Any) -> bool:
    """Return whether a transformation would trace a leaf; numbers in variables count too."""
    return is_array_like(leaf) or is_array_or_struct(leaf)


class Apart:
    """A call without its arrays.

    Attributes:
        types: the types of all arrays in a list: those of the objects, and those among the arguments.
    """

    def __init__(self, node: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        objects, self._others = split_leaves((tuple(args), dict(kwargs)), is_object, is_leaf=is_object)
        arrays, self._static = split_leaves(self._others.leaves, is_array_or_struct)
        self._graphdef, state = split([node, *objects])
        traced, self._whole = split_leaves((state, arrays), _is_traced)
        self.types = list(map(_type, traced))

    def run(self, values: Any, fn: Callable[..., Any]) -> Any:
        """Call a function with new objects.

        Args:
            values: a list of arrays, or of tracers, one for each of `types`.
            fn: called with the object and the arguments.
        """
        state, arrays = self._whole.join(values)
        node, *objects = merge(self._graphdef, state)
        args, kwargs = self._others.join(objects, self._static.join(arrays))
        return fn(node, *args, **kwargs)


@dataclasses.dataclass
class RecordedCall:
    """The first call of an object.

    Attributes:
        path: the names that lead to the object.
        method: the name of the method.
        args: the positional arguments, arrays as types.
        kwargs: the keyword arguments.
        outputs: the result.
        apart: the call, to be traced again without the model around it; None if it was not kept.
    """

    path: tuple[Any, ...]
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any = None
    apart: Apart | None = None


class _Recording:
    def __init__(self, keeps: bool) -> None:
        self.keeps = keeps
        self.calls: dict[tuple[Any, ...], RecordedCall] = {}

    def run(self, node: Any, path: tuple[Any, ...], method: str, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if path in self.calls:
            return fn(*args, **kwargs)
        given, named = _types_of((args, kwargs))
        call = self.calls[path] = RecordedCall(path, method, given, named)
        if self.keeps:
            call.apart = Apart(node, args, kwargs)
        result = fn(*args, **kwargs)
        call.outputs = _types_of(result)
        return result


_numbers = itertools.count()
_running: dict[int, _Recording] = {}


def record(node: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], keeps: bool) -> list[RecordedCall]:
    """Record the calls in one run of a method, in the order in which they began.

    Args:
        node: the object. It does not change.
        method: the name of the method.
        args: its arguments; arrays may be `jax.ShapeDtypeStruct`.
        kwargs: its keyword arguments.
        keeps: whether to keep each call, to trace it again.

    Raises:
        StructureError: if the object has no such method.
    """
    if not callable(getattr(node, method, None)):
        what = f"it has no method {method!r}."
        fix = "Pass the name of one of its methods: `method=…`."
        raise StructureError(f"tabulate({type(node).__name__})", what, fix, option="method", given=method)
    # A new number gives each run another structure, so that nothing compiled for an earlier run is reused.
    number, recording = next(_numbers), _Recording(keeps)

    def run(node: Any, *args: Any, **kwargs: Any) -> Any:
        for path, part in list(iter_graph(node)):
            if isinstance(part, Pytree) and not isinstance(part, Rngs | RngStream):
                vars(part)[_MARK] = (number, path)
                object.__setattr__(part, "__class__", _recorder(type(part)))
        fn = getattr(node, method)
        if method == "__call__" and isinstance(node, Pytree):
            fn(*args, **kwargs)
        else:
            recording.run(node, (), method, fn, args, kwargs)

    apart = Apart(node, args, kwargs)
    _running[number] = recording
    try:
        jax.eval_shape(lambda values: apart.run(values, run), apart.types)
    finally:
        del _running[number]
    return list(recording.calls.values())


def _recorder(cls: Any) -> Any:
    """Return the subclass of a class that records calls; there is one for each class."""
    known = vars(cls).get("_recorder")
    if known is None:
        method = inspect.getattr_static(cls, "__call__", None)
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        known = type(cls)(cls.__name__, (cls,), names if method is None else {**names, "__call__": _recorded(method)})
        cls._recorder = known._recorder = known
    return known


def _recorded(method: Any) -> Callable[..., Any]:
    @functools.wraps(method)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        fn = functools.partial(method, self)
        number, path = vars(self).get(_MARK, (-1, ()))
        recording = _running.get(number)
        return fn(*args, **kwargs) if recording is None else recording.run(self, path, "__call__", fn, args, kwargs)

    return __call__
