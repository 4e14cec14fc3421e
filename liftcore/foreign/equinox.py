"""`from_equinox`: a model of Equinox as a function of a scope."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax

from ..errors import LiftArgumentError, name_of
from ..owners import by_dtype
from ..scopes.blueprint import Blueprint
from ..scopes.scope import Scope
from ..texts import path_text
from ..typing import Path
from .keeping import called, check_model, fits_maker, method_name, named, write
from .parts import running

__all__ = ["from_equinox"]

_STATE = "batch_stats"


def from_equinox(
    model: Any, *, method: str | Callable[..., Any] | None = None, stream: str = "dropout"
) -> Callable[..., Any]:
    """Turn a model of Equinox into a function of a scope.

    Arrays are variables at the paths of their fields: floating-point and complex ones in "params", others in
    "constants". The values of an `equinox.nn.State` are in "batch_stats", at the paths of their `StateIndex` fields; a
    call gets the state after the positional arguments, and writes what changed. If the model takes `key=` and the call
    gives none, the key comes from an RNG stream of the scope. In `init`, states keep the values that the model began
    with.

    Example:
        Four stacked MLPs, each with weights of its own::

            mlp = from_equinox(lambda key: equinox.nn.MLP(3, 3, 8, 1, key=key))
            layers = liftcore.scan(
                lambda scope, x, _: (mlp(scope, x), None),
                length=4,
                variable_axes={"params": 0},
                split_rngs={"params": True},
            )
            (y, _), variables = liftcore.init(layers)(jax.random.key(0), jnp.ones(3), None)
            assert variables["params"]["layers"]["0"]["weight"].shape == (4, 8, 3)

    Args:
        model: a model, whose arrays are the initial values, or a pair of a model and its `State`; or a function that
            makes one of these from a key of the stream "params", for new values in each element of a lift.
        method: the name of a method to call; or a function, which is called as `method(model, *args, **kwargs)`.
        stream: the RNG stream that gives each call its key; without this stream, "params".

    Returns:
        `fn(scope, *args, **kwargs)`. A model works on one example, so map it over a batch with `liftcore.vmap`.

    Raises:
        LiftArgumentError: if it is neither a model nor a function; or, in a call, if a `State` is missing.
        InvalidRngError: in a call, if the model needs a key and the scope has no stream.
        ModifyScopeVariableError: in a call, if a state changes and "batch_stats" is immutable.
    """
    import equinox

    first = model[0] if isinstance(model, tuple) and len(model) == 2 else model
    given = isinstance(first, equinox.Module)
    fits = given or fits_maker(model, equinox.Module)
    check_model("from_equinox", first, fits, "a model or a function of a key", "from_equinox(lambda key: model)")

    def make(key: Any) -> tuple[Any, Any]:
        made = model if given else model(key)
        if isinstance(made, tuple):
            return made
        try:
            pair: tuple[Any, Any] = equinox.nn.make_with_state(lambda: made)()
        except ValueError as error:
            raise LiftArgumentError(
                "from_equinox",
                "the model was separated from its `State`.",
                "Pass both: `from_equinox((model, state))`.",
                option="model",
                expected="`State`",
            ) from error
        return pair

    def fn(scope: Scope, *args: Any, **kwargs: Any) -> Any:
        blueprint = Blueprint.adopt(scope, make, _blueprint)
        made, state = blueprint.read(scope)
        structure: Any
        before, structure = jax.tree.flatten(state)  # first: a state that is changed in the call is no longer valid
        call, states = called(made, method), ([state] if before else [])
        needs_key = "key" not in kwargs and "key" in inspect.signature(call).parameters
        if needs_key and scope.can_draw(stream):
            kwargs["key"] = scope.make_rng(stream)
        try:
            result = running(scope, made, method_name(method), call, (*args, *states), kwargs)
        except RuntimeError as error:
            if needs_key and "key" not in kwargs and "requires a key" in str(error):
                scope.make_rng(stream)  # raises the error that says why there is no key
            raise
        if not states:
            return result
        result, state = result
        paths = blueprint.paths[-len(before) :]
        write(scope, *[dict(zip(paths, leaves, strict=True)) for leaves in (before, structure.flatten_up_to(state))])
        return result

    return named(fn, type(first).__name__ if given else name_of(model))


def _blueprint(pair: tuple[Any, Any]) -> Blueprint:
    """Return the blueprint of a model and its state, each without its place in the pair in front of its paths."""
    blueprint = Blueprint.of(pair, lambda leaf: by_dtype(leaf) or "constants")
    names = _state_names(*pair)
    of_model = [(collection, *path) for collection, _, *path in blueprint.paths[: len(blueprint.paths) - len(names)]]
    return dataclasses.replace(blueprint, paths=(*of_model, *names))


def _state_names(model: Any, state: Any) -> list[Path]:
    """Return the path of each array of a state: that of its `StateIndex` in the model."""
    import equinox

    structure: Any
    leaves, structure = jax.tree.flatten(state)
    numbers = structure.unflatten(range(len(leaves)))
    names: dict[int, Path] = {}

    def is_index(node: Any) -> bool:
        return isinstance(node, equinox.nn.StateIndex)

    for place, index in jax.tree.leaves_with_path(model, is_leaf=is_index):
        if is_index(index):
            for below, number in jax.tree.leaves_with_path(numbers.get(index)):
                names[number] = (_STATE, *(path_text((key,)) for key in (*place, *below)))
    return [names.get(number, (_STATE, str(number))) for number in range(len(leaves))]
