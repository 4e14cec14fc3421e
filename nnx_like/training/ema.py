"""`EMA`: exponential moving averages of the variables of a model."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from liftcore.errors import Expected, LiftArgumentError, shown
from liftcore.nn import to_reduction_dtype
from liftcore.pytrees import is_array_like
from liftcore.training import update_average

from ..filterlib import Filter
from ..graph.definition import path_text
from ..graph.functions import merge, split, state
from ..objects.pytree import Pytree
from ..objects.traversal import check_unshared
from ..statelib.state import State
from ..variablelib.variable import Variable

__all__ = ["EMA"]

Model = TypeVar("Model")


class EMA(Pytree):
    """Exponential moving averages of variables: each update computes `decay * average + (1 - decay) * value`.

    B. T. Polyak and A. B. Juditsky, "Acceleration of Stochastic Approximation by Averaging" (1992), with exponentially
    decaying weights.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(jnp.array([0.0, 8.0])))
        >>> ema = nnx.EMA(model, decay=0.75)
        >>> averaged = ema.apply_to(model)
        >>> model.w[...] = jnp.array([4.0, 0.0])
        >>> ema.update(model)
        >>> averaged.w.value
        Array([1., 6.], dtype=float32)

    Args:
        params: the model, or any other pytree that holds variables, such as a state.
        decay: the weight of the old average, between 0 and 1.
        only: a filter of the variables to average.
        graph: True, like None, means the only mode there is: variables may be shared. False forbids it.

    Attributes:
        decay: the weight of the old average.
        filter: the filter.
        params: a state with a variable for each average, which has the type, dtype and metadata of the original.
        wide: the averages in float32 of the variables with a smaller dtype: that dtype would lose steps of size `1 -
            decay`. `params` has the same averages, rounded.

    Raises:
        LiftArgumentError: if the filter matches an array that is not in a variable, or a variable that cannot be
            averaged, such as the key of an RNG stream.
    """

    decay: Any
    filter: Filter
    params: State
    wide: State

    def __init__(self, params: Any, decay: float, *, only: Filter = ..., graph: bool | None = None) -> None:
        if graph is False:
            check_unshared("EMA", {"params": params})
        self.decay = decay
        self.filter = only
        chosen = _chosen(params, only)
        self.params = chosen.map(lambda path, one: one.copy(jax.tree.map(jnp.copy, one.get_value())))
        self.wide = State.from_flat_path({path: _widened(one) for path, one in chosen.flat_state() if _is_narrow(one)})

    def update(self, updates: Any) -> None:
        """Update the averages with new values, in place.

        Args:
            updates: the model, or a state, with the same variables as `params`.

        Raises:
            LiftArgumentError: if the variables differ from those of `params`.
            TraceContextError: inside a transformation to which the averages were not passed.
        """
        averages, new = dict(self.params.flat_state()), dict(_chosen(updates, self.filter).flat_state())
        differing = {path for path in averages.keys() | new.keys() if _shapes(averages, path) != _shapes(new, path)}
        if differing:
            names = sorted(map(path_text, differing))
            what = f"the variables do not match the averages; they differ in {', '.join(names)}."
            fix = "Pass a model with the variables that the averages were made of."
            raise LiftArgumentError("EMA.update", what, fix, variable=names[0])
        wide = dict(self.wide.flat_state())
        for variable in (*averages.values(), *wide.values()):
            variable.check_live()
        moved = partial(update_average, decay=self.decay)
        for path, average in averages.items():
            precise = wide.get(path, average)
            values = jax.tree.map(moved, precise.get_value(), new[path].get_value())
            if precise is not average:
                precise.set_value(values)
                values = jax.tree.map(_rounded, values, average.get_value())
            average.set_value(values)

    def apply_to(self, model: Model) -> Model:
        """Return a model with averages in place of its variables.

        The new model shares the averages, so later updates change it. It also shares the variables that are not
        averaged.

        Args:
            model: a model with the averaged variables.

        Returns:
            A new model.

        Raises:
            LiftArgumentError: if the variables of the model differ from the averaged ones.
        """
        graphdef, _, rest = split(model, self.filter, ...)
        made: Model = merge(graphdef, self.params, rest)
        return made


def _chosen(params: Any, only: Filter) -> State:
    """Return the variables to average."""
    found: State = state(params, only)
    for path, leaf in found.flat_state():
        if not isinstance(leaf, Variable):
            where = f"EMA of {path_text(path)}"
            what = Expected("a Variable, as `EMA` cannot average a plain array", given=leaf)
            fix = "Match only variables, as in `EMA(model, decay, only=nnx.Param)`."
            raise LiftArgumentError(where, what, fix, variable=path_text(path))
        if any(_has_no_mean(part) for part in jax.tree.leaves(leaf.get_value())):
            raise LiftArgumentError(
                f"EMA of {path_text(path)}",
                f"{shown(leaf.get_value())} cannot be averaged.",
                "Match other variables, as in `EMA(model, decay, only=nnx.Param)`.",
                variable=path_text(path),
                given=shown(leaf.get_value()),
            )
    return found


def _has_no_mean(part: Any) -> bool:
    return not is_array_like(part) or bool(jnp.issubdtype(jnp.result_type(part), jax.dtypes.prng_key))


def _is_narrow(variable: Any) -> bool:
    """Return whether a variable has a dtype that is too small for averages."""
    leaves = jax.tree.leaves(variable.get_value())
    return any(to_reduction_dtype(leaf).dtype != jnp.result_type(leaf) for leaf in leaves)


def _widened(variable: Any) -> Any:
    """Return a variable for the precise average: of no special kind, so that filters of kinds find only `params`."""
    names = {"out_sharding", "sharding_rules", "mesh"} & variable.get_metadata().keys()
    metadata = {name: variable.get_metadata(name) for name in names}
    return Variable(jax.tree.map(to_reduction_dtype, variable.get_value()), **metadata)


def _rounded(average: Any, like: Any) -> Any:
    dtype = jnp.result_type(like)
    return (average if jnp.issubdtype(dtype, jnp.inexact) else jnp.rint(average)).astype(dtype)


def _shapes(variables: dict[Any, Any], path: tuple[Any, ...]) -> Any:
    return jax.tree.map(jnp.shape, variables[path].get_value()) if path in variables else None
