"""`Parameters`: the variables in any pytree, by path. It is the one walk of all filters over trees of parameters."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from ..errors import LiftArgumentError
from ..texts import path_text
from ..typing import Filter, Path, Predicate, PyTree
from .predicates import Everything, WithTag, may_be_empty, names_in, parts_with_names, short_form, to_predicate

__all__ = ["Parameters", "check_names", "children_of", "is_variable", "listed", "names_its_children"]

_MAX_COMPARED = 2000
"""The number of paths up to which an error lists the closest ones first."""

_GONE: Any = object()
"""What stands for a variable that is not chosen, while a part of a tree is made."""


def is_variable(node: Any) -> bool:
    """Return whether filters see a pytree node as one variable: a box, or an `nnx_like.Variable`.

    Such a class says so by the attribute `__one_variable__`. Other nodes are containers: a filter sees what they hold.

    Args:
        node: a node or a leaf of a pytree.
    """
    return bool(getattr(type(node), "__one_variable__", False))


class Parameters(NamedTuple):
    """The variables in a pytree: its leaves and its boxes, each with its path.

    Dicts, lists, tuples, named tuples, dataclasses, modules and all other nodes that JAX knows are containers. A path
    consists of names: of keys, of fields, and of indices, so the first item of a list has the name `"0"`. Those are the
    names that files have too.

    Example:
        >>> from liftcore.filters import PathContains
        >>> tree = {"layers": [{"w": 1.0, "b": 2.0}, {"w": 3.0, "b": 4.0}]}
        >>> found = Parameters.of(tree, ("params",))
        >>> found.paths[0]
        ('params', 'layers', '0', 'b')
        >>> chosen = found.chosen("example", PathContains("b"))
        >>> found.like(chosen)
        {'layers': [{'b': True, 'w': False}, {'b': True, 'w': False}]}
        >>> found.part(chosen)
        {'layers': [{'b': 2.0}, {'b': 4.0}]}

    Attributes:
        tree: the pytree.
        paths: the path of each variable.
        values: the variables; a box is one.
        treedef: the structure of the pytree above them.
    """

    tree: PyTree
    paths: list[Path]
    values: list[Any]
    treedef: Any

    @classmethod
    def of(cls, tree: PyTree, prefix: Path = (), *, gaps: bool = False) -> Parameters:
        """Return the variables in a pytree.

        Args:
            tree: the pytree.
            prefix: the first part of all paths, such as the name of the collection.
            gaps: whether None and optax's `MaskedNode`, which stand for variables of a larger tree, count too.
        """
        found, treedef = jax.tree_util.tree_flatten_with_path(
            tree, is_leaf=lambda node: is_variable(node) or (gaps and _is_gap(node))
        )
        paths = [(*prefix, *(jax.tree_util.keystr((key,), simple=True) for key in keys)) for keys, _ in found]
        return cls(tree, paths, [value for _, value in found], treedef)

    @classmethod
    def of_variables(cls, tree: PyTree) -> Parameters:
        """Return the variables in `{collection: tree}`, or in a pytree that is no mapping: all of it is `params`.

        Args:
            tree: the variables.
        """
        return cls.of(tree, () if isinstance(tree, Mapping) else ("params",))

    def first(self, predicates: Sequence[Predicate]) -> list[int | None]:
        """Return, for each variable, the index of the first predicate that matches it, or None.

        Args:
            predicates: the predicates, in order.
        """
        numbered = list(enumerate(predicates))
        return [
            next((index for index, predicate in numbered if predicate(path, value)), None)
            for path, value in zip(self.paths, self.values, strict=True)
        ]

    def chosen(self, where: str, filter: Filter) -> list[bool]:
        """Return, for each variable, whether a filter matches it.

        Args:
            where: the name of the caller, for errors.
            filter: the filter.

        Raises:
            LiftArgumentError: if it matches none; see `check`.
        """
        predicate = to_predicate(filter)
        answers = [index is not None for index in self.first([predicate])]
        if not any(answers):
            self.check(where, predicate)
        return answers

    def check(self, where: str, predicate: Predicate) -> None:
        """Raise the error for a filter that matches no variable: it is misspelled.

        A filter for everything may match nothing. So may one that says it, as `(filter, None)` does.

        Args:
            where: the name of the caller.
            predicate: the filter.

        Raises:
            LiftArgumentError: unless the filter may be empty, or there are no variables.
        """
        if self.paths and not isinstance(predicate, Everything) and not may_be_empty(predicate):
            raise _no_match(where, predicate, self.paths)

    def like(self, answers: Sequence[Any]) -> PyTree:
        """Return a tree of the same structure, with an answer in place of each variable.

        Args:
            answers: the answers, in the order of `paths`.
        """
        return self.treedef.unflatten(answers)

    def part(self, chosen: Sequence[bool]) -> PyTree:
        """Return the tree with the chosen variables only.

        Mappings lose the names of the others. Other nodes cannot lose a field or an index, and have None in place of an
        array. A subtree that is chosen as a whole is the same object.

        Args:
            chosen: for each variable, whether it is kept.
        """
        part = self.tree if all(chosen) else _part(self.tree, iter(chosen))
        return {} if part is _GONE else part


def check_names(where: str, filter: Filter, pairs: Sequence[tuple[Path, Any]]) -> None:
    """Raise the error for a filter that matches nothing, because it asks for a name that no variable has.

    A model need not have variables of each type, so a filter that asks only for types may match nothing. So may one
    that says it, as `(filter, None)` does.

    Example:
        >>> from liftcore.filters import All, PathContains
        >>> pairs = [(("params", "head", "kernel"), 1.0)]
        >>> check_names("example", All(int, PathContains("head")), pairs)
        >>> check_names("example", (PathContains("hed"), None), pairs)
        >>> check_names("example", PathContains("hed"), pairs)
        Traceback (most recent call last):
            ...
        liftcore.errors.LiftArgumentError: example: the filter PathContains('hed') matches no variable ...

    Args:
        where: the name of the caller.
        filter: the filter.
        pairs: all variables, each with its path.

    Raises:
        LiftArgumentError: if the name is misspelled.
    """
    predicate = to_predicate(filter)
    parts = parts_with_names(predicate)
    if not pairs or not parts or any(predicate(*pair) for pair in pairs):
        return
    if not all(any(part(*pair) for pair in pairs) for part in parts):
        raise _no_match(where, predicate, [path for path, _ in pairs])


def _no_match(where: str, predicate: Predicate, paths: Sequence[Path]) -> LiftArgumentError:
    what = f"the filter {short_form(predicate)} matches no variable (available: {listed(paths, predicate)})."
    if isinstance(predicate, WithTag):
        what += " A string is the name of a collection, or the tag of a variable."
        fix = f'To match a module or a name, write `PathContains("{predicate.tag}")`.'
    else:
        form = short_form(predicate)
        form = "filter" if "<" in form else form  # a lambda cannot be written by its name
        fix = f"Match some of these, or write `({form}, None)` if it may match nothing."
    return LiftArgumentError(where, what, fix, available=map(path_text, paths))


def _is_gap(node: Any) -> bool:
    return node is None or type(node).__name__ == "MaskedNode"  # optax need not be installed


def children_of(node: PyTree) -> tuple[list[tuple[Any, Any]], Any]:
    """Return the children of a node, each with its key, and the structure of the node alone; None for a variable.

    Args:
        node: a node or a leaf of a pytree.
    """
    if is_variable(node) or jax.tree_util.all_leaves([node]):
        return [], None
    pairs, treedef = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda inner: inner is not node)
    return [(path[0], child) for path, child in pairs], treedef


def names_its_children(node: PyTree, children: Sequence[tuple[Any, Any]]) -> bool:
    """Return whether a node is a mapping, which may lose some of its names.

    Args:
        node: the node.
        children: its children, with their keys.
    """
    return isinstance(node, Mapping) and all(isinstance(key, jax.tree_util.DictKey) for key, _ in children)


def _part(node: PyTree, chosen: Iterator[bool]) -> PyTree:
    """Return the part of a tree whose variables are chosen, or `_GONE` if none is."""
    below, treedef = children_of(node)
    if treedef is None:
        return node if next(chosen) else _GONE
    parts = [(key, child, _part(child, chosen)) for key, child in below]
    if all(part is _GONE for _, _, part in parts):
        return _GONE
    if all(part is child for _, child, part in parts):
        return node
    if names_its_children(node, below):
        return {key.key: part for key, _, part in parts if part is not _GONE}
    return treedef.unflatten([_emptied(child) if part is _GONE else part for _, child, part in parts])


def _emptied(node: PyTree) -> PyTree:
    """Return a tree without its variables. Its nodes stay: the node above may accept no other ones in their place."""
    below, treedef = children_of(node)
    if treedef is None:
        return None
    return {} if names_its_children(node, below) else treedef.unflatten([_emptied(child) for _, child in below])


def listed(paths: Sequence[Path], predicate: Predicate | None = None) -> str:
    """Return the first few paths as text; those with a name like one that a filter asks for in vain come first.

    Args:
        paths: the paths.
        predicate: the filter.
    """
    known = {str(name) for path in paths for name in path}
    wanted = [] if predicate is None else [name for name in names_in(predicate) if name not in known]
    if wanted and len(paths) <= _MAX_COMPARED:

        def likeness(path: Path) -> float:
            return max((_likeness(str(name), one) for name in path for one in wanted), default=0.0)

        paths = sorted(paths, key=likeness, reverse=True)
    texts = [path_text(path) or "." for path in paths[:6]]
    return ", ".join(texts) + (f" and {len(paths) - 6} more" if len(paths) > 6 else "")


def _likeness(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name, other).ratio()
