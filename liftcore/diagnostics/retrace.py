"""Why was it traced again? Who asks enters a recorder; each trace then tells what differs from the closest one before.

A recorder is an observer of the core's. Nothing is compared, and no text is made, while there is none. What was traced
earlier is known to the caches of `jit` themselves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax

from ..errors import TooManyTracesError
from ..filters import short_form, to_predicate
from ..runners.compiled import Compiled, Signature
from ..scopes.observers import observing
from ..scopes.scope import Scope
from ..typing import Filter
from . import facts
from .facts import WITHOUT_KEY, Facts
from .signature import facts_of

__all__ = [
    "Counted",
    "Difference",
    "Known",
    "MaxTraces",
    "Retrace",
    "Retraces",
    "assert_max_traces",
    "retraces",
]

_WIDTH = 60
"""How long the text of a value may be in a message."""

_SAME = "nothing that shows here: a new `jax.jit` around it, another setting or mesh of JAX, or a full cache"
_UNSHARED = (
    "this one (for a closure, a method, a partial or a module with a field that cannot be hashed, only calls of one "
    "wrapper share what is compiled)"
)


# --- what is told -----------------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """One thing that is not as it was.

    Attributes:
        what: such as `argument x`, `variable params/w`, `mutable` or the field of a module.
        before: a text; None where there was no such thing.
        now: the same for the later trace.
    """

    what: str
    before: str | None
    now: str | None

    def __str__(self) -> str:
        return f"{self.what}: {_short(self.before)} before, {_short(self.now)} now"


def _short(text: str | None) -> str:
    if text is None:
        return "absent"
    return text if len(text) <= _WIDTH or text is _UNSHARED else f"{text[:_WIDTH]}…"


@dataclasses.dataclass(frozen=True)
class Retrace:
    """One trace of the body of a lifted `jit`, of a loop that runs eagerly, or of an applied function.

    Attributes:
        path: the place in the model, with the names of lifts, such as `/encoder/jit(block)`.
        closest: the path of the trace before that differs least; None where the function was never traced before.
        differences: what differs from that one.
    """

    path: str
    closest: str | None = None
    differences: tuple[Difference, ...] = ()

    def __str__(self) -> str:
        if self.closest is None:
            return f"{self.path}: the first trace"
        told = "; ".join(map(str, self.differences)) or _SAME
        return f"{self.path}: {told}{'' if self.closest == self.path else f' (compared with {self.closest})'}"


class Known(NamedTuple):
    """What one trace was made for.

    Attributes:
        path: its place.
        facts: what was traced.
        cache: where it can be found again, if anywhere: a trace serves only calls that look there.
    """

    path: str
    facts: Facts
    cache: Any = None


class Retraces:
    """The traces that were made while a recorder was entered.

    Attributes:
        records: one for each trace, in order.
    """

    def __init__(self) -> None:
        self.records: list[Retrace] = []
        self._seen: dict[str, list[Known]] = {}

    @property
    def by_path(self) -> dict[str, list[Retrace]]:
        """The traces of each place."""
        found: dict[str, list[Retrace]] = {}
        for one in self.records:
            found.setdefault(one.path, []).append(one)
        return found

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Retrace]:
        return iter(self.records)

    def __str__(self) -> str:
        return "\n".join(map(str, self.records)) or "no traces"

    def add(self, name: str, now: Known, before: Iterable[Known] = ()) -> None:
        """Keeps a trace, and what differs from the closest one before.

        Args:
            name: that of the function; only traces of one function are compared.
            now: the trace.
            before: those that a cache knows, beside those that were added here.
        """
        seen, function = self._seen.setdefault(name, []), now.facts.get("function")
        others = (one for one in (*seen[::-1], *before) if one.facts.get("function") == function)
        compared = [(one, tuple(_differences(one, now))) for one in others]
        closest, differences = min(compared, key=lambda pair: len(pair[1]), default=(None, ()))
        self.records.append(Retrace(now.path, closest and closest.path, differences))
        seen.append(now)

    def compiled(self, compiled: Compiled, trace: Signature) -> None:
        """Keeps a trace of a body that is compiled, compared with all that its cache knows."""
        name, cache = compiled.program.layout.lift.name, compiled.known
        others = [other for other in reversed(list(cache.values())) if other.program.layout.lift.name == name]
        before = [
            Known(one.path, facts_of(other.program, one), cache) for other in others for one in reversed(other.traces)
        ]
        self.add(name, Known(trace.path, facts_of(compiled.program, trace), cache), before)

    def applied(self, fn: Callable[..., Any], root: Scope, mutable: Filter, args: Any, kwargs: Any) -> None:
        """Keeps a run of a function of a scope by `apply` or `init`, where JAX traces it."""
        variables = root.collections_below()
        given = jax.tree.leaves((variables, root.tree.rngs, args, kwargs))
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in given):
            return
        told = dict(facts.of_function(fn))
        told["mutable"] = short_form(to_predicate(mutable))
        told["initializing"] = str(root.is_initializing())
        told |= facts.of_named("variable", variables)
        told |= facts.of_named("stream", root.tree.rngs)
        told |= facts.of_call(fn, args, kwargs, skip=1)
        self.add(_name(fn), Known(f"{_name(fn)} at /", told))


def _differences(before: Known, now: Known) -> Iterator[Difference]:
    for what in facts.differing(before.facts, now.facts):
        yield Difference(what, before.facts.get(what), now.facts.get(what))
    if before.cache is not now.cache and WITHOUT_KEY in now.facts:
        yield Difference(WITHOUT_KEY, before.facts.get(WITHOUT_KEY), now.facts[WITHOUT_KEY])
    elif before.cache is not now.cache:
        yield Difference("wrapper", "another one", _UNSHARED)


# --- recorders --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def retraces() -> Iterator[Retraces]:
    """Records what is traced within a `with` block, and what each trace differs in from the closest one before.

    There is one record for each trace of the body of a lifted `jit`, or of a loop that runs eagerly; and one for each
    time that the Python of an applied function (by `apply` or `init`) runs while JAX traces it, as under `jax.jit`. A
    call that finds what was compiled before leaves none.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def halve(scope, x):
        ...     return x / 2
        >>> run = liftcore.apply(liftcore.jit(halve))
        >>> with liftcore.retraces() as found:
        ...     for x in (jnp.ones(3), jnp.zeros(3), jnp.ones(4)):
        ...         y = run({}, x)
        >>> print(found)
        /jit(halve): the first trace
        /jit(halve): argument x: float32[3] before, float32[4] now

    Returns:
        A context manager that gives a `Retraces`.
    """
    found = Retraces()
    with observing(found):
        yield found


# --- a limit ----------------------------------------------------------------------------------------------------------


def assert_max_traces(n: int) -> MaxTraces:
    """Fails where something is traced more than `n` times: for tests of one's own.

    As a context manager it counts what `retraces` records. As a decorator it counts how often the function's own Python
    runs; the function may be a function of a scope, a method or any other. Either way the error tells, trace by trace,
    what differed from the closest one before.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> @liftcore.assert_max_traces(1)
        ... def double(scope, x):
        ...     return 2 * x
        >>> run = liftcore.apply(liftcore.jit(double))
        >>> y = run({}, jnp.ones(3)), run({}, jnp.zeros(3))
        >>> run({}, jnp.ones(4))
        Traceback (most recent call last):
        liftcore.errors.TooManyTracesError: double at /jit(double): its Python ran 2 times, at most 1 is allowed: ...
        >>> with liftcore.assert_max_traces(0):
        ...     y = run({}, jnp.zeros(3))

    Args:
        n: how many traces are allowed.

    Returns:
        A decorator and context manager; in a `with` statement it gives a `Retraces`.

    Raises:
        TooManyTracesError: at the end of the `with` block, or at the run of the function that is one too many.
    """
    return MaxTraces(n)


class MaxTraces:
    """What `assert_max_traces` returns."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._entered: list[contextlib.AbstractContextManager[Retraces]] = []
        self._found: list[Retraces] = []

    def __call__(self, fn: Callable[..., Any]) -> Counted:
        """The function, with its runs counted."""
        return Counted(fn, self._n)

    def __enter__(self) -> Retraces:
        self._entered.append(retraces())
        self._found.append(self._entered[-1].__enter__())
        return self._found[-1]

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        found = self._found.pop()
        self._entered.pop().__exit__(kind, error, trace)
        if kind is None:
            _check(f"assert_max_traces({self._n})", "there were {} traces", found, self._n)


class Counted:
    """A function whose own Python may run a limited number of times.

    It equals itself alone, so a lifted `jit` shares what it compiled for it as for the function itself.
    """

    __wrapped__: Callable[..., Any]

    def __init__(self, fn: Callable[..., Any], n: int) -> None:
        functools.update_wrapper(self, fn)
        self._n = n
        self.runs = Retraces()

    def trace_facts(self) -> Facts:
        """What the function is; see `facts.of_function`."""
        return dict(facts.of_function(self.__wrapped__))

    @property
    def shared_as(self) -> Callable[..., Any]:
        """The function that says whether what is compiled may be shared."""
        return self.__wrapped__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function, and fails where that is one time too many."""
        fn = self.__wrapped__
        name = _name(fn)
        leaves = jax.tree.leaves((args, kwargs), is_leaf=lambda one: isinstance(one, Scope))
        path = next((leaf.path_text for leaf in leaves if isinstance(leaf, Scope)), "/")
        self.runs.add(name, Known(path, dict(facts.of_call(fn, args, kwargs))))
        _check(f"{name} at {path}", "its Python ran {} times", self.runs, self._n)
        return fn(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def _name(fn: Callable[..., Any]) -> str:
    """The name of a function, that of a method with its class."""
    return str(getattr(fn, "__qualname__", type(fn).__name__)).rpartition("<locals>.")[2]


def _check(where: str, what: str, found: Retraces, n: int) -> None:
    if len(found) > n:
        told = " ".join(f"({number}) {one}." for number, one in enumerate(found, 1))
        raise TooManyTracesError(
            where,
            f"{what.format(len(found))}, at most {n} {'is' if n == 1 else 'are'} allowed: {told}",
            f"Keep types, fields and static arguments the same, or allow more: `assert_max_traces({len(found)})`.",
        )
