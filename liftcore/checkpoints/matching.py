"""Compare a target with a saved state, and list all differences in one error.

Both are flat state dicts here, from paths to leaves. Shapes and dtypes are compared before any array is read.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from ..errors import LiftArgumentError, SerializationError
from ..filters import All, Everything, Parameters, short_form, to_predicate
from ..filters.parameters import is_variable, listed
from ..saving.dtypes import is_typed_key
from ..saving.nested import leaves_of, mapped
from ..saving.problems import printable, several
from ..serialization import from_state_dict, to_state_dict
from ..typing import Filter, Path, Predicate, PyTree
from .placing import KeyTarget, Mismatch, SavedKey, converted, misfit, naming, shown_type, unmarked

__all__ = ["Comparison", "about_boxes", "compare", "match_state", "options_of"]

_MAX_COMPARISONS = 20_000
"""The number of pairs of names that are compared to suggest the closest ones; it takes half a second."""

_MAX_OTHERS = 1_000
"""The number of entries without a counterpart in the target that are kept, to suggest names."""


def match_state(
    target: PyTree,
    state: Any,
    *,
    where: str = "state",
    filter: Filter = True,
    strict: bool = True,
    cast: bool = False,
) -> Any:
    """Return a tree like `target` with the leaves of a state dict, which must have the same names, shapes and dtypes.

    `from_state_dict` compares only names, and stops at the first that is missing. This function finds everything that
    does not fit before it converts anything, and lists it in one error.

    Each leaf gets the type of the target's leaf. For a JAX array, it is a JAX array with the same sharding. For a
    `jax.ShapeDtypeStruct`, it is a JAX array, with the sharding of the struct if it has one. For a NumPy array, it is a
    NumPy array. A Python number also accepts an array of shape `()` of its kind.

    If the target has a Python number or a weakly typed scalar, the result is weakly typed if what was saved was. Files
    hold a weakly typed scalar as a number, such as a step that is counted under `jit`.

    Example:
        >>> import numpy as np
        >>> target = {"dense": {"kernel": np.zeros((2, 3), np.float32)}}
        >>> match_state(target, {"dense": {"kernel": np.ones((2, 3), np.float32)}})["dense"]["kernel"].sum()
        np.float32(6.0)
        >>> try:
        ...     match_state(target, {"dense": {"kernels": np.ones((2, 3))}})
        ... except SerializationError as error:
        ...     print(error.what)
        2 entries do not fit the target:
          dense/kernel: missing, float32[2,3] in the target; closest: dense/kernels
          dense/kernels: unexpected, float64[2,3] in the saved state; closest: dense/kernel

    Args:
        target: a tree with the structure to restore, of arrays or of their shapes, as from `jax.eval_shape`.
        state: nested dicts with string keys, or another tree that `to_state_dict` accepts; a leaf may be `Stored`, and
            is then read only if the filter matches it.
        where: the name of what was read, for errors.
        filter: which leaves to restore; the others keep the value of the target. The paths are those of
            `to_state_dict`: for variables, such as `("params", "dense", "kernel")`; for a training state, they begin
            with the field. A box in the target is one leaf, as for all filters.
        strict: whether the names must be the same. If false, missing entries keep the value of the target, and
            unexpected ones are ignored. Shapes and dtypes must fit even then.
        cast: whether to convert floating-point numbers to the target's dtype, and integers if all of them are in its
            range.

    Returns:
        A new tree.

    Raises:
        SerializationError: if something does not fit; the error lists every path, with the closest name on the other
            side.
    """
    options: Any = {"filter": filter, "strict": strict, "cast": cast, "renaming": "in the state that you pass"}
    return compare(target, to_state_dict(state), where=where, **options).converted()


class Comparison(NamedTuple):
    """A target and the saved leaves that fit it, ready to be converted.

    Attributes:
        where: the name of what was read, for errors.
        marked: the target, with each typed key as one leaf.
        spec: the target's state dict.
        pairs: for each path to restore, the leaf of the target and the saved leaf.
    """

    where: str
    marked: PyTree
    spec: Any
    pairs: Mapping[Path, tuple[Any, Any]]

    def converted(self, convert: Callable[[Path, Any, Any], Any] | None = None) -> Any:
        """Return a tree like the target, with each saved leaf converted.

        Args:
            convert: converts one, given its path, the leaf of the target, and the saved leaf.
        """
        new = {}
        for path, (leaf, saved) in self.pairs.items():
            with naming(self.where, path):
                new[path] = convert(path, leaf, saved) if convert else converted(leaf, saved)
        state = mapped(lambda path, leaf: new[path] if path in new else unmarked(leaf), self.spec)
        return from_state_dict(self.marked, state)


def compare(
    target: PyTree,
    state: Any,
    *,
    where: str,
    filter: Filter,
    strict: bool,
    cast: bool,
    renaming: str = "with `transform=`",
) -> Comparison:
    """Compare a target with a state, as the first step of `match_state`; see there.

    Args:
        target: see `match_state`.
        state: nested dicts and lists. What the target lacks is not kept: a file may hold millions of entries.
        where: see `match_state`.
        filter: see `match_state`.
        strict: see `match_state`.
        cast: see `match_state`.
        renaming: how the caller's user renames or converts saved entries, for errors.
    """
    marked = _with_marks(target)
    spec = to_state_dict(marked)
    expected = dict(leaves_of(spec))
    takes = about_boxes(target, filter)

    def checked(path: Path, leaf: Any) -> bool:
        with naming(where, path):
            return takes(path, leaf)

    is_taken = takes if isinstance(takes, Everything) else checked  # it raises nothing
    taken = {path: leaf for path, leaf in expected.items() if is_taken(path, unmarked(leaf))}
    saved, others = _chosen(where, state, expected, is_taken)
    found = {path: leaf for path, leaf in saved.items() if path in taken or path not in expected}
    if expected and not taken:
        what = f"the filter matches no leaf of the target: {short_form(takes)} (available: "
        what += f"{listed(list(expected), takes)})."
        fix = "Match some of these, such as a module with `PathContains(name)`."
        raise SerializationError(where, what, fix, available=map("/".join, expected))
    reasons = [(path, misfit(leaf, found[path], cast)) for path, leaf in taken.items() if path in found]
    problems = [*(_names(taken, found) if strict else ()), *((path, reason) for path, reason in reasons if reason)]
    if problems:
        part = "restore a part with `filter=`" if isinstance(takes, Everything) else _narrower(taken)
        raise _misfits(where, problems, others if strict else 0, _boxed(taken, found), part, renaming)
    return Comparison(where, marked, spec, {path: (leaf, found[path]) for path, leaf in taken.items() if path in found})


@dataclasses.dataclass(frozen=True, repr=False, init=False)
class _AboutBoxes(All):
    """A filter over the paths of a state, where a box is a dict, that sees each box of the target as one variable."""

    boxes: Mapping[Path, Any] = dataclasses.field(hash=False, compare=False)

    def __init__(self, filter: Filter, boxes: Mapping[Path, Any]) -> None:
        super().__init__(filter)
        object.__setattr__(self, "boxes", boxes)

    def __call__(self, path: Path, value: Any) -> bool:
        places = (path[:end] for end in range(len(path) + 1))
        place = next((place for place in places if place in self.boxes), path)
        return super().__call__(place, self.boxes.get(place, value))

    def __repr__(self) -> str:
        return short_form(self.filters[0])


def about_boxes(target: PyTree, filter: Filter) -> Predicate:
    """Return a filter of leaves by their paths in a state that decides about boxes as filters elsewhere do.

    Args:
        target: the tree to restore.
        filter: a filter of variables.
    """
    predicate = to_predicate(filter)
    if isinstance(predicate, Everything):
        return predicate
    try:
        found = Parameters.of(target)
    except _NOT_FROM_JAX:
        return predicate
    pairs = zip(found.paths, found.values, strict=True)
    return _AboutBoxes(predicate, {path: value for path, value in pairs if is_variable(value)})


_NOT_FROM_JAX = (TypeError, ValueError, RecursionError, SystemError)
"""What JAX raises for a dict whose names it cannot sort, and for a tree that contains itself."""


def _with_marks(target: PyTree) -> PyTree:
    """Return a target in which each array of typed random keys is one opaque leaf."""
    try:
        has_keys = any(map(is_typed_key, jax.tree.leaves(target)))
    except _NOT_FROM_JAX:  # `to_state_dict` serves the one, and has a better error for the other
        return target
    # `jax.tree.map` sorts dicts, so a target without keys is returned unchanged to keep its order.
    return jax.tree.map(lambda leaf: KeyTarget(leaf) if is_typed_key(leaf) else leaf, target) if has_keys else target


# --- flat states ------------------------------------------------------------------------------------------------------


def options_of(where: str, target: PyTree, filter: Filter, strict: bool, cast: bool) -> dict[str, Any]:
    """Return options for `compare`, after checking that there is a target if one of them needs it.

    Raises:
        LiftArgumentError: if there is none.
    """
    needing = {"filter": filter is not True, "strict": not strict, "cast": cast}
    option = next((name for name, needs in needing.items() if needs), None)
    if target is None and option is not None:
        what = f"`{option}` needs a target, and `target` is None."
        raise LiftArgumentError(where, what, "Pass the tree to restore into.", option=option)
    return {"filter": filter, "strict": strict, "cast": cast}


def _chosen(
    where: str, state: Any, expected: Mapping[Path, Any], is_taken: Callable[[Path, Any], bool]
) -> tuple[dict[Path, Any], int]:
    """Return the leaves of a state that are expected, and some of the others, and how many more of these there are."""
    keys = {path: ((*path, "impl"), (*path, "data")) for path, leaf in expected.items() if isinstance(leaf, KeyTarget)}
    places = expected.keys() | set(itertools.chain(*keys.values()))
    found = dict[Path, Any]()
    beside = 0
    for path, leaf in leaves_of(state):
        if path in found:
            name = printable("/".join(path))
            what = f"two names are the same text: {name}."
            raise SerializationError(where, what, "Use keys that differ as strings.", given=name)
        if path not in places:
            if not is_taken(path, leaf):
                continue
            beside += 1
            if beside > _MAX_OTHERS:
                continue
        found[path] = leaf
    for path, parts in keys.items():
        if found.keys() >= {*parts}:
            found[path] = SavedKey(*(found.pop(part) for part in parts))
    taken = {path: leaf for path, leaf in found.items() if path in expected or is_taken(path, leaf)}
    return taken, max(0, beside - _MAX_OTHERS)


# --- what does not fit ------------------------------------------------------------------------------------------------


_FIXES = (
    (
        {"names", "type"},
        "Restore into a target like the saved one, rename or convert saved entries {renaming}, or {part}.",
    ),
    ({"names"}, "`strict=False` keeps the target's value for missing entries, and ignores unexpected ones."),
    ({"traced"}, "Restore outside of the traced function, and pass the result to it."),
    ({"dtype"}, "Pass `cast=True` to convert to the dtypes of the target."),
)
"""The fixes, each for some kinds of misfits; `{part}` is advice about the filter, and `{renaming}` about names."""

_HELP = {"dtype": "cast", "names": "strict", "type": "filter"}
"""The option that helps with each kind of misfit."""


def _misfits(
    where: str, problems: Sequence[tuple[Path, Mismatch]], others: int, boxed: bool, part: str, renaming: str
) -> SerializationError:
    """Return the error for what does not fit.

    Args:
        where: the name of what was read.
        problems: the paths that do not fit, with the reason.
        others: how many more entries are unexpected.
        boxed: whether one side has a boxed value where the other side has an unboxed one.
        part: advice about the filter.
        renaming: advice about names.
    """
    kinds = {reason.kind for _, reason in problems}
    applying = [fix for of, fix in _FIXES if kinds & of]
    fixes = [fix.replace("{part}", part).replace("{renaming}", renaming) for fix in applying]
    if boxed:
        fixes.insert(0, "Restore boxed values into boxed ones: into variables from `init`; then `unbox` the result.")
    number = len(problems) + others
    count = "1 entry does" if number == 1 else f"{number} entries do"
    lines = [f"{'/'.join(path) or '.'}: {reason.text}" for path, reason in problems]
    listed = several(itertools.chain(lines, itertools.repeat("", others)), "\n  ")
    option = next((option for kind, option in _HELP.items() if kind in kinds), None)
    return SerializationError(where, f"{count} not fit the target:\n  {listed}\n", " ".join(fixes), option=option)


def _narrower(taken: Mapping[Path, Any]) -> str:
    """Return the advice to give another filter, which matches no saved entries beside those of the target."""
    first = {path[0] for path in taken if path}
    example = f', such as `filters.All("{first.pop()}", filter)`' if len(first) == 1 else ""
    return f"give a narrower filter{example}"


def _names(taken: Mapping[Path, Any], found: Mapping[Path, Any]) -> Iterable[tuple[Path, Mismatch]]:
    """Yield the missing and the unexpected paths, each with the closest name on the other side."""
    missing, unexpected = [p for p in taken if p not in found], [p for p in found if p not in taken]
    left = _MAX_COMPARISONS
    for kind, side, paths, leaves, others in (
        ("missing", "the target", missing, taken, unexpected),
        ("unexpected", "the saved state", unexpected, found, missing),
    ):
        names = [printable("/".join(path)) for path in others]
        for path in paths:
            close = difflib.get_close_matches(printable("/".join(path)), names, 1) if left > 0 else []
            left -= len(names)
            hint = f"; closest: {close[0]}" if close else ""
            yield path, Mismatch("names", f"{kind}, {shown_type(leaves[path])} in {side}{hint}")


def _boxed(taken: Mapping[Path, Any], found: Mapping[Path, Any]) -> bool:
    """Return whether one side has a boxed value where the other side has an unboxed one."""
    return any(
        (*path, "value") in others and path not in others
        for paths, others in ((taken, found), (found, taken))
        for path in paths
    )
