"""Lifted `jax.eval_shape`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..pipeline.body import Body
from ..runners.arguments import passing_all
from ..runners.axes import split_arrays
from ..scopes.lifts import Advice
from ..typing import Filter

__all__ = ["eval_shape"]

_ADVICE = Advice('"{}" to `variables`', '"{}" to `rngs`', ("its types only",), ("left unchanged",), ("its types only",))


def eval_shape(fn: Callable[..., Any], *, variables: Filter = True, rngs: Filter = True) -> Callable[..., Any]:
    """`jax.eval_shape` for a function of scopes: the shapes and dtypes of its result, without computing it.

    The body may create, write, draw, name and sow. Afterwards the scopes are unchanged.

    Example:
        >>> import jax, liftcore
        >>> from liftcore.nn import dense
        >>> def model(scope, x):
        ...     hidden = eval_shape(dense)(scope, x, 5)
        ...     return dense(scope, x, 2 * hidden.shape[-1])
        >>> y, variables = liftcore.init(model)(jax.random.key(0), jax.numpy.ones((1, 3)))
        >>> y.shape, sorted(variables["params"])
        ((1, 10), ['bias', 'kernel'])

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.

    Returns:
        `lifted(scopes, *args, **kwargs)`, which returns a pytree of `jax.ShapeDtypeStruct`. Arguments may be
        `jax.ShapeDtypeStruct`, too. Arguments that are not arrays, such as flags, are passed on unchanged.
    """

    def transform(body: Body, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        arrays, join = split_arrays((variable_groups, rng_groups, args, kwargs))

        def run(arrays: Sequence[Any]) -> Any:
            variable_groups, rng_groups, args, kwargs = join(arrays)
            return body(variable_groups, rng_groups, *args, **kwargs)[0]

        shapes = jax.eval_shape(run, arrays)
        body.forget()
        return shapes, body.unchanged

    return passing_all(transform, "eval_shape", variables, rngs, _ADVICE)(fn)
