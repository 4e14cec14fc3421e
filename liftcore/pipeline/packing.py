"""What lifts are written with: `transformation` and `outline`, and `pack`, which gives access to scopes."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..calls import hide_frames, raise_interrupt
from ..errors import check_function, name_of
from ..pytrees import check_acyclic, split_leaves
from ..scopes.lifts import Advice, Captured, Lift
from ..typing import Filter, PyTree
from ..values import as_array
from .body import Body, Via
from .checks import check_call
from .splitting import closure_convert
from .stages import Layout, checked_output, commit, dedupe, filter_

__all__ = ["Lifter", "Transform", "keeping_lifter", "lifter_of", "outline", "pack", "transformation"]

Transform = Callable[..., tuple[Any, Sequence[PyTree]]]
"""Called as `transform(body, variable_groups, rng_groups, *args, **kwargs)`; returns the result and output groups."""

_REPACKED = "Write `return result, repack_fn(scope)`."
_FROM_BODY = "Return the groups that `body(…)`, `outline(…)` or `Loop.run` returned, or those of `split.join(…)`."
_ADVICE = Advice('"{}" to `in_variable_filters` and `out_variable_filters`', '"{}" to `rng_filters`')


def transformation(
    transform: Transform,
    in_variable_filters: Sequence[Filter],
    out_variable_filters: Sequence[Filter | Captured],
    rng_filters: Sequence[Filter],
    name: str | None = None,
    *,
    advice: Advice = _ADVICE,
    prepare: Callable[[Callable[..., Any]], Any] | None = None,
    shown: bool = True,
) -> Lifter:
    """Make a lifted transformation, `fn -> lifted`, from a transformation of pure functions of groups.

    Every lift of this library is made with this function.

    Example:
        >>> import jax, liftcore
        >>> def remat(body, variable_groups, rng_groups, *args):
        ...     return liftcore.outline(jax.checkpoint, body, variable_groups, rng_groups, *args)
        >>> my_remat = liftcore.transformation(remat, [True], [True, liftcore.Captured(all=True)], [True])
        >>> def layer(scope, x):
        ...     return x * scope.param("w", lambda key: 2.0)
        >>> liftcore.init(my_remat(layer))(jax.random.key(0), 21.0)
        (Array(42., dtype=float32, weak_type=True), {'params': {'w': Array(2., dtype=float32, weak_type=True)}})

    Args:
        transform: called as `transform(body, variable_groups, rng_groups, *args, **kwargs)`, see `liftcore.Body`;
            returns the result and the output groups, one `Changes` for each output filter.
        in_variable_filters: the filters of the input groups; variables that no filter takes are not lifted.
        out_variable_filters: the filters of the output groups. If the last one is `Captured()`, sown values that no
            other filter takes are returned in an additional last group; with `Captured(all=True)`, all sown values.
        rng_filters: the filters of the groups of RNG streams.
        name: the name of the lift in the paths of errors; by default, the name of `transform`.
        advice: tells users, in error messages, how to make the lift take more variables and streams.
        prepare: called once with each function that is lifted; its result is the `prepared` of the bodies.
        shown: whether the lift appears in the paths of the scopes inside it.

    Returns:
        A function from a function of scopes to `lifted(scopes, *args, **kwargs)`, where `scopes` is a scope or a pytree
        of scopes.

    Raises:
        LiftArgumentError: if `transform`, or later the function, is not callable.
    """
    check_function("transformation", transform)
    name = name or name_of(transform)
    lift = Lift.of(name, in_variable_filters, out_variable_filters, rng_filters, advice, shown)
    return Lifter(transform, lift, prepare)


def pack(
    fn: Callable[..., tuple[Any, Sequence[PyTree]]],
    in_variable_filters: Sequence[Filter],
    out_variable_filters: Sequence[Filter | Captured],
    rng_filters: Sequence[Filter],
    name: str | None = None,
) -> Callable[..., Any]:
    """Make a lifted function from a transformation of groups of variables and RNG streams that creates the scopes.

    If the transformation turns the body into one equation, as `jax.jit` does, use `liftcore.transformation` instead: it
    lets the lift compute initial values outside that equation.

    Example:
        >>> import jax, liftcore
        >>> def with_zeros(fn):  # a lift under which `fn` sees all its parameters as zeros
        ...     def transform(scope_fn, repack_fn, variable_groups, rng_groups, *args):
        ...         scope = scope_fn(jax.tree.map(lambda x: x * 0, variable_groups), rng_groups)
        ...         return fn(scope, *args), repack_fn(scope)
        ...     return pack(transform, ["params"], [], [True])
        >>> def linear(scope, x):
        ...     return x * scope.param("w", lambda key: 2.0)
        >>> liftcore.apply(with_zeros(linear))({"params": {"w": 2.0}}, 21.0)
        0.0

    Args:
        fn: called as `fn(scope_fn, repack_fn, variable_groups, rng_groups, *args, **kwargs)`; returns the result and
            the output groups. `scope_fn(variable_groups, rng_groups, mutable=True)` creates scopes from groups, in the
            structure of the scopes that the lifted function received; `repack_fn(scopes)` returns their output groups,
            one `Changes` for each output filter.
        in_variable_filters: the filters of the input groups; variables that no filter takes are not lifted.
        out_variable_filters: the filters of the output groups. If the last one is `Captured()`, sown values that no
            other filter takes are returned in an additional last group; with `Captured(all=True)`, all sown values.
        rng_filters: the filters of the groups of RNG streams.
        name: the name of the lift in the paths of errors; by default, the name of `fn`.

    Returns:
        `lifted(scopes, *args, **kwargs)`, where `scopes` is a scope or a pytree of scopes.

    Raises:
        LiftArgumentError: if `fn` is not callable.
    """
    check_function("pack", fn)
    name = name or name_of(fn)

    def transform(body: Body, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        given = body.scope_fn, body.repack_fn, variable_groups, rng_groups
        try:
            output = fn(*given, *args, **kwargs)
        except TypeError as error:
            check_call(error, body, fn, given, args, kwargs)
            raise
        return checked_output(body, output, _REPACKED)

    return _lifted(None, transform, Lift.of(name, in_variable_filters, out_variable_filters, rng_filters, _ADVICE))


def outline(
    transformation: Callable[[Callable[..., Any]], Callable[..., Any]],
    body: Body,
    *operands: Any,
    via: Via | None = None,
    late: bool = True,
) -> tuple[Any, tuple[Any, ...]]:
    """Apply a transformation to a body without the computation of initial values, which then runs outside.

    Args:
        transformation: a transformation such as `jax.checkpoint`, from a pure function to one with the same arguments.
        body: the body.
        *operands: the arguments of the body: groups of variables, groups of streams, and others; pytrees of arrays.
        via: if given, called as `via(body, *operands)` in place of the body, when the operands are others; returns the
            result and the output groups.
        late: whether the transformation may keep its function and run it after the call, as JAX does with the rule of a
            derivative. False saves a trace if nothing can be created.

    Returns:
        The result and the output groups.
    """
    run = body if via is None else functools.partial(via, body)
    if body.creates:
        split = body.split(*operands, via=via)
        created = split.prologue(*operands)
        # A function that is kept must hold no values of a trace, and no scopes.
        held, others = split_leaves(split.consts, lambda const: isinstance(const, jax.core.Tracer))
        bare = split.closed_over(())

        def remainder(held: Sequence[Any], created: Any, *operands: Any) -> Any:
            return bare.closed_over(others.join(held)).remainder(created, *operands)

        outputs = transformation(remainder)(held, created, *operands)
        return split.join(created, *jax.tree.map(as_array, outputs))

    def reads(*operands: Any) -> Any:  # groups without changes would only add outputs to the equation
        return run(*operands)[0], ()

    pure = run if body.writes else reads
    if late:
        converted, consts, _ = closure_convert(pure, *operands)
        outputs = transformation(converted)(consts, *operands)
    else:
        outputs = transformation(pure)(*operands)
    if not body.writes:
        return outputs[0], body.unchanged
    result, groups = jax.tree.map(as_array, outputs)
    return result, groups


def lifter_of(lifted: Callable[..., Any], fn: Callable[..., Any]) -> Lifter | None:
    """Return the transformation that made a lifted function, to apply it to further functions.

    Its options are then checked and processed only once. This saves time in a Module layer, which makes a new function
    for each call of a lifted method.

    Example:
        >>> import jax, liftcore
        >>> double, triple = lambda scope, x: 2 * x, lambda scope, x: 3 * x
        >>> lift_any = liftcore.lifter_of(liftcore.vmap(double, in_axes=1), double)
        >>> liftcore.apply(lift_any(triple))({}, jax.numpy.ones((2, 4))).shape
        (4, 2)

    Args:
        lifted: the result of applying a transformation to a function.
        fn: that function; it must be the same object.

    Returns:
        The transformation with its options; None if nothing can be reused, or more than one lift was applied.
    """
    origin = getattr(lifted, "__lifter__", None)
    return origin.lifter if isinstance(origin, _Origin) and origin.is_of(lifted) and origin.fn is fn else None


def keeping_lifter(outside: Callable[..., Any], lifted: Callable[..., Any]) -> Callable[..., Any]:
    """Let `lifter_of` return for a wrapper of a lifted function what it returns for the lifted function.

    Args:
        outside: the wrapper.
        lifted: the lifted function.
    """
    origin = lifted.__dict__.get("__lifter__")
    if isinstance(origin, _Origin):
        outside.__dict__["__lifter__"] = dataclasses.replace(origin, lifted=weakref.ref(outside))
    return outside


@dataclasses.dataclass(eq=False, repr=False)
class Lifter:
    """A lifted transformation with its options; `lifter(fn)` returns the lifted function.

    Example:
        >>> import liftcore
        >>> def run(body, variable_groups, rng_groups, x):
        ...     return body(variable_groups, rng_groups, x)
        >>> lifter = liftcore.transformation(run, [True], [True], [True])
        >>> liftcore.apply(lifter(lambda scope, x: x + 1))({}, 2)
        3

    Args:
        transform: the transformation.
        lift: its name and filters.
        prepare: called with each function, for the `prepared` of its bodies; None if there is nothing to prepare.
    """

    transform: Transform
    lift: Lift
    prepare: Callable[[Callable[..., Any]], Any] | None = None

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return the lifted function.

        Args:
            fn: the function of scopes.

        Raises:
            LiftArgumentError: if it is not callable.
        """
        name = self.lift.name
        check_function(name, fn)
        prepared = None if self.prepare is None else self.prepare(fn)
        origin = getattr(fn, "__lifter__", None)
        inner = origin.name if isinstance(origin, _Origin) and origin.is_of(fn) else name_of(fn)
        # With all its lifts only if one of them has the same name, so that paths tell the two apart.
        shown = inner if f"{name}(" in inner else name_of(fn)
        lifted = _lifted(fn, self.transform, self.lift._replace(name=f"{name}({shown})"), prepared)
        if hasattr(fn, "__name__"):
            functools.update_wrapper(lifted, fn)
        lifted.__dict__["__lifter__"] = _Origin(weakref.ref(lifted), fn, self, f"{name}({inner})")
        return lifted


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class _Origin:
    """Records the lifter and the function that a lifted function was made of. Pickles leave it out."""

    lifted: weakref.ref[Any] | None = None
    fn: Any = None
    lifter: Lifter | None = None
    name: str = ""

    def is_of(self, lifted: Any) -> bool:
        """Whether this record is of this lifted function; `functools.wraps` copies attributes to other functions."""
        return self.lifted is not None and self.lifted() is lifted

    def __reduce__(self) -> Any:
        return _Origin, ()


def _lifted(
    fn: Callable[..., Any] | None, transform: Transform, lift: Lift, prepared: Any = None
) -> Callable[..., Any]:
    """Return a lifted function.

    Args:
        fn: the function of scopes; None if the transformation calls its function itself.
        transform: the transformation.
        lift: its name and filters.
        prepared: see `Body`.
    """

    def lifted(scopes: PyTree, *args: Any, **kwargs: Any) -> Any:
        check_acyclic((*args, *kwargs.values()))
        # The stages dedupe and filter: everything that happens before the transformation.
        outers, given, routes, structure = dedupe(scopes)
        if lift.own:
            lift.check_streams([name for outer in outers for name in outer.tree.rngs])
        variable_groups, rng_groups, unlifted = filter_(outers, lift.into, lift.rngs)
        surroundings = tuple([outer.tree.surroundings(type(outer), outer.path) for outer in outers])
        names = tuple([scope.names() for scope in given])
        body = Body(fn, Layout(lift, structure, routes, surroundings, names, unlifted), outers, given, prepared)
        try:
            with body.running():
                # The stage transform. The body reconstructs scopes in it, and repacks their changes.
                output = transform(body, variable_groups, rng_groups, *args, **kwargs)
                result, groups = checked_output(body, output, _FROM_BODY)
        except BaseException as error:
            if isinstance(error, TypeError):
                check_call(error, body, transform, (body, variable_groups, rng_groups), args, kwargs)
            body.release()
            raise_interrupt(error)
            hide_frames(error)
            raise
        commit(body, groups)  # the last stage; if the transformation raised, nothing outside has changed
        return result

    lifted.__name__ = lifted.__qualname__ = lift.name
    return lifted
