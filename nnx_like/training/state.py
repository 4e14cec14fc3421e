"""`TrainState`: a graph definition, parameters and the state of an optimizer, in one immutable pytree."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, Self, TypeVar

import jax
import jax.numpy as jnp

from liftcore.pickling import opened, portable
from liftcore.struct import PyTreeNode, check_fields, field
from liftcore.training import apply_updates

from ..graph.functions import Caller, GraphDef, merge, split
from ..statelib.state import State

__all__ = ["TrainState"]

M = TypeVar("M")


class TrainState(PyTreeNode, Generic[M]):
    """The state of a functional training step. Subclasses may add states as fields.

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
        graphdef: the static part of the model.
        params: the parameters.
        opt_state: the state of the optimizer.
        step: the number of updates so far, of dtype `int32`.
        tx: an optax transformation (static).
    """

    graphdef: GraphDef[M]
    params: State
    opt_state: Any
    step: jax.Array
    tx: Any = field(pytree_node=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, for pickle and copy; those of optax hold closures."""
        return {**vars(self), "tx": portable(self.tx, f"pickle of {type(self).__name__}, tx")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({**state, "tx": opened(state["tx"])})

    @classmethod
    def create(cls, graphdef: GraphDef[M], *, params: State, tx: Any, step: int = 0, **kwargs: Any) -> Self:
        """Return the state before the first step.

        Args:
            graphdef: the static part of the model.
            params: the parameters.
            tx: an optax transformation.
            step: the number of updates so far.
            **kwargs: values for the fields of a subclass.

        Raises:
            LiftArgumentError: if a field is unknown or has no value.
        """
        own = [one.name for one in dataclasses.fields(TrainState)]
        check_fields(f"{cls.__name__}.create", cls, kwargs, own=own)
        return cls(graphdef, params=params, opt_state=tx.init(params), step=jnp.asarray(step), tx=tx, **kwargs)

    def apply(self, state: State | str, *states: State | str) -> Any:
        """Return an object through which to call the model, or its methods.

        `train.apply("params").encode(x)` builds the model, calls its method `encode`, and returns the result and a new
        pair `(graphdef, state)`. The states that you pass do not change.

        Args:
            state: a state, or the name of a field that holds one.
            *states: more states.

        Returns:
            An object in place of the model: call it, or one of its methods or parts.
        """
        given = [getattr(self, one) if isinstance(one, str) else one for one in (state, *states)]
        return Caller(lambda: merge(self.graphdef, *given, copy=True), split)

    def apply_gradients(self, grads: State, **kwargs: Any) -> Self:
        """Return the state after one update.

        Args:
            grads: the gradients, with the structure of `params`.
            **kwargs: new values for other fields.

        Returns:
            A new state; this one does not change.

        Raises:
            LiftArgumentError: if the class has no field of one of these names.
        """
        check_fields(f"{type(self).__name__}.apply_gradients", type(self), kwargs, own=None)
        updates, opt_state = self.tx.update(grads, self.opt_state, self.params)
        params = apply_updates(self.params, updates)
        return self.replace(params=params, opt_state=opt_state, step=self.step + 1, **kwargs)
