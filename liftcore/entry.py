"""`init`, `apply` and `bind`: from a function of a scope to a pure function of variables and keys."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from .calls import boundary, hide_frames, note_call
from .errors import Expected, InvalidRngError, LazyInitError, check_function
from .pipeline.splitting import Prologue, trace
from .rng import streams
from .scopes.observers import OBSERVERS
from .scopes.scope import Scope
from .texts import path_text
from .typing import Filter, PyTree, RNGs, Variables
from .values import only, overlaid

__all__ = ["apply", "bind", "init", "lazy_init"]


def bind(
    variables: Variables,
    rngs: RNGs | None = None,
    mutable: Filter = False,
    *,
    initializing: bool = False,
    creates: bool = True,
) -> Scope:
    """A root scope over variables and keys.

    Prefer `apply` if you do not need the scope itself: `apply` ends its scope, while this one stays valid.

    Example:
        >>> bind({"params": {"w": 3}}).get_variable("params", "w")
        3

    Args:
        variables: `{collection: {module: {name: value}}}`; it is never changed.
        rngs: one key, for the stream `params`, or a mapping from names of streams to keys.
        mutable: a filter of the variables that may be written.
        initializing: the value that `is_initializing` returns.
        creates: whether variables may be created. If False, existing variables may still be written, and lifts trace
            faster because they need not look for initial values.

    Raises:
        ApplyScopeInvalidVariablesTypeError: if `variables` is not a mapping.
        ApplyScopeInvalidVariablesStructureError: if the variables are nested one level too deep.
        InvalidRngError: if a value in `rngs` is not a key.
    """
    scope = Scope(variables, rngs, mutable, initializing=initializing)
    scope.tree.creates = creates
    return scope


def apply(fn: Callable[..., Any], mutable: Filter = False) -> Callable[..., Any]:
    """Turn a function of a scope into a pure function of variables and keys.

    Example:
        >>> def double(scope, x):
        ...     return x * scope.get_variable("params", "w")
        >>> apply(double)({"params": {"w": 2}}, 21)
        42

    Args:
        fn: called as `fn(scope, *args, **kwargs)`.
        mutable: a filter of the variables that may be written.

    Returns:
        `applied(variables, *args, rngs=None, **kwargs)`. It returns the result of `fn`. If `mutable` is given, it
        returns the result and a dict of all variables of the mutable collections.

    Raises:
        LiftArgumentError: if `fn` is not callable.
    """
    check_function("liftcore.apply", fn)

    @functools.wraps(fn)
    def applied(variables: Variables, *args: Any, rngs: RNGs | None = None, **kwargs: Any) -> Any:
        try:
            with Scope(variables, rngs, mutable).temporary() as root:
                result = _run("liftcore.apply", fn, root, mutable, args, kwargs)
                return result if mutable is False or mutable is None else (result, root.mutable_variables())
        except Exception as error:
            hide_frames(error)
            raise

    return applied


def init(fn: Callable[..., Any], mutable: Filter = True) -> Callable[..., Any]:
    """Turn a function of a scope into a pure function of keys that creates its variables.

    Example:
        >>> import jax.numpy as jnp
        >>> def scale(scope, x):
        ...     return x * scope.param("w", lambda key: jnp.float32(2))
        >>> init(scale)(jax.random.key(0), 21.0)
        (Array(42., dtype=float32), {'params': {'w': Array(2., dtype=float32)}})

    Args:
        fn: called as `fn(scope, *args, **kwargs)`.
        mutable: a filter of the variables that are created.

    Returns:
        `initialized(rngs, *args, **kwargs)`, which returns the result of `fn` and the variables. `rngs` is one key,
        for the stream `params`, or a mapping from names of streams to keys.

    Raises:
        LiftArgumentError: if `fn` is not callable.
    """
    check_function("liftcore.init", fn)

    @functools.wraps(fn)
    def initialized(rngs: RNGs, *args: Any, **kwargs: Any) -> tuple[Any, Variables]:
        try:
            if rngs is None:
                raise InvalidRngError("init", Expected("a PRNG key", given=rngs), "Pass one: `jax.random.key(0)`.")
            with Scope({}, rngs, mutable, initializing=True).temporary() as root:
                result = _run("liftcore.init", fn, root, True, args, kwargs)
                return result, {name: found for name, found in root.mutable_variables().items() if found}
        except Exception as error:
            hide_frames(error)
            raise

    return initialized


def _run(where: str, fn: Callable[..., Any], root: Scope, mutable: Filter, args: Any, kwargs: Any) -> Any:
    """Return the result of a function of a scope, which observers see first."""
    for observer in OBSERVERS.get():
        observer.applied(fn, root, mutable, args, kwargs)
    try:
        return fn(root, *args, **kwargs)
    except TypeError as error:
        note_call(error, where, fn, (root, *args), kwargs)
        raise


def lazy_init(fn: Callable[..., Any], mutable: Filter = True) -> Callable[..., Any]:
    """Like `init`, but returns only the variables, and computes nothing that only the result needs.

    Example:
        >>> import jax.numpy as jnp
        >>> def layer(scope, x):
        ...     return x @ scope.param("w", jax.random.normal, (x.shape[-1], 2))
        >>> made = lazy_init(layer)(jax.random.key(0), jax.ShapeDtypeStruct((1024, 3), jnp.float32))
        >>> made["params"]["w"].shape
        (3, 2)

    Args:
        fn: called as `fn(scope, *args, **kwargs)`.
        mutable: a filter of the variables that are created.

    Returns:
        `initialized(rngs, *args, **kwargs)`, which returns the variables. Arguments may be arrays. If no initial value
        depends on the values of an argument, it may be a `jax.ShapeDtypeStruct`.

    Raises:
        LiftArgumentError: if `fn` is not callable.
        LazyInitError: when called, if an initial value depends on an argument that is only a shape.
    """
    check_function("liftcore.lazy_init", fn)

    @boundary
    def initialized(rngs: RNGs, *args: Any, **kwargs: Any) -> Variables:
        streams(rngs)  # checks the keys
        given = args, kwargs
        arrays, shapes = only(given, jax.Array), only(given, jax.ShapeDtypeStruct)

        def create(rngs: RNGs, arrays: PyTree, shapes: PyTree) -> tuple[Variables, tuple[()]]:
            args, kwargs = overlaid(overlaid(given, arrays), shapes)
            return init(fn, mutable)(rngs, *args, **kwargs)[1], ()

        traced = trace(create, rngs, arrays, shapes)
        for path, reads in jax.tree.leaves_with_path(traced.reads()):
            if 2 in reads:
                raise LazyInitError(
                    f'"{path_text(path)}"',
                    "its initial value depends on the values of an argument that is given as a shape only.",
                    "Pass an array for that argument, or call `init`.",
                    variable=path_text(path),
                )
        prologue = Prologue(traced, traced.leaves((rngs, arrays, None)))
        prologue.make()
        variables: Variables = prologue.tree()
        return variables

    return initialized
