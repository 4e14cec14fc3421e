"""`explain` for modules: reports what each lift does with every variable and RNG stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import liftcore
from liftcore import Explanation
from liftcore.typing import Filter, RNGs, Variables

from ..lifecycle.binding import check_instance
from ..lifecycle.entry import NO_INTERMEDIATES, on_scope, resolve_method
from ..lifecycle.fields import Base

__all__ = ["explain"]


def explain(
    module: Base,
    rngs: RNGs | None = None,
    variables: Variables | None = None,
    mutable: Filter = None,
    method: Callable[..., Any] | str | None = None,
) -> Callable[..., Explanation]:
    """Report what the lifts in a module do with its variables and streams, without computing; see `liftcore.explain`.

    Example:
        >>> import jax, linen_like as nn
        >>> class Ensemble(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         Denses = nn.vmap(nn.Dense, {"params": 0}, {"params": True})
        ...         return Denses(2, use_bias=False, name="batch")(x)
        >>> print(nn.explain(Ensemble(), jax.random.key(0))(jax.numpy.ones((5, 3))))
        Ensemble.__call__
          vmap(Dense) at /batch
            params/batch/kernel  float32[5,3,2]  'params': axis 0                  created, hoisted, read
            rng params                           'params': split between elements  1 drawn

    Args:
        module: an unbound module.
        rngs: a key, for the stream `params`, or a mapping from names to keys.
        variables: the variables that `init` returned, to explain `apply`; by default `init` is explained.
        mutable: a filter of the variables that may be written; by default those that `init` makes, or none.
        method: the method to run: a name, a function of the module or a bound method; by default `__call__`.

    Returns:
        `explained(*args, **kwargs)`, which returns an `Explanation`. Arrays may be `jax.ShapeDtypeStruct`.
    """
    check_instance(module, "explain", "an explanation of a module", "nn.{}(MyModule(…), key)(…)")
    initializing = variables is None
    if mutable is None and initializing:
        mutable = NO_INTERMEDIATES
    fn = resolve_method(module, method)
    run, _ = on_scope(fn, module, mutable)
    run.__name__ = getattr(fn, "__qualname__", type(module).__name__).rpartition("<locals>.")[2]

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        root = liftcore.bind(variables or {}, rngs, mutable, initializing=initializing)
        with root.temporary():
            return liftcore.explain(run)(root, *args, **kwargs)

    return explained
