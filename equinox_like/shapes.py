"""The shapes and dtypes, or the jaxpr, of a call, without computing it; and a function as a pytree of its arrays."""

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

import liftcore
from liftcore import Rest, is_traceable, jaxpr_of, static_key
from liftcore.calls import boundary, call_user
from liftcore.errors import LiftArgumentError, check_function, name_of, shown
from liftcore.pytrees import check_acyclic
from liftcore.statics import Undescribed

from .formatting import tree_pformat
from .methods import FilteredFunction
from .split import KeyedTree, ScopedAt, SplitResult, SplitTree, check_no_scopes, join, opened, split_keyed

__all__ = ["filter_closure_convert", "filter_eval_shape", "filter_make_jaxpr", "is_typed"]


@boundary
def filter_eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Apply `jax.eval_shape` to a function of any Python objects.

    Example:
        >>> import jax, equinox_like as eqx
        >>> import jax.numpy as jnp
        >>> eqx.filter_eval_shape(lambda x, name: (x.sum(), name), jax.ShapeDtypeStruct((3,), jnp.float32), "net")
        (ShapeDtypeStruct(shape=(), dtype=float32), 'net')

    Args:
        fun: the function, or any callable pytree.
        *args: its arguments; a `jax.ShapeDtypeStruct` may take the place of an array. Scopes are lifted as in
            `liftcore.eval_shape`, and do not change.
        **kwargs: the keyword arguments.

    Returns:
        The result of the call, with a `jax.ShapeDtypeStruct` in place of each array. If one array is in two places, so
        is its `jax.ShapeDtypeStruct`.

    Raises:
        LiftArgumentError: if `fun` returns a scope.
    """
    check_function("filter_eval_shape", fun)
    given, result = SplitTree((fun, args, kwargs), is_typed), SplitResult(f"filter_eval_shape({name_of(fun)})")
    numbers: list[int] = []

    def body(scopes: Any, arrays: list[Any]) -> list[Any]:
        function, args, kwargs = given.join(arrays, scopes)
        found = result.arrays(call_user(result.where, function, *args, **kwargs))
        distinct = {id(array): array for array in found}  # JAX would return another shape for each place of an array
        order = {each: number for number, each in enumerate(distinct)}
        numbers.extend([order[id(array)] for array in found])
        return list(distinct.values())

    shapes = liftcore.eval_shape(body)(given.scopes, given.arrays)
    return result.join([shapes[number] for number in numbers])


def filter_make_jaxpr(fun: Callable[..., Any]) -> Any:
    """Apply `jax.make_jaxpr` to a function of any Python objects.

    Example:
        >>> import jax.numpy as jnp, equinox_like as eqx
        >>> make = eqx.filter_make_jaxpr(lambda x, name: {"y": 2 * x, "name": name})
        >>> jaxpr, shapes, static = make(jnp.ones(3), "net")
        >>> jaxpr
        { lambda ; a:f32[3]. let b:f32[3] = mul 2.0:f32[] a in (b,) }
        >>> shapes, static
        ({'name': None, 'y': ShapeDtypeStruct(shape=(3,), dtype=float32)}, {'name': 'net', 'y': None})

    Args:
        fun: the function, or any callable pytree.

    Returns:
        A function with the arguments of `fun`; a `jax.ShapeDtypeStruct` may take the place of an array. It returns
        three values: the closed jaxpr, whose inputs and outputs are the arrays, and whose constants are the arrays that
        `fun` holds; the result with a `jax.ShapeDtypeStruct` for each array and None for all other leaves; and the
        result with None for each array.

    Raises:
        LiftArgumentError: when it is called with a scope, which a jaxpr cannot have.
    """
    check_function("filter_make_jaxpr", fun)
    return FilteredFunction(_make_jaxpr, fun, {})


def _make_jaxpr(fun: Callable[..., Any], _: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    where = f"filter_make_jaxpr({name_of(fun)})"
    given, result = SplitTree((args, kwargs), is_typed), SplitResult(where)
    if given.scopes:
        raise LiftArgumentError(
            where,
            f"the scope {given.scopes[0].path_text} is among the arguments, but a jaxpr cannot have scopes.",
            "Make a function of variables first: `pure, variables = liftcore.purify(fn, scope, …)`.",
            given=given.scopes[0].path_text,
        )

    def run(*arrays: Any) -> list[Any]:
        args, kwargs = given.join(arrays)
        return result.arrays(call_user(where, fun, *args, **kwargs))

    jaxpr, shapes = liftcore.jaxpr_of(run, *given.arrays)
    nothing = [None] * len(shapes)
    return jaxpr, result.parts.fill(shapes), result.parts.join(nothing)


def is_typed(leaf: Any) -> bool:
    """Return whether a leaf is an array, or has the type of one."""
    return is_traceable(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


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
        now_args, now_kwargs = join(parts.rest, arrays)
        return result.arrays(call_user(where, fn, *now_args, **now_kwargs))

    closed, shapes = jaxpr_of(run, *parts.arrays)
    avals = iter(closed.in_avals)
    types = tuple(one if isinstance(one, ScopedAt) else _type(next(avals)) for one in parts.arrays)
    has_closure = not isinstance(fn, FunctionType) or fn.__closure__ is not None
    bare = closed.jaxpr
    jaxpr = bare.replace(constvars=[], invars=[*bare.constvars, *bare.invars])  # so the structure keeps no array
    source = _jaxpr_key(jaxpr) if has_closure else fn
    return ConvertedFunction(closed.consts, Converted(name_of(fn), jaxpr, source, types, parts.rest, shapes, result))


@dataclasses.dataclass(frozen=True)
class Converted:
    """The static part of a converted function.

    Attributes:
        name: the name of the function.
        jaxpr: its jaxpr, whose first inputs are the constants.
        source: the function if it closes over nothing, else a key of the jaxpr: equal if it computes the same.
        types: the shapes and dtypes of the arrays in its arguments, and their modules that are not bound to a scope.
        rest: the static part of its arguments.
        shapes: the shapes and dtypes of the arrays in its result.
        result: the static part of its result.
    """

    name: str = dataclasses.field(compare=False)
    jaxpr: Any = dataclasses.field(compare=False)
    source: Any
    types: tuple[Any, ...]
    rest: Rest
    shapes: list[Any] = dataclasses.field(compare=False)
    result: SplitResult = dataclasses.field(compare=False)

    def __static_fields__(self) -> dict[str, Any]:
        """Return its key for comparisons."""
        return {"source": self.source, "types": self.types, "rest": self.rest}


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
        return join(self.converted.rest, self.converted.types)

    @property
    def out_struct(self) -> Any:
        """The result, with a `jax.ShapeDtypeStruct` for each array."""
        return self.converted.result.join(self.converted.shapes)

    @boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        converted = self.converted
        parts = _split(args, kwargs)
        types = tuple(one if isinstance(one, ScopedAt) else _type(jax.typeof(one)) for one in parts.arrays)
        if parts.rest != converted.rest or types != converted.types:
            expected, given = _texts(converted.rest, converted.types), _texts(parts.rest, types)
            where = f"filter_closure_convert({converted.name})"
            if parts.unshared:
                _, error = parts.unshared[0]
                value = shown(error.value)
                what = f"its argument {value} cannot be compared with the one that it was converted for."
                raise LiftArgumentError(where, what, error.fix, given=value)
            what = f"it was converted for {expected}, but was called with {given}."
            fix = "Convert it again, for arguments of these types."
            raise LiftArgumentError(where, what, fix, expected=expected, given=given)
        arrays = [one for one in parts.arrays if not isinstance(one, ScopedAt)]  # an unbound module has no scopes
        return converted.result.join(jaxpr_as_fun(ClosedJaxpr(converted.jaxpr, []))(*self.consts, *arrays))


def _type(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _split(args: tuple[Any, ...], kwargs: dict[str, Any]) -> KeyedTree:
    parts = _split_tree((args, kwargs))
    return _split_tree(opened((args, kwargs))) if parts.unshared else parts


def _split_tree(tree: Any) -> KeyedTree:
    check_acyclic(tree)
    return split_keyed(tree, list(map(is_typed, jax.tree.leaves(tree))))


def _texts(rest: Rest, types: tuple[Any, ...]) -> str:
    """Return the arguments of a call, as errors show them."""
    args, kwargs = join(rest, types)
    each = [("", arg) for arg in args] + [(f"{name}=", value) for name, value in kwargs.items()]
    texts = [label + tree_pformat(value, width=sys.maxsize, struct_as_array=True) for label, value in each]
    return f"({', '.join(texts)})"
