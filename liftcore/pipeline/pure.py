"""`lift`: `pack` for transformations that take the function itself, made pure.

The transformations of `liftcore.lift` are written with it, or with `lifter`, which works out once what all functions
under the same lift share.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .. import filters
from ..errors import no_function
from ..scopes.groups import Advice, Captured, Groups
from ..scopes.tree import Sown
from ..typing import Filter, Path, PyTree
from .layout import Record
from .packing import PLAIN_ADVICE, Crossing, lift_across, name_of

if TYPE_CHECKING:
    from .hoist import Prologue

__all__ = ["Lifter", "Pure", "Transform", "keeping_lifter", "lift", "lifter", "lifter_of", "transformation"]

Transform = Callable[..., tuple[Any, Sequence[PyTree]]]
"""Called as `transform(pure, variable_groups, rng_groups, *args, **kwargs)`; returns the result and output groups."""

Lifter = Callable[[Callable[..., Any]], Callable[..., Any]]
"""A transformation with its options: from a function of scopes to the lifted one."""


def lift(
    transform: Transform,
    fn: Callable[..., Any],
    in_variable_filters: Sequence[Filter],
    out_variable_filters: Sequence[Filter | Captured],
    rng_filters: Sequence[Filter],
    name: str,
    advice: Advice,
) -> Callable[..., Any]:
    """`pack` for a transformation that takes the function itself, made pure.

    Args:
        transform: called as `transform(pure, variable_groups, rng_groups, *args, **kwargs)`, see `Pure`.
        fn: a function of scopes.
        in_variable_filters: as in `pack`.
        out_variable_filters: as in `pack`.
        rng_filters: as in `pack`.
        name: the name of the transformation.
        advice: how to make it take more variables and sequences, for the text of errors.
    """
    groups = Groups.of(in_variable_filters, out_variable_filters, rng_filters, advice)
    return _wrapping(_lifted(transform, fn, groups, name), fn)


def lifter(
    transform_of: Callable[[Callable[..., Any]], Transform],
    in_variable_filters: Sequence[Filter],
    out_variable_filters: Sequence[Filter | Captured],
    rng_filters: Sequence[Filter],
    name: str,
    advice: Advice,
) -> Lifter:
    """`lift` for any function: what does not depend on the function is worked out once.

    Lifted functions wrap theirs, for users who keep them. Where one is called at once that is time lost, so what
    `lifter_of` finds again leaves it out.

    Args:
        transform_of: gives the `transform` of `lift` for a function.
        in_variable_filters: as in `lift`.
        out_variable_filters: as in `lift`.
        rng_filters: as in `lift`.
        name: as in `lift`.
        advice: as in `lift`.
    """
    groups = Groups.of(in_variable_filters, out_variable_filters, rng_filters, advice)

    def lift_any(fn: Callable[..., Any]) -> Callable[..., Any]:
        return _lifted(transform_of(fn), fn, groups, name)

    def lift_to_keep(fn: Callable[..., Any]) -> Callable[..., Any]:
        lifted = _wrapping(lift_any(fn), fn)
        lifted.__dict__["__lifter__"] = _Origin(lifted, fn, lift_any)
        return lifted

    return lift_to_keep


def transformation(
    transform: Transform,
    in_variable_filters: Sequence[Filter],
    out_variable_filters: Sequence[Filter | Captured],
    rng_filters: Sequence[Filter],
    name: str | None = None,
) -> Lifter:
    """Makes a lifted transformation, `fn -> lifted`, out of one over pure functions of groups.

    Args:
        transform: called as `transform(body, variable_groups, rng_groups, *args, **kwargs)`; returns the result and the
            output groups.
        in_variable_filters: as in `pack`.
        out_variable_filters: as in `pack`.
        rng_filters: as in `pack`.
        name: as in `pack`.

    Returns:
        A function from a function of scopes to the lifted one.

    Raises:
        LiftArgumentError: where `transform` cannot be called.
    """
    if not callable(transform):
        raise no_function("transformation", transform)
    filters = in_variable_filters, out_variable_filters, rng_filters
    return lifter(lambda fn: transform, *filters, name or name_of(transform), PLAIN_ADVICE)


def lifter_of(lifted: Callable[..., Any], fn: Callable[..., Any]) -> Lifter | None:
    """What made a lifted function, for more functions: its options are checked and worked out once for all of them.

    A Module layer, which makes a new function for each call of a lifted method, saves time by it.

    Example:
        >>> import jax, liftcore
        >>> double, triple = lambda scope, x: 2 * x, lambda scope, x: 3 * x
        >>> lift_any = liftcore.lifter_of(liftcore.vmap(double, in_axes=1), double)
        >>> liftcore.apply(lift_any(triple))({}, jax.numpy.ones((2, 4))).shape
        (4, 2)

    Args:
        lifted: what a transformation made of a function.
        fn: that function, the very same object.

    Returns:
        The transformation with its options, for functions that are called at once: what it makes has their name, but
        neither their text nor their signature. None where there is nothing to save, or more than one lift was made.
    """
    origin = getattr(lifted, "__lifter__", None)
    return origin.lifter if isinstance(origin, _Origin) and origin.is_of(lifted, fn) else None


def keeping_lifter(outside: Callable[..., Any], lifted: Callable[..., Any]) -> Callable[..., Any]:
    """A function around a lifted one, of which `lifter_of` tells what it tells of that."""
    origin = lifted.__dict__.get("__lifter__")
    if isinstance(origin, _Origin):
        outside.__dict__["__lifter__"] = origin.of(outside)
    return outside


class _Origin:
    """What a lifted function was made of and by what. A pickle of the function leaves it out."""

    __slots__ = ("_fn", "_lifted", "lifter")

    def __init__(self, lifted: Any = None, fn: Any = None, lifter: Lifter | None = None) -> None:
        self._lifted, self._fn, self.lifter = None if lifted is None else weakref.ref(lifted), fn, lifter

    def is_of(self, lifted: Any, fn: Any) -> bool:
        """Whether that is so of two functions; `functools.wraps` copies attributes from one to another."""
        return self._lifted is not None and self._lifted() is lifted and self._fn is fn

    def of(self, lifted: Any) -> _Origin:
        """The same of another lifted function of the same function."""
        return _Origin(lifted, self._fn, self.lifter)

    def __reduce__(self) -> Any:
        return _Origin, ()


def _lifted(transform: Transform, fn: Callable[..., Any], groups: Groups, name: str) -> Callable[..., Any]:
    if not callable(fn):
        raise no_function(name, fn)

    def across(crossing: Crossing, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        return transform(Pure(fn, crossing), variable_groups, rng_groups, *args, **kwargs)

    lifted = lift_across(across, groups, f"{name}({name_of(fn)})")
    lifted.__name__ = getattr(fn, "__name__", lifted.__name__)  # a scope below is called after it
    return lifted


def _wrapping(lifted: Callable[..., Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(fn)(lifted) if hasattr(fn, "__name__") else lifted


class Pure:
    """A function of scopes made pure: `(variable_groups, rng_groups, *args, **kwargs) -> (result, output groups)`.

    Attributes:
        fn: the function of scopes.
        crossing: the use of the lift that it belongs to.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        crossing: Crossing,
        hoisted: bool = False,
        remade: frozenset[Path] = frozenset(),
        casts: Mapping[Path, tuple[Any, ...]] = MappingProxyType({}),
    ) -> None:
        self.fn, self.crossing, self._hoisted, self._remade, self._casts = fn, crossing, hoisted, remade, casts

    def __call__(self, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Runs the function on scopes that are made of the groups."""
        scopes = self.crossing.scope_fn(
            variable_groups, rng_groups, hoisted=self._hoisted, remade=self._remade, casts=self._casts
        )
        result = self.crossing.run(self.fn, scopes, args, kwargs)
        return result, self.crossing.repacked(scopes)

    @property
    def where(self) -> str:
        """See `Crossing.where`."""
        return self.crossing.where

    @property
    def writes(self) -> bool:
        """Whether the body may create, write or sow anything at all."""
        return self.crossing.writes

    @property
    def unchanged(self) -> tuple[Any, ...]:
        """See `Crossing.unchanged`."""
        return self.crossing.unchanged

    @property
    def nested(self) -> bool:
        """Whether the lift is used inside another one that cuts initial values out of its body."""
        return self.crossing.nested

    def make(self, prologue: Prologue, picks: Sequence[bool] | None = None, axes: Sequence[Any] | None = None) -> None:
        """See `Crossing.make`."""
        self.crossing.make(prologue, picks, axes)

    def made(self, created: Sequence[PyTree]) -> None:
        """See `Crossing.made`."""
        self.crossing.made(created)

    def hoisted(self, casts: Mapping[Path, tuple[Any, ...]] = MappingProxyType({})) -> Pure:
        """The same, with the created values marked so that `hoist` can cut them out; `casts` as in `Tree`."""
        return Pure(self.fn, self.crossing, hoisted=True, casts=casts)

    def of(self, fn: Callable[..., Any], created: Sequence[PyTree] = ()) -> Pure:
        """Another function of the same scopes, for a transformation that takes several.

        Args:
            fn: the function.
            created: groups of variables that the first function created and that this one finds: it draws no other
                keys than the first for all that.
        """
        if not callable(fn):
            raise no_function(self.where, fn)
        outers = self.crossing.outers
        paths = [
            (path[0], *outer.path, *path[1:])
            for group in created
            for outer, tree in zip(outers, group, strict=False)
            for path, _ in filters.leaves_of(tree)
        ]
        return Pure(fn, self.crossing, self._hoisted, frozenset(paths), self._casts)

    def forget(self) -> None:
        """Lets what the body drew, named and sown so far count for nothing."""
        self.crossing.records.clear()

    def capture(self, sown: Sequence[tuple[Sown, ...]]) -> None:
        """Tells what the captured values of the last output group are, where these are not those of one body."""
        self.crossing.records.append(Record(sown=tuple(sown)))
