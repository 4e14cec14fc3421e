"""What a lifted `jit` compiles, and how one compiled function serves calls from anywhere in a model.

What a body draws depends on the path and the counts of its caller, which are no part of what is compiled. A key is
`fold_in(root, data)`, where the data is a hash of path and count: so the data is an argument of the compiled
function, taken from one vector in the order of the draws. Which draws a body makes, the names it takes and what it sows
is static. It rides home in the pytree structure of the compiled function's output, on cached calls as well.

A compiled function knows nothing of the call that traces it but through `_calls`: what it keeps, it keeps for all.
"""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .._compat import closed_over, forget_calls
from ..errors import ThreadError, name_of
from ..pipeline.changes import Record, with_created, without_created
from ..pipeline.splitting import Split
from ..pipeline.stages import Layout
from ..pipeline.use import Use
from ..scopes.observers import observers
from ..statics import snapshot
from ..typing import Path, PyTree
from .arguments import join_arguments
from .donation import NOTHING, Donated
from .shardings import Shardings

__all__ = ["Cache", "Compiled", "Kept", "NewTrace", "Options", "Program", "Signature", "is_shareable"]

Options: TypeAlias = tuple[tuple[str, Any], ...]
"""Arguments of `jax.jit` by name."""

_CACHED = 256
"""How many compiled functions of different configurations are kept."""

_FEW = 256
"""How many draws a body is traced with room for at first."""

_TRACES = 256
"""How many traces that create variables a compiled function keeps."""


class CompiledCall:
    """A call of a compiled function.

    Attributes:
        use: the use of a lift that it belongs to; None where there is none, and the body is taken to have been traced.
        traced: whether the body ran.
        steady: whether the body is taken to have been traced.
    """

    __slots__ = ("steady", "traced", "use")

    def __init__(self, use: Use | None) -> None:
        self.use, self.traced, self.steady = use, False, use is None


_calls: contextvars.ContextVar[CompiledCall] = contextvars.ContextVar("calls of compiled functions")
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

    def __call__(self, fold_in_data: Any, gone: Donated, operands: Any) -> Any:
        """Runs while it is traced, and never again."""
        call = _calls.get()
        use = call.use
        if call.steady or use is None:
            raise NewTrace
        variable_groups, rng_groups, kept = operands
        fixed = {name: value for name, _, value in self.fixed}
        args, kwargs = join_arguments({**fixed, **gone.arguments, **kept})
        source = FoldInData(fold_in_data, use)
        variable_groups = gone.joined(variable_groups)
        # Always marked: one trace serves calls inside other lifts, which split it, and calls outside of all.
        scopes = use.scope_fn(variable_groups, rng_groups, marked=True, fold_in_data=source.to)
        gone.write(use, scopes)
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


class Signature(NamedTuple):
    """What the arguments of one trace were.

    Attributes:
        path: the place of the call, with the name of the lift.
        treedef: the structure of what is donated, the groups of variables and of streams, and the arguments.
        types: the types of their leaves.
    """

    path: str
    treedef: Any
    types: tuple[Any, ...]

    @classmethod
    def of(cls, use: Use, gone: Donated, operands: PyTree) -> Signature:
        """That of a call."""
        leaves, treedef = jax.tree.flatten((gone, operands))
        path = f"{use.place.rstrip('/')}/{use.layout.lift.name}"
        return cls(path, treedef, tuple(map(jax.typeof, leaves)))


class Compiled:
    """A body under `jax.jit`.

    Args:
        known: all that are in its cache; it puts itself there.
        program: what it compiles.
        options: arguments of `jax.jit`.

    Attributes:
        known: all that are in its cache, the oldest first.
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
        self._rest = functools.lru_cache(_TRACES)(self._split_off)
        self._steady = _STEADY.setdefault(program, Steady())
        self.known = known
        known[id(self)] = self

    def __call__(self, use: Use, gone: Donated, operands: Any) -> tuple[Any, tuple[Any, ...]]:
        """The result of the body and its output groups; `gone` is what is donated."""
        output: tuple[Any, tuple[Any, ...]] = self._in_call(self._call, use, gone, operands)
        return output

    def directly(self, operands: Any) -> tuple[Any, Record]:
        """The result without the stages of a lift, and what the body did; for operands that nothing is drawn from.

        Args:
            operands: the groups of variables, which the body only reads, those of streams, and the arguments by name.

        Raises:
            NewTrace: where there is no trace for them yet.
        """
        # With room for draws that are not made, where a call by `_call` has it, so that both find the same trace.
        fold_in_data = None if self._steady.kept is None else np.zeros(self._steady.room, np.uint32)
        before = _calls.set(CompiledCall(None))
        try:
            _, (result, _, kept) = self._whole(fold_in_data, NOTHING, operands)
        except NewTrace:
            forget_calls(self._whole)
            raise
        finally:
            _calls.reset(before)
        return result, kept.record

    def lower(self, use: Use, gone: Donated, operands: Any) -> tuple[Any, tuple[Any, ...]]:
        """Itself, what the body does, for how many draws it has room, and a stage of JAX; nothing changes outside."""
        return self._in_call(self._lower, use, gone, operands), use.unchanged

    def _in_call(self, run: Callable[..., Any], use: Use, gone: Donated, operands: Any) -> Any:
        call = CompiledCall(use)
        before = _calls.set(call)
        try:
            return run(use, gone, operands)
        finally:
            _calls.reset(before)
            del call.use  # a copy of the context would keep it alive
            if call.traced:
                self._remember(Signature.of(use, gone, operands))

    def _remember(self, now: Signature) -> None:
        """Keeps what a trace was made for, and tells those who look on."""
        for observer in observers():
            observer.compiled(self, now)
        self.traces.append(now)

    def _lower(self, use: Use, gone: Donated, operands: Any) -> tuple[Compiled, Kept, int, Any]:
        traced = self._trace(gone, operands)
        created, (_, _, kept) = traced.out_info
        self._steady.note(None if jax.tree.leaves(created) else kept)
        return self, kept, self._steady.room, traced.lower()

    def _call(self, use: Use, gone: Donated, operands: Any) -> tuple[Any, tuple[Any, ...]]:
        steady = self._steady.kept
        # Asking for a trace takes longer than a call of few operations. What is donated cannot be given twice, so if
        # there are keys to draw, it has to be known for certain which.
        if steady is not None and not (steady.draws and any(gone)):
            try:
                return self._steadily(steady, use, gone, operands)
            except NewTrace:
                forget_calls(self._whole)
        fold_in_data: Any = None  # where there is nothing to draw from
        creates = False
        # A body that neither writes nor draws is called as it is: nothing has to be known of it before it runs.
        if use.writes or any(map(any, operands[1])):
            traced = self._trace(gone, operands)
            created, (_, _, kept) = traced.out_info
            fold_in_data = self.fold_in_data(kept, use)
            creates = bool(jax.tree.leaves(created))
            self._steady.note(None if creates else kept)
        elif steady is not None:  # what was lowered has room for draws, and is to be found again
            fold_in_data = self.fold_in_data(steady, use)
        if creates:
            held = closed_over(traced)
            sizes = tuple(len(jax.tree.leaves(one)) for one in (held, fold_in_data, gone, operands))
            split, run = self._rest(traced.jaxpr, sizes, jax.tree.structure(traced.out_info))
            parts, shardings = split.within(use), self.program.shardings
            form = None if shardings is None else shardings.placement.form(split.created, use)
            created = parts.prologue(held, fold_in_data, gone, operands, form=form)
            result, values, kept = run(created, held, fold_in_data, gone, operands)
        else:
            created, (result, values, kept) = self._whole(fold_in_data, gone, operands)
        return self.output(use, created, (result, values, kept))

    def output(self, use: Use, created: list[Any], output: Any) -> tuple[Any, tuple[Any, ...]]:
        """The result and the output groups of a call, whose record counts outside from now on."""
        result, values, kept = output
        use.replay(kept.record)
        if not kept.changed:
            return result, use.unchanged
        return with_created(created[: len(values)], result, values)

    def _steadily(self, kept: Kept, use: Use, gone: Donated, operands: Any) -> tuple[Any, tuple[Any, ...]]:
        """Calls what was compiled, without asking what it does: what all its traces do.

        Raises:
            NewTrace: where there is no trace for these operands yet.
            ThreadError: where another thread has just traced it, and it draws keys there.
        """
        call = _calls.get()
        call.steady = True
        try:
            created, output = self._whole(self.fold_in_data(kept, use), gone, operands)
        finally:
            call.steady = False
        if output[2] != kept:  # an equal program traced it since
            if not any(gone):
                raise NewTrace
            if output[2].draws:
                raise ThreadError(
                    use.where,
                    "while it ran, another thread traced it for other types, for which it draws keys; what was donated "
                    "is gone.",
                    "Call it once for these types before there are threads, or donate nothing.",
                )
        return self.output(use, created, output)

    def fold_in_data(self, kept: Kept, use: Use, room: int | None = None) -> Any:
        """The fold-in data of the draws of a body, in this call: a vector of as many numbers as there is room for."""
        data = [draw.fold_in_data(use) for draw in kept.draws]
        rest = np.zeros((room or self._steady.room) - len(data), np.uint32)
        if any(isinstance(one, jax.Array) for one in data):
            return jnp.concatenate([jnp.stack(data), rest])
        return np.concatenate([np.array(data, np.uint32), rest])

    def _trace(self, gone: Donated, operands: Any) -> Any:
        """What is known of the body without running it; it is traced if no equal call was before."""
        while True:
            try:
                return self._whole.trace(np.zeros(self._steady.room, np.uint32), gone, operands)
            except TooManyDraws:
                self._steady.room *= 4

    def _split_off(self, closed: Any, sizes: tuple[int, ...], out_tree: Any) -> tuple[Split, Callable[..., Any]]:
        """The body as traced, and the compiled function of it without what makes its initial values."""
        split = Split(closed, sizes, jax.tree.unflatten(out_tree, closed.jaxpr.outvars)).with_effects()

        def rest(created: Any, held: Any, fold_in_data: Any, gone: Donated, operands: Any) -> Any:
            return split.rest(None, created, held, fold_in_data, gone, operands)[1]

        rest.__name__ = self.program.__name__
        return split, self._jit_rest(rest)


Found: TypeAlias = weakref.WeakValueDictionary[int, Compiled]
"""What is in a cache, the oldest first."""


def is_shareable(fn: Callable[..., Any]) -> bool:
    """Whether a function can be kept without keeping arrays alive: it holds none, or it compares by value."""
    fn = getattr(fn, "shared_as", fn)  # a wrapper that is shared as what it wraps says so
    if isinstance(fn, types.FunctionType):
        defaults = jax.tree.leaves((fn.__defaults__, fn.__kwdefaults__))
        return fn.__closure__ is None and not any(isinstance(leaf, jax.Array) for leaf in defaults)
    by_identity: bool = type(fn).__eq__ is object.__eq__  # type: ignore[comparison-overlap]
    return not by_identity and not isinstance(fn, types.MethodType | functools.partial)


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, tuple) else value
