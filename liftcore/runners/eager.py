"""Loops outside of all JAX transformations: what was compiled for a body is kept, as `jax.lax.scan` keeps it.

A lifted `jit` changes no name, no value and no draw. So a loop that runs eagerly is put under one that does not show,
and the next loop over the same functions, with equal options and types, finds what it compiled. Where no key stands for
the functions or the options, or the body asks for values that are known only outside of `jit`, the loop runs as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import numpy as np

from .._compat import is_eager
from ..errors import LiftError, name_of
from ..pipeline.packing import keeping_lifter, transformation
from ..pipeline.use import Body
from ..scopes.lifts import Captured
from ..statics import snapshot, static_key, surroundings
from ..typing import PyTree
from .arguments import join_arguments, name_arguments
from .axes import replace_mapped, select_mapped
from .compiled import Cache, Program, is_shareable
from .donation import DONATED, Donated

__all__ = ["cached_when_eager"]

Lift = TypeVar("Lift", bound=Callable[..., Any])

Arrays: TypeAlias = dict[str, list[Any]]
"""The traced leaves of arguments, by the names of these."""

_NUMBERS = (bool, int, float, complex, np.generic)
_NO_NUMBERS = "OSUMm"  # dtypes of NumPy: objects, texts, times
_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)

_SHARED = Cache()
"""What was compiled for functions that hold no arrays."""


class AsItIs(BaseException):
    """The loop is to run as it is: a signal, which no `except Exception` of code around a body takes."""


def cached_when_eager(
    numbers: Collection[int] = (),
    known: Collection[int] = (),
    donated: Callable[..., Collection[int]] | None = None,
) -> Callable[[Lift], Lift]:
    """Decorates a lift, a function of functions and options: what eager calls of its lifted functions compile is kept.

    Args:
        numbers: which arguments after the scopes, from 1, the lift makes arrays of. In others Python numbers are
            static: the body sees them as they are.
        known: which of them are static even where they are arrays.
        donated: called as `donated(*args, **options)`, with the options of the lift; returns which arguments are
            donated.
    """
    kinds = Treatment([*map(str, numbers)], [*map(str, known)], donated)

    def decorate(lift: Lift) -> Lift:
        @functools.wraps(lift)
        def lift_kept(*args: Any, **options: Any) -> Any:
            return _kept(Made.by(lift, args, options), kinds)

        return lift_kept  # type: ignore[return-value]

    return decorate


class Treatment(NamedTuple):
    """How arguments go in, by their names: of those that are given by position the texts of their numbers."""

    numbers: Sequence[str]
    known: Sequence[str]
    donated: Callable[..., Collection[int]] | None

    def traced(self, name: str, leaf: Any) -> int | None:
        """0 for a leaf of an argument that is traced, None for one that is static."""
        if isinstance(leaf, np.ndarray):
            return 0 if name not in self.known and leaf.dtype.kind not in _NO_NUMBERS else None
        array = isinstance(leaf, jax.Array) and name not in self.known
        return 0 if array or (name in self.numbers and isinstance(leaf, _NUMBERS)) else None


class Made(NamedTuple):
    """What a lift made.

    Attributes:
        lifted: the lifted function.
        lift: the lift.
        args: what it was called with: functions, and options by position.
        options: those by name.
    """

    lifted: Callable[..., Any]
    lift: Callable[..., Any]
    args: tuple[Any, ...]
    options: Mapping[str, Any]

    @classmethod
    def by(cls, lift: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> Made:
        """What a lift makes of functions and options; of these it keeps copies, since dicts and lists may change."""
        copies = [one.copy() if type(one) in (dict, list) else one for one in (*args, *options.values())]
        named = dict(zip(options, copies[len(args) :], strict=True))
        return cls(lift(*args, **options), lift, tuple(copies[: len(args)]), named)

    def cache(self) -> Cache:
        """Where what is compiled for it is kept: with the lifted function itself, where that may hold arrays."""
        return _SHARED if all(map(is_shareable, _functions((self.args, self.options)))) else Cache()

    def snapshot(self) -> Made:
        """The same, made of what can no longer change."""
        return Made.by(self.lift, snapshot(self.args), snapshot(self.options))


def _kept(made: Made, kinds: Treatment) -> Callable[..., Any]:
    """The lifted function, under a `jit` where it is called eagerly."""
    cache = functools.cache(made.cache)

    def transform(body: Body, variable_groups: Any, rng_groups: Any, gone: Arrays, arrays: Arrays) -> Any:
        if body.use.observer is not None:
            raise AsItIs
        paths = tuple(outer.path for outer in body.use.outers)  # filters may ask for them
        program = Program(body.fn, body.fn.key, body.use.layout, (), paths, None)  # type: ignore[attr-defined]
        found = cache().find(program, (("donate_argnames", DONATED),) if gone else ())
        if found.program.fn.needs_values:  # type: ignore[attr-defined]
            raise AsItIs
        return found(body.use, Donated((), gone), (variable_groups, rng_groups, arrays))

    run = transformation(transform, [True], [True, Captured(all=True)], [True], made.lift.__name__, shown=False)

    @functools.wraps(made.lifted)
    def lifted(scopes: PyTree, *args: Any, **kwargs: Any) -> Any:
        call = EagerCall.of(made, kinds, args, kwargs) if is_eager() else None
        if call is None:
            return made.lifted(scopes, *args, **kwargs)
        try:
            return run(call[0])(scopes, *call[1:])
        except AsItIs:
            pass
        return made.lifted(scopes, *args, **kwargs)  # an error that it raises knows nothing of what was tried before

    return keeping_lifter(lifted, made.lifted)


class Argument(NamedTuple):
    """What is static about an argument: its structure, for each leaf 0 or None (see `Treatment`), and static leaves."""

    treedef: Any
    traced: list[int | None]
    static: list[Any]

    def key(self) -> Any:
        """What stands for it, for `static_key`."""
        told = [(jax.typeof(leaf), np.asarray(leaf)) if isinstance(leaf, jax.Array) else leaf for leaf in self.static]
        return (self.treedef, self.traced, told)

    def snapshot(self) -> Argument:
        """The same, of what can no longer change."""
        return self._replace(static=snapshot(self.static))


class EagerCall:
    """One call of a lifted function, as a function of scopes and of lists of arrays, one for each argument.

    Attributes:
        key: stands for all that is static about it.
        needs_values: whether it was found to ask for values that are known only outside of `jit`.
    """

    def __init__(self, made: Made, arguments: Mapping[str, Argument], key: Hashable) -> None:
        self._made, self._arguments, self.key = made, arguments, key
        self.needs_values = False
        self.__name__ = name_of(made.lifted)
        self.__wrapped__ = made.lifted  # for the names of arguments

    @classmethod
    def of(
        cls, made: Made, kinds: Treatment, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[EagerCall, Arrays, Arrays] | None:
        """That of a call, and its arrays, those that are donated first; None where no key stands for what is static."""
        arguments: dict[str, Argument] = {}
        arrays: Arrays = {}
        gone: Arrays = {}
        try:
            given = () if kinds.donated is None else kinds.donated(*args, **made.options)
            for name, value in name_arguments(args, kwargs).items():
                leaves, treedef = jax.tree.flatten(value)
                traced = [kinds.traced(name, leaf) for leaf in leaves]
                static = [leaf if kind is None else None for leaf, kind in zip(leaves, traced, strict=True)]
                arguments[name] = Argument(treedef, traced, static)
                (gone if name in map(str, given) else arrays)[name] = select_mapped(leaves, traced)
            told = {name: argument.key() for name, argument in arguments.items()}
            key = static_key((made.lift, made.args, made.options, told)), surroundings()
        except (LiftError, TypeError):  # `Undescribed` is one
            return None
        return cls(made, arguments, key), gone, arrays

    def __call__(self, scopes: PyTree, *args: Any, **kwargs: Any) -> Any:
        """Runs while it is traced."""
        arrays = name_arguments(args, kwargs)
        values = {
            name: jax.tree.unflatten(treedef, replace_mapped(static, traced, arrays[name]))
            for name, (treedef, traced, static) in self._arguments.items()
        }
        args, kwargs = join_arguments(values)
        try:
            return self._made.lifted(scopes, *args, **kwargs)
        except _NEEDS_VALUES as error:
            self.needs_values = True
            raise AsItIs from error

    def trace_facts(self) -> dict[str, Any]:
        """What it is, for who asks why it was traced again."""
        functions = dict(zip(("function", "second function"), _functions(self._made.args), strict=False))
        static = {f"static argument {name}": one.static for name, one in self._arguments.items() if None in one.traced}
        return {**functions, "options": self._made.options, **static}

    def __snapshot__(self) -> EagerCall:
        """The same, of what can no longer change."""
        arguments = {name: argument.snapshot() for name, argument in self._arguments.items()}
        return EagerCall(self._made.snapshot(), arguments, self.key)


def _functions(options: Any) -> Iterator[Callable[..., Any]]:
    """The functions in arguments of a lift."""
    if isinstance(options, Mapping):
        options = [*options.items()]
    if isinstance(options, list | tuple):
        for below in options:
            yield from _functions(below)
    elif callable(options):
        yield options
