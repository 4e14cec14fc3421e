"""What a lifted `jit` compiles, and how one compiled function serves calls from anywhere in a model.

What a body draws depends on the path and the counts of its caller, which are no part of what is compiled. A key is
`fold_in(root, data)`, where the data is a hash of path and count: so the data is an argument of the compiled
function, taken from one vector in the order of the draws. Which draws a body makes, the names it takes and what it sows
is static. It rides home in the pytree structure of the compiled function's output, on cached calls as well.

A compiled function knows nothing of the call that traces it but through `_calls`: what it keeps, it keeps for all.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .._compat import closed_over
from ..diagnostics.retrace import Counted, Known, note, recording
from ..errors import name_of
from ..pipeline.changes import Record
from ..pipeline.splitting import Split, with_created, without_created
from ..pipeline.stages import Layout
from ..pipeline.use import Use
from ..statics import snapshot
from ..typing import Path
from .arguments import join_arguments
from .shardings import Shardings
from .signature import Signature, facts_of

__all__ = ["DONATED", "Cache", "Compiled", "Options", "Program", "is_shareable"]

Options: TypeAlias = tuple[tuple[str, Any], ...]
"""Arguments of `jax.jit` by name."""

DONATED = "gone"
"""The argument of all compiled functions that holds what is donated."""

_CACHED = 256
"""How many compiled functions of different configurations are kept."""

_FEW = 256
"""How many draws a body is traced with room for at first."""

_TRACES = 256
"""How many traces that create variables a compiled function keeps."""


class Call:
    """A call of a compiled function.

    Attributes:
        use: the use of a lift that it belongs to.
        traced: whether the body ran.
        steady: whether the body is taken to have been traced.
    """

    __slots__ = ("steady", "traced", "use")

    def __init__(self, use: Use) -> None:
        self.use, self.traced, self.steady = use, False, False


_calls: contextvars.ContextVar[Call] = contextvars.ContextVar("calls of compiled functions")
"""The innermost call that runs now."""


@dataclasses.dataclass(frozen=True)
class Draw:
    """One draw of a body, by its place in what was lifted and by how many draws came before it there.

    Once the body has rewound the place (`rewound` is how often), draws outside no longer come before it.
    """

    index: int
    path: Path
    name: str
    count: int
    rewound: int

    def fold_in_data(self, use: Use) -> Any:
        """The fold-in data of this draw in another call; an array where that call is traced itself."""
        scope = use.outers[self.index].below(self.path)
        count = self.count if self.rewound else scope.node.counts.get(self.name, 0) + self.count
        return scope.tree.fold_in_data(scope.path, self.name, count, scope.node.times_rewound(self.name) + self.rewound)


@dataclasses.dataclass(frozen=True)
class Kept:
    """What a body did that is no array, as a pytree without leaves."""

    record: Record
    draws: tuple[Draw, ...]
    changed: bool


jax.tree_util.register_static(Kept)


class Steady:
    """What all traces of equal programs do, as far as they do the same.

    Attributes:
        kept: that; None where there is no trace yet, and where they differ or create variables.
        room: for how many draws they have room.
    """

    def __init__(self) -> None:
        self.kept: Kept | None = None
        self.room = _FEW
        self._seen = False

    def note(self, kept: Kept | None) -> None:
        """Notes what a trace does; None for one that creates variables."""
        if kept != self.kept:
            self.kept = None if self._seen else kept
        self._seen = True


class TooManyDraws(BaseException):
    """A body drew more keys than there was room for: a signal, which no `except Exception` of the body takes."""


class NewTrace(BaseException):
    """A body would be traced where it was taken to have been: a signal, like `TooManyDraws`."""


class FoldInData:
    """Deals out fold-in data to a body while it is traced, and notes what each of them is for."""

    def __init__(self, fold_in_data: Any, use: Use) -> None:
        self._fold_in_data, self._outers = fold_in_data, use.outers
        self.draws: list[Draw] = []

    def to(self, index: int) -> Callable[[Path, str, int, int], Any]:
        """What the scopes below one of the outermost scopes ask for fold-in data."""
        outer = self._outers[index]

        def deal(path: Path, name: str, count: int, rewound: int) -> Any:
            below = path[len(outer.path) :]
            node = outer.below(below).node
            rewound -= node.times_rewound(name)
            before = 0 if rewound else node.counts.get(name, 0)
            self.draws.append(Draw(index, below, name, count - before, rewound))
            if len(self.draws) > self._fold_in_data.size:
                raise TooManyDraws
            return self._fold_in_data[len(self.draws) - 1]

        return deal


class Program:
    """The function that is compiled. Equal ones share a trace.

    Args:
        fn: the function of scopes.
        key: its key; an object that equals no other where there is none.
        layout: what is static about the use of the lift.
        fixed: the static arguments: name, key and value of each.
        paths: the paths of what is lifted, where a filter may ask for them.
        shardings: how arguments, result and variables lie on devices, where that was told.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        key: Hashable,
        layout: Layout,
        fixed: tuple[tuple[str, Hashable, Any], ...],
        paths: tuple[Path, ...],
        shardings: Shardings | None,
    ) -> None:
        self.fn, self.layout, self.fixed, self.paths, self.shardings = fn, layout, fixed, paths, shardings
        self._key = key, layout, tuple([(name, key) for name, key, _ in fixed]), paths, shardings
        self._hash = hash(self._key)
        self.__signature__, self.__wrapped__ = _SIGNATURE, fn  # what `jax.jit` asks for, and what its errors show

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def __name__(self) -> str:
        return name_of(self.fn)

    def __repr__(self) -> str:
        return self.__name__  # JAX's errors show it

    def __call__(self, fold_in_data: Any, gone: Any, operands: Any) -> Any:
        """Runs while it is traced, and never again."""
        call = _calls.get()
        use = call.use
        if call.steady:
            raise NewTrace
        variable_groups, rng_groups, kept = operands
        args, kwargs = join_arguments({**{name: value for name, _, value in self.fixed}, **gone, **kept})
        source = FoldInData(fold_in_data, use)
        scopes = use.scope_fn(variable_groups, rng_groups, marked=True, fold_in_data=source.to)
        result = use.run(self.fn, scopes, args, kwargs)
        groups = use.repacked(scopes)
        created, (result, values) = without_created(result, groups)
        if self.shardings is not None:
            placement = self.shardings.placement
            placement.check_result(f"{self.layout.lift.name} at {use.place}", result)
            values = placement.constrain(values, use)
        call.traced = True
        changed = not use.is_unchanged(groups)
        return created, (result, values, Kept(use.take_record(), tuple(source.draws), changed))


_SIGNATURE = inspect.signature(functools.partial(Program.__call__, None))  # type: ignore[arg-type]
"""That of every body: working it out takes a third of the time that making a compiled function does."""


_STEADY: weakref.WeakKeyDictionary[Program, Steady] = weakref.WeakKeyDictionary()
"""By program: JAX finds what it traced for one for those that are equal to it."""


class Cache:
    """A bounded number of compiled functions, which can be found again by an equal body.

    Attributes:
        find: called as `find(program, options)`.
    """

    def __init__(self) -> None:
        known: Found = weakref.WeakValueDictionary()
        self.find = functools.lru_cache(_CACHED)(functools.partial(Compiled, known))


class Compiled:
    """A body under `jax.jit`.

    Args:
        known: all that are in its cache; it puts itself there.
        program: what it compiles.
        options: arguments of `jax.jit`.

    Attributes:
        traces: what the last traces were made for.
    """

    def __init__(self, known: Found, program: Program, options: Options) -> None:
        # It may be traced again when what the user holds is no longer as the key says.
        program.fn, program.fixed = (
            snapshot(program.fn),
            tuple([(name, key, snapshot(one)) for name, key, one in program.fixed]),
        )
        self.program = program
        self.traces: collections.deque[Signature] = collections.deque(maxlen=_TRACES)
        self._jit = functools.partial(jax.jit, **{name: _plain(value) for name, value in options})
        whole, rest = ({}, {}) if program.shardings is None else (program.shardings.whole(), program.shardings.rest())
        self._whole = self._jit(self.program, **whole)
        self._jit_rest = functools.partial(self._jit, **rest)
        self._rest = functools.lru_cache(_TRACES)(self._without_created)
        self._steady = _STEADY.setdefault(program, Steady())
        self._known = known
        known[id(self)] = self

    def __call__(self, use: Use, gone: Any, operands: Any) -> tuple[Any, tuple[Any, ...]]:
        """The result of the body and its output groups; `gone` are the donated arguments."""
        call = Call(use)
        before = _calls.set(call)
        try:
            return self._call(use, gone, operands)
        finally:
            _calls.reset(before)
            del call.use  # a copy of the context would keep it alive
            if call.traced:
                self._remember(Signature.of(use, gone, operands))

    def _remember(self, now: Signature) -> None:
        """Keeps what a trace was made for, and tells those who ask what differs from the others in the cache."""
        if recording():
            name, cache = self.program.layout.lift.name, self._known
            others = [other for other in reversed(list(cache.values())) if other.program.layout.lift.name == name]
            before = [
                Known(one.path, facts_of(other.program, one), cache)
                for other in others
                for one in reversed(other.traces)
            ]
            note(name, Known(now.path, facts_of(self.program, now), cache), before)
        self.traces.append(now)

    def _call(self, use: Use, gone: Any, operands: Any) -> tuple[Any, tuple[Any, ...]]:
        if self._steady.kept is not None and not gone:  # asking for a trace takes longer than a call of few operations
            with contextlib.suppress(NewTrace):
                return self._steadily(self._steady.kept, use, operands)
        fold_in_data: Any = None  # where there is nothing to draw from
        creates = False
        if use.writes or any(map(any, operands[1])):
            traced = self._trace(gone, operands)
            created, (_, _, kept) = traced.out_info
            fold_in_data = self._fold_in_data(kept, use)
            creates = bool(jax.tree.leaves(created))
            self._steady.note(None if creates else kept)
        if creates:
            held = closed_over(traced)
            sizes = tuple(len(jax.tree.leaves(one)) for one in (held, fold_in_data, gone, operands))
            hoisted, run = self._rest(traced.jaxpr, sizes, jax.tree.structure(traced.out_info))
            parts, shardings = hoisted.within(use), self.program.shardings
            form = None if shardings is None else shardings.placement.form(hoisted.created, use)
            created = parts.prologue(held, fold_in_data, gone, operands, form=form)
            result, values, kept = run(created, held, fold_in_data, gone, operands)
        else:
            created, (result, values, kept) = self._whole(fold_in_data, gone, operands)
        return self._output(use, created, (result, values, kept))

    def _output(self, use: Use, created: list[Any], output: Any) -> tuple[Any, tuple[Any, ...]]:
        """The result and the output groups of a call, whose record counts outside from now on."""
        result, values, kept = output
        use.replay(kept.record)
        if not kept.changed:
            return result, use.unchanged
        return with_created(created[: len(values)], result, values)

    def _steadily(self, kept: Kept, use: Use, operands: Any) -> tuple[Any, tuple[Any, ...]]:
        """Calls what was compiled, without asking what it does: what all its traces do.

        Raises:
            NewTrace: where there is no trace for these operands yet.
        """
        call = _calls.get()
        call.steady = True
        try:
            created, output = self._whole(self._fold_in_data(kept, use), {}, operands)
        finally:
            call.steady = False
        if output[2] != kept:  # an equal program traced it since
            raise NewTrace
        return self._output(use, created, output)

    def _fold_in_data(self, kept: Kept, use: Use) -> Any:
        """The fold-in data of the draws of a body, in this call."""
        return self._filled([draw.fold_in_data(use) for draw in kept.draws])

    def _trace(self, gone: Any, operands: Any) -> Any:
        """What is known of the body without running it; it is traced if no equal call was before."""
        while True:
            try:
                return self._whole.trace(np.zeros(self._steady.room, np.uint32), gone, operands)
            except TooManyDraws:
                self._steady.room *= 4

    def _filled(self, data: list[Any]) -> Any:
        """A vector of as many numbers as there is room for."""
        rest = np.zeros(self._steady.room - len(data), np.uint32)
        if any(isinstance(one, jax.Array) for one in data):
            return jnp.concatenate([jnp.stack(data), rest])
        return np.concatenate([np.array(data, np.uint32), rest])

    def _without_created(self, closed: Any, sizes: tuple[int, ...], out_tree: Any) -> tuple[Split, Callable[..., Any]]:
        """The body as traced, and the compiled function of it without what makes its initial values."""
        hoisted = Split(closed, sizes, jax.tree.unflatten(out_tree, closed.jaxpr.outvars)).with_effects()

        def rest(created: Any, held: Any, fold_in_data: Any, gone: Any, operands: Any) -> Any:
            return hoisted.rest(None, created, held, fold_in_data, gone, operands)[1]

        rest.__name__ = self.program.__name__
        return hoisted, self._jit_rest(rest)


Found: TypeAlias = weakref.WeakValueDictionary[int, Compiled]
"""What is in a cache, the oldest first."""


def is_shareable(fn: Callable[..., Any]) -> bool:
    """Whether a function can be kept without keeping arrays alive: it holds none, or it compares by value."""
    if isinstance(fn, Counted):
        return is_shareable(fn.__wrapped__)
    if isinstance(fn, types.FunctionType):
        defaults = jax.tree.leaves((fn.__defaults__, fn.__kwdefaults__))
        return fn.__closure__ is None and not any(isinstance(leaf, jax.Array) for leaf in defaults)
    by_identity: bool = type(fn).__eq__ is object.__eq__  # type: ignore[comparison-overlap]
    return not by_identity and not isinstance(fn, types.MethodType | functools.partial)


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, tuple) else value
