"""`TrainState`: the variables of a model, their optimizer and its state, in one immutable pytree."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import jax

from .. import entry
from ..calls import boundary, call_user
from ..errors import Expected, InvalidRngError, LiftArgumentError
from ..filters import Any as AnyOf
from ..filters import intersect
from ..pickling import opened, portable
from ..struct import PyTreeNode, check_fields, field, optional
from ..typing import Filter, PyTree, RNGs, Variables
from .dynamic_scale import paired
from .labelling import part_of
from .parts import check_like, check_names, inserted, taken
from .updates import apply_updates

__all__ = ["TrainState"]

_OVERWRITE = "_overwrite_with_gradient"
"""The collection of FP8 layers whose gradients are its next values; the optimizer has no state for it."""

_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)

_UNTRAINED = {"batch_stats", "cache", "intermediates"}
"""Collections that layers write, and that an optimizer must not change."""


_STATIC = ("apply_fn", "tx", "trainable")
"""The static fields of `TrainState`, which may hold closures."""


class TrainState(PyTreeNode):
    """The state of a training run: the number of steps, the variables of a model, and the state of an optimizer.

    To add fields such as `scale: DynamicScale`, write a subclass; pass their values to `create` by name.

    Example:
        >>> import jax, jax.numpy as jnp, linen_like as nn, optax
        >>> model, x = nn.BatchNorm(use_running_average=False), jnp.arange(6.0).reshape(3, 2)
        >>> state = TrainState.create(
        ...     apply_fn=model.apply, variables=model.init(jax.random.key(0), x), tx=optax.sgd(0.5)
        ... )
        >>> def loss_fn(state, x):
        ...     y, state = state.apply(x)
        ...     return y.sum(), state
        >>> state, loss = state.minimize(loss_fn, x)
        >>> state.step, state.params["bias"], state.variables["batch_stats"]["mean"].round(2)
        (1, Array([-1.5, -1.5], dtype=float32), Array([0.02, 0.03], dtype=float32))

    Attributes:
        step: the number of updates so far.
        apply_fn: usually `model.apply` (static).
        params: the parameters: the collection `params`, or any pytree. With FP8 layers it is
            `{"params": …, "_overwrite_with_gradient": …}`, and the gradients of the second replace its values.
        tx: a gradient transformation of optax (static).
        opt_state: the state of `tx`, for the trainable parameters.
        trainable: a filter of the trainable parameters (static). To differentiate functions of scopes or modules, pass
            it as `wrt=state.trainable`.
        model_state: the variables of other collections, such as batch statistics, by collection; None without any. A
            checkpoint has each collection beside `params`.
        rngs: the keys of the RNG streams for training, by the name of the stream, or one key; None without any. Each
            step folds its number into them.
    """

    step: Any
    apply_fn: Callable[..., Any] = field(pytree_node=False)
    params: Any
    tx: Any = field(pytree_node=False)
    opt_state: Any
    _: dataclasses.KW_ONLY  # also to a type checker, so that a subclass may add fields without defaults
    trainable: Filter = field(pytree_node=False, default="params")
    model_state: Any = optional(spread=True)
    rngs: Any = optional()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        above: Any = super(cls, cls)
        own = vars(cls).get("__annotations__", {}).keys() - above.__dataclass_fields__.keys()
        taken = sorted(name for name in own if isinstance(getattr(above, name, None), property | types.FunctionType))
        if taken:
            what = f"`{taken[0]}` is a method or property of {cls.__mro__[1].__name__}, and cannot be a field."
            raise LiftArgumentError(f"class {cls.__name__}", what, "Give the field another name.", option=taken[0])
        super().__init_subclass__(**kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, for pickle and copy; the transformations of optax hold closures."""
        name = type(self).__name__
        static = {one: portable(getattr(self, one), f"pickle of {name}, {one}") for one in _STATIC}
        return {**vars(self), **static}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({name: opened(value) for name, value in state.items()})

    @classmethod
    def create(
        cls,
        *,
        apply_fn: Callable[..., Any],
        params: PyTree = None,
        variables: Variables | None = None,
        tx: Any,
        trainable: Filter = True,
        rngs: RNGs | None = None,
        **extra: Any,
    ) -> Self:
        """Return the state before the first step.

        Args:
            apply_fn: usually `model.apply`.
            params: the parameters, if the model has no other variables.
            variables: or all variables of the model, as `init` returns them. The parameters are those in `params`; the
                other collections become the `model_state`.
            tx: a gradient transformation of optax.
            trainable: a filter of the parameters to train, over paths `("params", *modules, name)`. The others are not
                differentiated, and the optimizer has no state for them.
            rngs: the keys for training, such as `{"dropout": jax.random.key(0)}`; see `apply`.
            **extra: values for the fields of a subclass.

        Raises:
            LiftArgumentError: if `trainable` matches no parameter, unless it is `None`; if a field is unknown or has no
                value; if `params` are all variables of a model, with its statistics; if both or neither of `params` and
                `variables` are passed; or if `tx` lacks `init` or `update`.
        """
        params, others = _parted(f"{cls.__name__}.create", params, variables)
        passed = extra.get("model_state")
        given = {"model_state": others or None, "rngs": rngs}
        extra |= {name: value for name, value in given.items() if value is not None}
        own = {one.name for one in dataclasses.fields(TrainState)} - {"model_state", "rngs"}
        check_fields(f"{cls.__name__}.create", cls, extra, own=own)
        _check_collections(f"{cls.__name__}.create, variables", cls, others, passed)
        _check_params(f"{cls.__name__}.create, params", params)
        _check_tx(f"{cls.__name__}.create, tx", tx)
        wanted = AnyOf(_OVERWRITE, trainable) if _overwrites(params) else trainable
        filter = intersect(AnyOf(*_collections(params)), wanted)  # so `wrt=state.trainable` matches only parameters
        made = cls(step=0, apply_fn=apply_fn, params=params, tx=tx, opt_state=None, trainable=filter, **extra)
        taken("TrainState.create, trainable", _collections(params, optimised=True), trainable)
        part = _optimised(made.trainable_params)
        with part_of(lambda: _optimised(params)):
            opt_state = tx.init(part)
        _check_lookahead(f"{cls.__name__}.create, params", part, opt_state)
        return made.replace(opt_state=opt_state)

    @property
    def variables(self) -> dict[str, Any]:
        """All variables of the model, `{collection: {module: {name: value}}}`: the parameters and the `model_state`."""
        return {**(self.params if _overwrites(self.params) else {"params": self.params}), **(self.model_state or {})}

    def apply(self, *args: Any, **kwargs: Any) -> tuple[Any, Self]:
        """Call the model for training: with the keys of this step, and keep what it writes.

        The collections of the `model_state` are mutable. The number of the step is folded into each key of `rngs`, so a
        run that is resumed draws the same. A second call in the same step draws the same, too: pass other `rngs` to it.
        To evaluate, without keys and writes, call `state.apply_fn(state.variables, x)`. To get sown values, name their
        collection: `(y, sown), state = state.apply(x, mutable=["losses"])`.

        Example:
            >>> import jax, jax.numpy as jnp, linen_like as nn, optax
            >>> model, x, key = nn.Dropout(0.5, deterministic=False), jnp.ones(8), jax.random.key(1)
            >>> tx, rngs = optax.sgd(0.1), {"dropout": key}
            >>> state = TrainState.create(apply_fn=model.apply, variables={"params": {}}, tx=tx, rngs=rngs)
            >>> y, _ = state.apply(x)
            >>> by_hand = model.apply({}, x, rngs={"dropout": jax.random.fold_in(key, state.step)})
            >>> bool((y == by_hand).all())
            True

        Args:
            *args: the arguments of the model.
            **kwargs: its keyword arguments, such as `train=True`. `rngs` replaces the keys of this step. `mutable`
                names further collections that are written, and returned instead of kept.

        Returns:
            The output of the model, and the state with the new `model_state`. With `mutable`, or
            `capture_intermediates`, the output is a pair of it and the collections that are not in the state.

        Raises:
            LiftArgumentError: if a collection of the `model_state` changes its structure; or if `mutable` names only
                collections of the `model_state`.
        """
        return self._applied(self.apply_fn, *args, **kwargs)

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Self]:
        """Call a function of a scope at the variables of this state, with keys and writes as in `apply`.

        Such functions are models of the core, and what a lift returns, such as `accumulate_gradients`.

        Example:
            >>> import jax, jax.numpy as jnp, liftcore, optax
            >>> def loss_fn(scope, x):
            ...     return jnp.mean(liftcore.nn.dense(scope, x, 1) ** 2)
            >>> x = jnp.ones((4, 3))
            >>> _, variables = liftcore.init(loss_fn)(jax.random.key(0), x)
            >>> state = TrainState.create(apply_fn=liftcore.apply(loss_fn), variables=variables, tx=optax.sgd(0.1))
            >>> (loss, grads), state = state.run(liftcore.value_and_grad(loss_fn, wrt=state.trainable), x)
            >>> int(state.apply_gradients(grads=grads["params"]).step)
            1

        Args:
            fn: called as `fn(scope, *args, **kwargs)`.
            *args: its arguments after the scope.
            **kwargs: its keyword arguments. `rngs` and `mutable` are those of `apply`.

        Returns:
            The result of the function, and the state with the new `model_state`, as in `apply`.

        Raises:
            LiftArgumentError: if `fn` is not callable, a collection of the `model_state` changes its structure, or
                `mutable` names only collections of the `model_state`.
        """

        def applied(variables: Variables, *args: Any, mutable: Filter = False, **kwargs: Any) -> Any:
            return entry.apply(fn, mutable)(variables, *args, **kwargs)

        return self._applied(applied, *args, **kwargs)

    def _applied(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Self]:
        has_own = "rngs" in kwargs
        if not has_own and self.rngs is not None:
            kwargs["rngs"] = jax.tree.map(lambda key: jax.random.fold_in(key, self.step), self.rngs)
        try:
            return self._called(call, *args, **kwargs)
        except InvalidRngError as error:
            if not has_own:
                _ask_for_keys(error)
            raise

    def _called(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Self]:
        if not self.model_state:
            return call(self.variables, *args, **kwargs), self
        where, further = f"{type(self).__name__}.apply", kwargs.pop("mutable", None)
        mutable = list(self.model_state) if further is None else _with_further(where, list(self.model_state), further)
        out, written = call(self.variables, *args, mutable=mutable, **kwargs)
        for name, before in self.model_state.items():
            _check_structure(where, name, before, written.get(name, {} if before else before))
        kept = {name: held for name, held in written.items() if name in self.model_state}
        others = {name: held for name, held in written.items() if name not in self.model_state}
        asked = further is not None or others  # without `mutable`, there are only captured outputs
        return (out, others) if asked else out, self.replace(model_state={**self.model_state, **kept})

    @boundary
    def minimize(
        self,
        loss_fn: Callable[..., Any],
        *args: Any,
        has_aux: bool = False,
        tx_args: Mapping[str, Any] | None = None,
    ) -> tuple[Self, Any]:
        """Take one step: differentiate a loss with respect to the trainable parameters, and update them.

        The loss is a function of a state, which it calls by `apply` and returns, so that what the model wrote is kept.
        The example of the class shows a step. This is `value_and_grad`, and then `apply_gradients`.

        Args:
            loss_fn: called as `loss_fn(state, *args)`. It returns the loss and the state, `(loss, state)`, or, with
                `has_aux`, `(loss, (state, aux))`. It may replace fields of the state, such as metrics, except the
                number of the step, the parameters and the state of the optimizer.
            *args: the arguments of the loss after the state, such as a batch.
            has_aux: whether the loss function returns more than the loss and the state.
            tx_args: further keyword arguments for the `update` of `tx`; see `apply_gradients`.

        Returns:
            The next state, and the loss before this step; with `has_aux`, `(state, (loss, aux))`.

        Raises:
            LiftArgumentError: if the loss function returns something else.
        """
        where = f"{type(self).__name__}.minimize"
        aside: dict[str, Any] = {"params": None, "opt_state": None, "step": None}

        def of_params(params: PyTree) -> tuple[Any, tuple[Self, Any]]:
            found = call_user(where, loss_fn, self.replace(params=params), *args)
            loss, after, aux = _loss_and_state(where, found, has_aux)
            return loss, (after.replace(**aside), aux)

        (loss, (after, aux)), grads = self.value_and_grad(of_params, has_aux=True)()
        after = after.replace(**{name: getattr(self, name) for name in aside})
        return after.apply_gradients(grads=grads, tx_args=tx_args), (loss, aux) if has_aux else loss

    @property
    def trainable_params(self) -> PyTree:
        """The parameters that `trainable` matches, as a tree without the others.

        Mappings lose the names of the others; lists, tuples and modules have None in their places.
        """
        part = taken("TrainState.trainable_params", _collections(self.params), self.trainable)
        return part if _overwrites(self.params) else part.get("params", {})

    def with_trainable(self, part: PyTree) -> PyTree:
        """Return all parameters, with other values for the trainable ones (not a new state).

        Args:
            part: a tree with the structure of `trainable_params`.

        Raises:
            LiftArgumentError: if names of parameters are missing, or are not those of trainable ones.
        """
        fix = "Pass a tree like `state.trainable_params`; to replace other parameters, write `state.replace(params=…)`."
        check_names("TrainState.with_trainable", part, self.trainable_params, fix)
        return inserted(self.params, part)

    def value_and_grad(
        self,
        loss_fn: Callable[..., Any],
        has_aux: bool = False,
        *,
        using: Callable[..., Any] = jax.value_and_grad,
    ) -> Callable[..., Any]:
        """Apply `jax.value_and_grad` at the parameters of this state, with respect to the trainable ones.

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
            loss_fn: called as `loss_fn(params, *args, **kwargs)` with all parameters; returns a number or, with
                `has_aux`, a pair of a number and anything else.
            has_aux: whether `loss_fn` returns a pair, of which only the first is differentiated.
            using: the function that differentiates, called as `using(fn, has_aux=has_aux)`, such as the
                `value_and_grad` of a `DynamicScale`.

        Returns:
            A function of the arguments of `loss_fn` without the parameters. It returns the same as
            `jax.value_and_grad`. The gradients have the structure of `trainable_params`, as `apply_gradients` expects.

        Raises:
            LiftArgumentError: when the returned function is called with the parameters; or if, with `has_aux`, the loss
                function does not return a pair.
        """

        @functools.wraps(loss_fn)
        def of_part(part: PyTree, *args: Any, **kwargs: Any) -> Any:
            return call_user(where, loss_fn, self.with_trainable(part), *args, **kwargs)

        where = "TrainState.value_and_grad"
        differentiated = using(paired(where, of_part) if has_aux else of_part, has_aux=has_aux)

        @boundary
        def call(*args: Any, **kwargs: Any) -> Any:
            if args and args[0] is self.params:
                what = "the parameters were passed, but they come from the state."
                fix = "Leave them out: `state.value_and_grad(loss_fn)(batch)` calls `loss_fn(params, batch)`."
                raise LiftArgumentError(where, what, fix, option="params")
            return differentiated(self.trainable_params, *args, **kwargs)

        return call

    @boundary
    def apply_gradients(self, *, grads: PyTree, tx_args: Mapping[str, Any] | None = None, **replaced: Any) -> Self:
        """Return the state after one update.

        Args:
            grads: the gradients of the trainable parameters, as `value_and_grad` returns them. With `optax.lookahead`,
                those of the fast ones suffice.
            tx_args: further keyword arguments for the `update` of `tx`, such as `value` for
                `optax.contrib.reduce_on_plateau`.
            **replaced: new values for other fields, such as `batch_stats`.

        Returns:
            A new state, with `step` increased by one.

        Raises:
            LiftArgumentError: if `grads` has gradients of other parameters or of other shapes, or lacks those of
                trainable ones, or if the class has no such field.
        """
        where = f"{type(self).__name__}.apply_gradients"
        _check_not_for_tx(where, self, replaced)
        check_fields(where, type(self), replaced, own=None)
        part = self.trainable_params
        fix = "Compute them by `state.value_and_grad(loss_fn)(…)`, or with respect to `state.trainable_params` only."
        grads = _fast(grads, part)
        check_like("TrainState.apply_gradients, grads", grads, _fast(part, part), fix)
        weights = _optimised(part)
        with part_of(lambda: _optimised(self.params)):
            updates, opt_state = _update(self.tx, _optimised(grads), self.opt_state, weights, tx_args or {})
        weights = apply_updates(weights, updates)
        new = {_OVERWRITE: grads[_OVERWRITE], "params": weights} if _overwrites(part) else weights
        return self.replace(step=self.step + 1, params=inserted(self.params, new), opt_state=opt_state, **replaced)


def _check_params(where: str, params: PyTree) -> None:
    """Check that parameters are not all variables of a model: an optimizer would change its statistics too."""
    if not isinstance(params, Mapping) or "params" not in params or _overwrites(params):
        return
    found = _UNTRAINED & set(params)
    if found:
        words = f"variables of several collections: {', '.join(map(str, params))}"
        fix = "Write `variables=…` instead: the optimizer then gets the parameters, and the `model_state` the others."
        raise LiftArgumentError(where, Expected("parameters", list(params), words=words), fix, option="params")


def _parted(where: str, params: PyTree, variables: Variables | None) -> tuple[PyTree, dict[str, Any]]:
    """Return the parameters of `create`, and the variables of other collections."""
    if (params is None) == (variables is None):
        given = "neither" if params is None else "both"
        what = Expected("`params` or `variables`", given, words=given)
        raise LiftArgumentError(
            where, what, "Pass what `init` returned: `variables=model.init(key, x)`.", option="variables"
        )
    if variables is None:
        return params, {}
    if not isinstance(variables, Mapping) or "params" not in variables:
        raise LiftArgumentError(
            f"{where}, variables",
            Expected('variables with a collection "params"', given=variables),
            "If these are the parameters, write `params=…`.",
            option="variables",
        )
    trained = ("params", _OVERWRITE)
    others = {name: value for name, value in variables.items() if name not in trained}
    params = {name: variables[name] for name in trained if name in variables}
    return params if _overwrites(params) else params["params"], others


def _check_collections(where: str, cls: type, collections: Mapping[str, Any], model_state: Any) -> None:
    """Check that the collections of `create` are passed once, and that a checkpoint has one entry for each name."""
    if collections and model_state is not None:
        what = "the `model_state` was passed too, but it consists of their other collections."
        raise LiftArgumentError(
            where, what, "Leave out `model_state`; `variables` has all collections.", option="model_state"
        )
    names: Any = cls
    found = model_state if isinstance(model_state, Mapping) else collections
    both = sorted(found.keys() & {one.name for one in dataclasses.fields(names)})
    if both:
        what = f'"{both[0]}" is a collection and a field of {cls.__name__}; a checkpoint has one entry of this name.'
        raise LiftArgumentError(
            where, what, "Leave out the field; the collection is in `state.model_state`.", collection=both[0]
        )


def _with_further(where: str, kept: list[str], further: Filter) -> Any:
    """Return the filter of the mutable collections: those of the state, and further ones."""
    if further is True or not (callable(further) or isinstance(further, (str, bool, list, tuple, set, frozenset))):
        return further  # such as a `DenyList` of flax, for an `apply_fn` of flax
    names: list[Any] = [further] if callable(further) or isinstance(further, (str, bool)) else list(further)
    if further is False or all(name in kept for name in names):
        what = f"`mutable` names no further collection: those of the state are mutable anyway, {kept}."
        fix = "Leave out `mutable`. To get what a model sows, leave its collection out of the variables of the state."
        raise LiftArgumentError(where, what, fix, option="mutable", available=kept)
    return [*kept, *(name for name in names if name not in kept)]


def _check_structure(where: str, name: str, before: PyTree, after: PyTree) -> None:
    """Check that a collection still has the same structure, so that a step need not be compiled again."""
    treedef: Any = jax.tree.structure(before)
    if treedef != jax.tree.structure(after):
        what = f'the collection "{name}" has other variables than before, such as one more sown value.'
        others = f'{{name: tree for name, tree in variables.items() if name != "{name}"}}'
        raise LiftArgumentError(
            where,
            what,
            f"If nothing needs to be kept, leave it out: `variables={others}`. To get what was sown, pass "
            f'`mutable=["{name}"]` to `apply`.',
            option="variables",
            collection=name,
        )


def _ask_for_keys(error: InvalidRngError) -> None:
    """Ask for keys in the state: with the same key in each call, all steps would draw the same."""
    if error.option == "rngs" and error.stream is not None:
        keys = f'`TrainState.create(…, rngs={{"{error.stream}": jax.random.key(0)}})`'
        error.reword(fix=f"Give the state its keys, {keys}: each step folds its number into them.")


def _loss_and_state(where: str, found: Any, has_aux: bool) -> tuple[Any, Any, Any]:
    """Return the loss, the state and the rest of what the loss function of `minimize` returned."""
    loss, after, aux = None, None, None
    if isinstance(found, tuple) and len(found) == 2:
        loss, after = found
    if has_aux and isinstance(after, tuple) and len(after) == 2:
        after, aux = after
    elif has_aux:
        after = None
    if not isinstance(after, TrainState):
        expected = "`(loss, (state, aux))`" if has_aux else "`(loss, state)`"
        fix = "Write `out, state = state.apply(x)`, and return the state too: " + (
            "`return loss, (state, aux)`." if has_aux else "`return loss, state`."
        )
        if not has_aux and isinstance(found, tuple) and (len(found) > 2 or isinstance(after, tuple)):
            fix = "To return more, write `return loss, (state, aux)`, and call `minimize(…, has_aux=True)`."
        raise LiftArgumentError(where, Expected(f"the loss function to return {expected}", given=found), fix)
    return loss, after, aux


def _check_tx(where: str, tx: Any) -> None:
    """Check that an optimizer has the methods of one; a function of optax that was not called has none."""
    if not all(callable(getattr(tx, name, None)) for name in ("init", "update")):
        fix = (
            f"Call it: `tx={tx.__name__}(1e-3)`." if hasattr(tx, "__name__") else "For example, `tx=optax.adam(1e-3)`."
        )
        raise LiftArgumentError(where, Expected("an optimizer with `init` and `update`", given=tx), fix, option="tx")


def _check_not_for_tx(where: str, state: TrainState, names: Iterable[str]) -> None:
    """Check that no name that is not a field could be an argument of the optimizer, such as that of a loss."""
    unknown = [name for name in names if not hasattr(state, name)]
    if unknown and any(one.kind in _BY_NAME for one in inspect.signature(state.tx.update).parameters.values()):
        what = f'{type(state).__name__} has no field "{unknown[0]}".'
        fix = (
            f'If the optimizer takes it, write `tx_args={{"{unknown[0]}": …}}`; if not, define the field in a subclass.'
        )
        raise LiftArgumentError(where, what, fix, option="tx_args", given=unknown[0])


def _overwrites(params: PyTree) -> bool:
    return isinstance(params, Mapping) and _OVERWRITE in params


def _collections(params: PyTree, optimised: bool = False) -> dict[str, Any]:
    """Return parameters as variables, by collection. With FP8 layers, other collections are not trained or changed."""
    if not _overwrites(params):
        return {"params": params}
    names = ("params",) if optimised else ("params", _OVERWRITE)
    return {name: params[name] for name in names if name in params}


def _check_lookahead(where: str, params: PyTree, opt_state: PyTree) -> None:
    """Check that parameters are pairs of fast and slow ones if the optimizer is `optax.lookahead`, or has it in it."""
    nodes = jax.tree.leaves(opt_state, is_leaf=_is_lookahead)
    if any(map(_is_lookahead, nodes)) and not _is_pair(params):
        what = f"optax.lookahead needs fast and slow parameters, given a {type(params).__name__} of parameters."
        fix = "Write `params=optax.LookaheadParams.init_synced(params)`. Train `params.fast`; evaluate `params.slow`."
        raise LiftArgumentError(where, what, fix, option="params")


def _is_lookahead(node: Any) -> bool:
    return type(node).__name__ == "LookaheadState"  # optax need not be installed


def _is_pair(params: PyTree) -> bool:
    return getattr(params, "_fields", None) == ("fast", "slow")


def _update(tx: Any, grads: PyTree, opt_state: PyTree, params: PyTree, tx_args: Mapping[str, Any]) -> tuple[Any, Any]:
    try:
        updates, opt_state = tx.update(grads, opt_state, params, **tx_args)
    except TypeError as error:
        if "required keyword-only argument" in str(error):  # such as those of `optax.lbfgs`
            error.add_note("Pass them to the optimizer by `state.apply_gradients(grads=grads, tx_args={name: value})`.")
        raise
    return updates, opt_state


def _fast(tree: PyTree, params: PyTree) -> PyTree:
    """Return the gradients that an optimizer takes: with the parameters of `optax.lookahead`, of the fast ones only."""
    return tree.fast if _is_pair(params) and _is_pair(tree) else tree


def _optimised(tree: PyTree) -> PyTree:
    """Return the part of parameters, or of their gradients, that the optimizer gets."""
    return tree.get("params", {}) if _overwrites(tree) else tree
