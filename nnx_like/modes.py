"""The arguments `graph=` and `graph_updates=` of NNX's functions, and partial functions.

There is one mode here: objects may be shared, and may change. True and None mean this mode. False forbids what only
the graph mode of NNX can do, so that code which relies on it is found. `graph=False` forbids shared variables and
objects that refer to each other in circles; both forbid functions that change the structure of their arguments, or
return variables that they were given.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from liftcore.calls import boundary

from . import spmd
from .errors import StructureError
from .graph import functions
from .objects import module, traversal
from .objects.pytree import Pytree
from .objects.traversal import check_not_returned, check_unshared
from .rnglib import splitting
from .transforms import branches, derivatives, loops, mapping, rematerializing, rules, uniform
from .transforms import jit as compiled
from .transforms.base import MISSING

__all__ = [
    "as_abstract",
    "cached_partial",
    "checkify",
    "checkpoint",
    "clone",
    "cond",
    "custom_vjp",
    "eval_shape",
    "flatten",
    "fori_loop",
    "fork_rngs",
    "get_abstract_model",
    "grad",
    "graphdef",
    "iter_children",
    "iter_graph",
    "iter_module_children",
    "iter_modules",
    "jit",
    "jit_partial",
    "jvp",
    "make_jaxpr",
    "map",
    "pmap",
    "recursive_map",
    "remat",
    "reseed",
    "scan",
    "shard_map",
    "split",
    "split_rngs",
    "state",
    "switch",
    "unpack",
    "value_and_grad",
    "variables",
    "view",
    "view_info",
    "vjp",
    "vmap",
    "while_loop",
    "with_attributes",
    "with_rngs",
]

F = TypeVar("F", bound=Callable[..., Any])

_BODIES = ("f", "fun", "true_fun", "false_fun", "cond_fun", "body_fun", "branches", "init_fn")
"""The parameters for functions that run inside."""

_LOOPS = ("scan", "fori_loop", "while_loop")
"""The transformations whose bodies return the objects that they are given."""

_EXPLAINED = {
    "graph": (
        "True, like None, means the only mode there is: objects may be shared. False forbids shared variables and "
        "circular references, as in the tree mode of NNX."
    ),
    "graph_updates": (
        "True, like None, means that the function may change the structure of objects. False forbids this, and to "
        "return variables that it was given."
    ),
}


def _tree(fn: F) -> F:
    """Give a function of objects the argument `graph=`."""
    made: F = _with_modes(fn, ("graph",))
    return made


def _transformation(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Give a transformation the arguments `graph=` and `graph_updates=`."""
    made: Callable[..., Any] = _with_modes(fn, ("graph", "graph_updates"))
    return made


def _with_modes(fn: Any, modes: tuple[str, ...]) -> Any:
    signature = inspect.signature(fn)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation="bool | None")
        for name in modes
    ]
    params = list(signature.parameters.values())

    @functools.wraps(fn)
    @boundary
    def moded(*args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            return fn(*args)
        given = {name: kwargs.pop(name, None) for name in modes}
        forbidden = {name: mode for name, mode in given.items() if mode is not None and not mode}
        if not forbidden:
            return fn(*args, **kwargs)
        bound = signature.bind_partial(*args, **kwargs)
        first = params[0]
        if first.default is MISSING and first.name not in bound.arguments:  # a decorator with options
            return functools.partial(moded, *args, **kwargs, **forbidden)
        tree = "graph" in forbidden
        if tree:
            check_unshared(fn.__name__, {key: value for key, value in bound.arguments.items() if key not in _BODIES})
        if "graph_updates" in modes:
            guard = functools.partial(_guarded, fn.__name__, tree)
            for key in bound.arguments.keys() & set(_BODIES):
                bodies = bound.arguments[key]
                bound.arguments[key] = list(map(guard, bodies)) if isinstance(bodies, list | tuple) else guard(bodies)
        return fn(*bound.args, **bound.kwargs)

    moded.__module__ = __name__
    moded.__doc__ = _documented(inspect.getdoc(fn) or "", modes)
    moded.__signature__ = signature.replace(parameters=sorted([*params, *added], key=lambda one: one.kind))  # type: ignore[attr-defined]
    return moded


def _documented(doc: str, modes: tuple[str, ...]) -> str:
    """Return a docstring with an entry for each mode at the end of its arguments."""
    parts = doc.split("\n\n")
    number = next(number for number, part in enumerate(parts) if part.startswith("Args:"))
    parts[number] += "".join(f"\n    {name}: {_EXPLAINED[name]}" for name in modes)
    return "\n\n".join(parts)


def _guarded(name: str, tree: bool, body: Any) -> Any:
    """Return a function that may not restructure or return its arguments; in a tree, they may not share variables."""
    if not callable(body) or inspect.ismethod(body) or isinstance(body, Pytree):
        return body  # a wrong call, which the transformation reports

    @functools.wraps(body)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        given = {"args": args, "kwargs": kwargs}
        before = functions.graphdef(given)
        result = body(*args, **kwargs)
        if functions.graphdef(given) != before:
            raise StructureError(
                f"{name}({getattr(body, '__name__', type(body).__name__)})",
                "the function changed the structure of an argument, which `graph=False` or `graph_updates=False` "
                "forbids.",
                "Leave that option out, or change only the values of variables.",
                option="graph_updates",
            )
        if tree:
            check_unshared(name, given if name in _LOOPS else {**given, "result": result})
        elif name not in _LOOPS:
            check_not_returned(name, given, result)
        return result

    return guarded


# --- functions of objects ---------------------------------------------------------------------------------------------

as_abstract = _tree(spmd.as_abstract)
clone = _tree(functions.clone)
flatten = _tree(functions.flatten)
get_abstract_model = _tree(spmd.get_abstract_model)
graphdef = _tree(functions.graphdef)
iter_children = _tree(traversal.iter_children)
iter_graph = _tree(traversal.iter_graph)
iter_module_children = _tree(module.iter_module_children)
iter_modules = _tree(module.iter_modules)
map = _tree(functions.map)
recursive_map = _tree(traversal.recursive_map)
reseed = _tree(splitting.reseed)
split = _tree(functions.split)
state = _tree(functions.state)
variables = state
unpack = _tree(functions.unpack)
view = _tree(module.view)
view_info = _tree(module.view_info)
with_attributes = _tree(module.with_attributes)

# --- transformations --------------------------------------------------------------------------------------------------

checkify = _transformation(uniform.checkify)
cond = _transformation(branches.cond)
custom_vjp = _transformation(rules.custom_vjp)
eval_shape = _transformation(uniform.eval_shape)
fori_loop = _transformation(loops.fori_loop)
fork_rngs = _transformation(splitting.fork_rngs)
grad = _transformation(derivatives.grad)
jit = _transformation(compiled.jit)
jvp = _transformation(derivatives.jvp)
make_jaxpr = _transformation(uniform.make_jaxpr)
pmap = _transformation(mapping.pmap)
remat = _transformation(rematerializing.remat)
checkpoint = remat
scan = _transformation(loops.scan)
shard_map = _transformation(mapping.shard_map)
split_rngs = _transformation(splitting.split_rngs)
switch = _transformation(branches.switch)
value_and_grad = _transformation(derivatives.value_and_grad)
vjp = _transformation(derivatives.vjp)
vmap = _transformation(mapping.vmap)
while_loop = _transformation(loops.while_loop)
with_rngs = _transformation(splitting.with_rngs)


def cached_partial(
    f: Callable[..., Any], *cached_args: Any, graph: bool | None = None, graph_updates: bool | None = None
) -> Callable[..., Any]:
    """Return a compiled function with its first arguments bound.

    In NNX this makes calls faster. Here calls are fast anyway, since the walk over an object is kept, so it is
    `functools.partial`.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(jnp.array(2.0)))
        >>> times = nnx.cached_partial(nnx.jit(lambda model, x: model.w * x), model)
        >>> float(times(3.0))
        6.0

    Args:
        f: a function, such as the result of `nnx.jit`.
        *cached_args: its first arguments. They are not copied, so calls change them.
        graph: True, like None, means the only mode there is. False forbids shared variables in the arguments.
        graph_updates: has no effect: the option counts where the function is compiled.

    Returns:
        A function of the other arguments.

    Raises:
        AliasError: if `graph` is False, and a variable is shared.
    """
    if graph is False:
        check_unshared("cached_partial", {"cached_args": cached_args})
    return functools.partial(f, *cached_args)


def jit_partial(
    fun: Callable[..., Any],
    *partial_args: Any,
    graph: bool | None = None,
    graph_updates: bool | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """Compile a function, and bind its first arguments.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(w=nnx.Param(jnp.array(2.0)))
        >>> times = nnx.jit_partial(lambda model, x: model.w * x, model)
        >>> float(times(3.0))
        6.0

    Args:
        fun: the function.
        *partial_args: its first arguments. They are not copied, so calls change them.
        graph: True, like None, means the only mode there is: objects may be shared. False forbids it.
        graph_updates: True, like None, means that the function may change the structure of objects. False forbids it.
        **options: options of `nnx.jit`, such as `donate_argnums`; they count all arguments of the function.

    Returns:
        A function of the other arguments.
    """
    return functools.partial(jit(fun, graph=graph, graph_updates=graph_updates, **options), *partial_args)
