"""`TrainState`: parameters, what optimises them, and its state, in one pytree that is never changed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax

from ..errors import LiftArgumentError
from ..filters import Any as AnyOf
from ..filters import intersect
from ..struct import PyTreeNode, check_fields, field
from ..typing import Filter, PyTree
from .parts import check_names, inserted, taken
from .updates import apply_updates

__all__ = ["TrainState"]

_OVERWRITE = "_overwrite_with_gradient"
"""The collection of FP8 layers whose gradients are the next values; it has no state of the optimiser."""

_UNTRAINED = {"batch_stats", "cache", "intermediates"}
"""Collections that layers write, and that no optimiser may change."""


class TrainState(PyTreeNode):
    """The state of a training run: a number of steps, parameters, and the state of an optimiser.

    A subclass has more fields, such as `batch_stats: Any` or `key: jax.Array`, which `create` takes by name.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> params = {"w": jnp.ones(2), "scale": jnp.ones(2)}
        >>> state = TrainState.create(apply_fn=jnp.dot, params=params, tx=optax.sgd(0.5))
        >>> grads = jax.grad(lambda params: params["w"].sum())(state.params)
        >>> state = state.apply_gradients(grads=grads)
        >>> state.step, state.params["w"]
        (1, Array([0.5, 0.5], dtype=float32))

    Attributes:
        step: how many updates there were.
        apply_fn: most often `model.apply`; it is static.
        params: the parameters: the collection `params`, or any pytree. With FP8 layers it is
            `{"params": …, "_overwrite_with_gradient": …}`, and the gradients of the second replace its values.
        tx: a gradient transformation of `optax`; it is static.
        opt_state: its state, for the parameters that are trainable.
        trainable: a filter of the parameters that are; it is static. As `wrt=state.trainable` it serves derivatives of
            functions of scopes and of modules.
    """

    step: Any
    apply_fn: Callable[..., Any] = field(pytree_node=False)
    params: Any
    tx: Any = field(pytree_node=False)
    opt_state: Any
    trainable: Filter = field(pytree_node=False, default="params", kw_only=True)

    @classmethod
    def create(
        cls, *, apply_fn: Callable[..., Any], params: PyTree, tx: Any, trainable: Filter = True, **extra: Any
    ) -> Self:
        """The state before the first step.

        Args:
            apply_fn: most often `model.apply`.
            params: the parameters.
            tx: a gradient transformation of `optax`.
            trainable: a filter of the parameters to train, over `("params", *modules, name)`. The others are never
                differentiated, and the optimiser has no state for them. With a filter that asks for paths, `params`
                must be nested dicts.
            **extra: the fields of a subclass.

        Raises:
            LiftArgumentError: if `trainable` takes no parameter, unless it is `None`; if there is no such field, or one
                has no value; or if `params` are all variables of a model, with its statistics.
        """
        check_fields(f"{cls.__name__}.create", cls, extra, own=[one.name for one in dataclasses.fields(TrainState)])
        _check_params(f"{cls.__name__}.create, params", params)
        wanted = AnyOf(_OVERWRITE, trainable) if _overwrites(params) else trainable
        filter = intersect(AnyOf(*_collections(params)), wanted)  # so that `wrt=state.trainable` takes parameters only
        made = cls(step=0, apply_fn=apply_fn, params=params, tx=tx, opt_state=None, trainable=filter, **extra)
        taken("TrainState.create, trainable", _collections(params, optimised=True), trainable)
        return made.replace(opt_state=tx.init(_optimised(made.trainable_params)))

    @property
    def trainable_params(self) -> PyTree:
        """The parameters that `trainable` takes: a tree without the others."""
        part = taken("TrainState.trainable_params", _collections(self.params), self.trainable)
        return part if _overwrites(self.params) else part.get("params", {})

    def with_trainable(self, part: PyTree) -> PyTree:
        """All parameters, with other values for the trainable ones; it does not make a new state.

        Args:
            part: a tree with the structure of `trainable_params`.
        """
        return inserted(self.params, part)

    def value_and_grad(
        self,
        loss_fn: Callable[..., Any],
        has_aux: bool = False,
        *,
        using: Callable[..., Any] = jax.value_and_grad,
    ) -> Callable[..., Any]:
        """`jax.value_and_grad` at the parameters of this state, with respect to those that are trainable.

        Example:
            >>> import jax.numpy as jnp, optax
            >>> from liftcore.filters import PathContains
            >>> params = {"encoder": {"w": jnp.ones(3)}, "head": {"w": jnp.ones(3)}}
            >>> state = TrainState.create(
            ...     apply_fn=jnp.dot, params=params, tx=optax.adam(0.1), trainable=PathContains("head")
            ... )
            >>> def loss_fn(params, x):
            ...     return state.apply_fn(params["encoder"]["w"] * params["head"]["w"], x)
            >>> loss, grads = state.value_and_grad(loss_fn)(jnp.arange(3.0))
            >>> grads
            {'head': {'w': Array([0., 1., 2.], dtype=float32)}}

        Args:
            loss_fn: called as `loss_fn(params, *args, **kwargs)` with all parameters; returns a number, or with
                `has_aux` that and something else.
            has_aux: whether `loss_fn` returns a pair, of which only the first is differentiated.
            using: what differentiates, called as `using(fn, has_aux=has_aux)` like `jax.value_and_grad`: that of a
                `DynamicScale`, for one.

        Returns:
            A function of what `loss_fn` takes after the parameters. It returns what `jax.value_and_grad` does; the
            gradients have the structure of `trainable_params`, as `apply_gradients` takes them.

        Raises:
            LiftArgumentError: when called with the parameters themselves.
        """

        @functools.wraps(loss_fn)
        def of_part(part: PyTree, *args: Any, **kwargs: Any) -> Any:
            return loss_fn(self.with_trainable(part), *args, **kwargs)

        differentiated = using(of_part, has_aux=has_aux)

        def call(*args: Any, **kwargs: Any) -> Any:
            if args and args[0] is self.params:
                what = "it was given the parameters, which it takes from the state."
                fix = "Leave them out: `state.value_and_grad(loss_fn)(batch)` calls `loss_fn(params, batch)`."
                raise LiftArgumentError("TrainState.value_and_grad", what, fix)
            return differentiated(self.trainable_params, *args, **kwargs)

        return call

    def apply_gradients(self, *, grads: PyTree, tx_args: Mapping[str, Any] | None = None, **replaced: Any) -> Self:
        """The state after one update.

        Args:
            grads: the gradients of the trainable parameters, such as those of `value_and_grad`.
            tx_args: what the `update` of a transformation with further arguments is given by name, such as `value` of
                `optax.contrib.reduce_on_plateau`.
            **replaced: other fields with their new values, such as `batch_stats`.

        Returns:
            A new state; `step` is greater by one.

        Raises:
            LiftArgumentError: if there are gradients of other parameters, or not of all that are trainable, or the
                class has no such field.
        """
        check_fields(f"{type(self).__name__}.apply_gradients", type(self), replaced, own=None)
        part = self.trainable_params
        fix = "Differentiate by `state.value_and_grad(loss_fn)(…)`, or with respect to `state.trainable_params` only."
        check_names("TrainState.apply_gradients, grads", grads, part, fix)
        weights = _optimised(part)
        updates, opt_state = self.tx.update(_optimised(grads), self.opt_state, weights, **(tx_args or {}))
        weights = apply_updates(weights, updates)
        new = {_OVERWRITE: grads[_OVERWRITE], "params": weights} if _overwrites(part) else weights
        return self.replace(step=self.step + 1, params=inserted(self.params, new), opt_state=opt_state, **replaced)


def _check_params(where: str, params: PyTree) -> None:
    """Checks that parameters are not all variables of a model: an optimiser would change its statistics too."""
    if not isinstance(params, Mapping) or "params" not in params or _overwrites(params):
        return
    found = _UNTRAINED & set(params)
    if found:
        what = f"expected parameters, given variables of several collections: {', '.join(map(str, params))}."
        fields = "; ".join(f"{name}: Any" for name in sorted(found))
        fix = f'Write `params=variables["params"]`, and keep the others in fields: `class State(TrainState): {fields}`.'
        raise LiftArgumentError(where, what, fix)


def _overwrites(params: PyTree) -> bool:
    return isinstance(params, Mapping) and _OVERWRITE in params


def _collections(params: PyTree, optimised: bool = False) -> dict[str, Any]:
    """Parameters as variables: by collection. With FP8 layers, other collections are neither trained nor changed."""
    if not _overwrites(params):
        return {"params": params}
    return {
        name: params[name] for name in ("params", _OVERWRITE) if name in params and not (optimised and name != "params")
    }


def _optimised(tree: PyTree) -> PyTree:
    """What an optimiser sees of parameters, or of their gradients."""
    return tree.get("params", {}) if _overwrites(tree) else tree
