"""`functional`: turns a class of objects into pure functions of states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..graph.functions import Caller, GraphDef, graphdef, merge, split, state
from ..transforms.uniform import eval_shape

__all__ = ["Functional", "functional"]


class Functional:
    """An object that exists only as states: `init` creates them; `apply` builds the object and calls its methods.

    Args:
        module_type: the class of the object.
        args: its arguments.
        kwargs: the keyword arguments, without `rngs`.
    """

    def __init__(self, module_type: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.module_type, self.args, self.kwargs = module_type, args, kwargs
        self.graphdef: GraphDef[Any] | None = None

    def init(self, *, rngs: Any = None) -> Any:
        """Return the state of a new object.

        Args:
            rngs: passed to the class by name, if it is not None.
        """
        made = self._made(rngs)
        self.graphdef = graphdef(made)
        return state(made)

    def apply(self, *states: Any) -> Caller:
        """Return an object to call as you would call the original one; methods and parts are attributes.

        Args:
            *states: the values.

        Returns:
            An object whose calls return the result, and a pair of the new `GraphDef` and state.
        """
        known = self.graphdef
        if known is None:
            known = self.graphdef = graphdef(eval_shape(lambda: self._made(None)))
        return Caller(lambda: merge(known, *states), split)

    def _made(self, rngs: Any) -> Any:
        return self.module_type(*self.args, **self.kwargs, **({} if rngs is None else {"rngs": rngs}))


def functional(cls: Callable[..., Any]) -> Callable[..., Functional]:
    """Turn a class of objects into pure functions of states.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> linear = nnx.bridge.functional(nnx.Linear)(3, 2)
        >>> state = linear.init(rngs=nnx.Rngs(0))
        >>> y, (graphdef, state) = linear.apply(state)(jnp.ones((1, 3)))
        >>> y.shape
        (1, 2)

    Args:
        cls: the class.

    Returns:
        A function that takes the arguments of the class, without `rngs`, and returns a `Functional`.
    """
    return lambda *args, **kwargs: Functional(cls, args, kwargs)
