"""`filter_closure_convert`: a function whose closure is a pytree."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from liftcore import Rest, is_array
from liftcore.errors import LiftArgumentError, check_function, name_of

from .keyed import KeyedTree, split_keyed
from .parts import SplitResult, check_no_scopes

__all__ = ["filter_closure_convert"]


def filter_closure_convert(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function as a pytree, the leaves of which are the arrays that it closes over.

    So the function goes through transformations that must know all that it depends on, such as a custom rule.

    Example:
        >>> import jax, equinox_like as eqx
        >>> import jax.numpy as jnp
        >>> def loss(w):
        ...     times_w = eqx.filter_closure_convert(lambda x: w * x, jnp.float32(1))
        ...     assert times_w.consts[0] is w
        ...     return times_w(jnp.float32(3))
        >>> jax.grad(loss)(jnp.float32(2))
        Array(3., dtype=float32)

    Args:
        fn: the function: any pytree that can be called.
        *args: arguments that it will be called with, or others of the same types and with equal static leaves. A
            `jax.ShapeDtypeStruct` may stand for an array.
        **kwargs: those by name.

    Returns:
        A function of these arguments. It has `consts`, the list of arrays that `fn` closes over.

    Raises:
        LiftArgumentError: where a scope is among the arguments or the result; when it is called, where the arguments
            are of other types, or have other static leaves.
    """
    check_function("filter_closure_convert", fn)
    where = f"filter_closure_convert({name_of(fn)})"
    parts = _split(args, kwargs)
    check_no_scopes(where, parts.scopes)
    result = SplitResult(where)

    def run(*arrays: Any) -> list[Any]:
        now_args, now_kwargs = parts.rest.unflatten(arrays)
        return result.arrays(fn(*now_args, **now_kwargs))

    closed = jax.make_jaxpr(run)(*parts.arrays)
    types = tuple((one.shape, one.dtype) for one in closed.in_avals)
    return ConvertedFunction(closed.consts, Converted(name_of(fn), closed.jaxpr, types, parts.rest, result))


@dataclasses.dataclass(eq=False)
class Converted:
    """What is static of a converted function.

    Attributes:
        name: the name of the function.
        jaxpr: what it computes, without its constants.
        types: the shapes and dtypes of its arrays.
        rest: what is static of its arguments.
        result: what is static of its result.
    """

    name: str
    jaxpr: Any
    types: tuple[Any, ...]
    rest: Rest
    result: SplitResult

    def __static_fields__(self) -> dict[str, Any]:
        """What stands for it: nothing else has its `id` as long as something is kept for it."""
        return {"id": id(self)}


@functools.partial(jax.tree_util.register_dataclass, data_fields=["consts"], meta_fields=["converted"])
@dataclasses.dataclass(frozen=True)
class ConvertedFunction:
    """A function as a pytree; see `filter_closure_convert`.

    Attributes:
        consts: the arrays that it closes over.
        converted: what is static of it.
    """

    consts: list[Any]
    converted: Converted

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Computes what the function computes."""
        converted = self.converted
        parts = _split(args, kwargs)
        types = tuple((jax.typeof(one).shape, jax.typeof(one).dtype) for one in parts.arrays)
        if parts.rest != converted.rest or types != converted.types:
            raise LiftArgumentError(
                f"filter_closure_convert({converted.name})",
                f"it was converted for {converted.types} and {converted.rest}, and is called with {types} and "
                f"{parts.rest}.",
                "Convert it again, for arguments of these types.",
            )
        return converted.result.join(jaxpr_as_fun(ClosedJaxpr(converted.jaxpr, self.consts))(*parts.arrays))


def _split(args: tuple[Any, ...], kwargs: dict[str, Any]) -> KeyedTree:
    leaves = jax.tree.leaves((args, kwargs))
    return split_keyed((args, kwargs), [is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves])
