"""Containers that are modules: `List`, `Dict` and `Sequential`.

Plain lists and dicts can hold layers too. These containers also have the methods of modules.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, MutableMapping, MutableSequence
from typing import Any, ClassVar, TypeVar

from ..errors import StructureError
from .module import Module

__all__ = ["Dict", "List", "Sequential"]


def _takes(fn: Callable[..., Any], name: str) -> bool:
    """Return whether a function, or the `__call__` of an object, has a parameter of a given name.

    Args:
        fn: anything that can be called.
        name: the name of a parameter; `**kwargs` alone does not count.
    """
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # functions written in C may have no signature
        return False
    return name in parameters


Item = TypeVar("Item")


class List(Module, MutableSequence[Item]):
    """A list that is a module: its items are attributes of any type.

    Example:
        >>> import nnx_like as nnx
        >>> layers = nnx.List([nnx.Param(1), nnx.Param(2)])
        >>> layers.append(nnx.Param(3))
        >>> del layers[0]
        >>> [layer.get_value() for layer in layers]
        [2, 3]

    Args:
        items: the initial items.
    """

    # The item at index 1 is the attribute "1", so a walk over attributes needs no special case for items.
    _numbered: ClassVar[bool] = True

    def __init__(self, items: Iterable[Item] | None = None, /) -> None:
        self._hold([] if items is None else list(items))

    def _hold(self, items: list[Any], start: int = 0) -> None:
        """Replace the items from `start` on by these."""
        for number in range(start + len(items), len(self)):
            delattr(self, str(number))
        for number, item in enumerate(items, start):
            setattr(self, str(number), item)

    def _number(self, index: Any, top: int) -> int:
        number = operator.index(index)
        number = number + len(self) if number < 0 else number
        if not 0 <= number < top:
            raise IndexError(f"index {index} is out of range for a List of {len(self)} items")
        return number

    def __len__(self) -> int:
        held = vars(self)
        number = len(held)
        while number and str(number - 1) not in held:  # a subclass may have other attributes
            number -= 1
        return number

    def __iter__(self) -> Iterator[Item]:
        held, number = vars(self), 0
        while (name := str(number)) in held:
            yield held[name]
            number += 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(self)[index]
        return vars(self)[str(self._number(index, len(self)))]

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            items: list[Any] = list(self)
            items[index] = value
            self._hold(items)
        else:
            setattr(self, str(self._number(index, len(self))), value)

    def __delitem__(self, index: Any) -> None:
        items = list(self)
        del items[index]
        self._hold(items)

    def insert(self, index: int, value: Item) -> None:
        """Insert an item before the one at an index.

        Args:
            index: the index, as in `list.insert`.
            value: the item.
        """
        items = list(self)
        items.insert(index, value)
        first = len(items) - 1 if index >= len(items) - 1 else max(index + len(items) - 1, 0) if index < 0 else index
        self._hold(items[first:], first)

    def append(self, value: Item) -> None:
        """Append an item.

        Args:
            value: the item.
        """
        setattr(self, str(len(self)), value)

    def sort(self, *, key: Callable[[Item], Any] | None = None, reverse: bool = False) -> None:
        """Sort the items in place.

        Args:
            key: called with an item; returns the value that is compared.
            reverse: whether to sort in descending order.
        """
        self._hold(sorted(self, key=key, reverse=reverse))

    def __add__(self, other: Iterable[Item]) -> List[Item]:
        return type(self)([*self, *other])

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class Dict(Module, MutableMapping[str, Item]):
    """A dict that is a module: its values are attributes of any type.

    Example:
        >>> import nnx_like as nnx
        >>> towers = nnx.Dict(left=nnx.Param(1), right=nnx.Param(2))
        >>> towers.left is towers["left"], list(towers)
        (True, ['left', 'right'])

    Args:
        items: a mapping, or pairs of names and values.
        **named: values by name.
    """

    def __init__(self, items: Any = (), /, **named: Item) -> None:
        for name, value in dict(items, **named).items():
            self[name] = value

    def __getitem__(self, name: str) -> Item:
        held: Item = vars(self)[name]
        return held

    def __setitem__(self, name: str, value: Item) -> None:
        if not isinstance(name, str):
            where = f"{type(self).__name__}[{name!r}]"
            what = f"names must be strings, given {type(name).__name__}."
            fix = "Write `str(name)`, or use a plain dict."
            raise StructureError(where, what, fix, expected="strings", given=type(name).__name__)
        setattr(self, name, value)

    def __delitem__(self, name: str) -> None:
        if name not in vars(self):
            raise KeyError(name)
        delattr(self, name)

    def __iter__(self) -> Iterator[str]:
        # Names such as `__captures__` belong to this package, while it observes the object.
        return iter([name for name in vars(self) if not (name.startswith("__") and name.endswith("__"))])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    # Comparing values that hold arrays has no truth value, so a module is compared by identity.
    __hash__ = object.__hash__


class Sequential(Module):
    """Calls layers in order: each layer gets the result of the previous one.

    A tuple is passed as positional arguments, a dict as keyword arguments. The first layer gets the arguments of the
    call.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> model = nnx.Sequential(jnp.sin, lambda x: 2 * x)
        >>> float(model(0.0))
        0.0

    Args:
        *fns: the layers, or any other functions.

    Attributes:
        layers: the layers, in a `List`.
    """

    def __init__(self, *fns: Callable[..., Any]) -> None:
        self.layers: List[Callable[..., Any]] = List(fns)

    def __call__(self, *args: Any, rngs: Any = None, **kwargs: Any) -> Any:
        """Call the layers.

        Args:
            *args: the arguments of the first layer.
            rngs: RNG streams for each layer that takes `rngs`.
            **kwargs: keyword arguments of the first layer.

        Returns:
            The result of the last layer. Without layers, the positional arguments, or else the keyword arguments.

        Raises:
            TypeError: if a layer cannot be called.
        """
        result: Any = args[0] if len(args) == 1 else args or kwargs or None
        for number, fn in enumerate(self.layers):
            if not callable(fn):
                raise TypeError(f"Sequential[{number}] cannot be called: {fn!r}")
            if number:
                args = result if isinstance(result, tuple) else () if isinstance(result, dict) else (result,)
                kwargs = dict(result) if isinstance(result, dict) else {}
            given = {"rngs": rngs} if rngs is not None and _takes(fn, "rngs") else {}
            result = fn(*args, **kwargs, **given)
        return result
