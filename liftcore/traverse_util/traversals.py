"""Traversals: places in nested containers, whose values you can read, map and set.

Example:
    >>> every = t_identity["layers"].each()["width"]
    >>> config = {"layers": [{"width": 3}, {"width": 4}], "name": "mlp"}
    >>> list(every.iterate(config))
    [3, 4]
    >>> every.update(lambda width: 10 * width, config)
    {'layers': [{'width': 30}, {'width': 40}], 'name': 'mlp'}

For a single place, `liftcore.cursor` is simpler; for all parameters, `path_aware_map` is.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax

from ..cursor import cursor
from ..errors import Expected, LiftArgumentError
from .flat import path_aware_map

__all__ = [
    "ModelParamTraversal",
    "Traversal",
    "TraverseAttr",
    "TraverseCompose",
    "TraverseEach",
    "TraverseFilter",
    "TraverseId",
    "TraverseItem",
    "TraverseMerge",
    "TraverseTree",
    "t_identity",
]


class Traversal(abc.ABC):
    """Places in nested containers. A subclass defines them by its method `update`.

    `traversal[key]` and `traversal.name` are traversals of an item and of a field of each place.
    """

    @abc.abstractmethod
    def update(self, fn: Callable[[Any], Any], inputs: Any) -> Any:
        """Return a copy with new values in these places.

        Args:
            fn: a function from an old value to the new one.
            inputs: the containers, which do not change.
        """

    def iterate(self, inputs: Any) -> Iterator[Any]:
        """Return an iterator over the values in these places.

        Args:
            inputs: the containers.
        """
        found: list[Any] = []

        def note(value: Any) -> Any:
            found.append(value)
            return value

        self.update(note, inputs)
        return iter(found)

    def set(self, values: Iterable[Any], inputs: Any) -> Any:
        """Return a copy with the given values in these places.

        Args:
            values: a value for each place, in the order of `iterate`.
            inputs: the containers, which do not change.

        Raises:
            LiftArgumentError: if the number of values is not the number of places.
        """
        given, places = list(values), len(list(self.iterate(inputs)))
        if len(given) != places:
            what = f"there are {len(given)} values for {places} places."
            fix = "Give one for each value of `iterate(inputs)`."
            raise LiftArgumentError("Traversal.set", what, fix, given=len(given), expected=places)
        left = iter(given)
        return self.update(lambda _: next(left), inputs)

    def compose(self, other: Traversal) -> Traversal:
        """Return a traversal of the places of another traversal within each of these places.

        Args:
            other: the traversal to follow from each place.
        """
        return TraverseCompose(self, other)

    def merge(self, *traversals: Traversal) -> Traversal:
        """Return a traversal of the places of several traversals, in turn, within each of these places.

        Args:
            *traversals: the traversals, in order.
        """
        return self.compose(TraverseMerge(*traversals))

    def each(self) -> Traversal:
        """Return a traversal of all items of the containers in these places; of mappings, the values."""
        return self.compose(TraverseEach())

    def tree(self) -> Traversal:
        """Return a traversal of all leaves of the pytrees in these places."""
        return self.compose(TraverseTree())

    def filter(self, fn: Callable[[Any], bool]) -> Traversal:
        """Return a traversal of the places whose value satisfies a condition.

        Args:
            fn: a function from a value to whether to keep its place.
        """
        return self.compose(TraverseFilter(fn))

    def __getitem__(self, key: Any) -> Traversal:
        return self.compose(TraverseItem(key))

    def __getattr__(self, attr: str) -> Traversal:
        if attr.startswith("__"):  # a protocol of Python that traversals do not have
            raise AttributeError(attr)
        return self.compose(TraverseAttr(attr))


class TraverseId(Traversal):
    """The one place that is the whole value."""

    def update(self, fn: Callable[[Any], Any], inputs: Any) -> Any:
        """Return `fn` of the whole value."""
        return fn(inputs)


class TraverseCompose(Traversal):
    """The places of a second traversal within each place of a first one.

    Args:
        x: the first traversal.
        y: the second traversal.
    """

    def __init__(self, x: Traversal, y: Traversal) -> None:
        self._x, self._y = x, y

    def update(self, fn: Callable[[Any], Any], inputs: Any) -> Any:
        """Return a copy with new values in these places."""
        return self._x.update(functools.partial(self._y.update, fn), inputs)


class TraverseMerge(Traversal):
    """The places of several traversals, one after the other.

    Args:
        *traversals: the traversals, in order.
    """

    def __init__(self, *traversals: Traversal) -> None:
        self._traversals = traversals

    def update(self, fn: Callable[[Any], Any], inputs: Any) -> Any:
        """Return a copy with new values in these places."""
        for traversal in self._traversals:
            inputs = traversal.update(fn, inputs)
        return inputs


class TraverseItem(Traversal):
    """An item of a mapping, a list or a tuple.

    Args:
        key: its key or index.
    """

    def __init__(self, key: Any) -> None:
        self._key = key

    def update(self, fn: Callable[[Any], Any], inputs: Any) -> Any:
        """Return a copy with a new item."""
        return cursor(inputs)[self._key].set(fn(inputs[self._key]))


class TraverseAttr(Traversal):
    """A field of a dataclass or a named tuple.

    Args:
        attr: its name.
    """

    def __init__(self, attr: str) -> None:
        self._attr = attr

    def update(self, fn: Callable[[Any], Any], inputs: Any) -> Any:
        """Return a copy with a new value of the field."""
        edit = cursor(inputs)
        setattr(edit, self._attr, fn(getattr(inputs, self._attr)))
        return edit.build()


class TraverseEach(Traversal):
    """All items of a list or a tuple, all values of a mapping."""

    def update(self, fn: Callable[[Any], Any], inputs: Any) -> Any:
        """Return a copy with new items."""
        if not isinstance(inputs, Mapping | list | tuple):
            wrong = Expected("a mapping, a list or a tuple", given=inputs)
            raise LiftArgumentError("TraverseEach", wrong, "For the leaves of a pytree, write `.tree()`.")
        edit = cursor(inputs)
        for key in list(inputs) if isinstance(inputs, Mapping) else range(len(inputs)):
            edit[key] = fn(inputs[key])
        return edit.build()


class TraverseTree(Traversal):
    """All leaves of a pytree."""

    def update(self, fn: Callable[[Any], Any], inputs: Any) -> Any:
        """Return a copy with new leaves."""
        return jax.tree.map(fn, inputs)


class TraverseFilter(Traversal):
    """The whole value if it satisfies a condition; else no place.

    Args:
        fn: a function from a value to whether to keep it.
    """

    def __init__(self, fn: Callable[[Any], bool]) -> None:
        self._fn = fn

    def update(self, fn: Callable[[Any], Any], inputs: Any) -> Any:
        """Return `fn` of the whole value if it satisfies the condition, else the value itself."""
        return fn(inputs) if self._fn(inputs) else inputs


class ModelParamTraversal(Traversal):
    """The places in nested dicts whose path and value satisfy a condition.

    Example:
        >>> kernels = ModelParamTraversal(lambda path, value: path.endswith("/kernel"))
        >>> kernels.update(lambda value: -value, {"dense": {"kernel": 1, "bias": 2}})
        {'dense': {'kernel': -1, 'bias': 2}}

    Args:
        filter_fn: called as `filter_fn(path, value)`, with a path such as `"/dense/kernel"`.
    """

    def __init__(self, filter_fn: Callable[[str, Any], bool]) -> None:
        self._filter_fn = filter_fn

    def update(self, fn: Callable[[Any], Any], inputs: Any) -> Any:
        """Return a copy with new values in these places.

        Args:
            fn: a function from an old value to the new one.
            inputs: nested dicts, which do not change.
        """

        def new(path: tuple[Any, ...], value: Any) -> Any:
            return fn(value) if self._filter_fn(f"/{'/'.join(map(str, path))}", value) else value

        return path_aware_map(new, inputs)


t_identity = TraverseId()
