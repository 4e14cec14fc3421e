"""`count_operations`: the floating-point operations of a function, counted in the equations that JAX traces.

XLA's own analysis of a program that is not compiled exists on the CPU alone, and counts the body of a loop once. The
numbers here are XLA's where it counts: a product of matrices or a convolution counts a multiplication and an addition
for each term, elementwise arithmetic one operation for each element, and a sum one for each term that is added. Moving
data costs nothing, nor do transcendental functions such as `exp`, which XLA counts apart, nor random draws, whose
operations are those of integers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core as jex

from ..calls import boundary

__all__ = ["OperationCount", "count_operations"]


class OperationCount(NamedTuple):
    """Floating-point operations.

    Attributes:
        operations: the number of operations.
        at_least: whether they include a loop of unknown length, which counts as one iteration.
    """

    operations: int
    at_least: bool


def count_operations(fn: Callable[..., Any]) -> Callable[..., OperationCount]:
    """Count the floating-point operations of a function, without computing or compiling anything.

    A loop counts with all its iterations, and a branch as the most expensive one. A `while_loop`, whose length is
    known only when it runs, counts as one iteration. What the result does not need is not counted.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((5, 5), "float32")
        >>> count_operations(lambda x: x @ x + x)(x)
        OperationCount(operations=275, at_least=False)
        >>> count_operations(lambda x: jax.lax.scan(lambda c, _: (c @ x, None), x, length=10)[0])(x).operations
        2500

    Args:
        fn: a function of pytrees of arrays.

    Returns:
        A function with the arguments of `fn`; arrays may be `jax.ShapeDtypeStruct`.
    """

    @functools.wraps(fn)
    @boundary
    def counted(*args: Any, **kwargs: Any) -> OperationCount:
        jaxpr = jax.make_jaxpr(fn)(*args, **kwargs).jaxpr
        return _of(jaxpr, [True] * len(jaxpr.outvars))

    return counted


def _of(jaxpr: Any, wanted: Sequence[bool]) -> OperationCount:
    """Count the operations that some outputs of a jaxpr need."""
    live = {variable for variable, wants in zip(jaxpr.outvars, wanted, strict=True) if wants and _is_variable(variable)}
    total, at_least = 0, False
    for equation in reversed(jaxpr.eqns):
        needed = [variable in live for variable in equation.outvars]
        if any(needed) or equation.effects:
            live.update(filter(_is_variable, equation.invars))
            count = _of_equation(equation, needed)
            total, at_least = total + count.operations, at_least or count.at_least
    return OperationCount(total, at_least)


def _of_equation(equation: Any, needed: Sequence[bool]) -> OperationCount:
    name, inner = equation.primitive.name, list(_inner(equation))
    if not inner or name in _COSTS:
        return OperationCount(_COSTS.get(name, _elementwise)(equation), False)
    # A loop may need an output that nobody reads, in its next iteration.
    same = {len(one.outvars) for one in inner} == {len(needed)} and name not in ("scan", "while")
    counts = [_of(one, needed if same else [True] * len(one.outvars)) for one in inner]
    numbers = [count.operations for count in counts]
    times = int(equation.params["length"]) if name == "scan" else 1
    operations = max(numbers) if name == "cond" else times * sum(numbers)
    return OperationCount(operations, name == "while" or any(count.at_least for count in counts))


def _is_variable(atom: Any) -> bool:
    return not isinstance(atom, jex.Literal)


def _inner(equation: Any) -> Iterator[Any]:
    """Yield the jaxprs that an equation runs."""
    for value in equation.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, jex.ClosedJaxpr):
                yield one.jaxpr
            elif isinstance(one, jex.Jaxpr):
                yield one


# --- the cost of a primitive ------------------------------------------------------------------------------------------


def _size(atom: Any) -> int:
    return int(math.prod(atom.aval.shape))


def _elementwise(equation: Any) -> int:
    return _size(equation.outvars[0]) if hasattr(equation.outvars[0].aval, "shape") else 0


def _conversion(equation: Any) -> int:
    return _elementwise(equation) if equation.invars[0].aval.dtype != equation.params["new_dtype"] else 0


def _power(equation: Any) -> int:
    """Count the multiplications of repeated squaring, and the division of a negative power."""
    exponent = abs(equation.params["y"])
    products = max(exponent.bit_length() + exponent.bit_count() - 2, 0) + (equation.params["y"] < 0)
    return int(products) * _elementwise(equation)


def _product(equation: Any) -> int:
    """Count a product; one with the number 1 costs nothing, as JAX leaves it out of the program."""
    ones = [isinstance(one, jex.Literal) and np.ndim(one.val) == 0 and one.val == 1 for one in equation.invars]
    return 0 if any(ones) else _elementwise(equation)


def _reduction(equation: Any) -> int:
    return _size(equation.invars[0]) - _size(equation.outvars[0])


def _window(equation: Any) -> int:
    return int(math.prod(equation.params["window_dimensions"]))


def _sort(equation: Any) -> int:
    size = _size(equation.invars[0])
    return size * math.ceil(math.log2(max(size, 1)))


def _dot(equation: Any) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    width = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    return 2 * _size(equation.outvars[0]) * int(width)


def _convolution(equation: Any) -> int:
    """Count the products with elements of the input; those with padding do not count."""
    params, out = equation.params, equation.outvars[0].aval.shape
    lhs, rhs = [one.aval.shape for one in equation.invars]
    numbers = params["dimension_numbers"]
    terms = out[numbers.out_spec[0]] * out[numbers.out_spec[1]] * rhs[numbers.rhs_spec[1]]
    for number, (low, _) in enumerate(params["padding"]):
        steps = np.arange(out[numbers.out_spec[2 + number]]) * params["window_strides"][number] - low
        offsets = np.arange(rhs[numbers.rhs_spec[2 + number]]) * params["rhs_dilation"][number]
        places, hole = steps[:, None] + offsets, params["lhs_dilation"][number]
        size = (lhs[numbers.lhs_spec[2 + number]] - 1) * hole + 1
        terms *= int(((places >= 0) & (places < size) & (places % hole == 0)).sum())
    return 2 * int(terms) // int(params["batch_group_count"])


_MOVES = (
    "reshape", "broadcast_in_dim", "transpose", "squeeze", "expand_dims", "slice", "dynamic_slice", "rev", "gather",
    "dynamic_update_slice", "concatenate", "pad", "iota", "copy", "copy_p", "split", "stack", "unstack", "scatter",
    "bitcast_convert_type",
    "optimization_barrier", "sharding_constraint", "reshard", "device_put", "name", "stop_gradient", "real", "imag",
    "random_seed", "random_wrap", "random_unwrap", "random_bits", "random_split", "random_fold_in", "random_clone",
    "threefry2x32", "rng_bit_generator", "all_gather", "all_to_all", "ppermute", "axis_index", "pvary", "pcast",
    "debug_callback", "pure_callback", "io_callback", "create_token", "empty", "while_cond", "layout_constraint",
)  # fmt: skip
"""Primitives that move data, or that XLA does not count since they draw, exchange or call."""

_TRANSCENDENTAL = (
    "exp", "exp2", "log", "log1p", "expm1", "tanh", "sin", "cos", "tan", "asin", "acos", "atan", "atan2",
    "sinh", "cosh", "asinh", "acosh", "atanh", "sqrt", "rsqrt", "cbrt", "pow", "erf", "erfc", "erf_inv",
)  # fmt: skip

_COSTS: dict[str, Callable[[Any], int]] = {
    **dict.fromkeys((*_MOVES, *_TRANSCENDENTAL), lambda _: 0),
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"), _reduction),
    **dict.fromkeys(("reduce_xor", "argmax", "argmin", "reduce"), _reduction),
    **dict.fromkeys(
        ("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"),
        lambda equation: (_window(equation) - 1) * _elementwise(equation),
    ),
    **dict.fromkeys(
        ("scatter_add", "scatter-add", "scatter-mul", "scatter-min", "scatter-max"),
        lambda equation: _size(equation.invars[2]),
    ),
    "convert_element_type": _conversion,
    "conv_general_dilated": _convolution,
    "dot_general": _dot,
    "integer_pow": _power,
    "logistic": lambda equation: 3 * _elementwise(equation),  # the negation, the sum and the quotient, beside `exp`
    "mul": _product,
    "ragged_dot_general": lambda equation: 2 * _size(equation.outvars[0]) * int(equation.invars[0].aval.shape[-1]),
    "select_and_scatter_add": lambda equation: _window(equation) * _size(equation.invars[0]),
    "sort": _sort,
}
"""The cost of an equation by the name of its primitive; of any other, one operation for each element."""
