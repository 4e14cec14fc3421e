"""Pytrees: what their leaves and nodes are, how to take leaves out and put them back, and whether a pytree has an end.

All styles ask here whether a leaf is an array, a number, the type of an array or a static value. What counts is what it
is an instance of, never its exact type: `jax.checkpoint` returns numbers and NumPy arrays of private subclasses, the
`float64` of NumPy is a `float`, and a member of an `IntEnum` is an `int`. JAX traces all of them.

A pytree that contains itself is found before JAX recurses into it, since JAX would never come to an end: after a
recursion that was too deep, CPython counts the calls inside JAX as open for good, so nothing runs any more.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ._compat import NUMPY_ARRAYS
from .errors import LiftArgumentError, LiftError

__all__ = [
    "Others",
    "Size",
    "check_acyclic",
    "checks_itself",
    "endless",
    "entering",
    "has_node",
    "has_type",
    "holds_arrays",
    "is_array",
    "is_array_like",
    "is_array_or_struct",
    "is_number",
    "is_numpy",
    "is_traceable",
    "number_type",
    "split_leaves",
    "too_deep",
]

_NUMBERS = (bool, int, float, complex)  # each is tested before the types that it is a subclass of

_ARRAYS: set[type] = set()
"""The types of JAX's arrays: this lookup takes a third of the time of `isinstance`."""


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array of JAX or NumPy, or a NumPy scalar, that JAX can trace.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> [is_array(leaf) for leaf in (jax.numpy.ones(2), np.ones(2), np.float32(1), 1.0, "text", np.array("text"))]
        [True, True, True, False, False, False]

    Args:
        leaf: any value.
    """
    if type(leaf) in _ARRAYS:
        return True
    if isinstance(leaf, jax.Array):
        if not isinstance(leaf, jax.core.Tracer):  # for tracers, `isinstance` depends on the value, not on the type
            _ARRAYS.add(type(leaf))
        return True
    return isinstance(leaf, NUMPY_ARRAYS) and leaf.dtype.kind not in "OSTUMm" and leaf.dtype.fields is None


def is_traceable(leaf: Any) -> bool:
    """Whether a leaf is an array, or a mutable array of `jax.new_ref`: what lifts of any values trace by default.

    Example:
        >>> is_traceable(jax.numpy.ones(2)), is_traceable(jax.new_ref(jax.numpy.ones(2))), is_traceable(1.0)
        (True, True, False)

    Args:
        leaf: any value.
    """
    if type(leaf) in _ARRAYS or is_array(leaf) or type(leaf) is jax.Ref:
        return True
    return isinstance(leaf, jax.core.Tracer) and isinstance(leaf, jax.Ref)  # the second test alone is ten times slower


def is_numpy(leaf: Any) -> bool:
    """Whether a leaf is an array of NumPy of any dtype, or one of those that `jax.checkpoint` returns; not a scalar.

    Example:
        >>> [is_numpy(leaf) for leaf in (np.ones(2), np.array("text"), np.float32(1), jax.numpy.ones(2))]
        [True, True, False, False]

    Args:
        leaf: any value.
    """
    return isinstance(leaf, NUMPY_ARRAYS) and not isinstance(leaf, np.generic)


def is_number(leaf: Any) -> bool:
    """Whether a leaf is a Python number: a bool, int, float or complex, or of a subclass that is not NumPy's.

    Example:
        >>> [is_number(leaf) for leaf in (1, True, 2.5, 1j, np.float64(1), "1")]
        [True, True, True, True, False, False]

    Args:
        leaf: any value.
    """
    return isinstance(leaf, _NUMBERS) and not isinstance(leaf, np.generic)


def number_type(leaf: Any) -> type[Any] | None:
    """Return which of Python's types a number has: bool, int, float or complex; None if it is no Python number.

    Example:
        >>> class Celsius(float):
        ...     pass
        >>> number_type(Celsius(20.5)), number_type(True), number_type("1")
        (<class 'float'>, <class 'bool'>, None)

    Args:
        leaf: any value.
    """
    return next((kind for kind in _NUMBERS if isinstance(leaf, kind)), None) if is_number(leaf) else None


def is_array_like(leaf: Any) -> bool:
    """Whether a leaf is an array or a number, which JAX can trace.

    Example:
        >>> [is_array_like(leaf) for leaf in (jax.numpy.ones(2), np.float32(1), 1.0, True, "text")]
        [True, True, True, True, False]

    Args:
        leaf: any value.
    """
    return isinstance(leaf, _NUMBERS) or is_array(leaf)


def is_array_or_struct(leaf: Any) -> bool:
    """Whether a leaf is an array, or stands for one: a `jax.ShapeDtypeStruct`, as `jax.eval_shape` returns.

    Example:
        >>> [is_array_or_struct(leaf) for leaf in (jax.numpy.ones(2), jax.ShapeDtypeStruct((2,), "float32"), 1.0)]
        [True, True, False]

    Args:
        leaf: any value.
    """
    return is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def holds_arrays(value: Any, is_object: Callable[[Any], bool]) -> bool:
    """Whether a value holds arrays, or objects, which may hold them; or a dict that JAX cannot flatten.

    Example:
        >>> import jax
        >>> [holds_arrays(value, callable) for value in ((1, jax.numpy.ones(2)), [len], None, {"size": 3})]
        [True, True, False, False]

    Args:
        value: any value, such as the result of a call.
        is_object: whether a part of it is an object.
    """
    try:
        leaves = jax.tree.leaves(value, is_leaf=is_object)
    except (TypeError, ValueError):  # such as keys that cannot be sorted
        return True
    return any(is_array(leaf) or is_object(leaf) for leaf in leaves)


def has_node(tree: Any, kind: type) -> bool:
    """Whether a pytree has a node of a class, also in the nodes below another one of it.

    Example:
        >>> has_node([{"a": 1}], dict), has_node([{"a": 1}], tuple)
        (True, False)

    Args:
        tree: any pytree.
        kind: the class.
    """
    left: list[Any] = [jax.tree.structure(tree)]
    for node in left:
        data = node.node_data()
        if data is not None:  # not a leaf
            if isinstance(data[0], type) and issubclass(data[0], kind):
                return True
            left.extend(node.children())
    return False


def has_type(value: Any) -> bool:
    """Whether a value has a shape and a dtype, as arrays, their types and what wraps them have.

    Example:
        >>> has_type(jax.ShapeDtypeStruct((2,), "float32")), has_type(1.0)
        (True, False)

    Args:
        value: any value.
    """
    return isinstance(getattr(value, "shape", None), tuple) and getattr(value, "dtype", None) is not None


@dataclasses.dataclass(frozen=True)
class Size:
    """The number of elements of some arrays, and the number of bytes that they take.

    Example:
        >>> print(Size(10_000, 40_000))
        10,000 (40.0 KB)

    Attributes:
        count: the number of elements.
        bytes: the number of bytes.
    """

    count: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, tree: Any) -> Size:
        """Return the size of all arrays in a pytree.

        Args:
            tree: any pytree; a `jax.ShapeDtypeStruct` counts as an array of its type.
        """
        arrays = [leaf for leaf in jax.tree.leaves(tree) if has_type(leaf)]
        return cls.sum(cls(math.prod(one.shape), math.prod(one.shape) * _item_bytes(one.dtype)) for one in arrays)

    @classmethod
    def sum(cls, sizes: Iterable[Size]) -> Size:
        """Return the size of everything together.

        Args:
            sizes: the sizes of the parts.
        """
        each = list(sizes)
        return cls(sum(size.count for size in each), sum(size.bytes for size in each))

    def __str__(self) -> str:
        if not self.count:
            return ""
        if self.bytes < 1000:
            return f"{self.count:,} ({self.bytes} B)"
        power = min(int(math.log(self.bytes, 1000)), 5)
        return f"{self.count:,} ({self.bytes / 1000**power:.1f} {' KMGTP'[power]}B)"


def _item_bytes(dtype: Any) -> int:
    return int((dtype if hasattr(dtype, "itemsize") else np.dtype(dtype)).itemsize)


class Others(NamedTuple):
    """A pytree without the leaves that `split_leaves` chose. It has a hash if the other leaves have one.

    Attributes:
        treedef: the structure of the pytree.
        chosen: for each leaf, whether it was chosen.
        leaves: the leaves that were not, in order.
    """

    treedef: Any
    chosen: Sequence[bool]
    leaves: Sequence[Any]

    def join(self, chosen: Iterable[Any], others: Iterable[Any] | None = None) -> Any:
        """Return the whole pytree again, with the given values in the places of the chosen leaves.

        Args:
            chosen: the values, in order; each may be a pytree.
            others: the same for the other leaves; by default, these themselves.
        """
        now, others = iter(chosen), iter(self.leaves if others is None else others)
        return self.treedef.unflatten([next(now if one else others) for one in self.chosen])


def split_leaves(
    tree: Any, choose: Callable[[Any], bool] | Iterable[bool], is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[Any], Others]:
    """Divide the leaves of a pytree into those that are chosen, and the others.

    Example:
        >>> chosen, others = split_leaves({"x": np.float32(2), "mode": "train"}, is_array)
        >>> chosen, others.leaves
        ([np.float32(2.0)], ('train',))
        >>> others.join([2 * chosen[0]])
        {'mode': 'train', 'x': np.float32(4.0)}

    Args:
        tree: any pytree.
        choose: returns whether a leaf is chosen; or one bool for each leaf, in order.
        is_leaf: see `jax.tree.flatten`.

    Returns:
        The chosen leaves, and an `Others` that joins them, or other values in their places, with the others.
    """
    leaves, treedef = jax.tree.flatten(tree, is_leaf)
    chosen = tuple(map(choose, leaves) if callable(choose) else choose)
    others = tuple([leaf for leaf, one in zip(leaves, chosen, strict=True) if not one])
    return list(itertools.compress(leaves, chosen)), Others(treedef, chosen, others)


# --- pytrees that contain themselves ----------------------------------------------------------------------------------


_CONTAINERS = frozenset({list, tuple, dict, OrderedDict, defaultdict})
_LEAVES: set[type] = {bool, int, float, str, type(None), types.FunctionType, np.ndarray}
"""Types of leaves. Those of JAX's arrays are added when first seen."""

_children_of: dict[type, Callable[[Any], Iterable[Any]]] = {}
"""The classes that call `entering` where they are flattened, each with a function that returns children of a node."""


class _Pass(threading.local):
    """The nodes that JAX is about to flatten, by identity, since a search found them below another one."""

    def __init__(self) -> None:
        self.known: set[int] = set()


_pass = _Pass()


def checks_itself(cls: type, children: Callable[[Any], Iterable[Any]]) -> None:
    """Note that nodes of a class call `entering`, so that `check_acyclic` need not look below them.

    Args:
        cls: the class.
        children: returns the children of a node. Other values among them do no harm.
    """
    _children_of[cls] = children


def entering(node: Any, fix: str) -> None:
    """Check a node that JAX flattens, unless it was found below a node that was checked.

    A class of pytrees that can change calls this in its function that flattens. A node that contains itself is met
    more often than it was found, and is then checked.

    Args:
        node: the node, of a class that `checks_itself` has noted.
        fix: what the error says to do.

    Raises:
        LiftArgumentError: if the node contains itself.
    """
    known = _pass.known
    if id(node) in known:
        known.discard(id(node))
        return
    search = _Search(fix, enters=True)
    search.visit(node)
    known.update([key for key, one in search.done.items() if type(one) in _children_of and one is not node])


def check_acyclic(tree: Any, fix: str = "Leave out the reference.", *, within: bool = False) -> None:
    """Check that lists, tuples, dicts and other pytrees do not contain themselves.

    Example:
        >>> items = [1]
        >>> items.append(items)
        >>> check_acyclic((items,))
        Traceback (most recent call last):
        ...
        liftcore.errors.LiftArgumentError: list: it contains itself, list > list, so as a pytree it has no end. Leave...

    Args:
        tree: a pytree.
        fix: what the error says to do.
        within: whether to look below nodes that check themselves too, for code that goes through them without JAX.

    Raises:
        LiftArgumentError: if one contains itself, or they are nested too deep.
    """
    kind = type(tree)
    if kind is tuple and _LEAVES.issuperset(map(type, tree)):  # most calls: their arguments are arrays and numbers
        return
    if kind not in _LEAVES and (within or kind not in _children_of):
        _Search(fix, enters=within).visit(tree)


class _Search:
    """A walk through pytrees, as JAX flattens them.

    Args:
        fix: what the error says to do.
        enters: whether to look below nodes that check themselves.
    """

    def __init__(self, fix: str, enters: bool) -> None:
        self.fix, self.enters = fix, enters
        self.open: dict[int, Any] = {}
        self.done: dict[int, Any] = {}  # holds the nodes, since another one could get the identity of one that is gone

    def visit(self, node: Any) -> None:
        """Check a node and all below it."""
        if id(node) in self.done:
            return
        kind: Any = type(node)
        children: Iterable[Any] = ()
        if kind in _CONTAINERS:
            # In one step: another thread may change it in the meantime.
            children = tuple(node.values() if isinstance(node, dict) else node)
        elif kind in _children_of:
            children = _children_of[kind](node) if self.enters else ()
        elif isinstance(node, jax.Array):
            _LEAVES.add(kind)
        elif (found := jax.tree_util.default_registry.flatten_one_level(node)) is not None:
            children = found[0]
        below = [child for child in children if type(child) not in _LEAVES]
        if below:
            if id(node) in self.open:
                raise self._endless(node)
            self.open[id(node)] = node
            try:
                for child in below:
                    self.visit(child)
            except RecursionError:
                raise too_deep(type(node).__name__) from None
            del self.open[id(node)]
        self.done[id(node)] = node

    def _endless(self, node: Any) -> LiftError:
        nodes = list(self.open.values())
        first = next(number for number, one in enumerate(nodes) if one is node)
        kinds = " > ".join([type(one).__name__ for one in [*nodes[first:], node]])
        return endless(type(node).__name__, f"it contains itself, {kinds}", self.fix)


def endless(where: str, what: str, fix: str, kind: type[LiftError] = LiftArgumentError) -> LiftError:
    """Return the error for a pytree that contains itself.

    Example:
        >>> print(endless("args[0]", "a list contains itself", "Leave out the reference."))
        args[0]: a list contains itself, so as a pytree it has no end. Leave out the reference.

    Args:
        where: the place that the error names.
        what: what contains itself.
        fix: the fix.
        kind: the class of the error.
    """
    return kind(where, f"{what}, so as a pytree it has no end.", fix)


def too_deep(where: str, what: str = "it is", kind: type[LiftError] = LiftArgumentError) -> LiftError:
    """Return the error for values that are nested so deeply that Python cannot visit them.

    Example:
        >>> print(too_deep("args[0]").what)
        it is nested deeper than Python's recursion limit allows.

    Args:
        where: the place that the error names.
        what: what is nested, with a verb.
        kind: the class of the error.
    """
    fix = "Store the parts in a flat list instead of a chain; or raise the limit with `sys.setrecursionlimit`."
    return kind(where, f"{what} nested deeper than Python's recursion limit allows.", fix)
