"""`from_nnx`: an object of `flax.nnx` as a function of a scope."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..errors import LiftArgumentError, name_of, shown
from ..owners import call_maker
from ..problems import lost_setting
from ..pytrees import holds_arrays
from ..scopes.scope import Scope
from ..typing import Path
from .keeping import INTERMEDIATES, begins, called, check_model, create, fits_maker, method_name, named, stored, write
from .parts import running

__all__ = ["from_nnx"]


def from_nnx(model: Any, *, method: str | Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Turn an object of `flax.nnx` into a function of a scope.

    Its variables are variables at the paths of their attributes. The kind decides the collection: `Param` goes into
    "params", `BatchStat` into "batch_stats", a plain `Variable` into "Variable", and a kind of your own into the
    collection that `flax.nnx.register_variable_name` names. A call writes the variables that changed. In each call,
    each RNG stream of the object gets a new key, drawn from the stream of its tag in the scope ("params", if there is
    none). A dropout made with `Rngs(0)` has the tag "default", and an RNN has "carry". Other attributes are not kept,
    so a call that does nothing but change one, such as `method="eval"`, is an error: set the mode where the object is
    made. In `init`, variables keep the values that the object began with.

    Example:
        Four stacked layers, each with weights of its own::

            linear = from_nnx(lambda rngs: flax.nnx.Linear(3, 3, rngs=rngs))
            layers = liftcore.scan(
                lambda scope, x, _: (linear(scope, x), None),
                length=4,
                variable_axes={"params": 0},
                split_rngs={"params": True},
            )
            (y, _), variables = liftcore.init(layers)(jax.random.key(0), jnp.ones(3), None)
            assert variables["params"]["kernel"].shape == (4, 3, 3)

    Args:
        model: an object, whose present arrays are the initial values; or a function that makes one from
            `flax.nnx.Rngs`, for new values in each element of a lift.
        method: the name of a method to call; or a function, which is called as `method(object, *args, **kwargs)`. It
            may set the mode for this call.

    Returns:
        `fn(scope, *args, **kwargs)`.

    Raises:
        LiftArgumentError: if it is neither an object nor a function; or, in a call, if the call makes a variable that
            its constructor does not make, or does nothing but change another attribute; or if such an attribute of
            the object itself was changed.
        InvalidRngError: in a call, if the object draws and the scope has no stream.
        ModifyScopeVariableError: in a call, if a variable changes and its collection is immutable.
    """
    from flax import nnx

    given = isinstance(model, nnx.Module)
    fits = fits_maker(model, nnx.Module)
    check_model("from_nnx", model, fits, "an object or a function of `rngs`", "from_nnx(lambda rngs: module)")

    kept = _copied(*_split(model)) if given else None
    copied = list(_settings(model)) if given else []

    def make(scope: Scope) -> tuple[Any, dict[tuple[Any, ...], Any]]:
        keys = {name: scope.make_rng(name) for name in _streams(scope) if scope.can_draw(name)}
        return _split(call_maker("from_nnx", model, "`Rngs`", nnx.Rngs(**keys)))

    def types(scope: Scope) -> tuple[Any, dict[tuple[Any, ...], Any]]:
        keys = {name: jax.random.key(0) for name in _streams(scope)}
        return _split(nnx.eval_shape(lambda: call_maker("from_nnx", model, "`Rngs`", nnx.Rngs(**keys))))

    def fn(scope: Scope, *args: Any, **kwargs: Any) -> Any:
        _check_copy(copied)
        starts = begins(scope) and kept is None
        definition, variables = kept or (make(scope) if starts else types(scope))
        paths = {names: _path(names, each) for names, each in variables.items() if not _is_random(each)}
        known = _values(variables, paths)
        create(scope, known, (lambda: known) if kept or starts else lambda: _values(make(scope)[1], paths), definition)
        held = stored(scope)
        random = _drawn(scope, variables)
        states = {names: _value(each) for names, each in random.items()}  # before the call, which changes them in place
        values = {**random, **{names: _with_value(variables[names], held[path]) for names, path in paths.items()}}
        built = nnx.merge(definition, nnx.from_flat_state(values))
        result = running(scope, built, method_name(method), called(built, method), args, kwargs)
        _check_drawn(scope, states, after := _split(built)[1])
        kept_after = {_path(names, each): _value(each) for names, each in after.items() if names not in random}
        writes = any(value is not held.get(path) for path, value in kept_after.items())
        if not (callable(method) or writes or holds_arrays(result, _is_object)):
            _check_settings(nnx.merge(definition, nnx.from_flat_state(values)), built)
        _keep(scope, {path: held[path] for path in paths.values()}, kept_after)
        return result

    return named(fn, type(model).__name__ if given else name_of(model))


def _streams(scope: Scope) -> dict[str, None]:
    """Return the names of the streams that a constructor gets."""
    return dict.fromkeys(("params", *scope.given_rngs, "default"))


def _split(node: Any) -> tuple[Any, dict[tuple[Any, ...], Any]]:
    """Return the definition of an object, and its variables by path."""
    from flax import nnx

    definition, state = nnx.split(node)
    return definition, dict(nnx.to_flat_state(state))


def _copied(definition: Any, variables: dict[tuple[Any, ...], Any]) -> tuple[Any, dict[tuple[Any, ...], Any]]:
    """Return the parts of an object with the values of now: the object may change, and compiled code would not."""
    return definition, {names: _with_value(each, _value(each)) for names, each in variables.items()}


def _is_random(variable: Any) -> bool:
    from flax import nnx

    return isinstance(variable, nnx.RngState)


def _path(names: tuple[Any, ...], variable: Any) -> Path:
    """Return the path of a variable: its collection, and the names that lead to it."""
    from flax import nnx

    is_variable = isinstance(variable, nnx.Variable)
    collection = nnx.variable_name_from_type(type(variable), allow_register=True) if is_variable else "constants"
    return (collection, *map(str, names))


def _value(variable: Any) -> Any:
    return variable.get_raw_value() if hasattr(variable, "get_raw_value") else variable


def _values(variables: Mapping[tuple[Any, ...], Any], paths: Mapping[tuple[Any, ...], Path]) -> dict[Path, Any]:
    """Return the values of variables by path."""
    return {path: _value(variables[names]) for names, path in paths.items()}


def _with_value(variable: Any, value: Any) -> Any:
    return variable.replace(value) if hasattr(variable, "get_raw_value") else value


def _drawn(scope: Scope, variables: Mapping[tuple[Any, ...], Any]) -> dict[tuple[Any, ...], Any]:
    """Return the states of RNG streams for one call: a new key for each stream that the scope has, and no draws."""
    found = {}
    for names, variable in variables.items():
        if _is_random(variable):
            shape, tag = _value(variable).shape, variable.get_metadata("tag", "default")
            if jnp.issubdtype(_value(variable).dtype, jax.dtypes.prng_key):
                key = scope.make_rng(tag) if scope.can_draw(tag) else jax.random.key(0)
                key = key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)
                found[names] = variable.replace(jax.random.split(key, shape) if shape else key)
            else:
                found[names] = variable.replace(jnp.zeros(shape, jnp.uint32))
    return found


def _check_drawn(scope: Scope, before: Mapping[tuple[Any, ...], Any], after: Mapping[tuple[Any, ...], Any]) -> None:
    """Raise an error if a call drew from a stream that the scope lacks: the state of the stream is another."""
    for names, value in before.items():
        if names in after and _value(after[names]) is not value:
            tag = after[names].get_metadata("tag", "default")
            if not scope.can_draw(tag):
                scope.make_rng(tag)  # raises the error that says why there is no key


def _settings(model: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield each part of an object, with its path and its attributes that are plain values, such as the mode."""
    from flax import nnx

    for path, part in nnx.iter_graph(model):
        if isinstance(part, nnx.Pytree):
            plain = {name: value for name, value in vars(part).items() if _is_plain(value)}
            yield "".join(f"{name}/" for name in path), part, plain


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | float | int | str | None)


def _changed(parts: Iterable[tuple[str, Mapping[str, Any], Mapping[str, Any]]]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the place and both values of each plain value that another one replaced, given what parts had and have.

    A nan is not equal to itself, but is the same object.
    """
    for path, before, now in parts:
        for name, old in before.items():
            new = now.get(name, old)
            if new is not old and _is_plain(new) and new != old:
                yield f"{path}{name}", old, new


def _is_object(value: Any) -> bool:
    from flax import nnx

    return isinstance(value, nnx.Pytree | nnx.Variable)


def _check_settings(before: Any, after: Any) -> None:
    """Raise an error if a call changed an attribute that is not a variable: the next call makes the object anew."""
    now = {path: plain for path, _, plain in _settings(after)}
    for place, _, new in _changed((path, plain, now.get(path, plain)) for path, _, plain in _settings(before)):
        raise lost_setting(f"from_nnx, {place}", new)


def _check_copy(copied: Sequence[tuple[str, Any, Mapping[str, Any]]]) -> None:
    """Raise an error if an attribute of the object is not as it was copied."""
    for place, old, new in _changed((path, plain, vars(part)) for path, part, plain in copied):
        raise LiftArgumentError(
            f"from_nnx, {place}",
            f"it was {shown(old)} when `from_nnx` copied the object, and is {shown(new)} now.",
            "Call `from_nnx(model)` again. For a function of each mode, pass copies: `from_nnx(nnx.clone(model))`.",
            expected=old,
            given=new,
        )


def _keep(scope: Scope, held: Mapping[Path, Any], after: Mapping[Path, Any]) -> None:
    """Write the variables that a call changed, and sow those that it sowed."""
    if scope.is_initializing():
        return
    write(scope, held, {path: value for path, value in after.items() if path in held})
    for path, value in after.items():
        if path in held:
            continue
        if path[0] != INTERMEDIATES:
            raise LiftArgumentError(
                f"from_nnx, {'/'.join(path)}",
                "the call made this variable, but the constructor did not.",
                "Make it in the function that you pass to `from_nnx`.",
                variable="/".join(path),
            )
        for each in value if isinstance(value, tuple) else (value,):
            scope.below(path[1:-1]).sow(INTERMEDIATES, path[-1], each)
