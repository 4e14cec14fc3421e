"""What a row of the table of layers is, and what is compared of two layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Config: TypeAlias = dict[str, Any] | Callable[[Any], dict[str, Any]]

MUTABLE = ["batch_stats", "cache", "intermediates"]


class Row(NamedTuple):
    """One configuration of a layer, and one call of it.

    layer: the name of the Module class.
    config: the fields of the module; a function from the library to them where they hold modules of it.
    inputs: the array, or the tuple of pytrees of arrays, that the module is called with.
    call: the keyword arguments of that call.
    """

    layer: str
    config: Config
    inputs: Any
    call: dict[str, Any] = {}  # noqa: RUF012 - a NamedTuple shares its defaults, and nobody changes this one

    def module(self, library: Any) -> Any:
        """The module of `linen_like` or of its model."""
        return getattr(library, self.layer)(**(self.config(library) if callable(self.config) else self.config))

    @property
    def args(self) -> tuple[Any, ...]:
        return self.inputs if isinstance(self.inputs, tuple) else (self.inputs,)


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Numbers between -1.5 and 2.5 without a pattern, the same in every run."""
    return (0.5 + 2 * np.sin(1.7 * np.arange(1, np.prod(shape) + 1)).reshape(shape)).astype(dtype)


def widening(inputs: Any, kernel: Any, bias: Any = None, *, dtype: Any = None, inexact: bool = True) -> list[Any]:
    """A hook for `promote_dtype`: all in bfloat16, whatever `dtype` says."""
    return [None if x is None else jnp.asarray(x, jnp.bfloat16) for x in (inputs, kernel, bias)]


def doubled(product: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that multiplies or convolves: twice the usual result."""
    return lambda *args, **kwargs: 2 * product(*args, **kwargs)


IMAGE, SERIES, ROWS = array(2, 5, 6, 4), array(2, 7, 4), array(3, 4)
TRAIN, EVAL = {"use_running_average": False}, {"use_running_average": True}
MASK = np.array([[1, 1, 0, 1], [1, 0, 1, 1], [1, 0, 0, 1]], bool)
BF16 = jnp.bfloat16


class Layer(NamedTuple):
    """Two pure functions: `init(rngs, *args)` is `(y, variables)`, `apply(variables, rngs, *args)` `(y, mutated)`."""

    init: Callable[..., Any]
    apply: Callable[..., Any]


def modular(module: Any, row: Row) -> Layer:
    """A module of `linen_like` or of its model, called as the row says."""

    def apply(variables: Any, rngs: Any, *args: Any) -> Any:
        return module.apply(variables, *args, **row.call, rngs=rngs, mutable=MUTABLE)

    return Layer(lambda rngs, *args: module.init_with_output(rngs, *args, **row.call), apply)


def sequences() -> dict[str, Any]:
    """A key for each RNG stream that a row uses."""
    return dict(zip(("params", "dropout", "noise"), jax.random.split(jax.random.key(0), 3), strict=True))


def weighted(y: Any) -> Any:
    """One number of all that is differentiable in a result, in which each element counts differently."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(y) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
    real = [leaf.real - 2 * leaf.imag if jnp.iscomplexobj(leaf) else leaf for leaf in leaves]
    sums = [jnp.sum(leaf * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape)) for leaf in real]
    return sum(sums) if sums else jnp.float32(0)


def differentiable(args: tuple[Any, ...]) -> list[int]:
    """Which of the arguments consist of floating-point numbers."""
    kinds = [{jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in jax.tree.leaves(arg)} for arg in args]
    return [number for number, kind in enumerate(kinds) if kind == {True}]


def everything(layer: Layer, *args: Any) -> dict[str, Any]:
    """All that can be compared of two layers: tree, values, outputs, gradients and mutated state."""
    rngs = sequences()
    first, variables = layer.init(rngs, *args)
    state = {name: found for name, found in variables.items() if name != "params"}

    def loss(params: Any, *args: Any) -> tuple[Any, Any]:
        y, mutated = layer.apply({"params": params, **state} if params else state, rngs, *args)
        return weighted(y), (y, mutated)

    wrt = (0, *(number + 1 for number in differentiable(args)))
    grads, (y, mutated) = jax.grad(loss, wrt, has_aux=True)(variables.get("params", {}), *args)
    return {"init": first, "variables": variables, "y": y, "mutated": mutated, "grads": grads}
