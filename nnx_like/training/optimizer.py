"""`Optimizer`: an optax transformation whose state is in variables, and which updates a model in place."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp

from liftcore.calls import boundary
from liftcore.errors import Expected, LiftArgumentError
from liftcore.filters import Parameters, names_in
from liftcore.training import apply_updates, part_of
from liftcore.typing import Shape

from ..errors import OptimizerArgumentError
from ..filterlib import Filter, to_predicate
from ..graph.changing import update
from ..graph.definition import Held
from ..graph.functions import state
from ..objects.pytree import Pytree
from ..objects.traversal import check_unshared
from ..statelib.state import State
from ..variablelib.kinds import Param
from ..variablelib.shardings import is_variable, on_mesh
from ..variablelib.variable import Variable

__all__ = [
    "ModelAndOptimizer",
    "OptArray",
    "OptState",
    "OptVariable",
    "Optimizer",
    "to_opt_state",
]

A = TypeVar("A")
M = TypeVar("M")

_NOT_GIVEN: Any = object()


class OptState(Variable[A]):
    """The state of an optimizer, such as its number of steps.

    Example:
        >>> import nnx_like as nnx
        >>> import optax
        >>> model = nnx.Dict(w=nnx.Param(1.0, sharding=("model",)))
        >>> optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
        >>> isinstance(optimizer.step, nnx.OptState), int(optimizer.step)
        (True, 0)

    Args:
        value: the value: an array, a number, a string, None or a pytree.
        **metadata: static metadata by name, readable as attributes.
    """


class OptArray(OptState[A]):
    """An array in the state of an optimizer that does not belong to a parameter, such as a count.

    Example:
        >>> import nnx_like as nnx
        >>> import optax
        >>> model = nnx.Dict(w=nnx.Param(1.0, sharding=("model",)))
        >>> optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
        >>> type(optimizer.opt_state[0].count).__name__
        'OptArray'

    Args:
        value: the value: an array, a number, a string, None or a pytree.
        **metadata: static metadata by name, readable as attributes.
    """


class OptVariable(OptState[A]):
    """The state of an optimizer for one parameter, such as its momentum. It has the metadata of the parameter.

    The metadata `optimizer_sharding` of a parameter names the mesh axes of its state, if they differ from its own.

    Example:
        >>> import nnx_like as nnx
        >>> import optax
        >>> model = nnx.Dict(w=nnx.Param(1.0, sharding=("model",)))
        >>> optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
        >>> momentum = optimizer.opt_state[0].mu.w
        >>> type(momentum).__name__, momentum.sharding
        ('OptVariable', ('model',))

    Args:
        value: the value: an array, a number, a string, None or a pytree.
        **metadata: static metadata by name, readable as attributes.
    """


class _NoModelError(LiftArgumentError, AttributeError):
    """Code reads the `model` of an optimizer, which does not keep it."""


class Optimizer(Pytree, Generic[M]):
    """An optax transformation and its state, for the parameters of one model.

    The state consists of variables: an `OptVariable` for each parameter, and an `OptArray` for each other array. You
    pass an optimizer through `nnx_like.jit` and other transformations like the model.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> import optax
        >>> model = nnx.Dict(w=nnx.Param(jnp.array([3.0, 4.0])), seen=nnx.BatchStat(jnp.array(0)))
        >>> optimizer = nnx.Optimizer(model, optax.sgd(0.5), wrt=nnx.Param)
        >>> grads = jax.tree.map(lambda x: 2 * x, nnx.state(model, nnx.Param))
        >>> updates = optimizer.update(model, grads)
        >>> model.w.value, optimizer.step.value
        (Array([0., 0.], dtype=float32), Array(1, dtype=uint32))

    Args:
        model: an object, or a state; the optimizer does not keep it.
        tx: an optax transformation.
        *positional: not allowed; `wrt` is a keyword argument.
        wrt: a filter of the variables to train, usually `nnx.Param`. Use the same filter for the gradients.
        graph: True, like None, means the only mode there is: variables may be shared. False forbids it.

    Attributes:
        step: the number of calls of `update`, an `OptState` of dtype `uint32`.
        tx: the transformation.
        opt_state: the state of the transformation, with variables in place of arrays.
        wrt: the filter of the variables to train.

    Raises:
        OptimizerArgumentError: if `wrt` is missing, or `tx` is not a transformation.
        LiftArgumentError: if `wrt` asks for a name, and matches nothing.
    """

    step: OptState[jax.Array]
    opt_state: Any
    wrt: Filter

    @boundary
    def __init__(
        self, model: M, tx: Any, *positional: Any, wrt: Filter = _NOT_GIVEN, graph: bool | None = None
    ) -> None:
        if wrt is _NOT_GIVEN or positional:
            what = "`wrt` is required, a filter of the variables to train."
            fix = "Write `Optimizer(model, tx, wrt=nnx.Param)`, or use `ModelAndOptimizer(model, tx)`."
            raise OptimizerArgumentError(type(self).__name__, what, fix, option="wrt")
        if not (callable(getattr(tx, "init", None)) and callable(getattr(tx, "update", None))):
            raise OptimizerArgumentError(
                type(self).__name__,
                Expected("an optax transformation (or an object with `init` and `update`)", given=tx),
                "Write `Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)`.",
                option="tx",
            )
        if graph is False:
            check_unshared(type(self).__name__, {"model": model})
        self.step = OptState(jnp.array(0, jnp.uint32))
        self.tx = tx
        params = state(model, (wrt, None))
        if not params and names_in(to_predicate(wrt)):  # a kind of variables may be missing, a name is misspelled
            Parameters.of(state(model)).check(f"{type(self).__name__}, wrt", to_predicate(wrt))
        with part_of(lambda: state(model)):
            self.opt_state = to_opt_state(tx.init(params))
        self.wrt = wrt

    @property
    def tx(self) -> Any:
        """The optax transformation."""
        return vars(self)["tx"].value

    @tx.setter
    def tx(self, tx: Any) -> None:
        vars(self)["tx"] = Held(tx)

    def __getattr__(self, name: str) -> Any:
        if name == "model":
            raise _NoModelError(
                "Optimizer.model",
                "an optimizer does not keep the model.",
                "Pass the model in addition to the optimizer, or use `ModelAndOptimizer`.",
                given=name,
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    @boundary
    def update(self, model: M, grads: Any = _NOT_GIVEN, /, **kwargs: Any) -> Any:
        """Apply gradients to the model and to the state of the optimizer, in place.

        Parameters and state are read and written without hooks. If the transformation raises an error, nothing changes.

        Args:
            model: the model that the optimizer was created for, or its state.
            grads: the gradients of the variables that `wrt` matches, as `nnx.grad` returns them: a state, nested
                mappings of arrays, or an object like the model. Variables that `wrt` does not match are ignored.
            **kwargs: further arguments for the transformation, such as `value`, `grad` and `value_fn` for a line
                search; variables in them are replaced by their values.

        Returns:
            The updates that were added to the parameters: a state of arrays.

        Raises:
            OptimizerArgumentError: if `grads` is missing.
            LiftArgumentError: if the gradients do not match the parameters, or the optimizer was made for others.
            TraceContextError: inside a transformation to which the model or the optimizer was not passed.
        """
        grads = kwargs.pop("grads", grads)
        if grads is _NOT_GIVEN:
            given = "only one argument"
            fix = "Write `optimizer.update(model, grads)`, or use `ModelAndOptimizer`."
            raise OptimizerArgumentError(
                f"{type(self).__name__}.update",
                Expected("the model and the gradients, `grads`", given, words=given),
                fix,
                option="grads",
            )
        return self._step(model, grads, kwargs)

    def _step(self, model: Any, grads: Any, kwargs: dict[str, Any]) -> Any:
        variables = state(model, self.wrt)
        params = _values(variables)
        gradients = _gradients(grads, self.wrt, params)
        with part_of(lambda: state(model)):
            updates, new_state = self._updates(gradients, params, _values(kwargs))
        new_params = apply_updates(params, updates)
        steps = self.step.get_raw_value() + 1
        _write(model, (variables, self.opt_state, self.step), (new_params, new_state, steps))
        return updates

    def _updates(self, gradients: Any, params: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Call the transformation. With a state for other parameters, it would fail, or broadcast silently."""
        where, before = f"{type(self).__name__}.update", _values(self.opt_state)
        try:
            updates, after = self.tx.update(gradients, before, params, **kwargs)
        except (TypeError, ValueError):
            _check_made_for(where, before, jax.eval_shape(self.tx.init, params))
            raise
        if _shapes(gradients) == _shapes(params):  # otherwise, `apply_updates` names what is wrong
            _check_made_for(where, before, after)
            _check_made_for(where, params, updates)
        return updates, after


class ModelAndOptimizer(Optimizer[M]):
    """An optimizer that keeps its model: the older form of `Optimizer`.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> import optax
        >>> both = nnx.ModelAndOptimizer(nnx.Dict(w=nnx.Param(jnp.array(3.0))), optax.sgd(0.5))
        >>> updates = both.update(nnx.state(both.model))
        >>> both.model.w.value
        Array(1.5, dtype=float32)

    Args:
        model: an object.
        tx: an optax transformation.
        wrt: a filter of the variables to train.

    Attributes:
        model: the model.
    """

    model: M

    def __init__(self, model: M, tx: Any, *, wrt: Filter = Param) -> None:
        super().__init__(model, tx, wrt=wrt)
        self.model = model

    @boundary
    def update(self, grads: Any, /, **kwargs: Any) -> Any:  # type: ignore[override]  # the older form has no argument `model`
        """Apply gradients to the model and to the state of the optimizer, in place.

        Args:
            grads: the gradients, as for `Optimizer.update`.
            **kwargs: further arguments for the transformation.

        Returns:
            The updates that were added to the parameters: a state of arrays.

        Raises:
            LiftArgumentError: if the gradients do not match the parameters.
            TraceContextError: inside a transformation to which the optimizer was not passed.
        """
        return self._step(self.model, grads, kwargs)


def to_opt_state(tree: Any) -> Any:
    """Return the state of an optax transformation with variables in place of arrays.

    Args:
        tree: the result of `tx.init(params)` for a state of variables.

    Returns:
        The same tree with an `OptVariable` for each variable, with its metadata, and an `OptArray` for each other leaf.
        If a variable has metadata `optimizer_sharding`, its state has it as `out_sharding`, and is sharded
        accordingly if there is a mesh.

    Raises:
        LiftArgumentError: if the names in `optimizer_sharding` do not fit the mesh.
    """
    return jax.tree.map_with_path(_to_opt_state, tree, is_leaf=is_variable)


def _to_opt_state(path: Any, leaf: Any) -> OptState[Any]:
    if not isinstance(leaf, Variable):
        return OptArray(leaf)
    metadata = leaf.get_metadata()
    if "optimizer_sharding" not in metadata:
        return OptVariable.from_metadata(leaf.get_raw_value(), metadata)
    metadata["out_sharding"] = metadata.pop("optimizer_sharding")
    state = OptVariable.from_metadata(leaf.get_raw_value(), metadata)
    state.set_raw_value(on_mesh(f"the optimizer's state at {jax.tree_util.keystr(path)}", state))
    return state


def _values(tree: Any) -> Any:
    """Return a pytree with raw values in place of variables."""
    return jax.tree.map(lambda leaf: leaf.get_raw_value() if is_variable(leaf) else leaf, tree, is_leaf=is_variable)


def _gradients(grads: Any, wrt: Filter, params: Any) -> Any:
    """Return the gradients as a state of arrays, with the structure of the parameters."""
    leaves = jax.tree.leaves(grads, is_leaf=is_variable)
    if any(map(is_variable, leaves)):
        # The gradient of a module of another style is a plain array, which `wrt` cannot match by kind.
        known = {path for path, _ in params.flat_state()} if isinstance(params, State) else {()}
        wanted = to_predicate(wrt)
        chosen = state(grads, lambda path, value: path in known or wanted(path, value))
    else:
        chosen = state(grads)
    values = _values(chosen)
    structures: tuple[Any, Any] = (jax.tree.structure(values), jax.tree.structure(params))
    if structures[0] != structures[1]:
        given, expected = _paths(values), _paths(params)
        differing = [("missing", expected - given), ("unexpected", given - expected)]
        said = "; ".join(f"{what}: {', '.join(sorted(paths))}" for what, paths in differing if paths)
        raise LiftArgumentError(
            "Optimizer.update",
            f"the gradients do not match the parameters ({said or 'the pytrees differ'}).",
            "Pass the filter `wrt` of the optimizer to `nnx.grad` too, as in `nnx.DiffState(0, nnx.Param)`.",
            option="wrt",
        )
    return values


def _check_made_for(where: str, before: Any, after: Any) -> None:
    """Check that what a transformation keeps, or returns, has the shapes that the parameters ask for."""
    (here, structure), (there, other) = _shapes(before), _shapes(after)
    if here == there and structure == other:  # the names, which take longer, are only for the error
        return
    old, new = _named_shapes(before), _named_shapes(after)
    differing = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    if differing:
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        what = f"the optimizer was made for other parameters: the shapes differ at {', '.join(differing[:3])}{more}."
        made = "`nnx.Optimizer(model, tx, wrt=nnx.Param)`"
        fix = f"Pass the model that it was made for, or make one for this model: {made}."
        raise LiftArgumentError(where, what, fix, option="model")


def _shapes(tree: Any) -> tuple[list[Shape], Any]:
    leaves, structure = jax.tree.flatten(tree)
    return list(map(jnp.shape, leaves)), structure


def _named_shapes(tree: Any) -> dict[str, Shape]:
    return {jax.tree_util.keystr(path): jnp.shape(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def _paths(values: State) -> set[str]:
    return {".".join(map(str, path)) for path, _ in values.flat_state()}


def _write(model: Any, variables: Any, values: Any) -> None:
    """Write values into variables, and into attributes that are arrays; in another trace, raise before any write."""
    pairs: list[tuple[Any, Any]] = []
    jax.tree.map(lambda *pair: pairs.append(pair), variables, values, is_leaf=is_variable)
    pairs = [pair for pair in pairs if is_variable(pair[0])]
    for variable, _ in pairs:
        variable.check_live()
    # An array has no identity, so the object that holds it changes; `update` first checks that it may.
    if arrays := _plain_leaves(variables[0], values[0]):
        update(model, State.from_flat_path(arrays))
    for variable, value in pairs:
        variable.set_raw_value(value)


def _plain_leaves(params: Any, values: Any) -> dict[tuple[Any, ...], Any]:
    """Return the values of the leaves of a state that are not variables, by path."""
    if not isinstance(params, State):
        return {}
    leaves = zip(params.flat_state(), values.flat_state(), strict=True)
    return {path: value for (path, leaf), (_, value) in leaves if not isinstance(leaf, Variable)}
