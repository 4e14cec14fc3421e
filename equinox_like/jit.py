"""`filter_jit` and `filter_checkpoint`: arrays are traced, and all other leaves are static."""

from __future__ import annotations

import functools
import inspect
import itertools
import warnings
import weakref
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import jax

import liftcore
from liftcore import Rest, is_array
from liftcore.caches import bounded
from liftcore.calls import boundary, call_user
from liftcore.errors import Expected, LiftArgumentError, name_of, shown
from liftcore.statics import Undescribed, kept_with, warn_not_shared

from .methods import MISSING, FilteredFunction, described_by_function, filtered
from .options import OLDER, UNSET, answered_call, check_options, given_options, leaf_name
from .split import ScopedAt, SplitResult, SplitTree, is_dynamic, join, split_keyed, split_result

__all__ = ["filter_checkpoint", "filter_jit"]

_DONATE = ("all", "all-except-first", "warn", "warn-except-first", "none")
_OPTIONS = (
    *("inline", "keep_unused", "compiler_options", "device", "backend"),
    *("variables", "rngs", "variable_shardings", "donate_variables"),
)
_UNUSED = "Some donated buffers were not usable"


def filter_jit(
    fun: Any = MISSING,
    *,
    donate: str = "none",
    default: Any = UNSET,
    fn: Any = UNSET,
    args: Any = UNSET,
    kwargs: Any = UNSET,
    out: Any = UNSET,
    **options: Any,
) -> Any:
    """Apply `jax.jit` to a function of any Python objects: arrays are traced, and all other leaves are static.

    Calls share a trace only if their static leaves are equal in type and value: `True`, `1` and `1.0` are traced
    separately. Scopes among the arguments are lifted as in `liftcore.jit`.

    Example:
        >>> import jax, equinox_like as eqx
        >>> import jax.numpy as jnp
        >>> @eqx.filter_jit
        ... def step(model, x):
        ...     return {**model, "scale": model["scale"] + 1}, model["act"](model["scale"] * x)
        >>> model, y = step({"scale": jnp.float32(2), "act": jnp.square}, jnp.arange(3.0))
        >>> model["act"] is jnp.square, y
        (True, Array([ 0.,  4., 16.], dtype=float32))

    Args:
        fun: the function, or any callable pytree. The arrays that it holds are traced too. If it is left out,
            `filter_jit(donate=…)` is a decorator.
        donate: which buffers the results may reuse; these arrays are deleted by the call. "all": those of the function
            and of all arguments. "all-except-first": those of all arguments but the first. "none": no buffers. "warn"
            and "warn-except-first" are the same as the first two, but JAX warns about buffers that no result can reuse.
        default: the leaves of the arguments to trace: a pytree prefix of bools, or of functions from a leaf to a bool.
            By default, all arrays. JAX raises a TypeError for a leaf that it cannot trace.
        fn: the same as `default`, for the function.
        args: the same for the first parameters, as a tuple with one prefix for each; it overrides `default`.
        kwargs: the same for parameters by name, as a dict; it holds whether they are passed by name or by position.
        out: the same for the result; leaves that are not traced are returned unchanged.
        **options: `inline`, `keep_unused`, `compiler_options`, `device` and `backend` of `jax.jit`; and for scopes,
            `variables`, `rngs`, `variable_shardings` and `donate_variables` of `liftcore.jit`.

    Returns:
        A function with the arguments of `fun`. Its `.lower(*args, **kwargs).compile()` compiles ahead of time.

    Raises:
        LiftArgumentError: if `donate` has another value, or there is no such option; when it is called, if a static
            leaf cannot be hashed, is an array or depends on one, an option is not a prefix, or the function returns a
            scope.
    """
    if donate not in _DONATE:
        raise LiftArgumentError(
            "filter_jit, donate",
            Expected(f"one of {_DONATE}", given=donate),
            'Write `donate="all"`.',
            option="donate",
            available=_DONATE,
        )
    check_options("filter_jit", options, ("donate", *_OPTIONS))
    older = given_options("filter_jit", {}, default=default, fn=fn, args=args, kwargs=kwargs, out=out)
    return filtered(filter_jit, _call, fun, {"donate": donate, **older, **options}, JittedFunction)


@described_by_function
@functools.partial(jax.tree_util.register_dataclass, data_fields=["fun", "options"], meta_fields=["transformation"])
class JittedFunction(FilteredFunction):
    """A function under `filter_jit`."""

    @boundary
    def lower(self, /, *args: Any, **kwargs: Any) -> LoweredFunction:
        """Return the program of a call, to inspect it or to compile it ahead of time.

        Args:
            *args: the positional arguments of the call; a `jax.ShapeDtypeStruct` may take the place of an array.
            **kwargs: the keyword arguments.
        """
        jitted, arguments = _prepared(self.fun, self.options, args, kwargs)
        return LoweredFunction(self, jitted.lower(*arguments))


class LoweredFunction:
    """The program of a call of a jitted function.

    Attributes:
        lowered: the program of the lift.
    """

    def __init__(self, function: JittedFunction, lowered: Any) -> None:
        self._function, self.lowered = function, lowered

    def compile(self, *args: Any, **kwargs: Any) -> CompiledFunction:
        """Compile the program; the arguments are those of `jax.stages.Lowered.compile`."""
        return CompiledFunction(self._function, self.lowered.compile(*args, **kwargs))

    def as_text(self, *args: Any, **kwargs: Any) -> str:
        """Return the text of the program; the arguments are those of `jax.stages.Lowered.as_text`."""
        return self.lowered.as_text(*args, **kwargs)


class CompiledFunction:
    """The compiled program of a call, for all calls with equal static leaves and the same types of arrays.

    Attributes:
        compiled: the compiled program of the lift.
    """

    def __init__(self, function: JittedFunction, compiled: Any) -> None:
        self._function, self.compiled = function, compiled

    @boundary
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the program.

        Raises:
            TypeError: if the arguments have other types, or other static leaves, than those it was compiled for.
        """
        _, arguments = _prepared(self._function.fun, self._function.options, args, kwargs)
        arrays, rest = self.compiled(*arguments)
        return join(rest, arrays)

    def as_text(self) -> str:
        """Return the text of the program."""
        return self.compiled.as_text()


def _call(fun: Callable[..., Any], options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    jitted, arguments = _prepared(fun, options, args, kwargs)
    if options["donate"] in ("all", "all-except-first"):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", _UNUSED)
            arrays, rest = jitted(*arguments)
    else:
        arrays, rest = jitted(*arguments)
    return join(rest, arrays)


def _prepared(
    fun: Callable[..., Any], options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...]]:
    """Return the lifted `jit` and its arguments."""
    name = name_of(fun)
    donate, out, answers = options["donate"], None, None
    given: tuple[tuple[str, Any], ...] = ()
    older = {key: options[key] for key in OLDER if key in options} if len(options) > 1 else {}
    if older:
        args, kwargs, answers = answered_call(f"filter_jit({name})", older, is_dynamic, fun, args, kwargs)
    elif kwargs:
        args, kwargs = _by_position(fun, args, kwargs)
    if len(options) > 1:
        given = tuple([(key, value) for key, value in options.items() if key not in ("donate", *OLDER)])
        out = Rest(options["out"]) if "out" in options else None
    parts = split_keyed((_weakly(fun), args, kwargs), answers)
    for keys, error in parts.unshared:
        where, leaf = f"filter_jit({name})", leaf_name(fun, keys)
        _check_hashable(where, leaf, error)
        warn_not_shared(f"{where}: the static leaf {leaf}", error)
    make = _jitted if parts.unshared else _cache_of(fun)  # do not keep what no other call can use
    jitted = make(name, given, out, donate != "none")
    if donate == "none":
        return jitted, (parts.scopes, parts.arrays, parts.rest)
    first = _first(fun, args, answers) if donate.endswith("-except-first") else range(0)
    gone, kept = _donated(first, parts.arrays)
    return jitted, (parts.scopes, kept, parts.rest, gone)


def _by_position(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the call with as many arguments by position as possible, so that both forms share a trace."""
    try:
        bound = inspect.signature(fun).bind(*args, **kwargs)
    except (TypeError, ValueError):  # the call raises the error
        return args, kwargs
    return bound.args, bound.kwargs


def _cache_of(fun: Any) -> Callable[..., Any]:
    """Return `_jitted` with a cache: kept with the function that is called, which may be filtered."""
    while isinstance(fun, FilteredFunction):
        fun = fun.fun
    return kept_with(fun, _cached) if type(fun) is FunctionType else _shared


def _weakly(fun: Any) -> Any:
    """Return a callable with a weak reference to the function in it: JAX keeps the static part of each call."""
    if type(fun) is FunctionType:
        return weakref.ref(fun)
    if isinstance(fun, FilteredFunction):
        return type(fun)(fun.transformation, _weakly(fun.fun), fun.options)
    return fun


def _strongly(fun: Any) -> Any:
    """Return the callable for which `_weakly` returned this one."""
    if type(fun) is weakref.ref:
        return fun()
    if isinstance(fun, FilteredFunction):
        return type(fun)(fun.transformation, _strongly(fun.fun), fun.options)
    return fun


def _jitted(name: str, options: tuple[tuple[str, Any], ...], out: Rest | None, donates: bool) -> Any:
    """Return the lifted `jit` for all functions of one name; the static part of a call distinguishes them."""

    def body(scopes: Any, arrays: list[Any], rest: Rest, gone: Sequence[Any] = ()) -> tuple[list[Any], Rest]:
        if donates:
            arrays = [one if other is None else other for one, other in zip(arrays, gone, strict=True)]
        fun, args, kwargs = join(rest, arrays, scopes)
        where = f"filter_jit({name})"
        result = call_user(where, _strongly(fun), *args, **kwargs)
        return split_result(where, result, None if out is None else out.value)

    body.__name__ = body.__qualname__ = name
    return liftcore.jit(body, donate_argnames="gone" if donates else (), **dict(options))


def _cached() -> Callable[..., Any]:
    return bounded(256)(_jitted)


_shared = _cached()
"""The cache for all callables that are not plain functions."""


def _donated(first: range, arrays: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the arrays to donate and the arrays to keep, each list with None in the places of the other ones."""
    keeps = [number in first or isinstance(array, ScopedAt) for number, array in enumerate(arrays)]
    pairs = list(zip(arrays, keeps, strict=True))
    return [None if kept else array for array, kept in pairs], [array if kept else None for array, kept in pairs]


def _first(fun: Any, args: tuple[Any, ...], answers: Sequence[bool] | None) -> range:
    """Return the indices of the arrays in the first argument; if there are no arguments, of those in the function."""
    sizes = len(jax.tree.leaves(fun)), len(jax.tree.leaves(args[:1]))
    leaves = map(is_dynamic, jax.tree.leaves((fun, args[:1]))) if answers is None else answers
    traced = list(itertools.islice(leaves, sum(sizes)))
    begin = sum(traced[: sizes[0]])
    return range(begin if args else 0, sum(traced))


def _check_hashable(where: str, leaf: str, error: Undescribed) -> None:
    kind, place = type(error.value), f"{leaf}{error.place}"
    if is_array(error.value):
        what = f"{place} is static, but is {shown(error.value)}."
        fix = "If you marked it as static, write True for it; otherwise, register the class that holds it as a pytree."
        raise LiftArgumentError(where, what, fix, given=shown(error.value))
    if kind.__hash__ is None:
        raise LiftArgumentError(
            where,
            f"{place} is static, but cannot be hashed: {shown(error.value)}.",
            f"{error.fix} Or register {kind.__name__} as a pytree.",
            given=shown(error.value),
        )


# --- recomputation ----------------------------------------------------------------------------------------------------


def filter_checkpoint(
    fun: Any = MISSING, *, prevent_cse: bool = True, policy: Callable[..., bool] | None = None
) -> Any:
    """Apply `jax.checkpoint` to a function of any Python objects.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> eqx.filter_checkpoint(lambda x, name: (jnp.sin(x), name))(jnp.float32(0), "net")
        (Array(0., dtype=float32), 'net')

    Args:
        fun: the function, or any callable pytree. If it is left out, `filter_checkpoint(policy=…)` is a decorator.
        prevent_cse: whether to keep the compiler from merging the recomputation with the first computation; not needed
            inside a scan.
        policy: the intermediate values that are kept: one of `jax.checkpoint_policies`; by default none.

    Returns:
        A function with the arguments of `fun`. Scopes among them are lifted as in `liftcore.remat`.

    Raises:
        LiftArgumentError: if `fun` returns a scope.
    """
    return filtered(filter_checkpoint, _checkpointed, fun, {"prevent_cse": prevent_cse, "policy": policy})


def _checkpointed(
    fun: Callable[..., Any], options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    given, result = SplitTree((fun, args, kwargs)), SplitResult(f"filter_checkpoint({name_of(fun)})")

    def body(scopes: Any, arrays: list[Any]) -> list[Any]:
        function, args, kwargs = given.join(arrays, scopes)
        return result.arrays(call_user(result.where, function, *args, **kwargs))

    return result.join(liftcore.remat(body, **options)(given.scopes, given.arrays))
