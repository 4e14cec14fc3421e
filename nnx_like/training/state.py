"""`TrainState`: a definition, parameters and the state of an optimizer in one pytree that is never changed."""

from __future__ import annotations

from typing import Any, Generic, Self, TypeVar

import jax
import jax.numpy as jnp

from liftcore.struct import PyTreeNode, field

from ..graph.calling import Caller
from ..graph.functions import GraphDef, merge, split
from ..statelib.state import State
from .optimizer import added

__all__ = ["TrainState"]

M = TypeVar("M")


class TrainState(PyTreeNode, Generic[M]):
    """What a functional training step takes and returns; a subclass has further states as fields.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> import optax
        >>> graphdef, params = nnx.split(nnx.Dict(w=nnx.Param(jnp.ones(2))))
        >>> train = nnx.TrainState.create(graphdef, params=params, tx=optax.sgd(0.5))
        >>> train = train.apply_gradients(jax.tree.map(jnp.ones_like, params))
        >>> train.params.w.value, int(train.step), params.w.value
        (Array([0.5, 0.5], dtype=float32), 1, Array([1., 1.], dtype=float32))

    Attributes:
        graphdef: what is static about the model.
        params: the parameters.
        opt_state: the state of the optimizer.
        step: how many updates there were, of dtype `int32`.
        tx: an optax transformation; it is static.
    """

    graphdef: GraphDef[M]
    params: State
    opt_state: Any
    step: jax.Array
    tx: Any = field(pytree_node=False)

    @classmethod
    def create(cls, graphdef: GraphDef[M], *, params: State, tx: Any, step: int = 0, **kwargs: Any) -> Self:
        """A state at the start of training.

        Args:
            graphdef: what is static about the model.
            params: the parameters.
            tx: an optax transformation.
            step: the number of updates so far.
            **kwargs: the fields of a subclass.
        """
        return cls(graphdef, params=params, opt_state=tx.init(params), step=jnp.asarray(step), tx=tx, **kwargs)

    def apply(self, state: State | str, *states: State | str) -> Any:
        """A caller of methods of the model.

        `train.apply("params").encode(x)` makes the model, calls its method `encode`, and returns what that returns and
        `(graphdef, state)` after it. The states that are given stay as they are.

        Args:
            state: a state, or the name of a field that is one.
            *states: others.

        Returns:
            What stands for the model: it can be called, and so can what its attributes and items lead to.
        """
        given = [getattr(self, one) if isinstance(one, str) else one for one in (state, *states)]
        return Caller(lambda: merge(self.graphdef, *given, copy=True), split)

    def apply_gradients(self, grads: State, **kwargs: Any) -> Self:
        """A state after one update.

        Args:
            grads: the gradients, of the structure of `params`.
            **kwargs: other fields to replace.

        Returns:
            A new state; this one stays as it is.
        """
        updates, opt_state = self.tx.update(grads, self.opt_state, self.params)
        params = added(self.params, updates)
        return self.replace(params=params, opt_state=opt_state, step=self.step + 1, **kwargs)
