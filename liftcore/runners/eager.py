"""Loops outside all JAX transformations: the trace of a body is kept too, as `jax.lax.scan` keeps it.

A lifted `jit` changes no names, values or draws. So a loop that runs eagerly is put under a `jit` that is not shown in
paths, and the next loop over the same functions with equal options and types uses its compiled function again. If the
functions close over something, the functions or the options have no key, or the body needs values that are known only
outside `jit`, the loop runs without it, and is traced in each call; it is still compiled once, see `pipeline.reuse`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import numpy as np

from .._compat import is_eager
from ..calls import boundary
from ..errors import LiftError, name_of
from ..pipeline.body import Body
from ..pipeline.packing import Lifter, keeping_lifter, transformation
from ..pytrees import is_array, is_array_like, is_number
from ..rest import Rest, flatten_static
from ..scopes.lifts import Captured
from ..statics import is_shareable, settings_key, snapshot, static_key
from ..typing import PyTree
from .arguments import DONATED, Donated, join_arguments, name_arguments
from .jitting import Cache, Program

__all__ = ["cached_when_eager"]

Transformation = TypeVar("Transformation", bound=Callable[..., Any])

Arrays: TypeAlias = dict[str, list[Any]]
"""The traced leaves of arguments, by the names of the arguments."""

_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)

_CACHE = Cache()


def cached_when_eager(
    numbers: Collection[int] = (),
    known: Collection[int] = (),
    donated: Callable[..., Collection[int]] | None = None,
) -> Callable[[Transformation], Transformation]:
    """Return a decorator for a lift that keeps the compiled functions of eager calls, if they can keep no arrays alive.

    Args:
        numbers: the numbers, from 1, of the arguments after the scopes that the lift converts to arrays. In other
            arguments, Python numbers are static: the body sees them unchanged.
        known: the numbers of the arguments that are static even if they are arrays.
        donated: called as `donated(*args, **options)`, with the options of the lift; returns the numbers of the donated
            arguments.
    """
    kinds = Treatment([*map(str, numbers)], [*map(str, known)], donated)

    def decorate(lift: Transformation) -> Transformation:
        run = transformation(_run, [True], [True, Captured(all=True)], [True], lift.__name__, shown=False)

        @functools.wraps(lift)
        def lift_cached(*args: Any, **options: Any) -> Any:
            made = Made.by(lift, args, options)
            return _under_jit(made, kinds, run) if made.is_shareable else made.lifted

        return lift_cached  # type: ignore[return-value]

    return decorate


class Treatment(NamedTuple):
    """The treatment of arguments, by name; the names of positional arguments are their numbers as strings."""

    numbers: Collection[str]
    known: Collection[str]
    donated: Callable[..., Collection[int]] | None

    def split(self, name: str, value: Any) -> tuple[list[Any], Rest]:
        """Return the traced leaves of an argument, and the static rest."""
        if name in self.known:
            return [], Rest(_as_static(value))

        def is_traced(leaf: Any) -> bool:
            if is_number(leaf) or isinstance(leaf, np.generic):
                return name in self.numbers and is_array_like(leaf)
            return is_array(leaf)

        return flatten_static(value, is_traced)


def _as_static(value: Any) -> Any:
    """Return a number or an array as a value of the same type that has a key."""
    if not isinstance(value, jax.Array):
        return value
    return value.item() if jax.typeof(value).weak_type and not value.ndim else np.asarray(value)


class Made(NamedTuple):
    """A lifted function and what it was made of.

    Attributes:
        lifted: the lifted function.
        lift: the lift.
        args: the positional arguments of the lift: functions and options.
        options: the options by name.
    """

    lifted: Callable[..., Any]
    lift: Callable[..., Any]
    args: tuple[Any, ...]
    options: Mapping[str, Any]

    @classmethod
    def by(cls, lift: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> Made:
        """Apply a lift. The record holds copies of dicts and lists, because these may change."""
        copies = [one.copy() if type(one) in (dict, list) else one for one in (*args, *options.values())]
        named = dict(zip(options, copies[len(args) :], strict=True))
        return cls(lift(*args, **options), lift, tuple(copies[: len(args)]), named)

    @property
    def is_shareable(self) -> bool:
        """Whether its compiled functions may be found again, and can be kept without keeping arrays alive."""
        functions = _functions(self.args, self.options)
        # A function that was made by a running function is made anew in the next call of that.
        names = [getattr(getattr(fn, "shared_as", fn), "__qualname__", "") for fn in functions]
        return all(map(is_shareable, functions)) and not any("<locals>" in name for name in names)

    def snapshot(self) -> Made:
        """Return a copy made from values that can no longer change."""
        return Made.by(self.lift, snapshot(self.args), snapshot(self.options))


def _run(body: Body, variable_groups: Any, rng_groups: Any, gone: Arrays, kept: Arrays) -> Any:
    """Run the body of an `EagerCall` under a `jit`, unless it needs values."""
    paths = tuple(outer.path for outer in body.outers)  # filters may depend on them
    program = Program(body.fn, body.fn.key, body.layout, (), paths, None)
    found = _CACHE.find(program, (("donate_argnames", DONATED),) if gone else ())
    if found.program.fn.needs_values:  # type: ignore[attr-defined]
        args, kwargs = join_arguments({**gone, **kept})
        return body(variable_groups, rng_groups, *args, **kwargs)
    return found(body, Donated((), gone), (variable_groups, rng_groups, kept))


def _under_jit(made: Made, kinds: Treatment, run: Lifter) -> Callable[..., Any]:
    """Return the lifted function, under a `jit` if it is called eagerly; `run` is the lift with that `jit`."""

    @functools.wraps(made.lifted)
    @boundary
    def lifted(scopes: PyTree, *args: Any, **kwargs: Any) -> Any:
        call = EagerCall.of(made, kinds, args, kwargs) if is_eager() else None
        if call is None:
            return made.lifted(scopes, *args, **kwargs)
        try:
            return run(call[0])(scopes, *call[1:])
        except _NEEDS_VALUES:
            pass
        return made.lifted(scopes, *args, **kwargs)  # outside `except`: its errors must not show the first attempt

    return keeping_lifter(lifted, made.lifted)


class EagerCall:
    """One call of a lifted function, as a function of scopes and of lists of arrays, one for each argument.

    Attributes:
        key: the key of its static part.
        needs_values: whether it turned out to need values that are known only outside `jit`.
    """

    def __init__(self, made: Made, static: Mapping[str, Rest], key: Hashable) -> None:
        self._made, self._static, self.key = made, static, key
        self.needs_values = False
        self.__name__ = name_of(made.lifted)
        self.__wrapped__ = made.lifted  # for the names of arguments

    @classmethod
    def of(
        cls, made: Made, kinds: Treatment, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[EagerCall, Arrays, Arrays] | None:
        """Return the call, its donated arrays and its other arrays; None if its static part has no key."""
        try:
            parts = {name: kinds.split(name, value) for name, value in name_arguments(args, kwargs).items()}
            donated = () if kinds.donated is None else kinds.donated(*args, **made.options)
            static = {name: rest for name, (_, rest) in parts.items()}
            key = static_key((made.lift, made.args, made.options)), tuple(static.items()), settings_key()
        except (LiftError, TypeError):  # `Undescribed` is one
            return None
        arrays = {name: leaves for name, (leaves, _) in parts.items()}
        gone = {name: arrays.pop(name) for name in map(str, donated) if name in arrays}
        return cls(made, static, key), gone, arrays

    def __call__(self, scopes: PyTree, *args: Any, **kwargs: Any) -> Any:
        """Run the lifted function on lists of arrays."""
        arrays = name_arguments(args, kwargs)
        args, kwargs = join_arguments({name: self._static[name].unflatten(arrays[name]) for name in self._static})
        try:
            return self._made.lifted(scopes, *args, **kwargs)
        except _NEEDS_VALUES:
            self.needs_values = True
            raise

    def trace_facts(self) -> dict[str, Any]:
        """Return its parts by name, to explain a retrace."""
        functions = dict(zip(("function", "second function"), _functions(self._made.args), strict=False))
        static = {f"static argument {name}": [*rest.trace_facts().values()] for name, rest in self._static.items()}
        return {**functions, "options": self._made.options, **{name: held for name, held in static.items() if held}}

    def __snapshot__(self) -> EagerCall:
        """Return a copy of values that can no longer change."""
        return EagerCall(self._made.snapshot(), self._static, self.key)


def _functions(*options: Any) -> list[Callable[..., Any]]:
    """Return the functions in the arguments of a lift, the outer ones first."""
    found, below = [], [*options]
    for one in below:  # which grows
        if isinstance(one, Mapping):
            below += [*one, *one.values()]
        elif isinstance(one, list | tuple):
            below += one
        elif callable(one):
            found.append(one)
    return found
