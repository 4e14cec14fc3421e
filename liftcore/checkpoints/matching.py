"""What a target expects, compared with what was saved: all that differs is told at once.

Both are state dicts here, flat ones: from paths to leaves. Shapes and dtypes are compared before any array is read.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import SerializationError
from ..filters import to_predicate
from ..saving.problems import TRACER, printable
from ..serialization import from_state_dict, to_state_dict
from ..typing import Filter, Path, PyTree
from .placing import KeyTarget, SavedKey, converted, misfit, shown_type, unmarked

__all__ = ["Comparison", "compare", "match_state"]

_MAX_COMPARISONS = 20_000
"""How many pairs of names are compared to find the closest ones, which takes half a second."""


def match_state(
    target: PyTree,
    state: Any,
    *,
    where: str = "state",
    filter: Filter = True,
    strict: bool = True,
    cast: bool = False,
) -> Any:
    """A tree like `target` with the leaves of a state dict, which must fit in names, shapes and dtypes.

    `from_state_dict` compares names only, and stops at the first that is missing. Here all that does not fit is found
    before anything is converted, and is told in one error.

    A leaf comes back as what the target has there: an array of JAX with the sharding of that array; an array of JAX
    also for a `jax.ShapeDtypeStruct`, with its sharding if it has one; an array of NumPy for one of NumPy. A number of
    Python also takes an array of shape `()` of its kind, as a step that was counted inside `jit` is one.

    Example:
        >>> target = {"dense": {"kernel": np.zeros((2, 3), np.float32)}}
        >>> match_state(target, {"dense": {"kernel": np.ones((2, 3), np.float32)}})["dense"]["kernel"].sum()
        np.float32(6.0)
        >>> try:
        ...     match_state(target, {"dense": {"kernels": np.ones((2, 3))}})
        ... except SerializationError as error:
        ...     print(error.what)
        2 entries do not fit the target:
          dense/kernel: missing, float32[2,3] in the target; closest: dense/kernels
          dense/kernels: unexpected, float64[2,3] in what was saved; closest: dense/kernel

    Args:
        target: a tree of the structure to restore, of arrays or of their shapes, as from `jax.eval_shape`.
        state: nested dicts with string keys; a leaf may be `Stored`, which is read only if it is taken.
        where: what was read, for errors.
        filter: which leaves to take; its paths are those of `to_state_dict`, so `("params", "dense", "kernel")` for
            variables, and begin with the field for a training state. What is not taken stays as in the target.
        strict: whether the names must be the same. If false, what is missing stays as in the target, and what is
            unexpected is left out. Shapes and dtypes must fit all the same.
        cast: whether floating-point numbers become those of the target's dtype, and integers too where they fit in.

    Returns:
        A new tree.

    Raises:
        SerializationError: if something does not fit; it names every path, with the closest name on the other side.
    """
    match = compare(target, state, where=where, filter=filter, strict=strict, cast=cast)
    return match.restored({path: converted(leaf, saved) for path, (leaf, saved) in match.pairs.items()})


class Comparison(NamedTuple):
    """A target and what was saved of it, which fit; what takes the place of what is in the target may be made now.

    Attributes:
        marked: the target, with each typed key as one leaf.
        spec: its state.
        pairs: for each path that is restored, the leaf of the target and that which was saved.
    """

    marked: PyTree
    spec: Any
    pairs: Mapping[Path, tuple[Any, Any]]

    def restored(self, new: Mapping[Path, Any]) -> Any:
        """A tree like the target, with new leaves at some paths."""
        return from_state_dict(self.marked, _filled(self.spec, (), new))


def compare(
    target: PyTree, state: Any, *, where: str, filter: Filter = True, strict: bool = True, cast: bool = False
) -> Comparison:
    """What `match_state` does before it converts anything; see there."""
    marked = _with_marks(target)
    spec = to_state_dict(marked)
    expected = dict(_flat(spec))
    saved = _with_keys(dict(_flat(state)), expected)
    takes = to_predicate(filter)
    taken = {path: leaf for path, leaf in expected.items() if takes(path, unmarked(leaf))}
    beside = {path: leaf for path, leaf in saved.items() if path not in expected and takes(path, leaf)}
    found = {path: saved[path] for path in taken if path in saved} | beside
    _check(where, taken, found, strict, cast, bool(expected))
    return Comparison(marked, spec, {path: (leaf, found[path]) for path, leaf in taken.items() if path in found})


def _with_marks(target: PyTree) -> PyTree:
    """A target in which typed random keys are leaves that no other function takes apart."""
    try:
        has_keys = any(map(_is_typed_key, jax.tree.leaves(target)))
    except (TypeError, ValueError):  # names in a dict that JAX cannot sort; no such tree comes from JAX
        return target
    except (RecursionError, SystemError):  # it contains itself, which `to_state_dict` says better
        return target
    # JAX sorts dicts, which are to come back as they are.
    return jax.tree.map(lambda leaf: KeyTarget(leaf) if _is_typed_key(leaf) else leaf, target) if has_keys else target


def _is_typed_key(value: Any) -> bool:
    dtype: Any = getattr(value, "dtype", None)
    return dtype is not None and not isinstance(dtype, np.dtype) and jnp.issubdtype(dtype, jax.dtypes.prng_key)


# --- flat states ------------------------------------------------------------------------------------------------------


def _flat(state: Any, path: Path = ()) -> Iterable[tuple[Path, Any]]:
    """The leaves of a state with their paths; what has none, such as an empty dict, needs nothing restored."""
    if not isinstance(state, Mapping):
        yield path, state
        return
    for name, below in state.items():
        yield from _flat(below, (*path, str(name)))


def _with_keys(saved: dict[Path, Any], expected: Mapping[Path, Any]) -> dict[Path, Any]:
    """A flat state in which what was saved of a random key is one leaf, wherever a key is expected."""
    for path, leaf in expected.items():
        parts = (*path, "impl"), (*path, "data")
        if isinstance(leaf, KeyTarget) and all(part in saved for part in parts):
            saved[path] = SavedKey(*(saved.pop(part) for part in parts))
    return saved


def _filled(spec: Any, path: Path, new: Mapping[Path, Any]) -> Any:
    """The state of the target, with new leaves at some paths."""
    if isinstance(spec, Mapping):
        return {name: _filled(below, (*path, name), new) for name, below in spec.items()}
    return new[path] if path in new else unmarked(spec)


# --- what does not fit ------------------------------------------------------------------------------------------------


class _Fix(NamedTuple):
    """A way out of some problems, and whether it is one of those at hand."""

    applies: Callable[[str], bool]
    text: str


_FIXES = (
    _Fix(
        lambda text: text.startswith(("missing", "unexpected")),
        "Rename what was saved with `transform=`, take a part of it with `filter=`, or pass `strict=False`: what is "
        "missing stays as in the target then, and what is unexpected is left out.",
    ),
    _Fix(lambda text: text.startswith(TRACER), "Restore outside of the traced function, and pass the result to it."),
    _Fix(lambda text: text.startswith("dtype"), "Pass `cast=True` to convert to the dtypes of the target."),
    _Fix(
        lambda text: text.startswith(("shape", "expected")),
        "Restore into a target as it was saved, leave those out with `filter=`, or change them with `transform=`.",
    ),
)


def _check(
    where: str, taken: Mapping[Path, Any], found: Mapping[Path, Any], strict: bool, cast: bool, chooses: bool
) -> None:
    if chooses and not taken:
        what = "the filter takes nothing of the target."
        raise SerializationError(where, what, 'Its paths are those of the state, such as ("params", "dense", "bias").')
    problems = list(_names(taken, found)) if strict else []
    for path, leaf in taken.items():
        text = misfit(leaf, found[path], cast) if path in found else None
        if text:
            problems.append((path, text))
    if not problems:
        return
    fixes = [fix.text for fix in _FIXES if any(fix.applies(text) for _, text in problems)]
    if _boxed(taken, found):
        fixes.insert(0, "Restore boxes into boxes: into variables as `init` made them, and `unbox` the result.")
    count = "1 entry does" if len(problems) == 1 else f"{len(problems)} entries do"
    lines = "".join(printable(f"\n  {'/'.join(path) or '.'}: {text}") for path, text in problems)
    raise SerializationError(where, f"{count} not fit the target:{lines}\n", " ".join(fixes))


def _names(taken: Mapping[Path, Any], found: Mapping[Path, Any]) -> Iterable[tuple[Path, str]]:
    """What is missing and what is unexpected, each with the closest name of the others."""
    missing, unexpected = [p for p in taken if p not in found], [p for p in found if p not in taken]
    left = _MAX_COMPARISONS
    for kind, side, paths, leaves, others in (
        ("missing", "the target", missing, taken, unexpected),
        ("unexpected", "what was saved", unexpected, found, missing),
    ):
        names = ["/".join(path) for path in others]
        for path in paths:
            close = difflib.get_close_matches("/".join(path), names, 1) if left > 0 else []
            left -= len(names)
            hint = f"; closest: {close[0]}" if close else ""
            yield path, f"{kind}, {shown_type(leaves[path])} in {side}{hint}"


def _boxed(taken: Mapping[Path, Any], found: Mapping[Path, Any]) -> bool:
    """Whether one side has a box round something where the other one has none."""
    return any(
        (*path, "value") in others and path not in others
        for paths, others in ((taken, found), (found, taken))
        for path in paths
    )
