"""`map_variables` and other transformations of a module's view of its variables and RNG streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import liftcore
from liftcore.typing import Filter, RNGs, Variables

from ..lifting import Methods
from .options import lift_by_options

__all__ = ["fold_rngs", "map_variables", "swap_collection", "with_rngs"]

Target = TypeVar("Target", bound=Callable[..., Any])


def map_variables(
    target: Target,
    mapped_collections: Filter = True,
    trans_in_fn: Callable[[Any], Variables] = lambda variables: variables,
    trans_out_fn: Callable[[Any], Variables] = lambda variables: variables,
    init: bool = False,
    mutable: bool = False,
    rngs: Filter = True,
    variables: Filter = True,
    methods: Methods = None,
) -> Target:
    """`liftcore.map_variables` for a module class, a method or a function of a module.

    Example:
        >>> import jax, linen_like as nn
        >>> def transpose(variables):
        ...     return jax.tree.map(lambda leaf: leaf.T, variables)
        >>> class Autoencoder(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         dense = nn.Dense(2, use_bias=False)
        ...         decode = nn.map_variables(lambda mdl, h: h @ mdl.variables["params"]["kernel"], "params", transpose)
        ...         return decode(dense, dense(x))
        >>> y, variables = Autoencoder().init_with_output(jax.random.key(0), jax.numpy.ones((1, 3)))
        >>> y.shape, variables["params"]["Dense_0"]["kernel"].shape
        ((1, 3), (3, 2))

    Args:
        target: a Module class, or a function whose first argument is a module.
        mapped_collections: a filter of the variables that are mapped. Other variables are lifted unchanged.
        trans_in_fn: maps the stored variables below a scope, `{collection: {...}}`, to those that the body sees; not
            called if there are none.
        trans_out_fn: maps the variables that the body made or wrote to those that are stored, which
            `mapped_collections` must match, too. If the initial value of a mapped variable reads another one, both
            functions are traced, as under `jax.jit`; a `trans_out_fn` with a true attribute `by_parts` is called with
            the variables in parts instead, as they are made.
        init: whether the body may create mapped variables.
        mutable: whether the body may write mapped variables, and create them.
        rngs: a filter of the RNG streams that are lifted.
        variables: a filter of the other variables that are lifted.
        methods: the methods of a class to lift, by default `__call__`; or a mapping from method names to options that
            override the options given here.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    given = dict(locals())  # a copy, since a debugger adds the names of a comprehension to `locals()` of Python 3.12
    of_linen = {"mapped_collections": "mapped", "trans_in_fn": "map_in", "trans_out_fn": "map_out"}
    options = {of_linen.get(name, name): value for name, value in given.items()}
    return lift_by_options(liftcore.map_variables, options, prefix="Map_variables")


def swap_collection(
    target: Target, col_a: str, col_b: str, variables: Filter = True, rngs: Filter = True, methods: Methods = None
) -> Target:
    """`liftcore.swap_collection` for a module class, a method or a function of a module. It changes no name.

    Example:
        >>> import jax, linen_like as nn
        >>> averaged = nn.swap_collection(nn.Dense, "params", "ema")(2)
        >>> list(averaged.init(jax.random.key(0), jax.numpy.ones(3)))
        ['ema']

    Args:
        target: a Module class, or a function whose first argument is a module.
        col_a: one collection.
        col_b: the other.
        variables: a filter of the other variables that are lifted.
        rngs: a filter of the RNG streams that are lifted.
        methods: the methods of a class to lift, by default `__call__`; or a mapping from method names to options that
            override the options given here.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    return lift_by_options(liftcore.swap_collection, locals())


def fold_rngs(target: Target, variables: Filter = True, rngs: Filter = True, *, methods: Methods = None) -> Target:
    """`liftcore.fold_rngs` for a module class, a method or a function of a module.

    Example:
        >>> import jax, linen_like as nn
        >>> x = jax.numpy.ones(64)
        >>> Masking = nn.fold_rngs(nn.Dropout)
        >>> y = Masking(0.5, deterministic=False).apply({}, x, rngs={"dropout": jax.random.key(0)})
        >>> int((y == 0).sum()) > 0
        True

    Args:
        target: a Module class, or a function whose first argument is a module.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the RNG streams that are lifted, and start again.
        methods: the methods of a class to lift, by default `__call__`; or a mapping from method names to options that
            override the options given here.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    return lift_by_options(liftcore.fold_rngs, locals(), prefix="Fold_rngs")


def with_rngs(target: Target, rngs: RNGs, methods: Methods = None) -> Target:
    """`liftcore.with_rngs` for a module class, a method or a function of a module. It changes no name.

    Example:
        >>> import jax, linen_like as nn
        >>> class Twice(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         masking = nn.with_rngs(nn.Dropout, {"dropout": self.make_rng("dropout")})(0.5, deterministic=False)
        ...         return masking(x), masking(x)
        >>> one, same = Twice().apply({}, jax.numpy.ones(64), rngs={"dropout": jax.random.key(0)})
        >>> bool((one == same).all())
        True

    Args:
        target: a Module class, or a function whose first argument is a module.
        rngs: maps names of streams to keys; or one key, which is the root key of the stream `params`. The streams need
            not have been passed to `init` or `apply`.
        methods: the methods of a class to lift, by default `__call__`; or a mapping from method names to options that
            override the options given here.

    Returns:
        A Module class with the same fields, or a function with the same arguments.
    """
    return lift_by_options(liftcore.with_rngs, locals())
