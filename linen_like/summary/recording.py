"""Recording: runs one `init` without computing, and records each call of a method in it.

The model is run once by `liftcore.explain`, on types alone, with an interceptor that records what happens. Arguments
and results of a call are recorded where it happens, inside the lifts around it; variables are recorded as they are
stored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import liftcore
from liftcore import ExplainedLift, Variable
from liftcore.errors import name_of
from liftcore.leaves import is_array_like, is_array_or_struct
from liftcore.typing import Filter, Path, PyTree, RNGs

from ..lifecycle.binding import constructor_arguments, deep_clone
from ..lifecycle.context import capturing
from ..lifecycle.fields import Base
from ..lifecycle.interception import InterceptorContext, intercept_methods
from ..lifecycle.naming import map_instances
from . import cost

__all__ = ["Notes", "RecordedCall", "record"]


@dataclasses.dataclass
class RecordedCall:
    """One call while it is recorded; see `Row`.

    Attributes:
        place: the path of the module, including the names of lifts.
        bare: whether `module` has no lifts of its own class: they were removed, or there were none.
        run: the `method=` that runs it.
    """

    path: Path
    place: str
    module: Base
    bare: bool
    method: str
    run: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any = None

    def alone(self, mutable: Filter) -> cost.Alone | None:
        """Return the call, to run it without its surroundings; None if it would be a different call."""
        return cost.Alone(self.module, self.run, mutable, self.args, self.kwargs) if self.bare else None


@dataclasses.dataclass(frozen=True)
class Notes:
    """The record of one run: its calls, the variables at its end, and its lifts.

    Attributes:
        whole: the run itself, of the module with the lifts of its class.
    """

    whole: cost.Alone
    calls: Sequence[RecordedCall]
    variables: Mapping[str, Any]
    lifts: Sequence[ExplainedLift]


def record(
    module: Base, fn: Callable[..., Any], rngs: RNGs, mutable: Filter, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Notes:
    """Run a function of a module as `init` does, and record what it does."""
    calls: list[RecordedCall] = []
    made: dict[str, Any] = {}
    given = args, kwargs

    def run(scope: Any, types: PyTree) -> None:
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

        args, kwargs = cost.joined(given, types)
        with capturing(None), intercept_methods(note):
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
        explanation = liftcore.explain(run)(root, cost.chosen(given, cost.is_type))
    return Notes(cost.Alone(module, fn, mutable, *_described((args, kwargs))), calls, made, explanation.lifts)


def _noted(context: InterceptorContext, args: tuple[Any, ...], kwargs: dict[str, Any], place: str) -> RecordedCall:
    module, name = context.module, context.method_name
    copy = _unbound(module)
    bare = type(copy) is not type(module) or not module._state.lifts
    is_method = getattr(context.orig_method, "__self__", None) is module
    run = name if is_method else context.orig_method
    return RecordedCall(module.path, place, copy, bare, name, run, *_described((args, kwargs)))


def _unbound(module: Base) -> Any:
    """Return a module without its place, and without the lifts of its class."""
    cls = type(module)
    lifted = vars(cls).get("_lifted_class", cls)
    copy = deep_clone(module, None, False, {"name": None}, {})
    return copy if lifted is cls else lifted(parent=None, **constructor_arguments(copy))


def _described(tree: Any) -> Any:
    """Return a value in a form that can be kept: types for arrays and variables, and unbound modules."""

    def unbound(one: Base | Variable) -> Any:
        return one.value if isinstance(one, Variable) else _unbound(one)

    tree = map_instances(tree, (Base, Variable), unbound)
    return jax.tree.map(lambda leaf: _type(leaf) if is_array_or_struct(leaf) else leaf, tree)


def _type(leaf: Any) -> Any:
    """Return the type of an array or number, as JAX would compute with it; anything else unchanged."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    if is_array_like(leaf):
        return jax.ShapeDtypeStruct(np.shape(leaf), jax.numpy.result_type(leaf))
    return leaf
