"""What a layer does before it computes: checks its options and axes, finds its parameters, and chooses a dtype.

Plain options, such as flags and sizes, are checked since `Dense(4, 8)` gives 8 to the flag `use_bias`, and
`LayerNorm(48)` gives 48 to `epsilon`: Python accepts both, and the layer would silently compute something else. Axes
are counted from the front. Parameters are made or found in a scope; if they do not match the inputs, the error also
gives the shape of these.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..calls import hide_frames
from ..errors import Expected, LiftArgumentError, ScopeParamShapeError
from ..scopes.scope import Scope
from ..typing import ArrayLike, Dtype, Initializer, Key, Shape

__all__ = [
    "OptionKind",
    "PromoteDtypeFn",
    "accumulation_dtype",
    "canonicalize_dtype",
    "check_option",
    "check_stored",
    "checks_options",
    "folded",
    "normalize_axes",
    "of_nothing",
    "option_kind",
    "param_for",
    "promote_dtype",
    "to_tuple",
]

Function = TypeVar("Function", bound=Callable[..., Any])


class OptionKind(NamedTuple):
    """The values that an option may have.

    Attributes:
        words: a description of them, for errors.
        allows: called with a value other than None; returns whether it is one.
        example: a value of the kind, as text.
    """

    words: str
    allows: Callable[[Any], bool]
    example: str


def _has_axes(value: Any) -> bool:
    """Return whether a value is an array with axes; other objects may have anything as the attribute `shape`."""
    return isinstance(shape := getattr(value, "shape", ()), tuple) and shape != ()


def _number(least: float | None = None, most: float = 1, types: Any = int | float) -> Callable[[Any], bool]:
    """Return a function that tells whether a value is a number in a range, as far as it is known."""

    def allows(value: Any) -> bool:
        if not isinstance(value, int | float):
            is_array = isinstance(value, np.generic | np.ndarray | jax.Array)
            if not (is_array or hasattr(value, "__jax_array__")) or value.shape:
                return False
            if not any(jnp.issubdtype(value.dtype, kind) for kind in (np.bool_, np.integer, np.floating)):
                return False
            if not is_array or isinstance(value, jax.core.Tracer):
                return True  # not known before the layer runs
            value = np.asarray(value).item()
        return isinstance(value, types) and (least is None or bool(least <= value <= most))

    return allows


def _other_than(*types: type, least: float = -math.inf) -> Callable[[Any], bool]:
    """Return a function that tells whether a value has none of some types, and no axes, and is not too small an int."""

    def allows(value: Any) -> bool:
        return least <= value if type(value) is int else not isinstance(value, types) and not _has_axes(value)

    return allows


_KINDS = {
    "bool": OptionKind("a bool", _number(0, types=int), "True"),
    "int": OptionKind("an int", _other_than(str, bytes, float), "1"),
    "int | Sequence[int]": OptionKind("an int, or several", _other_than(str, bytes), "1"),
    "float": OptionKind("a number", lambda value: not isinstance(value, str | bytes), "1.0"),
}
_RATE = OptionKind("a number", _number(), "0.5")
_COUNT = OptionKind("an int of at least 0", _other_than(str, bytes, float, least=0), "8")
_NAMED = {
    ("float", "epsilon"): OptionKind(
        "a number of at least 0 and less than 1", _number(0, math.nextafter(1, 0)), "1e-6"
    ),
    ("float", "momentum"): OptionKind("a number from 0 to 1", _number(0), "0.9"),
    **{("float", name): _RATE for name in ("rate", "dropout_rate")},
    **{("int", name): _COUNT for name in ("features", "out_features", "num_embeddings", "num_heads")},
}


def option_kind(name: str, annotation: Any) -> OptionKind | None:
    """Return the kind of an option.

    Args:
        name: the name of the option.
        annotation: the text of its type; other annotations have no kind.

    Returns:
        The kind; None if it is not plain, so that it is not checked.
    """
    text = annotation.removesuffix(" | None") if isinstance(annotation, str) else ""
    return _NAMED.get((text, name)) or _KINDS.get(text)


def check_option(where: str, name: str, kind: OptionKind, value: Any, call: str) -> None:
    """Check the value of an option. None is allowed: it stands for a default.

    Args:
        where: the layer, for the error.
        name: the name of the option.
        kind: its kind.
        value: the given value.
        call: the name of the class or function that is called, for the fix.

    Raises:
        LiftArgumentError: if the value is not of the kind.
    """
    if value is None or kind.allows(value):
        return
    example = f"`{call}(…, {name}={kind.example})`"
    if _has_axes(value) and call[0].isupper():
        fix = f"Pass options to the constructor, and arrays to the call: `{call}(…)(x)`."
    elif isinstance(value, str | float) or kind.words.startswith("an int"):
        fix = f"For example, {example}."
    elif isinstance(value, int):
        fix = f"Pass it by name, {example}; the sizes of inputs are no options."
    else:
        fix = f"Pass it by name, {example}."
    raise LiftArgumentError(f"{name} of {where}", Expected(kind.words, given=value), fix, option=name)


def checks_options(fn: Function) -> Function:
    """Decorate a layer, or the constructor of one, so that its plain options are checked; see `option_kind`.

    Args:
        fn: a function or method with annotations as text. If its first argument is a scope, errors show its path.
    """
    parameters = list(inspect.signature(fn).parameters)
    kinds = {name: option_kind(name, text) for name, text in fn.__annotations__.items()}
    checked: Mapping[str, OptionKind] = {name: kind for name, kind in kinds.items() if kind is not None}
    positions = [(number, name) for number, name in enumerate(parameters) if name in checked]

    @functools.wraps(fn)
    def checking(*args: Any, **kwargs: Any) -> Any:
        for number, name in positions:
            given = args[number] if number < len(args) else kwargs.get(name)
            if given is not None and not checked[name].allows(given):
                fail(name, given, args)
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    def fail(name: str, given: Any, args: tuple[Any, ...]) -> None:
        owner = args[0] if args else None
        call = fn.__name__ if parameters[0] != "self" else type(owner).__name__
        path = getattr(owner, "path_text", "") if parameters[0] == "scope" else ""
        check_option(f"{call} at {path}" if path else call, name, checked[name], given, call)

    vars(checking)["same_parameters"] = fn  # for `calls.check_keywords`
    return checking  # type: ignore[return-value]


def to_tuple(value: int | Iterable[int]) -> tuple[int, ...]:
    """Return one int, or several, as a tuple.

    Example:
        >>> to_tuple(3), to_tuple([3, 4])
        ((3,), (3, 4))

    Args:
        value: the int, or the ints.
    """
    return tuple(value) if isinstance(value, Iterable) else (value,)


def normalize_axes(where: str, name: str, axes: int | Iterable[int], ndim: int) -> tuple[int, ...]:
    """Return distinct axes in ascending order, counted from the front.

    Example:
        >>> normalize_axes("layer_norm at /", "reduction_axes", (-1, 1, 2), ndim=3)
        (1, 2)

    Args:
        where: the layer, for the error.
        name: the argument, for the error.
        axes: one or more axes; negative ones count from the back.
        ndim: the number of dimensions of the array.

    Raises:
        LiftArgumentError: if the array has no such axis.
    """
    axes = tuple(axes) if isinstance(axes, Iterable) else (axes,)
    if any(not -ndim <= axis < ndim for axis in axes):
        legal = f"from {-ndim} to {ndim - 1}" if ndim else "none, since it is a scalar"
        raise LiftArgumentError(
            where,
            f"{name} is {axes}, but the inputs have {ndim} dimensions (valid axes: {legal}).",
            f"Check the shape of the inputs, or pass other `{name}`.",
            option=name,
            given=axes,
        )
    return tuple(sorted({axis % ndim for axis in axes}))


# -- parameters --------------------------------------------------------------------------------------------------------


def param_for(
    inputs: ArrayLike | None,
    where: str,
    scope: Scope,
    name: str,
    init_fn: Initializer,
    shape: tuple[int, ...],
    dtype: Dtype,
) -> Any:
    """Return `scope.param(name, init_fn, shape, dtype)`, for a shape that depends on the inputs, if any are given.

    Inputs without features need a kernel without elements; an initializer that divides by fan-in is not called then.

    Raises:
        ScopeParamShapeError: if the stored parameter has another shape; a note gives the shape of the inputs.
    """
    try:
        return scope.param(name, of_nothing(init_fn) if 0 in shape else init_fn, shape, dtype)
    except ScopeParamShapeError as error:
        _note(error, inputs, where)
        raise


def of_nothing(init_fn: Initializer) -> Initializer:
    """Wrap an initializer for a shape without elements, of which it may divide by a size."""

    def init(key: Key, shape: Shape, dtype: Dtype) -> Any:
        try:
            return init_fn(key, shape, dtype)
        except ZeroDivisionError:
            return jnp.zeros(shape, dtype)

    return init


def folded(init_fn: Initializer, flat: Shape) -> Initializer:
    """Wrap an initializer to see a flat shape; the value is folded, inside boxed metadata if there is any."""

    def init(key: Key, shape: Shape, dtype: Dtype) -> Any:
        made = init_fn(key, flat, dtype)
        # Inside the metadata: outside of it, the flat value would be sharded by the names of the folded axes.
        return jax.tree.map(lambda leaf: jnp.reshape(leaf, shape), made)

    return init


def check_stored(
    inputs: ArrayLike | None, where: str, scope: Scope, name: str, value: ArrayLike, shape: tuple[int, ...]
) -> None:
    """Check that a variable that is not a parameter has the shape that the inputs require.

    Raises:
        ScopeParamShapeError: if it has another shape, as for a parameter.
    """
    if jnp.shape(value) != shape:
        error = ScopeParamShapeError(
            f'"{name}" at {scope.path_text}',
            Expected(f"a stored value of shape {shape}", given=jnp.shape(value)),
            "Check the sizes of the module and of its inputs, or call `init` again for this model.",
        )
        _note(error, inputs, where)
        raise error


def _note(error: Exception, inputs: ArrayLike | None, where: str) -> None:
    if inputs is not None:
        error.add_note(f"The {where} was called with inputs of shape {jnp.shape(inputs)}.")


# -- the dtype that a layer computes in --------------------------------------------------------------------------------


def accumulation_dtype(dtype: Dtype) -> Dtype:
    """Return the dtype for sums and averages of a dtype: at least float32, which is precise enough for long sums.

    Example:
        >>> accumulation_dtype(jnp.bfloat16), accumulation_dtype(jnp.int8), accumulation_dtype(jnp.complex64)
        (dtype('float32'), dtype('float32'), dtype('complex64'))

    Args:
        dtype: the dtype of the terms. Integers become float32, as when JAX promotes them with it.
    """
    found = jnp.dtype(dtype)
    is_wide = jnp.issubdtype(found, jnp.inexact) and found.itemsize >= 4
    return found if is_wide else jnp.dtype(jnp.float32)


class PromoteDtypeFn(Protocol):
    """The type of functions that convert inputs and parameters to one dtype, such as `promote_dtype`."""

    def __call__(self, *args: ArrayLike | None, dtype: Dtype | None = None, inexact: bool = True) -> list[Any]:
        """Return the arrays in one dtype, with None for None; see `promote_dtype`."""
        ...


def canonicalize_dtype(*args: ArrayLike | None, dtype: Dtype | None = None, inexact: bool = True) -> Dtype:
    """Return the dtype to compute in.

    Example:
        >>> import jax.numpy as jnp
        >>> canonicalize_dtype(jnp.ones(3, jnp.bfloat16), jnp.ones(3, jnp.float32))
        dtype('float32')
        >>> canonicalize_dtype(jnp.arange(3)), canonicalize_dtype(jnp.arange(3), inexact=False)
        (dtype('float32'), dtype('int32'))

    Args:
        *args: the arrays; None is ignored.
        dtype: the dtype to use, whatever the arrays have; by default, the dtype that they promote to.
        inexact: whether it must be floating or complex; integers then promote with `float32`.

    Raises:
        LiftArgumentError: if `dtype` is neither floating nor complex, and `inexact` is True.
    """
    if dtype is None:
        found = jnp.result_type(*[jnp.asarray(x) for x in args if x is not None])
        return accumulation_dtype(found) if inexact and not jnp.issubdtype(found, jnp.inexact) else found
    if inexact and not jnp.issubdtype(dtype, jnp.inexact):
        raise LiftArgumentError(
            "dtype",
            Expected("a floating or complex dtype for products, means and roots", given=jnp.dtype(dtype)),
            "Pass `dtype=jnp.float32`, or None for that of the inputs and parameters.",
            option="dtype",
        )
    return dtype


def promote_dtype(*args: ArrayLike | None, dtype: Dtype | None = None, inexact: bool = True) -> list[Any]:
    """Convert all arrays to the dtype that `canonicalize_dtype` returns for them; None stays None.

    Example:
        >>> import jax.numpy as jnp
        >>> promote_dtype(jnp.arange(2), None, 1.5)
        [Array([0., 1.], dtype=float32), None, Array(1.5, dtype=float32)]

    Args:
        *args: the arrays; None is ignored.
        dtype: the dtype to use, whatever the arrays have; by default, the dtype that they promote to.
        inexact: whether it must be floating or complex; integers then promote with `float32`.
    """
    dtype = canonicalize_dtype(*args, dtype=dtype, inexact=inexact)
    return [None if x is None else jnp.asarray(x, dtype) for x in args]
