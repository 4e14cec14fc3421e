"""The only file for differences between JAX releases, and for names that are outside `jax` and `jax.extend`."""

from __future__ import annotations

import contextlib
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex
from jax.interpreters import batching, partial_eval

try:
    from jax.extend.core import get_opaque_trace_state as _opaque_trace_state
except ImportError:  # JAX 0.8
    from jax.core import get_opaque_trace_state as _opaque_trace_state

try:
    from jax.extend.core import mapped_aval
except ImportError:  # JAX 0.8
    from jax.core import mapped_aval  # type: ignore

__all__ = [
    "DRAWS_SHARDED",
    "NUMPY_ARRAYS",
    "auto_axes",
    "callers",
    "checkpoint",
    "closed_over",
    "context_of",
    "eliminated",
    "forget_calls",
    "has_effect",
    "in_context_of",
    "inner_jaxpr",
    "is_eager",
    "is_staging",
    "jaxpr_as_fun",
    "keeps_rules",
    "mapped_aval",
    "needs_python",
    "raw_transformation",
    "release",
    "scan_sizes",
    "trace_state",
    "users_part",
    "vary",
    "varying_axes",
    "with_equations",
    "zeros",
]

jaxpr_as_fun = jex.jaxpr_as_fun


def inner_jaxpr(value: Any) -> jex.Jaxpr:
    """Return the jaxpr in a closed one, or the jaxpr itself. Since JAX 0.12, a closed one is a jaxpr with constants."""
    inner: jex.Jaxpr = getattr(value, "jaxpr", value)
    return inner


def with_equations(value: jex.Jaxpr | jex.ClosedJaxpr, equations: Sequence[Any]) -> Any:
    """Return a jaxpr, closed if it was, with other equations.

    Args:
        value: the jaxpr.
        equations: the equations.
    """
    jaxpr = inner_jaxpr(value).replace(eqns=list(equations))  # type: ignore[no-untyped-call]
    return jex.ClosedJaxpr(jaxpr, value.consts) if isinstance(value, jex.ClosedJaxpr) else jaxpr


def scan_sizes(eqn: Any) -> tuple[int, int]:
    """Return how many inputs of the equation of a `scan` are the same in all iterations, and how many are carried."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    constant, carried, _ = eqn.params["ft_in"].unpack()  # JAX 0.12
    return len(constant), len(carried)


def eliminated(
    jaxpr: jex.Jaxpr, outputs: Sequence[bool] | None = None, inputs: Sequence[bool] | bool = True
) -> tuple[jex.Jaxpr, list[bool]]:
    """Return a jaxpr without the equations that its outputs do not need, also inside those that contain jaxprs.

    Args:
        jaxpr: the jaxpr.
        outputs: for each output, whether to keep it; None for all.
        inputs: for each input, or for all of them, whether to keep it even if no output needs it.

    Returns:
        The jaxpr, and for each input, whether it is kept.
    """
    outputs = [True] * len(jaxpr.outvars) if outputs is None else outputs
    part, kept = partial_eval.dce_jaxpr(jaxpr, list(outputs), inputs)
    return part, list(kept)


_TYPED = tuple(kind for kind in typing.get_args(jax.typing.ArrayLike) if kind.__name__ == "TypedNdArray")

NUMPY_ARRAYS: tuple[Any, ...] = (np.ndarray, np.generic, *_TYPED)
"""The arrays and scalars of NumPy, and the array class that `jax.checkpoint` of JAX 0.8 returns."""

DRAWS_SHARDED = jax.__version_info__ >= (0, 10)
"""Whether `jax.vmap` can draw random arrays from keys that are sharded along the mapped axis by their type."""

_TRANSFORMATIONS = {
    "associative_scan", "checkify", "checkpoint", "closure_convert", "cond", "custom_jvp", "custom_vjp", "custom_vmap",
    "eval_shape", "fori_loop", "grad", "jacfwd", "jacrev", "jit", "jvp", "linearize", "make_jaxpr", "map", "pmap",
    "scan", "shard_map", "switch", "value_and_grad", "vjp", "vmap", "while_loop",
}  # fmt: skip
_BETWEEN = ("contextlib", "functools")


trace_state: Callable[[], Any] = _opaque_trace_state
"""Return a value that stays equal exactly as long as no JAX transformation is entered or left."""

with jax.ensure_compile_time_eval():
    _EAGER = trace_state()


def is_eager() -> bool:
    """Whether JAX computes at once: outside all transformations, and with `jit` enabled."""
    return trace_state() == _EAGER and not jax.config.jax_disable_jit  # type: ignore[attr-defined]


def release(inside: Any, outside: Any) -> None:
    """Let the traces that were begun between two places forget their equations and constants, after an error.

    JAX does so when a trace ends normally. But it registers a finalizer for each constant, which keeps a trace that
    fails for ever: its equations, the constants, and what the error passed through.

    Args:
        inside: the value of `trace_state` in the function that raised, or was called before the error.
        outside: its value where the error arrives. The traces that are running there are left alone.
    """
    running = _traces(outside)
    for number, trace in _traces(inside).items():
        if number not in running and hasattr(trace, "frame"):
            trace.invalidate()


def trace_of(state: Any) -> Any:
    """Return the trace that a value of `trace_state` belongs to, as long as it lives; otherwise None."""
    return getattr(state, "_trace_ref", _nothing)()


def _traces(state: Any) -> dict[int, Any]:
    """Return the traces that are running at a place, by id."""
    found: dict[int, Any] = {}
    todo = [trace_of(state)]
    while todo:
        trace = todo.pop()
        if trace is not None and id(trace) not in found:
            found[id(trace)] = trace
            todo += [getattr(trace, name, None) for name in ("parent_trace", "tangent_trace")]
    return found


def _nothing() -> None:
    return None


class _Staged(Exception):
    """An equation of `_probe` would be made."""


_probe = jex.Primitive("liftcore_probe")


@_probe.def_impl  # type: ignore[untyped-decorator]
def _run_probe(*_: Any) -> bool:
    return False


@_probe.def_abstract_eval  # type: ignore[untyped-decorator]
def _stage_probe(*_: Any) -> Any:
    raise _Staged


def _batch_probe(values: Any, _: Any) -> Any:
    return _probe.bind(*values), None  # type: ignore[no-untyped-call]  # no axis


batching.primitive_batchers[_probe] = _batch_probe


def is_staging() -> bool:
    """Whether an operation becomes an equation of a surrounding trace, such as that of `jax.jit`, and does not run."""
    try:
        staged: bool = _probe.bind()  # type: ignore[no-untyped-call]
    except _Staged:
        return True
    return staged


def keeps_rules(*values: Any) -> bool:
    """Whether a computation from some values may use a custom rule: it does not if it only runs, or is only batched.

    Args:
        *values: the arrays that it reads. `jax.vmap` alone may be between them and the arrays outside.
    """
    try:
        ruled: bool = _probe.bind(*values)  # type: ignore[no-untyped-call]
    except (_Staged, NotImplementedError, KeyError):  # the last two: a derivative, which has no rule for the probe
        return True
    return ruled


def varying_axes(kind: Any) -> frozenset[Any]:
    """Return the mesh axes of a `jax.shard_map` along which values of a type vary."""
    found: frozenset[Any] | None = getattr(kind, "vma", None)
    return kind.mat.varying if found is None else found  # JAX 0.10 has it there


def vary(value: Any, axes: Collection[Any]) -> Any:
    """Return an array whose type varies along more axes."""
    if not axes:
        return value
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(value, tuple(axes), to="varying")
    return jax.lax.pvary(value, tuple(axes))  # type: ignore[attr-defined]  # JAX 0.8


def zeros(kind: Any) -> Any:
    """Return zeros of a type, including the axes along which it varies."""
    return vary(jax.numpy.zeros(kind.shape, kind.dtype), varying_axes(kind))


def _checkpoint(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Apply `jax.checkpoint`, with the behavior of current JAX releases.

    Before JAX 0.10.2, a `cond` around it has no gradient if it takes keys: there, keys cross as their data. In JAX 0.8,
    constants come out of it as a private class: they become arrays of NumPy.
    """

    def call(*operands: Any) -> Any:
        impls = jax.tree.map(lambda leaf: _is_key(leaf) and jax.random.key_impl(leaf), operands)
        words = jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, operands)
        run = jax.checkpoint(lambda *words: fn(*jax.tree.map(_wrapped, words, impls)), **options)
        return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, _TYPED) else leaf, run(*words))

    return call


checkpoint: Callable[..., Callable[..., Any]] = jax.checkpoint if jax.__version_info__ >= (0, 10, 2) else _checkpoint
"""`jax.checkpoint`, with the behavior of current JAX releases."""


def auto_axes(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Apply `jax.sharding.auto_axes`, so that it also works in loops.

    JAX 0.8.0 cannot stack values that are computed on Auto axes for the derivative of a loop. There, the derivative
    computes them again from the arguments.
    """
    run: Callable[..., Any] = jax.sharding.auto_axes(fn, **options)
    return run if jax.__version_info__ >= (0, 8, 1) else checkpoint(run)


def closed_over(traced: Any) -> list[Any]:
    """Return the values of surrounding traces that a traced function uses: the first inputs of its jaxpr."""
    if hasattr(traced, "_consts"):
        return list(traced._consts)
    return list(traced._args_flat[: traced._num_consts])  # JAX 0.8


def closes_over_arrays(traced: Any) -> bool:
    """Return whether a traced function uses arrays that are not arguments; constants of NumPy are not counted."""
    consts = [*closed_over(traced), *traced.jaxpr.consts]
    return any(isinstance(const, jax.Array) and not isinstance(const, NUMPY_ARRAYS) for const in consts)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _wrapped(leaf: Any, impl: Any) -> Any:
    return jax.random.wrap_key_data(leaf, impl=impl) if impl else leaf


def forget_calls(jitted: Any) -> None:
    """Let a `jax.jit` choose its fast path again at the next call of each signature.

    After an error while tracing, it calls that signature through Python for ever, which takes several times as long.
    Traces and compiled programs are kept.
    """
    forget = getattr(jitted, "_clear_cache", None)
    if forget is not None:  # otherwise calls are slower, but correct
        forget()


def has_effect(eqn: Any) -> bool:
    """Whether a jaxpr equation has a side effect; using the name of a mapped axis does not count."""
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in eqn.effects)


def context_of(eqn: Any) -> str:
    """Return a text that is equal for jaxpr equations that were made under the same context managers of JAX."""
    return repr(eqn.ctx)


@contextlib.contextmanager
def in_context_of(eqn: Any) -> Iterator[None]:
    """Run operations in place of an equation: with its names, and under the context managers under which it was made.

    Args:
        eqn: the equation of a jaxpr.
    """
    name = str(eqn.source_info.name_stack)
    with eqn.ctx.manager, jax.named_scope(name) if name else contextlib.nullcontext():
        yield


def raw_transformation() -> str | None:
    """Return the name of the JAX transformation that the user called last, for error messages."""
    found = None
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("jax."):
            name = _transformation(module, frame.f_code)
            found = name if name in _TRANSFORMATIONS else found  # one may call another: the user called the outermost
        elif found is not None and module not in _BETWEEN:
            break
        frame = frame.f_back
    return found


def _transformation(module: str, code: types.CodeType) -> str:
    """Return the public function to which a frame of JAX belongs: `vmap` for `vmap.<locals>.vmap_f`."""
    file = module.rpartition(".")[2]
    if file in ("pmap", "shard_map"):
        return file
    return "jit" if code.co_name == "cache_miss" else code.co_qualname.partition(".")[0]


_OURS = frozenset({"liftcore", "linen_like", "nnx_like", "equinox_like", "pax_like"})
_CALLING = sys.stdlib_module_names | {"jax"}
"""The packages that call functions for ours."""
_PASSING = "liftcore.calls"
"""The module whose functions only pass calls on: where they run says nothing about who called."""


def callers() -> Iterator[str]:
    """Yield the packages of the functions that are running, the innermost first, without those that call for others."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        package, frame = module.partition(".")[0], frame.f_back
        if package not in _CALLING and module != _PASSING:
            yield package


def users_part(entry: types.TracebackType | None, keeps_last: bool) -> types.TracebackType | None:
    """Return the part of a traceback that users see.

    Args:
        entry: the traceback.
        keeps_last: whether the last frame of the library stays, if the error was raised there.
    """
    kept: list[types.TracebackType] = []
    last, inside = None, False
    while entry is not None:
        module = entry.tb_frame.f_globals.get("__name__", "")
        package = module.partition(".")[0]
        inside = package in _OURS or package == "jax" or (inside and package in _CALLING)
        if not inside:
            kept.append(entry)
            last = None
        elif package in _OURS and module != _PASSING:
            last = entry
        entry = entry.tb_next
    if last is not None and keeps_last:
        kept.append(last)
    found = None
    for entry in reversed(kept):
        found = types.TracebackType(found, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return found


def needs_python(error: TypeError) -> bool:
    """Return whether an error of JAX says that a traced value was needed in Python, or that a value is no array."""
    return isinstance(error, jax.errors.ConcretizationTypeError) or _NO_ARRAY.search(str(error)) is not None


_NO_ARRAY = re.compile("not a valid JAX type|as an abstract array")
