"""A row's layer as pure functions of variables, keys and arguments, its method lifted or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import linen_like as nn
from tests.layers.row import MUTABLE, Row, differentiable, weighted

__all__ = ["Layered", "trained_of"]


class Layered:
    """The functions `init(rngs, *args)` and `apply(variables, rngs, *args)` of a row, and what is made of them.

    Args:
        row: the layer and how it is called.
        lift: a transformation of `call(mdl, *args)`.
    """

    def __init__(self, row: Row, lift: Callable[..., Any] = lambda call: call) -> None:
        def call(mdl: Any, *args: Any) -> Any:
            return mdl(*args, **row.call)

        module, fn = row.module(nn), lift(call)
        self.init = nn.init_with_output(fn, module)
        applied = nn.apply(fn, module, mutable=MUTABLE)
        self.apply = lambda variables, rngs, *args: applied(variables, *args, rngs=rngs)

    def both(self, rngs: Any, *args: Any) -> tuple[Any, Any]:
        """The outcome of `init`, and that of `apply` on the variables it made."""
        made = self.init(rngs, *args)
        return made, self.apply(made[1], rngs, *args)

    def loss(self, variables: Any, rngs: Any, trained: Any, *args: Any) -> tuple[Any, Any]:
        """One number of the result in which each finite element counts differently, and the outcome of `apply`."""
        outcome = self.apply({**variables, **trained}, rngs, *args)
        finite = jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, 0), outcome[0])
        return weighted(finite), outcome

    def gradients(self, variables: Any, rngs: Any, *args: Any) -> Any:
        """That number, the outcome, and the gradients with respect to what is trained and floating arguments."""
        wrt = (2, *(number + 3 for number in differentiable(args)))
        return jax.value_and_grad(self.loss, wrt, has_aux=True)(variables, rngs, trained_of(variables), *args)


def trained_of(variables: Any) -> Any:
    """The collections that an optimizer changes."""
    return {name: tree for name, tree in variables.items() if name in ("params", "lora")}
