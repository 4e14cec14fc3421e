"""`filtered`: any lift, for arguments and results that contain any Python objects."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from ..calls import boundary, call_user
from ..errors import LiftArgumentError, check_function, name_of, words
from ..problems import no_functions
from ..pytrees import check_acyclic, is_traceable
from ..rest import Rest, split_static
from ..scopes.scope import Scope
from ..scopes.scoped import is_scoped
from ..statics import Undescribed
from ..typing import PyTree

__all__ = ["filtered"]


def filtered(
    lift: Callable[..., Any], *fns: Callable[..., Any], is_traced: Callable[[Any], bool] = is_traceable
) -> Callable[..., Any]:
    """`lift(*fns)` for arguments and results that contain any Python objects: arrays are traced, the rest is static.

    A static leaf goes through the lift in a `Rest`, a pytree without leaves in the place of the leaf. So arguments
    keep their positions, and axes and other pytree prefixes apply as usual. A `jit` reuses a trace if the static
    leaves are equal by type and value. Static leaves of a result are returned, also by cached calls.

    Example:
        >>> import jax, liftcore
        >>> import jax.numpy as jnp
        >>> def layer(scope, inputs):
        ...     w = scope.param("w", lambda key: jnp.float32(2))
        ...     return {"y": inputs["act"](w * inputs["x"]), "mode": inputs["mode"]}
        >>> compiled = filtered(liftcore.jit, layer)
        >>> variables = {"params": {"w": jnp.float32(2)}}
        >>> liftcore.apply(compiled)(variables, {"x": jnp.arange(3.0), "mode": "train", "act": jnp.square})
        {'mode': 'train', 'y': Array([ 0.,  4., 16.], dtype=float32)}

    Args:
        lift: a transformation of `liftcore`, of a Module layer, or your own; called as `lift(*fns)`. To give it
            options, write `functools.partial(liftcore.vmap, in_axes=1)`.
        *fns: the functions of scopes; most lifts take one.
        is_traced: a function that returns whether a leaf is traced. By default arrays are traced and Python numbers
            are static. A carry or a predicate must be traced.

    Returns:
        The lifted function, called as `lifted(scopes, *args, **kwargs)`. `scopes` is the first argument that the lift
        takes. If a result has the structure of an argument, as a gradient has, it has the same static leaves.

    Raises:
        LiftArgumentError: if `lift` or a function is not callable; when called, if a static leaf cannot be compared.
    """
    for one in (lift, *fns):
        check_function("filtered", one)
    if not fns:
        raise no_functions("filtered", "Write `filtered(lift, fn)`.")
    lifted = lift(*[_Body(fn, is_traced) for fn in fns])

    @functools.wraps(fns[0])
    @boundary
    def call(scopes: PyTree, *args: Any, **kwargs: Any) -> Any:
        hidden = [_hidden(arg, is_traced, fns[0], f"argument {number}") for number, arg in enumerate(args, 1)]
        named = {name: _hidden(arg, is_traced, fns[0], f'argument "{name}"') for name, arg in kwargs.items()}
        return _shown(lifted(scopes, *hidden, **named))

    return call


@dataclasses.dataclass(frozen=True)
class _Body:
    """A function of scopes and of values whose static leaves are hidden; equal if the functions are equal.

    It has the name, the docstring and the signature of its function.
    """

    fn: Callable[..., Any]
    is_traced: Callable[[Any], bool]

    def __post_init__(self) -> None:
        self.__dict__.update({"__name__": name_of(self.fn), "__doc__": self.fn.__doc__, "__wrapped__": self.fn})

    def __call__(self, scopes: PyTree, *args: Any, **kwargs: Any) -> Any:
        named = {name: _shown(arg) for name, arg in kwargs.items()}
        result = call_user(f"filtered({name_of(self.fn)})", self.fn, scopes, *map(_shown, args), **named)
        return _hidden(result, self.is_traced, self.fn, "the result")


def _hidden(tree: PyTree, is_traced: Callable[[Any], bool], fn: Callable[..., Any], what: str) -> PyTree:
    """Return a pytree with a `Rest` in the place of each static leaf."""

    def is_dynamic(leaf: Any) -> bool:
        return not _is_rest(leaf) and is_traced(leaf)

    check_acyclic(tree)
    try:
        return jax.tree.map(lambda leaf: leaf if is_dynamic(leaf) else Rest(leaf), tree, is_leaf=_is_rest)
    except Undescribed as error:
        try:
            split_static(tree, is_traced)  # it raises the same error with the path in the pytree
        except Undescribed as placed:
            raise _no_key(fn, what, placed) from error
        raise _no_key(fn, what, error) from error


def _no_key(fn: Callable[..., Any], what: str, error: Undescribed) -> LiftArgumentError:
    kind = type(error.value).__name__
    return LiftArgumentError(
        f"filtered({name_of(fn)})",
        f"{what}{error.place} is a {kind}, which is static, but cannot be compared by its contents.",
        f"Pass it first: `lifted({words().first}…)`."
        if isinstance(error.value, Scope)
        else "Pass it first, in place of the scope: `filtered(lift, fn)(module, …)`."
        if is_scoped(error.value)
        else f"{error.fix} Or register {kind} as a pytree.",
        given=f"a {kind}",
    )


def _shown(tree: PyTree) -> PyTree:
    """Return the pytree with the static leaves in place of each `Rest`."""
    return jax.tree.map(lambda leaf: leaf.value if _is_rest(leaf) else leaf, tree, is_leaf=_is_rest)


def _is_rest(leaf: Any) -> bool:
    return isinstance(leaf, Rest)
