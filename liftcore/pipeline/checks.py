"""Checks of the values that the author of a transformation passes to the pipeline, so that errors come early."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax.extend import core as jex

from .._compat import is_tag, needs_python
from ..errors import LiftArgumentError, LoopInvarianceError, note_call, shown
from ..filters import asking_further, short_form
from ..scopes.lifts import Captured, Lift
from ..scopes.scope import Scope
from ..typing import Predicate, PyTree
from .changes import Changes

if TYPE_CHECKING:
    from .body import Body

__all__ = [
    "check_call",
    "check_filters",
    "check_given",
    "check_marked",
    "check_stream_names",
    "checked_output",
    "not_shared",
]


def check_filters(name: str, **filters: Sequence[Any]) -> None:
    """Check that filters are given as lists, and that a `Captured` is the last output filter."""
    for what, given in filters.items():
        where = f"{what} of {name}"
        if not isinstance(given, tuple | list):
            raise LiftArgumentError(
                where, f"expected a list of filters, one for each group, given {shown(given)}.", f"Write `[{given!r}]`."
            )
        if any(isinstance(one, Captured) for one in (given[:-1] if what == "out_variable_filters" else given)):
            raise LiftArgumentError(where, "`Captured()` must be the last output filter.", "Move it to the end.")
    for one in filters.get("rng_filters", ()):
        found = asking_further(one)
        if found is not None:
            raise _no_stream_filter(name, found)


def check_stream_names(lift: Lift, outers: Sequence[Scope]) -> None:
    """Check that predicates that a user wrote for RNG streams are not predicates over the paths of variables.

    One that looks for more than the name of a stream, and matches no stream that was given, would have no effect.
    """
    for matches in lift.own:
        paths = [_StreamPath((name,)) for outer in outers for name in outer.tree.rngs]
        try:
            taken = [path for path in paths if matches(path, None)]
        except Exception as error:  # such as for the attribute of a value
            raise _no_stream_filter(lift.name, matches) from error
        if not taken and any(path.looked_further for path in paths):
            raise _no_stream_filter(lift.name, matches)


def _no_stream_filter(name: str, filter: Predicate) -> LiftArgumentError:
    return LiftArgumentError(
        f"the RNG streams of {name}",
        f'{short_form(filter)} asks about paths or values, but a stream has only a name, such as "params".',
        "Filter streams by name. To split keys for a part of the variables, draw these from a stream of their own: "
        '`scope.param("w", lambda key: init(scope.make_rng("head"), shape))`, with '
        '`split_rngs={"head": True, "params": False}`.',
    )


class _StreamPath(tuple[str, ...]):
    """The path of an RNG stream, `(name,)`. It notes whether a predicate looks for anything else.

    Attributes:
        looked_further: whether it did.
    """

    looked_further = False

    def __contains__(self, item: object) -> bool:
        self.looked_further = True
        return super().__contains__(item)

    def __iter__(self) -> Iterator[str]:
        self.looked_further = True
        return super().__iter__()

    def __len__(self) -> int:
        self.looked_further = True
        return super().__len__()

    def __getitem__(self, place: Any) -> Any:
        self.looked_further |= place != 0
        return super().__getitem__(place)


def check_given(body: Body, variable_groups: Any, rng_groups: Any) -> None:
    """Check that a body is called with groups, and with as many groups of streams as the lift has filters for them."""
    each, streams = len(body.outers), len(body.layout.lift.rngs)
    if not _are_groups(variable_groups, each):
        raise _no_groups(body, f"groups of variables, given {_shape(variable_groups)}")
    if not _are_groups(rng_groups, each) or len(rng_groups) != streams:
        raise _no_groups(body, f"the {streams} groups of RNG streams, given {_shape(rng_groups)}")


def _are_groups(groups: Any, each: int) -> bool:
    """Whether a value consists of groups, each with one tree for each outermost scope."""
    if not isinstance(groups, tuple | list):
        return False
    return False not in [isinstance(group, tuple | list) and len(group) == each for group in groups]


def _no_groups(body: Body, what: str) -> LiftArgumentError:
    return LiftArgumentError(
        body.where,
        f"the body was called with {what}.",
        "Write `body(variable_groups, rng_groups, …)`, with groups that have the structure of the given ones.",
    )


def check_call(
    error: TypeError,
    body: Body,
    transform: Callable[..., Any],
    given: Sequence[Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> None:
    """Add a note to an error of a transformation, if it did not take its arguments or JAX did not take theirs.

    Args:
        error: the error.
        body: the body that the transformation was given.
        transform: the transformation.
        given: the arguments before those of the lifted function.
        args: the positional arguments of the lifted function.
        kwargs: its keyword arguments.
    """
    note_call(error, body.where, transform, (*given, *args), kwargs)
    if needs_python(error) and (transform.__module__ or "").partition(".")[0] != __name__.partition(".")[0]:
        _advise_filtered(error, body, {**dict(enumerate(args, 1)), **kwargs})


def _advise_filtered(error: TypeError, body: Body, arguments: Mapping[Any, Any]) -> None:
    """Add to an error of JAX how a lift of one's own takes Python values."""
    flags = [name for name, value in arguments.items() if isinstance(value, bool | str)]
    if flags and not any("`liftcore.filtered" in note for note in getattr(error, "__notes__", ())):
        error.add_note(
            f"{body.where} was called with Python values as the arguments {flags}, and JAX traces all arguments. To "
            "keep Python values as they are, lift the function with `liftcore.filtered(lift, fn)`."
        )


def checked_output(body: Body, output: Any, fix: str) -> tuple[Any, Sequence[PyTree]]:
    """Return the result and the output groups that a transformation returned, or raise if they have another form."""
    result, groups = output if isinstance(output, tuple) and len(output) == 2 else (None, None)
    if groups is body.unchanged:
        return result, groups
    wanted, captures = len(body.layout.lift.out), body.layout.lift.captures is not None
    right = isinstance(groups, tuple | list) and len(groups) == wanted + captures
    if groups is not None and right and all(isinstance(group, Changes) for group in groups[:wanted]):
        return result, groups
    raise LiftArgumentError(
        body.where,
        f"a transformation must return the result and the output groups, one `Changes` for each of its {wanted} output "
        f"filters{' and the captured values' if captures else ''}; given {jax.tree.structure(output)}.",
        fix,
    )


def _shape(groups: Any) -> str:
    """Describe briefly a value that was given for groups."""
    if isinstance(groups, tuple | list):
        return f"a {type(groups).__name__} of {len(groups)}"
    return shown(groups)


def check_marked(jaxpr: jex.Jaxpr, count: int, body: Body) -> None:
    """Check that initial values are marked; only then can they be separated from what is computed from them."""
    marks = {var for eqn in jaxpr.eqns if is_tag(eqn) for var in eqn.outvars}
    if all(not isinstance(var, jex.Literal) and var in marks for var in jaxpr.outvars[:count]):
        return
    raise LiftArgumentError(
        body.where,
        "a transformation ran a body other than the one that it received, so initial values are not marked.",
        "In `iteration(body, …)` and `via(body, …)`, call that `body`.",
    )


def not_shared(body: Body, names: Collection[str]) -> LoopInvarianceError:
    """Return the error for variables that all elements of a batch share, but whose initial values differ."""
    return LoopInvarianceError(
        body.where,
        f"{sorted(names)} is shared by all elements (axis None), but its initial value differs between them.",
        "Give its group an axis, in `group_axes`, or do not split the stream that its initializer draws from.",
    )
