"""Recording: runs one `init` without computing, and makes a row for each call of a method in it.

The model is run once by `liftcore.explain`, on types alone, with an interceptor that records what happens. Arguments
and results of a call are recorded where it happens, inside the lifts around it; variables are recorded as they are
stored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import liftcore
from liftcore import ExplainedLift, Variable
from liftcore.diagnostics import costs
from liftcore.errors import name_of
from liftcore.filters import leaves_of
from liftcore.foreign import watching
from liftcore.pytrees import Size, is_array_like, is_array_or_struct, split_leaves
from liftcore.typing import Filter, Path, RNGs

from ..lifecycle.binding import constructor_arguments, deep_clone
from ..lifecycle.context import InterceptorContext, capturing, intercept_methods
from ..lifecycle.fields import Base, map_instances, unlifted

__all__ = ["Notes", "RecordedCall", "Row", "record", "rows_of"]

# --- the calls --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class RecordedCall:
    """One call while it is recorded; see `Row`.

    Attributes:
        place: the path of the module, including the names of lifts.
        bare: whether `module` can run alone: it is one of this library, and the lifts of its class, if any, were
            removed.
        run: the `method=` that runs it.
    """

    path: Path
    place: str
    module: Any
    bare: bool
    method: str
    run: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any = None

    def costs(self, rngs: RNGs, mutable: Filter, names: Sequence[str]) -> dict[str, Any]:
        """Return what the call costs without the model around it, as `liftcore.diagnostics.costs` does."""
        types, others = split_leaves((self.args, self.kwargs), _is_type)
        options: dict[str, Any] = {"method": self.run, "mutable": mutable}

        def init(rngs: RNGs, arrays: Sequence[Any]) -> Any:
            args, kwargs = others.join(arrays)
            return self.module.init(rngs, *args, **options, **kwargs)

        def apply(given: tuple[Any, RNGs, Sequence[Any]]) -> Any:
            variables, rngs, arrays = given
            args, kwargs = others.join(arrays)
            return self.module.apply(variables, *args, rngs=rngs, **options, **kwargs)

        try:
            variables = jax.eval_shape(init, rngs, types)
        except Exception:  # it may need something from around it
            return dict.fromkeys(names)
        return costs(apply, (variables, rngs, types), names)


@dataclasses.dataclass(frozen=True)
class Notes:
    """The record of one run: its calls, the variables at its end, and its lifts.

    Attributes:
        whole: the run itself, of the module with the lifts of its class.
    """

    whole: RecordedCall
    calls: Sequence[RecordedCall]
    variables: Mapping[str, Any]
    lifts: Sequence[ExplainedLift]


def record(
    module: Base, fn: Callable[..., Any], rngs: RNGs, mutable: Filter, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Notes:
    """Run a function of a module as `init` does, and record what it does."""
    calls: list[RecordedCall] = []
    made: dict[str, Any] = {}
    types, others = split_leaves((args, kwargs), _is_type)

    def run(scope: Any, types: Sequence[Any]) -> None:
        above = scope.path_text

        def note(next_fun: Callable[..., Any], args: Any, kwargs: Any, context: InterceptorContext) -> Any:
            inside = context.module.scope
            # A module that is initialized or applied within the model has its own tree.
            if inside is None or context.method_name == "setup" or not inside.path_text.startswith(above):
                return next_fun(*args, **kwargs)
            call = _noted(context, args, kwargs, inside.path_text.removeprefix(above))
            calls.append(call)
            y = next_fun(*args, **kwargs)
            call.outputs = _described(y)
            return y

        def note_part(inside: Any, part: Any, method: str, args: Any, kwargs: Any) -> Callable[[Any], None]:
            path = inside.path[len(scope.path) :]
            place = inside.path_text.removeprefix(above)
            call = RecordedCall(path, place, _described(part), False, method, None, *_described((args, kwargs)))
            calls.append(call)
            return lambda y: setattr(call, "outputs", _described(y))

        args, kwargs = others.join(types)
        with capturing(None), intercept_methods(note), watching(note_part):
            bound = deep_clone(module, scope, False, {}, {})
            if getattr(fn, "is_module_method", False):
                fn(bound, *args, **kwargs)
            else:  # a function of the module, which no interceptor sees
                call = InterceptorContext(bound, name_of(fn), fn)
                note(lambda *args, **kwargs: fn(bound, *args, **kwargs), args, kwargs, call)
        made.update(jax.tree.map(_type, scope.variables()))

    run.__name__ = type(module).__name__
    root = liftcore.bind({}, rngs, mutable, initializing=True)
    with root.temporary():
        explanation = liftcore.explain(run)(root, types)
    whole = RecordedCall((), "", module, True, "", fn, *_described((args, kwargs)))
    return Notes(whole, calls, made, explanation.lifts)


def _noted(context: InterceptorContext, args: tuple[Any, ...], kwargs: dict[str, Any], place: str) -> RecordedCall:
    module, name = context.module, context.method_name
    copy = _unbound(module)
    bare = type(copy) is not type(module) or not module._state.lifts
    is_method = getattr(context.orig_method, "__self__", None) is module
    run = name if is_method else context.orig_method
    return RecordedCall(module.path, place, copy, bare, name, run, *_described((args, kwargs)))


def _unbound(module: Base) -> Any:
    """Return a module without its place, and without the lifts of its class."""
    cls, lifted = type(module), unlifted(type(module))
    copy = deep_clone(module, None, False, {"name": None}, {})
    return copy if lifted is cls else lifted(parent=None, **constructor_arguments(copy))


def _described(tree: Any) -> Any:
    """Return a value in a form that can be kept: types for arrays and variables, and unbound modules."""

    def unbound(one: Base | Variable) -> Any:
        return one.value if isinstance(one, Variable) else _unbound(one)

    tree = map_instances(tree, (Base, Variable), unbound)
    return jax.tree.map(lambda leaf: _type(leaf) if is_array_or_struct(leaf) else leaf, tree)


def _is_type(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)


def _type(leaf: Any) -> Any:
    """Return the type of an array or number, as JAX would compute with it; anything else unchanged."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    if is_array_like(leaf):
        return jax.ShapeDtypeStruct(np.shape(leaf), jax.numpy.result_type(leaf))
    return leaf


# --- the rows ---------------------------------------------------------------------------------------------------------

Named = dict[str, dict[str, Any]]

_PLAIN = (": lifted", ": passed through")
"""The words of `explain` for a lift that only passes a variable on."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One call of a method of a module.

    Attributes:
        path: the names from the root to the module.
        module: an unbound copy of the module; for an instance of a lifted class, one of the class that was lifted. For
            a part of a model of another library, that part.
        method: the name of the method.
        inputs: its arguments after the module: one value, or a tuple that ends with a dict of keyword arguments. Arrays
            are `jax.ShapeDtypeStruct`.
        outputs: its result.
        variables: `{collection: {name: type}}`, as stored: the module's own variables, and those of submodules that
            were not called, whose names are paths. If an earlier row has the same module, there are none.
        sizes: for each collection, the size of these variables and of those in submodules without a row.
        lifts: the lifts around the call, the outermost first, and what each does with `variables`.
        repeated: whether an earlier row has the same module.
        flops: the cost of the call; None if it was not requested, or the call cannot be run alone.
        vjp_flops: the cost of its pullback, including the call itself.
        at_least: whether the counts include a loop of unknown length, which counts as one iteration.
    """

    path: Path
    module: Any
    method: str
    inputs: Any
    outputs: Any
    variables: Named
    sizes: Mapping[str, Size]
    lifts: Mapping[str, tuple[str, ...]]
    repeated: bool = False
    flops: int | None = None
    vjp_flops: int | None = None
    at_least: bool = False


def rows_of(notes: Notes, depth: int | None, show_repeated: bool) -> Iterator[tuple[RecordedCall, Row]]:
    """Yield the calls to show, each with its row.

    Args:
        notes: the record.
        depth: the depth of modules that have rows; calls below count for the rows above them. By default all have rows.
        show_repeated: whether to show each call, instead of only the first one of each module.
    """
    called = {call.path for call in notes.calls}
    shown = {path for path in called if depth is None or len(path) <= depth}
    own, counted = _by_owner(notes.variables, called), _by_owner(notes.variables, shown)
    seen: set[Path] = set()
    for call in notes.calls:
        path, repeated = call.path, call.path in seen
        if path not in shown or (repeated and not show_repeated):
            continue
        seen.add(path)
        variables: Named = {} if repeated else own.get(path, {})
        below = {} if repeated else counted.get(path, {})
        sizes = {name: Size.of(below.get(name, {})) for name in notes.variables}
        lifts = _lifts_round(call, variables, notes.lifts)
        inputs = _inputs(call.args, call.kwargs)
        yield call, Row(path, call.module, call.method, inputs, call.outputs, variables, sizes, lifts, repeated)


def _by_owner(variables: Mapping[str, Any], paths: Iterable[Path]) -> dict[Path, Named]:
    """Assign each variable to the innermost of some modules that contains it, under its path from there."""
    found: dict[Path, Named] = {}
    known = {(), *paths}
    for (collection, *names), value in leaves_of(variables):
        ends = range(len(names) - 1, -1, -1)
        owner = next(tuple(names[:end]) for end in ends if tuple(names[:end]) in known)
        found.setdefault(owner, {}).setdefault(collection, {})["/".join(names[len(owner) :])] = value
    return found


def _inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    values = (*args, kwargs) if kwargs else args
    return values[0] if len(values) == 1 else values


def _lifts_round(call: RecordedCall, variables: Named, lifts: Sequence[ExplainedLift]) -> dict[str, tuple[str, ...]]:
    """Return the lifts around a call, and what each of them does with the variables of its module."""
    names = [part for part in call.place.split("/") if part.endswith(")")]
    paths = {(collection, *call.path, *name.split("/")) for collection, named in variables.items() for name in named}
    done: dict[str, dict[str, None]] = {name: {} for name in names}
    for lift in _all_lifts(lifts):
        if lift.name in done:
            rules = (f"{row.group}: {row.treatment}" for row in lift.variables if row.path in paths and row.group)
            done[lift.name].update(dict.fromkeys(rules))
    return {name: tuple(rule for rule in rules if not rule.endswith(_PLAIN)) for name, rules in done.items()}


def _all_lifts(lifts: Sequence[ExplainedLift]) -> Iterator[ExplainedLift]:
    for lift in lifts:
        yield lift
        yield from _all_lifts(lift.lifts)
