"""Lifts that treat all variables in the same way.

`checkify`, `named_call`, `eval_shape`, `make_jaxpr` and `associative_scan`; `remat` has a file of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from jax.experimental import checkify as jax_checkify

import liftcore
from liftcore.calls import boundary, call_user

from ..crossing.groups import Group, Groups, in_call
from ..crossing.inside import AxisNames, Inside
from ..crossing.outside import Outside, still
from ..errors import StructureError
from .base import MISSING, also_decorator, checked, named, numbered, title

__all__ = ["ALL", "Uniform", "associative_scan", "body_of", "checkify", "eval_shape", "make_jaxpr", "named_call"]


ALL = Group("all", None, "in the only group")


def body_of(f: Any, groups: Groups, prefix: Any, what: str = "out_axes", names: AxisNames | None = None) -> Any:
    """Return the body of a lift that calls a function of objects: it decodes the arguments, and encodes the result.

    Args:
        f: the function.
        groups: the groups of variables.
        prefix: the groups of the result.
        what: the option that the prefix comes from.
        names: the changes that the lift makes to metadata.
    """

    @named(f)
    def body(scope: liftcore.Scope, *args: Any, **kwargs: Any) -> Any:
        inside = Inside(scope, groups, names)
        args, kwargs = inside.decode((args, kwargs))
        return inside.encode(call_user(groups.where, f, *args, **kwargs), prefix, what)

    return body


class Uniform:
    """A function whose objects are all in one group.

    Args:
        name: what errors call the transformation.
        f: the function.
        static: the numbers and the names of static arguments.
    """

    def __init__(self, name: str, f: Callable[..., Any], static: tuple[set[int], set[str]] = (set(), set())) -> None:
        self.groups = Groups(checked(name, f), "group", groups=[ALL])
        self.static = static
        self.body = body_of(f, self.groups, ALL)

    def outside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outside:
        """Cross the arguments of a call, a pair of `args` and `kwargs`."""
        numbers, names = self.static
        args = tuple([still(arg, self.groups.where) if i in numbers else arg for i, arg in enumerate(args)])
        kwargs = {name: still(arg, name) if name in names else arg for name, arg in kwargs.items()}
        return Outside(self.groups, (args, kwargs), ALL, cached=False, name=in_call)

    def lifted(self, lifted: Callable[..., Any], f: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function of objects for a lifted body."""

        @functools.wraps(f)
        @boundary
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            outside = self.outside(args, kwargs)
            args, kwargs = outside.args
            return outside.call(lifted, *args, **kwargs)

        return wrapped


def checkify(
    f: Callable[..., Any], errors: frozenset[type[Any]] = jax_checkify.user_checks
) -> Callable[..., tuple[jax_checkify.Error, Any]]:
    """`jax.experimental.checkify.checkify` for functions of objects.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> from jax.experimental import checkify
        >>> def root(model):
        ...     checkify.check(model.w.get_value() >= 0, "negative")
        ...     return jnp.sqrt(model.w.get_value())
        >>> error, _ = nnx.checkify(root)(nnx.Dict(w=nnx.Param(jnp.array(-1.0))))
        >>> error.get()
        'negative (`check` failed)'

    Args:
        f: the function.
        errors: the checks to make; by default those that the function makes with `checkify.check`.

    Returns:
        A function that returns an error, which can be thrown, and the result.
    """
    uniform = Uniform("checkify", f)
    lifted = liftcore.checkify(uniform.body, errors)

    @functools.wraps(f)
    @boundary
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        outside = uniform.outside(args, kwargs)
        args, kwargs = outside.args
        with outside.scope() as scope:
            error, crossed = lifted(scope, *args, **kwargs)
            return error, outside.leave(scope, *crossed)

    return wrapped


@also_decorator
def named_call(f: Callable[..., Any] = MISSING, *, name: str | None = None) -> Any:
    """`jax.named_call` for functions of objects: their operations appear under a name in profiles.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> linear = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> nnx.named_call(lambda model, x: model(x), name="head")(linear, jnp.ones(2)).shape
        (3,)

    Args:
        f: the function; without it the result is a decorator. Methods may be decorated.
        name: the name of the operations; by default the name of the function.

    Returns:
        The function.
    """
    uniform = Uniform("named_call", f)
    return uniform.lifted(liftcore.named_call(uniform.body, name), f)


@boundary
def eval_shape(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`jax.eval_shape` for functions of objects: returns the result with shapes in place of arrays.

    Nothing is computed, and the objects passed in do not change.

    Example:
        >>> import nnx_like as nnx
        >>> linear = nnx.eval_shape(lambda: nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> linear.kernel.get_value().shape, type(linear.kernel.get_value()).__name__
        ((2, 3), 'ShapeDtypeStruct')

    Args:
        f: the function.
        *args: its arguments; arrays, in variables too, may be `jax.ShapeDtypeStruct`.
        **kwargs: the keyword arguments, in the same form.

    Returns:
        The result. All objects in it are new, even if the function returns an argument.
    """
    uniform = Uniform("eval_shape", f)
    outside = uniform.outside(args, kwargs)
    args, kwargs = outside.args
    with outside.scope() as scope:
        return outside.abstract(*liftcore.eval_shape(uniform.body)(scope, *args, **kwargs))


@also_decorator
def make_jaxpr(f: Callable[..., Any] = MISSING, *, static_argnums: int | Iterable[int] = ()) -> Any:
    """`jax.make_jaxpr` for functions of objects: returns the program as a jaxpr.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> linear = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> "dot_general" in str(nnx.make_jaxpr(lambda model, x: model(x))(linear, jnp.ones(2)))
        True

    Args:
        f: the function; without it the result is a decorator.
        static_argnums: the numbers of arguments that stay Python values, such as flags.

    Returns:
        A function of the same arguments. Its inputs are the values of variables, then the arguments; its outputs are
        the result, and the values that the function wrote.
    """
    uniform = Uniform("make_jaxpr", f, numbered(title("make_jaxpr", f), f, static_argnums, ()))

    @functools.wraps(f)
    @boundary
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        outside = uniform.outside(args, kwargs)

        def pure(values: Any, args: Any, kwargs: Any) -> Any:
            with liftcore.bind(values, creates=False).temporary() as scope:
                return uniform.body(scope, *args, **kwargs)

        return liftcore.jaxpr_of(pure, outside.walk.values, *outside.args)[0]

    return wrapped


# --- associative_scan -------------------------------------------------------------------------------------------------


@also_decorator
def associative_scan(f: Callable[..., Any] = MISSING, *, reverse: bool = False, axis: int = 0) -> Any:
    """`jax.lax.associative_scan` for an operator that reads objects.

    Unlike the function of JAX, it takes only the operator, and returns a function of the elements.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(scale=nnx.Param(jnp.array(2.0)))
        >>> combine = nnx.associative_scan(lambda model, a, b: a + model.scale * b)
        >>> print(combine(model, jnp.ones(3)))
        [1. 3. 5.]

    Args:
        f: called as `f(*operands, a, b)` with two elements; returns an element. It is traced more than once, and on
            batches of elements. It may read objects but not change them. Without `f`, the result is a decorator.
        reverse: whether to start with the last element.
        axis: the axis of the elements.

    Returns:
        A function `(*operands, elements)`, where `elements` is a pytree of arrays. It returns, for each element, the
        combination of all elements up to it.

    Raises:
        StructureError: when called, if `f` changes an object.
    """
    groups = Groups(checked("associative_scan", f), "group", groups=[ALL])

    @functools.wraps(f)
    @boundary
    def wrapped(*args: Any) -> Any:
        *operands, elements = args
        outside = Outside(groups, tuple(operands), ALL)

        @named(f)
        def operator(scope: liftcore.Scope, a: Any, b: Any) -> Any:
            inside = Inside(scope, groups)
            element = call_user(groups.where, f, *inside.decode(outside.args), a, b)
            _check_unchanged(groups.where, *inside.encode((), ALL)[1:])
            return element

        with outside.scope() as scope:
            return liftcore.associative_scan(operator, reverse=reverse, axis=axis)(scope, elements)

    return wrapped


def _check_unchanged(where: str, home: Any, change: Any) -> None:
    if change.definitions is not None or any(new or written for new, written in home.values()):
        raise StructureError(
            where,
            "the operator changed an object, but it runs in any order and on many elements at once.",
            "Return the value as part of the element, and change the object afterwards.",
        )
