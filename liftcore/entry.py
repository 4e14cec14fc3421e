"""The ways in: a function of a scope becomes a pure function of variables and keys."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from .errors import InvalidRngError, LazyInitError, check_function
from .pipeline.splitting import Prologue, trace
from .scopes.observers import observers
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

    It calls `Scope`. `apply` is the better way in where it will do: it ends its scope, this one lives on.

    Example:
        >>> bind({"params": {"w": 3}}).get_variable("params", "w")
        3

    Args:
        variables: `{collection: {module: {name: value}}}`; never changed.
        rngs: one key, which is the stream `params`, or a mapping from names to keys.
        mutable: a filter for the variables that may be written.
        initializing: what `is_initializing` answers.
        creates: whether variables may be created; if not, those that exist may be written all the same. Then lifts have
            no initial values to look for, and are traced faster.

    Raises:
        ApplyScopeInvalidVariablesTypeError: where `variables` is no mapping.
        ApplyScopeInvalidVariablesStructureError: where a collection is none, or all lies one level too deep.
        InvalidRngError: where something in `rngs` is no key.
    """
    scope = Scope(variables, rngs, mutable, initializing=initializing)
    scope.tree.creates = creates
    return scope


def apply(fn: Callable[..., Any], mutable: Filter = False) -> Callable[..., Any]:
    """The pure function of variables and keys that a function of a scope is.

    Example:
        >>> def double(scope, x):
        ...     return x * scope.get_variable("params", "w")
        >>> apply(double)({"params": {"w": 2}}, 21)
        42

    Args:
        fn: called as `fn(scope, *args, **kwargs)`.
        mutable: a filter for the variables that may be written.

    Returns:
        `applied(variables, *args, rngs=None, **kwargs)`. It returns the result of `fn`; where `mutable` is given, that
        and a dict with all variables of the mutable collections.

    Raises:
        LiftArgumentError: where `fn` cannot be called.
    """
    check_function("liftcore.apply", fn)

    @functools.wraps(fn)
    def applied(variables: Variables, *args: Any, rngs: RNGs | None = None, **kwargs: Any) -> Any:
        with bind(variables, rngs, mutable).temporary() as root:
            for observer in observers():
                observer.applied(fn, root, mutable, args, kwargs)
            result = fn(root, *args, **kwargs)
            return result if mutable is False or mutable is None else (result, root.mutable_variables())

    return applied


def init(fn: Callable[..., Any], mutable: Filter = True) -> Callable[..., Any]:
    """The pure function from keys to variables that a function of a scope is when nothing exists yet.

    Example:
        >>> import jax.numpy as jnp
        >>> def scale(scope, x):
        ...     return x * scope.param("w", lambda key: jnp.float32(2))
        >>> init(scale)(jax.random.key(0), 21.0)
        (Array(42., dtype=float32), {'params': {'w': Array(2., dtype=float32)}})

    Args:
        fn: called as `fn(scope, *args, **kwargs)`.
        mutable: a filter for the variables that are made.

    Returns:
        `initialized(rngs, *args, **kwargs)`, which returns the result of `fn` and the variables. `rngs` is one key,
        which is the stream `params`, or a mapping from names to keys.

    Raises:
        LiftArgumentError: where `fn` cannot be called.
    """
    check_function("liftcore.init", fn)

    @functools.wraps(fn)
    def initialized(rngs: RNGs, *args: Any, **kwargs: Any) -> tuple[Any, Variables]:
        if rngs is None:
            raise InvalidRngError("init", "expected a PRNG key, given None.", "Pass one: `jax.random.key(0)`.")
        with bind({}, rngs, mutable, initializing=True).temporary() as root:
            for observer in observers():
                observer.applied(fn, root, True, args, kwargs)
            result = fn(root, *args, **kwargs)
            return result, {name: found for name, found in root.mutable_variables().items() if found}

    return initialized


def lazy_init(fn: Callable[..., Any], mutable: Filter = True) -> Callable[..., Any]:
    """`init` for the variables alone: what only the result needs is never computed.

    Example:
        >>> import jax.numpy as jnp
        >>> def layer(scope, x):
        ...     return x @ scope.param("w", jax.random.normal, (x.shape[-1], 2))
        >>> made = lazy_init(layer)(jax.random.key(0), jax.ShapeDtypeStruct((1024, 3), jnp.float32))
        >>> made["params"]["w"].shape
        (3, 2)

    Args:
        fn: called as `fn(scope, *args, **kwargs)`.
        mutable: a filter for the variables that are made.

    Returns:
        `initialized(rngs, *args, **kwargs)`, which returns the variables. Arguments may be arrays or, where no initial
        value depends on their numbers, `jax.ShapeDtypeStruct`.

    Raises:
        LiftArgumentError: where `fn` cannot be called.
        LazyInitError: when called, where an initial value depends on an argument that is a shape only.
    """
    check_function("liftcore.lazy_init", fn)

    def initialized(rngs: RNGs, *args: Any, **kwargs: Any) -> Variables:
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
                    "its initial value depends on the numbers of an argument that is given as a shape only.",
                    "Pass an array for that argument, or call `init`.",
                )
        prologue = Prologue(traced, traced.leaves((rngs, arrays, None)))
        prologue.make(traced.all())
        variables: Variables = prologue.tree()
        return variables

    return initialized
