"""The one place for what JAX releases name differently or keep outside `jax` and `jax.extend`."""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core as jex

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
    "TAG",
    "as_array",
    "auto_axes",
    "checkpoint",
    "closed_over",
    "forget_calls",
    "has_effect",
    "is_eager",
    "is_tag",
    "jaxpr_as_fun",
    "mapped_aval",
    "raw_transformation",
    "tag",
    "tag_name",
    "trace_state",
    "vary",
    "varying_axes",
    "zeros",
]

jaxpr_as_fun = jex.jaxpr_as_fun

_TYPED = tuple(kind for kind in typing.get_args(jax.typing.ArrayLike) if kind.__name__ == "TypedNdArray")

NUMPY_ARRAYS: tuple[Any, ...] = (np.ndarray, np.generic, *_TYPED)
"""The arrays and scalars of NumPy. JAX 0.8 has an array of its own beside them, which `jax.checkpoint` returns."""

DRAWS_SHARDED = jax.__version_info__ >= (0, 10)
"""Whether `jax.vmap` can draw random arrays from keys that are sharded along the mapped axis by their type."""

TAG = "liftcore: initial value"
"""The name under which `tag` marks a value; `is_tag` finds it again."""

_TRANSFORMATIONS = {
    "associative_scan", "checkify", "checkpoint", "closure_convert", "cond", "custom_jvp", "custom_vjp", "custom_vmap",
    "eval_shape", "fori_loop", "grad", "jacfwd", "jacrev", "jit", "jvp", "linearize", "make_jaxpr", "map", "pmap",
    "scan", "shard_map", "switch", "value_and_grad", "vjp", "vmap", "while_loop",
}  # fmt: skip
_BETWEEN = ("contextlib", "functools")


trace_state: Callable[[], Any] = _opaque_trace_state
"""Gives a value that compares equal exactly while no JAX transformation has been entered or left."""

with jax.ensure_compile_time_eval():
    _EAGER = trace_state()


def is_eager() -> bool:
    """Whether JAX computes at once: no transformation has been entered, and `jit` is not switched off."""
    return trace_state() == _EAGER and not jax.config.jax_disable_jit  # type: ignore[attr-defined]


def tag(value: Any, name: str = TAG) -> Any:
    """The same pytree, each of its leaves marked: an array that an equation of its own, which does nothing, makes.

    So an initial value has a variable in the jaxpr, where a split can cut; `equations.cut` takes the mark away.

    What was a Python number stays weakly typed: it takes the dtype of what it is computed with.
    """
    return jax.tree.map(lambda leaf: checkpoint_name(as_array(leaf), name), value)  # type: ignore[no-untyped-call]


def varying_axes(kind: Any) -> frozenset[Any]:
    """The axes of the mesh of a `jax.shard_map` that a value of a type varies along."""
    found: frozenset[Any] | None = getattr(kind, "vma", None)
    return kind.mat.varying if found is None else found  # JAX 0.10 tells it elsewhere


def vary(value: Any, axes: Collection[Any]) -> Any:
    """An array that varies along some more axes, by its type."""
    if not axes:
        return value
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(value, tuple(axes), to="varying")
    return jax.lax.pvary(value, tuple(axes))  # type: ignore[attr-defined]  # JAX 0.8


def zeros(kind: Any) -> Any:
    """Zeros of a type, the axes that it varies along included."""
    return vary(jax.numpy.zeros(kind.shape, kind.dtype), varying_axes(kind))


def as_array(value: Any) -> Any:
    """What a jaxpr gave, as an array: a constant comes out as a value of NumPy or Python."""
    return value if isinstance(value, jax.Array) else jax.numpy.asarray(value)


def checkpoint(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`jax.checkpoint`, without what earlier releases of JAX do otherwise.

    Before JAX 0.10.2 a `cond` around it has no gradient if it takes keys: there they cross as their words. Constants
    come out of it as arrays of NumPy, in JAX 0.8 too.
    """
    if jax.__version_info__ >= (0, 10, 2):
        return jax.checkpoint(fn, **options)

    def call(*operands: Any) -> Any:
        impls = jax.tree.map(lambda leaf: _is_key(leaf) and jax.random.key_impl(leaf), operands)
        words = jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, operands)
        run = jax.checkpoint(lambda *words: fn(*jax.tree.map(_wrapped, words, impls)), **options)
        return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, _TYPED) else leaf, run(*words))

    return call


def auto_axes(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`jax.sharding.auto_axes`, in a loop too.

    JAX 0.8.0 cannot stack, for the derivative of a loop, what is computed while axes are Auto: there the derivative
    computes it again from the arguments.
    """
    run: Callable[..., Any] = jax.sharding.auto_axes(fn, **options)
    return run if jax.__version_info__ >= (0, 8, 1) else checkpoint(run)


def closed_over(traced: Any) -> list[Any]:
    """What a function that `jax.jit` traced holds of the traces around it: the first inputs of its jaxpr."""
    if hasattr(traced, "_consts"):
        return list(traced._consts)
    return list(traced._args_flat[: traced._num_consts])  # JAX 0.8


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _wrapped(leaf: Any, impl: Any) -> Any:
    return jax.random.wrap_key_data(leaf, impl=impl) if impl else leaf


def forget_calls(jitted: Any) -> None:
    """Lets a `jax.jit` look at the next call of each signature anew.

    It calls a signature for which tracing once raised an error by a path in Python for ever, which takes several times
    as long. What was traced and compiled is kept.
    """
    forget = getattr(jitted, "_clear_cache", None)
    if forget is not None:  # else calls are slower, and as right
        forget()


def has_effect(eqn: Any) -> bool:
    """Whether a jaxpr equation does anything beside what it computes; to name a mapped axis is none of that."""
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in eqn.effects)


def is_tag(eqn: Any) -> bool:
    """Whether a jaxpr equation is one that `tag` made."""
    return tag_name(eqn) == TAG


def tag_name(eqn: Any) -> str:
    """The name that a jaxpr equation marks a value with, if that is what it does."""
    return str(eqn.params["name"]) if eqn.primitive.name == "name" else ""


def raw_transformation() -> str | None:
    """The name of the JAX transformation that the user called last, for the text of an error."""
    found = None
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("jax."):
            name = _transformation(module, frame.f_code)
            found = name if name in _TRANSFORMATIONS else found  # one may call another: the outermost is the user's
        elif found is not None and module not in _BETWEEN:
            break
        frame = frame.f_back
    return found


def _transformation(module: str, code: types.CodeType) -> str:
    """The public function that a frame of JAX belongs to: `vmap` for `vmap.<locals>.vmap_f`."""
    file = module.rpartition(".")[2]
    if file in ("pmap", "shard_map"):
        return file
    return "jit" if code.co_name == "cache_miss" else code.co_qualname.partition(".")[0]
