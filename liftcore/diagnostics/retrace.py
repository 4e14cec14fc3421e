"""Recorders of traces: each trace is compared with the closest earlier one, to explain why it was needed.

A recorder is an observer of the core. Without one, nothing is compared and no text is made. Earlier traces are known to
the caches of `jit` itself.
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
from ..runners.jitting import Compiled, Signature
from ..scopes.observers import observing
from ..scopes.scope import Scope
from ..typing import Filter
from . import facts
from .facts import NOT_COMPARABLE, Facts, facts_of

__all__ = ["Difference", "Retrace", "Retraces", "assert_max_traces", "retraces"]

_WIDTH = 60
"""The maximal length of the text of a value in a message."""

_SAME = (
    "no visible difference: a new `jax.jit` around it; a static value made anew, such as `tx=optax.adam(…)` or "
    "`apply_fn=Model().apply` of a `TrainState`; another setting or mesh of JAX; or a full cache"
)
_UNSHARED = (
    "this one (for a closure, a function that is made anew, a method, a partial or a module with a field that cannot "
    "be hashed, only calls of one wrapper share compiled functions)"
)


# --- reports ----------------------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """One difference between two traces.

    Attributes:
        what: the thing that differs, such as `argument x`, `variable params/w`, `mutable` or a field of a module.
        before: its text in the earlier trace; None if it did not exist.
        now: its text in the later trace; None if it does not exist.
    """

    what: str
    before: str | None
    now: str | None

    def __str__(self) -> str:
        return f"{self.what}: {_short(self.before)} before, {_short(self.now)} now"


def _short(text: str | None) -> str:
    if not text:
        return "absent" if text is None else "none"
    return text if len(text) <= _WIDTH or text is _UNSHARED else f"{text[:_WIDTH]}…"


@dataclasses.dataclass(frozen=True)
class Retrace:
    """One trace of the body of a lifted `jit`, of a loop that runs eagerly, or of an applied function.

    Attributes:
        path: the path in the model, with the names of lifts, such as `/encoder/jit(block)`.
        closest: the path of the earlier trace that differs least; None if this is the first trace of the function.
        differences: the differences from that trace.
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
    """The data of one trace.

    Attributes:
        path: its path.
        facts: the facts about it.
        cache: the cache that has it, if any: a trace serves only calls that use this cache.
    """

    path: str
    facts: Facts
    cache: Any = None


class Retraces:
    """The traces that were recorded.

    Attributes:
        records: one for each trace, in order.
    """

    def __init__(self) -> None:
        self.records: list[Retrace] = []
        self._seen: dict[str, list[Known]] = {}

    @property
    def by_path(self) -> dict[str, list[Retrace]]:
        """The traces of each path."""
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
        """Record a trace, with its differences from the closest earlier one.

        Args:
            name: the name of the function; only traces of the same function are compared.
            now: the trace.
            before: traces in a cache, in addition to those that were added here.
        """
        seen, function = self._seen.setdefault(name, []), now.facts.get("function")
        others = (one for one in (*seen[::-1], *before) if one.facts.get("function") == function)
        compared = [(one, tuple(_differences(one, now))) for one in others]
        closest, differences = min(compared, key=lambda pair: len(pair[1]), default=(None, ()))
        self.records.append(Retrace(now.path, closest and closest.path, differences))
        seen.append(now)

    def compiled(self, compiled: Compiled, trace: Signature) -> None:
        """Record a trace of a compiled body, compared with all traces that its cache knows."""
        name, cache = compiled.program.layout.lift.name, compiled.known
        others = [other for other in reversed(list(cache.values())) if other.program.layout.lift.name == name]
        before = [
            Known(one.path, facts_of(other.program, one), cache) for other in others for one in reversed(other.traces)
        ]
        self.add(name, Known(trace.path, facts_of(compiled.program, trace), cache), before)

    def applied(self, fn: Callable[..., Any], root: Scope, mutable: Filter, args: Any, kwargs: Any) -> None:
        """Record a run of a function of a scope by `apply` or `init`, if JAX traces it."""
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
    if before.cache is not now.cache and NOT_COMPARABLE in now.facts:
        yield Difference(NOT_COMPARABLE, before.facts.get(NOT_COMPARABLE), now.facts[NOT_COMPARABLE])
    elif before.cache is not now.cache:
        yield Difference("wrapper", "another one", _UNSHARED)


# --- recorders --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def retraces() -> Iterator[Retraces]:
    """Record the traces in a `with` block, each with its differences from the closest earlier one.

    There is one record for each trace of the body of a lifted `jit`, or of a loop that runs eagerly. There is also one
    each time that the Python code of an applied function (by `apply` or `init`) runs while JAX traces it, as under
    `jax.jit`. A call that uses a compiled function leaves no record.

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
        A context manager that returns a `Retraces`.
    """
    found = Retraces()
    with observing(found):
        yield found


# --- a limit ----------------------------------------------------------------------------------------------------------


def assert_max_traces(n: int) -> MaxTraces:
    """Fail if something is traced more than `n` times; for use in tests.

    As a context manager, it counts the records of `retraces`. As a decorator, it counts how often the Python code of
    the function runs; the function may be a function of a scope, a method or any other. In both cases, the error lists
    the traces, each with its differences from the closest earlier one.

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
        n: the number of traces that are allowed.

    Returns:
        A decorator and context manager; in a `with` statement, it returns a `Retraces`.

    Raises:
        TooManyTracesError: at the end of the `with` block, or when the function runs once too often.
    """
    return MaxTraces(n)


class MaxTraces:
    """The decorator and context manager that `assert_max_traces` returns."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._entered: list[contextlib.AbstractContextManager[Retraces]] = []
        self._found: list[Retraces] = []

    def __call__(self, fn: Callable[..., Any]) -> Counted:
        """Return the function with its runs counted."""
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
    """A function whose Python code may run a limited number of times.

    It is equal only to itself, but a lifted `jit` shares its compiled functions as for the function itself.
    """

    __wrapped__: Callable[..., Any]

    def __init__(self, fn: Callable[..., Any], n: int) -> None:
        functools.update_wrapper(self, fn)
        self._n = n
        self.runs = Retraces()

    def trace_facts(self) -> Facts:
        """Return the facts about the function; see `facts.of_function`."""
        return dict(facts.of_function(self.__wrapped__))

    @property
    def shared_as(self) -> Callable[..., Any]:
        """The function that decides whether compiled functions may be shared."""
        return self.__wrapped__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function, and fail if it has run too often."""
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
    """Return the name of a function; for a method, with its class."""
    return str(getattr(fn, "__qualname__", type(fn).__name__)).rpartition("<locals>.")[2]


def _check(where: str, what: str, found: Retraces, n: int) -> None:
    if len(found) > n:
        told = " ".join(f"({number}) {one}." for number, one in enumerate(found, 1))
        raise TooManyTracesError(
            where,
            f"{what.format(len(found))}, at most {n} {'is' if n == 1 else 'are'} allowed: {told}",
            f"Keep types, fields and static arguments the same, or allow more: `assert_max_traces({len(found)})`.",
            given=len(found),
            expected=n,
        )
