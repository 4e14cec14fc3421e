"""`explain`: how each lift of a function treats every variable and every RNG stream, as text and as data.

The function is traced once, on separate scopes that are observed; nothing is computed. Its lifts are observed in turn,
because the scopes inside a lift have the same class as those outside.

    Watching    a scope that records which variables are read, created and written, and which keys are drawn
    Watch       the records of one body; it is the `watch` of the tree, which is otherwise None
    Watched     the records of one lift; when the lift ends, it becomes an `ExplainedLift`
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from .. import filters
from ..errors import name_of
from ..filters.trees import by_place, flat, under
from ..pipeline.body import Body
from ..pipeline.packing import transformation
from ..pipeline.stages import Changes
from ..scopes.lifts import Advice, Captured
from ..scopes.scope import Scope
from ..scopes.scoped import on_other_scopes
from ..texts import type_text
from ..typing import Filter, Path, Predicate, PyTree
from ..values import only, overlaid

__all__ = ["ExplainedLift", "ExplainedStream", "ExplainedVariable", "Explanation", "Watch", "explain"]

_NOT_LIFTED = "not lifted"
_LIFTED = "lifted"


# --- the data ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ExplainedVariable:
    """One variable in one lift.

    Attributes:
        path: `(collection, *modules, name)`.
        type: its types outside the lift, such as `float32[4,3]`.
        group: the filter that took it, in its short form, or None.
        treatment: the way in which the lift treats it, such as `axis 0`, or `not lifted`.
        created: whether the body created it.
        read: whether the body read its value.
        written: whether the body wrote it.
        hoisted: whether its initial value is computed once, outside the lift.
    """

    path: Path
    type: str
    group: str | None
    treatment: str
    created: bool = False
    read: bool = False
    written: bool = False
    hoisted: bool = False

    @property
    def fate(self) -> str:
        """The effects of the body on it, in words."""
        told = {"created, hoisted": self.hoisted, "created": self.created and not self.hoisted}
        told |= {"read": self.read, "written": self.written}
        return ", ".join(word for word, holds in told.items() if holds) or "untouched"


@dataclasses.dataclass(frozen=True)
class ExplainedStream:
    """One RNG stream in one lift.

    Attributes:
        name: the name that the body uses to draw keys.
        source: the stream that the keys come from: `params`, if no stream of that name was given.
        group: the filter that took it, in its short form, or None.
        treatment: the way in which the lift treats it, such as `split between elements`, or `not lifted`.
        drawn: the number of keys that one run of the body draws; those of inner lifts count once.
    """

    name: str
    source: str
    group: str | None
    treatment: str
    drawn: int = 0


@dataclasses.dataclass(frozen=True)
class ExplainedLift:
    """One call of a lifted function.

    Attributes:
        name: its name in paths, such as `vmap(block)`.
        where: the path of its (first) scope, as in errors.
        variables: the variables at and below its scopes, lifted or not.
        streams: the streams that were given to `init` or `apply`, and those that were drawn from.
        lifts: the lifts in its body.
    """

    name: str
    where: str
    variables: tuple[ExplainedVariable, ...]
    streams: tuple[ExplainedStream, ...]
    lifts: tuple[ExplainedLift, ...] = ()

    @property
    def sequences(self) -> tuple[ExplainedStream, ...]:
        """An alias of `streams`: its former name."""
        return self.streams

    def __str__(self) -> str:
        return "\n".join(_lines(self))


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The treatment of variables and streams by the lifts of a function. `str` shows it as a tree.

    Attributes:
        name: the name of the function.
        lifts: its lifts, in order; each contains the lifts inside it.
    """

    name: str
    lifts: tuple[ExplainedLift, ...]

    def only(self, filter: Filter) -> Explanation:
        """Return an explanation for some variables and streams only; the path of a stream is its name.

        Args:
            filter: a filter of variables and streams.
        """
        return Explanation(self.name, _chosen(self.lifts, filters.to_predicate(filter)))

    def __str__(self) -> str:
        lines = [f"  {line}" for found in self.lifts for line in _lines(found)]
        return "\n".join([self.name, *(lines or ["  (no lifts)"])])


def _chosen(lifts: Sequence[ExplainedLift], predicate: Predicate) -> tuple[ExplainedLift, ...]:
    found = []
    for one in lifts:
        variables = tuple(row for row in one.variables if predicate(row.path, None))
        streams = tuple(row for row in one.streams if predicate((row.name,), None))
        below = _chosen(one.lifts, predicate)
        if variables or streams or below:
            found.append(dataclasses.replace(one, variables=variables, streams=streams, lifts=below))
    return tuple(found)


def _lines(found: ExplainedLift) -> Iterator[str]:
    """Yield the lines of one lift: a row for each variable and each stream, then the lifts inside."""
    rows = [("/".join(one.path), one.type, _rule(one), one.fate) for one in found.variables]
    for key in found.streams:
        source = "" if key.source == key.name else f" (of {key.source})"
        rows.append((f"rng {key.name}{source}", "", _rule(key), f"{key.drawn} drawn" if key.drawn else "untouched"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield f"{found.name} at {found.where}"
    for texts in rows:
        yield "  " + "  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True) if width).rstrip()
    for below in found.lifts:
        yield from (f"  {line}" for line in _lines(below))


def _rule(row: ExplainedVariable | ExplainedStream) -> str:
    return row.treatment if row.group is None else f"{row.group}: {row.treatment}"


# --- the entry point --------------------------------------------------------------------------------------------------


def explain(fn: Callable[..., Any]) -> Callable[..., Explanation]:
    """Explain how each lift in a function of scopes treats every variable and RNG stream.

    The function is traced once, as under `jax.jit`, and nothing is computed. Its scope does not change: no draw counts,
    no name is taken, and no variable is created. The body of a lifted `jit` always runs.

    Example:
        >>> import liftcore
        >>> import jax.numpy as jnp
        >>> def layer(scope, x):
        ...     return x * scope.param("scale", jax.random.normal, ()) + scope.get_variable("consts", "shift")
        >>> elements = liftcore.vmap(layer, variable_axes={"params": 0, "consts": None}, split_rngs={"params": True})
        >>> scope = liftcore.bind({"consts": {"shift": jnp.ones(())}}, jax.random.key(0), mutable=True)
        >>> print(explain(elements)(scope, jnp.ones(5)))
        layer
          vmap(layer) at /
            consts/shift  float32[]   'consts': axis None, one value for all elements  read
            params/scale  float32[5]  'params': axis 0                              created, hoisted, read
            rng params                'params': split between elements                 1 drawn

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`; a lifted function, or one that uses lifts.

    Returns:
        `explained(scopes, *args, **kwargs)`, which returns an `Explanation`. Arrays among the arguments and variables
        may be `jax.ShapeDtypeStruct`. The scope comes from `bind`, or is the one that a function receives.
    """
    name = name_of(fn)

    def transform(body: Body, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        watch = Watch(f"/{body.layout.lift.name}")
        _trace(body.of(functools.partial(_run, fn, watch)), variable_groups, rng_groups, args, kwargs)
        body.forget()
        nothing: tuple[Any, ...] = tuple({} for _ in body.outers)
        return Explanation(name, tuple(watch.lifts)), (Changes(nothing, nothing), tuple([] for _ in nothing))

    advice = Advice('"{}"', '"{}"')  # everything is lifted, so no error uses it
    return transformation(transform, [True], [True, Captured()], [True], "explain", advice=advice)(fn)


def _trace(body: Body, variable_groups: Any, rng_groups: Any, args: Any, kwargs: Any) -> None:
    """Run a function without computing: arrays are abstract, and other values are unchanged."""
    given = variable_groups, rng_groups, args, kwargs

    def run(arrays: PyTree) -> None:
        variable_groups, rng_groups, args, kwargs = overlaid(given, arrays)
        body(variable_groups, rng_groups, *args, **kwargs)

    jax.eval_shape(run, only(given, jax.Array | jax.ShapeDtypeStruct))


def _run(fn: Callable[..., Any], watch: Watch, scopes: PyTree, *args: Any, **kwargs: Any) -> Any:
    def watching(scope: Scope) -> Watching:
        scope.tree.watch = watch
        watching = Watching.over(scope)
        watching.stand_for(scope)
        return watching

    return fn(on_other_scopes(scopes, watching), *args, **kwargs)


# --- observation ------------------------------------------------------------------------------------------------------


class Watching(Scope):
    """A scope that records the use of its variables and streams in the `Watch` of its tree."""

    __slots__ = ()

    def _note(self, kind: str, collection: str, *names: str) -> None:
        if isinstance(self.tree.watch, Watch):
            getattr(self.tree.watch, kind).add((collection, *self.path, *names))

    def get_variable(self, collection: str, name: str, default: Any = None) -> Any:
        self._note("read", collection, name)
        return super().get_variable(collection, name, default)

    def variables(self) -> Any:
        found = super().variables()
        for path in flat(found):
            self._note("read", *path)
        return found

    def param(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self._note("read", "params", name)
        return super().param(name, *args, **kwargs)

    def put_checked(self, collection: str, values: Mapping[str, Any]) -> None:
        super().put_checked(collection, values)
        for name in values:
            self._note("written", collection, name)

    def create_variable(self, collection: str, name: str, value: Any, *, tagged: bool = False) -> None:
        super().create_variable(collection, name, value, tagged=tagged)
        self._note("created", collection, name)

    def count_draw(self, name: str) -> tuple[Any, str, int]:
        drawn = super().count_draw(name)
        if isinstance(self.tree.watch, Watch):
            self.tree.watch.drawn[self.path, name, drawn[1]] += 1
        return drawn


class Watch:
    """The effects of one body, and its lifts.

    Attributes:
        read, created, written: the paths of variables.
        drawn: the number of drawn keys, by path, requested name and stream.
        lifts: the lifts.
    """

    def __init__(self, above: str) -> None:
        self.above = above
        self.read: set[Path] = set()
        self.created: set[Path] = set()
        self.written: set[Path] = set()
        self.drawn: collections.Counter[tuple[Path, str, str]] = collections.Counter()
        self.lifts: list[ExplainedLift] = []

    def lift(self, body: Body) -> Watched:
        """Return the observer of a lift in the body."""
        where = body.outers[0].path_text.replace(self.above, "", 1) or "/"
        return Watched(self, where, [outer.path for outer in body.outers])


class Watched:
    """The observer of one lift."""

    def __init__(self, outside: Watch, where: str, places: Sequence[Path]) -> None:
        self._outside, self._where, self._places = outside, where, places
        self._runs: list[Watch] = []
        self._hoisted: set[Path] = set()

    def body(self) -> Watch:
        """Return the observer of one run of a body; a lift may have several."""
        self._runs.append(Watch(self._outside.above))
        return self._runs[-1]

    def created(self, created: Sequence[PyTree]) -> None:
        """Record the initial values that were computed outside the lift; the others are None."""
        for group in created:
            made = [place for place, value in by_place(group).items() if jax.tree.leaves(value)]
            self._hoisted |= {under(self._places[index], path) for index, path in made}

    def close(self, body: Body) -> None:
        """Add the lift to the records of the body outside, after its outputs were written to the scopes there."""
        total = Watch("")
        for run in self._runs:
            total.read |= run.read
            total.created |= run.created
            total.written |= run.written
            total.drawn |= run.drawn
            total.lifts += [one for one in run.lifts if one not in total.lifts]
        self._outside.drawn += total.drawn
        variables = {row.path: row for row in self._variables(body, total)}
        for path in _captured(body):
            row = variables.get(path, ExplainedVariable(path, "", None, ""))
            treatment = f"sown, {body.layout.lift.advice.captured}"
            variables[path] = dataclasses.replace(row, group=None, treatment=treatment, written=True)
        self._outside.read |= {row.path for row in variables.values() if row.read}
        rows = tuple(variables[path] for path in sorted(variables))
        found = ExplainedLift(body.layout.lift.name, self._where, rows, _streams(body, total), tuple(total.lifts))
        self._outside.lifts.append(found)

    def _variables(self, body: Body, total: Watch) -> Iterator[ExplainedVariable]:
        layout = body.layout
        for outer in body.outers:
            variables = outer.collections_below()
            into, out = (
                {path: index for index, tree in enumerate(trees) for path in flat(tree)}
                for trees in (
                    filters.partition(variables, rules, outer.path)[0] for rules in (layout.lift.into, layout.lift.out)
                )
            )
            # A lift may show a variable in another collection.
            moved = {path[1:] for path in total.read if (path[0], *path[1 + len(outer.path) :]) not in into}
            for relative, value in filters.leaves_of(variables):
                path = under(outer.path, relative)
                yield ExplainedVariable(
                    path,
                    _type(value),
                    *_treatment(body, into.get(relative), out.get(relative)),
                    path in total.created,
                    path in total.read or (relative in into and path[1:] in moved),
                    path in total.written,
                    path in self._hoisted,
                )


def _treatment(body: Body, into: int | None, out: int | None) -> tuple[str | None, str]:
    """Return the filter that took a variable, and the lift's treatment of its group."""
    layout = body.layout
    going_in, coming_out = _word(layout.lift.advice.into, into), _word(layout.lift.advice.out, out)
    if into is None and out is None:
        return None, _NOT_LIFTED
    if into is None:
        return filters.short_form(layout.lift.out[out or 0]), f"{coming_out}, out only"
    group = filters.short_form(layout.lift.into[into])
    if out is None:
        return group, f"{going_in}, in only"
    return group, going_in if going_in == coming_out else f"in: {going_in}; out: {coming_out}"


def _word(words: Sequence[str], index: int | None) -> str:
    return words[index] if index is not None and index < len(words) else _LIFTED


def _captured(body: Body) -> set[Path]:
    """Return the paths of the sown values that came out of a lift outside its groups."""
    sown = body.records[-1].sown if body.layout.lift.captures and body.records else ()
    return {
        (one.collection, *outer.path, *one.path, one.name)
        for outer, values in zip(body.outers, sown, strict=False)
        for one in values
    }


def _streams(body: Body, total: Watch) -> tuple[ExplainedStream, ...]:
    layout, tree = body.layout, body.outers[0].tree
    lifted = {name for outer in body.outers for name in outer.tree.rngs}
    drawn = collections.Counter({(name, name): 0 for name in tree.given})
    for (_, name, source), count in total.drawn.items():
        drawn[name, source] += count
    found = []
    for (name, source), count in drawn.items():
        taken = (at for one in (name, source) for at, rule in enumerate(layout.lift.rngs) if rule((one,), None))
        index = next(taken, None) if source in lifted else None
        group = None if index is None else filters.short_form(layout.lift.rngs[index])
        treatment = _NOT_LIFTED if index is None else _word(layout.lift.advice.rngs, index)
        found.append(ExplainedStream(name, source, group, treatment, count))
    return tuple(found)


def _type(value: Any) -> str:
    """Return the types of the arrays of a variable."""
    return " ".join(map(type_text, jax.tree.leaves(value))) or type(value).__name__
