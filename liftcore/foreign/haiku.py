"""`from_haiku`: a function that Haiku transformed, as a function of a scope."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import LiftArgumentError
from ..scopes.declaring import check_creatable
from ..scopes.scope import Scope
from ..typing import Path
from .keeping import begins, check_model, create, named, stored, write
from .parts import noted, running

__all__ = ["from_haiku"]


def from_haiku(transformed: Any, *, stream: str = "dropout") -> Callable[..., Any]:
    """Turn a transformed function of Haiku into a function of a scope.

    Parameters are variables in "params" and states are variables in "state", at the paths that Haiku's names spell:
    `mlp/~/linear_0` is the module `linear_0` in the module `~` in the module `mlp`. A call writes the states that
    changed. In `init`, Haiku's own `init` creates the variables, with a key of the stream "params". Then the function
    runs once for its result. What this run writes is not kept, as in Haiku.

    Example:
        Four stacked MLPs::

            mlp = from_haiku(hk.transform(lambda x: hk.nets.MLP([8, 3])(x)))
            layers = liftcore.scan(
                lambda scope, x, _: (mlp(scope, x), None),
                length=4,
                variable_axes={"params": 0},
                split_rngs={"params": True},
            )
            (y, _), variables = liftcore.init(layers)(jax.random.key(0), jnp.ones((1, 3)), None)
            assert variables["params"]["mlp"]["~"]["linear_0"]["w"].shape == (4, 3, 8)

    Args:
        transformed: the result of `hk.transform` or `hk.transform_with_state`, also after `hk.without_apply_rng`.
        stream: the RNG stream that gives each call its key; without this stream, "params". If the scope has neither,
            the function runs without a key.

    Returns:
        `fn(scope, *args, **kwargs)`.

    Raises:
        LiftArgumentError: if it is not transformed; or, in a call, if a parameter has the path of a module.
        InvalidRngError: in a call, if the function draws and the scope has no stream.
    """
    import haiku as hk

    fits = isinstance(transformed, hk.Transformed | hk.TransformedWithState)
    check_model("from_haiku", transformed, fits, "a transformed function", "from_haiku(hk.transform(fn))")
    stateful = isinstance(transformed, hk.TransformedWithState)
    draws = list(inspect.signature(transformed.apply).parameters)[1 + stateful :][:1] == ["rng"]

    def fn(scope: Scope, *args: Any, **kwargs: Any) -> Any:
        if begins(scope):
            theirs = transformed.init(scope.make_rng("params"), *args, **kwargs)
            params, state = theirs if stateful else (theirs, {})
            made = _checked({**_by_path("params", params), **_by_path("state", state)})
            create(scope, made, lambda: made, transformed)
        held = stored(scope)
        given: list[Any] = [_by_module("params", held)]
        if stateful:
            given.append(_by_module("state", held))
        if draws:
            given.append(scope.make_rng(stream) if scope.can_draw(stream) else None)
        try:
            with _noted(scope):
                result = transformed.apply(*given, *args, **kwargs)
        except ValueError as error:
            if draws and given[-1] is None and "PRNGKey" in str(error):
                scope.make_rng(stream)  # raises the error that says why there is no key
            _check_found(scope, str(error))
            raise
        if not stateful:
            return result
        result, state = result
        write(scope, held, _by_path("state", state))
        return result

    return named(fn, "haiku")


def _noted(scope: Scope) -> Any:
    """A context in which Haiku tells the calls of modules, if they are noted."""
    import haiku as hk

    def intercept(run: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        if context.method_name == "__init__":
            return run(*args, **kwargs)
        place = scope.below(tuple(context.module.module_name.split("/")))
        return running(place, context.module, context.method_name, run, args, kwargs)

    return noted(hk.intercept_methods, intercept)


_MISSING = re.compile(r"(Unable to retrieve parameter|No value for) '(.+?)' (?:for module|in) '(.+?)'")


def _check_found(scope: Scope, text: str) -> None:
    """Raise our error if a text of Haiku says that an array is missing: a lift may not have passed it in."""
    if found := _MISSING.match(text):
        collection = "state" if found[1].startswith("No") else "params"
        check_creatable(scope.below(tuple(found[3].split("/"))), collection, found[2], made=False)


def _by_path(collection: str, tree: Mapping[str, Mapping[str, Any]]) -> dict[Path, Any]:
    """Return the arrays of Haiku, `{"mlp/~/linear_0": {"w": …}}`, as variables by path."""
    return {
        (collection, *module.split("/"), name): each for module, held in tree.items() for name, each in held.items()
    }


def _checked(found: dict[Path, Any]) -> dict[Path, Any]:
    """Return variables, of which none is at the path of a module."""
    above = {path[:size] for path in found for size in range(2, len(path))}
    for path in found:
        if path in above:
            raise LiftArgumentError(
                f"from_haiku, {'/'.join(path)}",
                "an array and a module have this path.",
                "Give one of them another name.",
                variable="/".join(path),
            )
    return found


def _by_module(collection: str, held: Mapping[Path, Any]) -> dict[str, dict[str, Any]]:
    """Return the variables of a collection as Haiku names them: the inverse of `_by_path`."""
    tree: dict[str, dict[str, Any]] = {}
    for (kind, *module, name), value in held.items():
        if kind == collection:
            tree.setdefault("/".join(module), {})[name] = value
    return tree
