"""`remat` over objects: equal blocks in one surrounding trace share a trace."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import jax

import liftcore
from liftcore.calls import boundary
from liftcore.pytrees import is_array_like
from liftcore.statics import Undescribed, settings_key

from ..crossing.groups import Ref, Still, refs_in
from ..graph.definition import Fixed, StaticDef, has_keys
from .base import MISSING, also_decorator, numbered, title
from .reading import values_read
from .uniform import Uniform

__all__ = ["checkpoint", "remat"]


@also_decorator
def remat(
    f: Callable[..., Any] = MISSING,
    *,
    prevent_cse: bool = True,
    static_argnums: int | Iterable[int] = (),
    policy: Callable[..., bool] | None = None,
) -> Any:
    """`jax.checkpoint` for functions of objects: the backward pass recomputes intermediate values to save memory.

    While a `jit` is traced, calls with equal objects and types share one trace, if all that their code can read is
    equal: in closures, global variables, modules, objects and classes, through every function that it can reach. A call
    has its own trace if that cannot be decided, if its code uses arrays that are not arguments, or if it does more than
    return a value: it prints, logs, reads a file, a clock or random numbers, or changes what it reads. Functions that
    `jax.tree_util.register_pytree_node` was given must depend on their arguments alone.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> class Block(nnx.Module):
        ...     def __init__(self, rngs):
        ...         self.linear = nnx.Linear(3, 3, rngs=rngs)
        ...     @nnx.remat
        ...     def __call__(self, x):
        ...         return jnp.sin(self.linear(x))
        >>> Block(nnx.Rngs(0))(jnp.ones(3)).shape
        (3,)

    Args:
        f: the function; without it the result is a decorator. Methods may be decorated.
        prevent_cse: whether to prevent the compiler from undoing the rematerialization by merging equal operations.
            Inside a `scan`, False is enough, and faster.
        static_argnums: the numbers of arguments that stay Python values, such as flags.
        policy: which intermediate values to save: one of `jax.checkpoint_policies`; by default none.

    Returns:
        The function.
    """
    uniform = Uniform("remat", f, numbered(title("remat", f), f, static_argnums, ()))
    lifted = liftcore.remat(uniform.body, prevent_cse=prevent_cse, policy=policy)

    def pure(values: Any, args: Any, kwargs: Any) -> Any:
        with liftcore.bind(values, creates=False).temporary() as scope:
            return lifted(scope, *args, **kwargs)

    shared = liftcore.SharedTraces(pure)

    @functools.wraps(f)
    @boundary
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        outside = uniform.outside(args, kwargs)
        operands = (outside.values, *outside.args)
        with outside.scope() as scope:
            key_of = functools.partial(_key, f, operands)
            key = key_of()
            return outside.leave(scope, *(pure(*operands) if key is None else shared(key, *operands, again=key_of)))

    return wrapped


checkpoint = remat


def _key(f: Any, operands: Any) -> Hashable | None:
    """Return a key of what a call depends on besides its arrays and the structure of its arguments.

    Args:
        f: the function.
        operands: the arguments, with a `Ref` for each object.

    Returns:
        The key; None if the call must not share a trace, because something that it reads may change unnoticed.
    """
    if type(f) is not types.FunctionType or not all(has_keys(ref.definition) for ref in refs_in(operands)):
        return None
    if not all(map(is_array_like, jax.tree.leaves(operands))):  # the lift gives the better error
        return None
    kinds: dict[type, None] = {}
    values: list[Any] = []
    _collect(jax.tree.structure(operands), kinds, values)
    try:
        # Some settings of JAX that a trace reads, such as `jax_default_prng_impl`, are not in the key of `jax.jit`.
        return settings_key(), tuple(jax.config.values.values()), *values_read(f, kinds, values)
    except Undescribed:
        return None


def _collect(tree: Any, kinds: dict[type, None], values: list[Any]) -> None:
    """Put the classes and the static values in the structure of arguments into a dict and into a list."""
    data = tree.node_data()
    if data is not None:
        kind, static = data
        if isinstance(static, Ref | Still):
            _collect_defined(static.definition, kinds, values)
        else:
            kinds[kind] = None
            values.append(static)
    for child in tree.children():
        _collect(child, kinds, values)


def _collect_defined(part: Any, kinds: dict[type, None], values: list[Any]) -> None:
    if isinstance(part, type):
        kinds[part] = None
    elif type(part) is Fixed or (type(part) is StaticDef and type(part.value) is not Fixed):
        values.append(part.value)
    elif isinstance(part, tuple):
        for below in part:
            _collect_defined(below, kinds, values)
