"""`filter_closure_convert`: turn a function into a pytree of the arrays that it closes over."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from liftcore import Rest, jaxpr_of, static_key
from liftcore.errors import LiftArgumentError, boundary, call_user, check_function, name_of
from liftcore.statics import Undescribed

from .formatting import tree_pformat
from .keyed import KeyedTree, split_keyed
from .parts import SplitResult, check_no_scopes
from .shapes import is_typed

__all__ = ["filter_closure_convert"]


@boundary
def filter_closure_convert(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return a function as a pytree whose leaves are the arrays that it closes over.

    Use it for transformations that must know everything that a function depends on, such as custom rules.

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
        fn: the function, or any callable pytree.
        *args: example arguments: those of later calls must have the same types and equal static leaves. A
            `jax.ShapeDtypeStruct` may take the place of an array.
        **kwargs: the keyword arguments.

    Returns:
        A function of these arguments. Its attribute `consts` is the list of arrays that `fn` closes over; `in_struct`
        has the types of its arguments, as a tuple and a dict, and `out_struct` those of its result. Two of them have
        the same structure if they compute the same.

    Raises:
        LiftArgumentError: if a scope is among the arguments or in the result; when the result is called, if the
            arguments have other types or other static leaves.
    """
    check_function("filter_closure_convert", fn)
    where = f"filter_closure_convert({name_of(fn)})"
    parts = _split(args, kwargs)
    check_no_scopes(where, parts.scopes)
    result = SplitResult(where)

    def run(*arrays: Any) -> list[Any]:
        now_args, now_kwargs = parts.rest.unflatten(arrays)
        return result.arrays(call_user(where, fn, *now_args, **now_kwargs))

    closed, shapes = jaxpr_of(run, *parts.arrays)
    types = tuple(jax.ShapeDtypeStruct(one.shape, one.dtype) for one in closed.in_avals)
    has_closure = not isinstance(fn, FunctionType) or fn.__closure__ is not None
    source = _jaxpr_key(closed.jaxpr) if has_closure else fn
    return ConvertedFunction(
        closed.consts, Converted(name_of(fn), closed.jaxpr, source, types, parts.rest, shapes, result)
    )


@dataclasses.dataclass(eq=False)
class Converted:
    """The static part of a converted function.

    Attributes:
        name: the name of the function.
        jaxpr: its jaxpr, without the constants.
        source: the function if it closes over nothing, else a key of the jaxpr: equal if it computes the same.
        types: the shapes and dtypes of the arrays in its arguments.
        rest: the static part of its arguments.
        shapes: the shapes and dtypes of the arrays in its result.
        result: the static part of its result.
    """

    name: str
    jaxpr: Any
    source: Any
    types: tuple[Any, ...]
    rest: Rest
    shapes: list[Any]
    result: SplitResult

    def __static_fields__(self) -> dict[str, Any]:
        """Return its key for comparisons."""
        return {"source": self.source, "types": self.types, "rest": self.rest}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Converted) and static_key(self) == static_key(other)

    def __hash__(self) -> int:
        return hash(static_key(self))


def _jaxpr_key(jaxpr: Any) -> Any:
    """Return a key that is equal for jaxprs that compute the same; of the jaxpr itself if it holds functions or arrays.

    Variables are compared by the order in which they occur, and parameters of equations by value.
    """
    numbers: dict[Any, int] = {}

    def atom(one: Any) -> Any:
        place = static_key(np.asarray(one.val)) if isinstance(one, Literal) else numbers.setdefault(one, len(numbers))
        return place, str(one.aval)

    def parameter(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return _jaxpr_key(value.jaxpr) if not value.consts else id(value)
        return _jaxpr_key(value) if isinstance(value, Jaxpr) else value

    def described(equation: Any) -> Any:
        inputs, outputs = map(atom, equation.invars), map(atom, equation.outvars)
        parameters = jax.tree.map(parameter, equation.params, is_leaf=lambda one: one is None)
        return str(equation.primitive), tuple(inputs), tuple(outputs), static_key(parameters)

    try:
        ends = tuple(map(atom, (*jaxpr.constvars, *jaxpr.invars)))
        return ends, tuple(map(described, jaxpr.eqns)), tuple(map(atom, jaxpr.outvars))
    except Undescribed:
        return id(jaxpr)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["consts"], meta_fields=["converted"])
@dataclasses.dataclass(frozen=True)
class ConvertedFunction:
    """A function as a pytree; see `filter_closure_convert`.

    Attributes:
        consts: the arrays that it closes over.
        converted: its static part.
    """

    consts: list[Any]
    converted: Converted

    @property
    def in_struct(self) -> Any:
        """The arguments, as a tuple and a dict, with a `jax.ShapeDtypeStruct` for each array."""
        return self.converted.rest.unflatten(self.converted.types)

    @property
    def out_struct(self) -> Any:
        """The result, with a `jax.ShapeDtypeStruct` for each array."""
        return self.converted.result.join(self.converted.shapes)

    @boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        converted = self.converted
        parts = _split(args, kwargs)
        types = tuple(jax.ShapeDtypeStruct(jax.typeof(one).shape, jax.typeof(one).dtype) for one in parts.arrays)
        if parts.rest != converted.rest or types != converted.types:
            raise LiftArgumentError(
                f"filter_closure_convert({converted.name})",
                f"it was converted for {_texts(converted.rest, converted.types)}, but was called with "
                f"{_texts(parts.rest, types)}.",
                "Convert it again, for arguments of these types.",
            )
        return converted.result.join(jaxpr_as_fun(ClosedJaxpr(converted.jaxpr, self.consts))(*parts.arrays))


def _split(args: tuple[Any, ...], kwargs: dict[str, Any]) -> KeyedTree:
    return split_keyed((args, kwargs), list(map(is_typed, jax.tree.leaves((args, kwargs)))))


def _texts(rest: Rest, types: tuple[Any, ...]) -> str:
    """Return the arguments of a call, as errors show them."""
    args, kwargs = rest.unflatten(types)
    each = [("", arg) for arg in args] + [(f"{name}=", value) for name, value in kwargs.items()]
    texts = [label + tree_pformat(value, width=sys.maxsize, struct_as_array=True) for label, value in each]
    return f"({', '.join(texts)})"
