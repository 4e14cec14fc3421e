"""The compiled functions of a lifted `jit`: one of them serves calls from anywhere in a model.

The draws of a body depend on the path and the counts of the caller, which must not be a part of the compiled function.
A key is `fold_in(root, data)`, where the data is a hash of path and count. So the data is an argument of the compiled
function, a vector in the order of the draws. The list of draws, the names that the body takes and the values that it
sows are static. They are returned in the pytree structure of the output, on cached calls too.

A compiled function must keep no reference to the call that traces it: it would keep it for all calls. So it reaches
the call only through `_calls`.
"""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .._compat import closed_over, forget_calls
from ..caches import bounded
from ..calls import raise_interrupt
from ..errors import ThreadError, name_of
from ..pipeline.body import Body
from ..pipeline.splitting import Split
from ..pipeline.stages import Layout, Record, with_created, without_created
from ..scopes.observers import OBSERVERS
from ..statics import snapshot
from ..typing import Path, PyTree
from .arguments import NOTHING, Donated, join_arguments
from .shardings import Shardings

__all__ = ["Cache", "Compiled", "Effects", "NewTrace", "Options", "Program", "Signature"]

Options: TypeAlias = tuple[tuple[str, Any], ...]
"""Arguments of `jax.jit`, by name."""

_CACHED = 256
"""The number of compiled functions with different configurations that are kept."""

_FEW = 256
"""The number of draws that a body has room for when it is first traced."""

_TRACES = 256
"""The number of traces that create variables that a compiled function keeps."""


@dataclasses.dataclass(eq=False, slots=True)
class CompiledCall:
    """One call of a compiled function.

    Attributes:
        body: the body that it runs; None for a call outside the stages of a lift, which expects an existing trace.
        traced: whether the body ran.
        steady: whether an existing trace is expected.
    """

    body: Body | None
    traced: bool = False
    steady: bool = False


_calls: contextvars.ContextVar[CompiledCall] = contextvars.ContextVar("calls of compiled functions")
"""The innermost running call."""


@dataclasses.dataclass(frozen=True)
class Draw:
    """One draw of a body: its place below the lifted scopes, and its number among the draws there.

    Draws outside do not count for one from a scope that the body has rewound.
    """

    index: int
    path: Path
    name: str
    count: int
    rewound: bool

    def fold_in_data(self, body: Body) -> Any:
        """Return the fold-in data of this draw in another call; an array if that call is itself traced."""
        scope = body.outers[self.index].below(self.path)
        if self.rewound:
            return scope.tree.fold_in_data(scope.path, self.name, self.count, None)
        count = scope.counter.counts.get(self.name, 0) + self.count
        return scope.tree.fold_in_data(scope.path, self.name, count, scope.counter.origin)


@dataclasses.dataclass(frozen=True)
class Effects:
    """The effects of a body that are not arrays, as a pytree without leaves."""

    record: Record
    draws: tuple[Draw, ...]
    changed: bool


jax.tree_util.register_static(Effects)


class Steady:
    """The effects that all traces of equal programs have in common.

    Attributes:
        effects: the common effects; None if there is no trace yet, or if the traces differ or create variables.
        room: the number of draws that they have room for.
    """

    def __init__(self) -> None:
        self.effects: Effects | None = None
        self.room = _FEW
        self._seen = False

    def note(self, effects: Effects | None) -> None:
        """Record the effects of a trace; None for a trace that creates variables."""
        if effects != self.effects:
            self.effects = None if self._seen else effects
        self._seen = True


class NewTrace(BaseException):
    """A body would be traced although a trace was expected: a signal that no `except Exception` in it can catch."""


class FoldInData:
    """Hands out fold-in data to a body while it is traced, and records the draw that each number is for."""

    def __init__(self, fold_in_data: Any, body: Body) -> None:
        self._fold_in_data, self._outers = fold_in_data, body.outers
        self.draws: list[Draw] = []

    def to(self, index: int) -> Callable[[Path, str, int, object], Any]:
        """Return the function that makes fold-in data for the scopes below one of the outermost scopes."""
        outer = self._outers[index]

        def deal(path: Path, name: str, count: int, origin: object) -> Any:
            below = path[len(outer.path) :]
            rewound = origin is not outer.counter.origin
            before = 0 if rewound else outer.below(below).counter.counts.get(name, 0)
            self.draws.append(Draw(index, below, name, count - before, rewound))
            # Without room for all draws, this trace is not used: it only tells how many there are.
            return self._fold_in_data[min(len(self.draws), self._fold_in_data.size) - 1]

        return deal


class Program:
    """The function that is compiled. Equal programs share a trace.

    Args:
        fn: the function of scopes.
        key: the key of the function; if there is none, an object that equals no other.
        layout: everything that is static about the call of the lift.
        fixed: the static arguments: name, key and value of each.
        paths: the paths of the lifted scopes, if a filter may depend on them.
        shardings: the shardings of arguments, result and variables, if any were given.
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
        self.__signature__, self.__wrapped__ = _SIGNATURE, fn  # needed by `jax.jit`, and shown in its errors

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def __name__(self) -> str:
        return name_of(self.fn)

    def __repr__(self) -> str:
        return self.__name__  # JAX shows it in errors

    def __call__(self, fold_in_data: Any, gone: Donated, operands: Any) -> Any:
        """Run the body; this happens only during tracing."""
        call = _calls.get()
        body = call.body
        if call.steady or body is None:
            raise NewTrace
        variable_groups, rng_groups, kept = operands
        fixed = {name: value for name, _, value in self.fixed}
        args, kwargs = join_arguments({**fixed, **gone.arguments, **kept})
        source = FoldInData(fold_in_data, body)
        variable_groups = gone.joined(variable_groups)
        # Always tagged: one trace serves calls inside other lifts, which split it, and calls outside any lift.
        scopes = body.tagging().scope_fn(variable_groups, rng_groups, fold_in_data_of=source.to)
        gone.write(body, scopes)
        result = body.run(self.fn, scopes, args, kwargs)
        groups = body.repacked(scopes)
        created, (result, values) = without_created(result, groups)
        if self.shardings is not None:
            placement = self.shardings.placement
            # It raises if the shardings are no prefix of the result.
            placement.out_shardings.spread(f"{self.layout.lift.name} at {body.path_text}, out_shardings", result)
            values = placement.constrain(values, body)
        call.traced = True
        changed = groups is not body.unchanged
        return created, (result, values, Effects(body.records.pop(), tuple(source.draws), changed))


_SIGNATURE = inspect.signature(functools.partial(Program.__call__, None))  # type: ignore[arg-type]
"""The signature of every body: to compute it takes a third of the time of making a compiled function."""


_STEADY: weakref.WeakKeyDictionary[Program, Steady] = weakref.WeakKeyDictionary()
"""By program: JAX uses the trace of one program for all programs that are equal to it."""


class Cache:
    """A bounded number of compiled functions, which are found again for an equal body.

    Attributes:
        find: called as `find(program, options)`.
    """

    def __init__(self) -> None:
        known: Found = weakref.WeakValueDictionary()
        self.find = bounded(_CACHED)(functools.partial(Compiled, known))


class Signature(NamedTuple):
    """The types of the arguments of one trace.

    Attributes:
        path: the path of the call, with the name of the lift.
        treedef: the structure of the donated values, the groups of variables and of streams, and the arguments.
        types: the types of their leaves.
    """

    path: str
    treedef: Any
    types: tuple[Any, ...]

    @classmethod
    def of(cls, body: Body, gone: Donated, operands: PyTree) -> Signature:
        """Return the signature of a call."""
        leaves, treedef = jax.tree.flatten((gone, operands))
        path = f"{body.path_text.rstrip('/')}/{body.layout.lift.name}"
        return cls(path, treedef, tuple(map(jax.typeof, leaves)))


class Compiled:
    """A body under `jax.jit`.

    Args:
        known: all compiled functions in its cache; it adds itself.
        program: the function that it compiles.
        options: arguments of `jax.jit`.

    Attributes:
        known: all compiled functions in its cache, the oldest first.
        traces: the signatures of the latest traces.
    """

    def __init__(self, known: Found, program: Program, options: Options) -> None:
        # Copies, because it may be traced again after the user has changed objects that the key describes.
        program.fn, program.fixed = (
            snapshot(program.fn),
            tuple([(name, key, snapshot(one)) for name, key, one in program.fixed]),
        )
        self.program = program
        self.traces: collections.deque[Signature] = collections.deque(maxlen=_TRACES)
        # The options are part of a key, so a dict among them is a tuple of its items.
        plain: dict[str, Any] = {name: dict(value) if isinstance(value, tuple) else value for name, value in options}
        of_body, of_rest = ({}, {}) if program.shardings is None else program.shardings.options()
        self._jitted = jax.jit(program, **plain, **of_body)
        self._jit_rest = functools.partial(jax.jit, **plain, **of_rest)
        self._rest = bounded(_TRACES)(self._split_off)
        self._steady = _STEADY.setdefault(program, Steady())
        self.known = known
        known[id(self)] = self

    def __call__(self, body: Body, gone: Donated, operands: Any) -> tuple[Any, tuple[Any, ...]]:
        """Return the result of the body and its output groups; `gone` holds the donated values."""
        output: tuple[Any, tuple[Any, ...]] = self._in_call(self._call, body, gone, operands)
        return output

    def directly(self, operands: Any) -> tuple[Any, Record]:
        """Run without the stages of a lift; return the result and the record. No stream may be given.

        Args:
            operands: the groups of variables, which the body only reads, the groups of streams, and arguments by name.

        Raises:
            NewTrace: if there is no trace for these operands yet.
        """
        # If `_call` leaves room for draws, so must this call, although it draws nothing: both use the same trace.
        fold_in_data = None if self._steady.effects is None else np.zeros(self._steady.room, np.uint32)
        before = _calls.set(CompiledCall(None, steady=True))
        try:
            _, (result, _, effects) = self._jitted(fold_in_data, NOTHING, operands)
        except NewTrace:
            forget_calls(self._jitted)
            raise
        except ValueError as error:
            raise_interrupt(error)
            raise
        finally:
            _calls.reset(before)
        return result, effects.record

    def lower(self, body: Body, gone: Donated, operands: Any) -> tuple[Any, tuple[Any, ...]]:
        """Return itself, the effects of the body, the room for draws, and a stage of JAX; nothing changes outside."""
        return self._in_call(self._lower, body, gone, operands), body.unchanged

    def _in_call(self, run: Callable[..., Any], body: Body, gone: Donated, operands: Any) -> Any:
        call = CompiledCall(body)
        before = _calls.set(call)
        try:
            return run(body, gone, operands)
        finally:
            _calls.reset(before)
            del call.body  # a copy of the context would keep it alive
            if call.traced:
                now = Signature.of(body, gone, operands)
                for observer in OBSERVERS.get():
                    observer.compiled(self, now)
                self.traces.append(now)

    def _lower(self, body: Body, gone: Donated, operands: Any) -> tuple[Compiled, Effects, int, Any]:
        traced = self._trace(gone, operands)
        created, (_, _, effects) = traced.out_info
        self._steady.note(None if jax.tree.leaves(created) else effects)
        return self, effects, self._steady.room, traced.lower()

    def _call(self, body: Body, gone: Donated, operands: Any) -> tuple[Any, tuple[Any, ...]]:
        steady = self._steady.effects
        # Looking up a trace takes longer than a call with few operations. Donated values cannot be passed twice, so if
        # there are keys to draw, the list of draws must be certain.
        if steady is not None and not (steady.draws and any(gone)):
            try:
                return self._steadily(steady, body, gone, operands)
            except NewTrace:
                forget_calls(self._jitted)
        fold_in_data: Any = None  # if there is nothing to draw from
        creates = False
        # A body that neither writes nor draws is called directly: its effects need not be known before it runs.
        if body.writes or any(map(any, operands[1])):
            traced = self._trace(gone, operands)
            created, (_, _, effects) = traced.out_info
            fold_in_data = self.fold_in_data(effects, body)
            creates = bool(jax.tree.leaves(created))
            self._steady.note(None if creates else effects)
        elif steady is not None:  # the lowered program has room for draws, and must be found again
            fold_in_data = self.fold_in_data(steady, body)
        if creates:
            held = closed_over(traced)
            sizes = tuple(len(jax.tree.leaves(one)) for one in (held, fold_in_data, gone, operands))
            split, run = self._rest(traced.jaxpr, sizes, jax.tree.structure(traced.out_info))
            split, shardings = split.within(body), self.program.shardings
            form = None if shardings is None else shardings.placement.form(split.created, body)
            created = split.prologue(held, fold_in_data, gone, operands, form=form)
            result, values, effects = run(created, held, fold_in_data, gone, operands)
        else:
            created, (result, values, effects) = self._jitted(fold_in_data, gone, operands)
        return self.output(body, created, (result, values, effects))

    def output(self, body: Body, created: list[Any], output: Any) -> tuple[Any, tuple[Any, ...]]:
        """Return the result and the output groups of a call, and apply its record outside."""
        result, values, effects = output
        body.records.append(effects.record)
        if not effects.changed:
            return result, body.unchanged
        return with_created(created[: len(values)], result, values)

    def _steadily(self, effects: Effects, body: Body, gone: Donated, operands: Any) -> tuple[Any, tuple[Any, ...]]:
        """Call the compiled function and expect the effects that all its traces have in common.

        Raises:
            NewTrace: if there is no trace for these operands yet.
            ThreadError: if another thread has just traced it, and that trace draws keys.
        """
        call = _calls.get()
        call.steady = True
        try:
            created, output = self._jitted(self.fold_in_data(effects, body), gone, operands)
        finally:
            call.steady = False
        if output[2] != effects:  # an equal program was traced in the meantime
            if not any(gone):
                raise NewTrace
            if output[2].draws:
                raise ThreadError(
                    body.where,
                    "while it ran, another thread traced it for other types, and that trace draws keys; the donated "
                    "arrays are lost.",
                    "Call it once for these types before you start threads, or donate nothing.",
                )
        return self.output(body, created, output)

    def fold_in_data(self, effects: Effects, body: Body, room: int | None = None) -> Any:
        """Return the fold-in data of the draws of a body in this call: a vector that fills the room."""
        data = [draw.fold_in_data(body) for draw in effects.draws]
        rest = np.zeros((room or self._steady.room) - len(data), np.uint32)
        if any(isinstance(one, jax.Array) for one in data):
            return jnp.concatenate([jnp.stack(data), rest])
        return np.concatenate([np.array(data, np.uint32), rest])

    def _trace(self, gone: Donated, operands: Any) -> Any:
        """Return the trace of the body; the body is traced only if no equal call was traced before."""
        while True:
            traced = self._jitted.trace(np.zeros(self._steady.room, np.uint32), gone, operands)
            draws = len(traced.out_info[1][2].draws)
            if draws <= self._steady.room:
                return traced
            self._steady.room = 2 * draws

    def _split_off(self, closed: Any, sizes: tuple[int, ...], out_tree: Any) -> tuple[Split, Callable[..., Any]]:
        """Return the split of a traced body, and the compiled function that runs it on given initial values."""
        split = Split(closed, sizes, out_tree).with_effects()

        def rest(created: Any, held: Any, fold_in_data: Any, gone: Donated, operands: Any) -> Any:
            return split.remainder(created, held, fold_in_data, gone, operands)

        rest.__name__ = self.program.__name__
        return split, self._jit_rest(rest)


Found: TypeAlias = weakref.WeakValueDictionary[int, Compiled]
"""The contents of a cache, the oldest first."""
