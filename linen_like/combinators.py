"""Modules made of other modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from liftcore.errors import Expected, LiftArgumentError

from .lifecycle.advice import add_to_fix
from .lifecycle.binding import place
from .lifecycle.calling import compact
from .module import Module

__all__ = ["Sequential"]


_FLAGS = ("use_running_average", "deterministic")


class Sequential(Module):
    """Calls layers one after the other, each with the result of the one before.

    A tuple is passed on as arguments, a dict as keyword arguments. A layer may be any callable. To make a module that
    depends on its input, write a function: `lambda x: Dense(x.shape[-1])(x)`. The layers get no flag of training: give
    it to their constructors, in a method that has it.

    Example:
        >>> import jax, jax.numpy as jnp, linen_like as nn
        >>> model = Sequential([nn.Dense(4), nn.relu, nn.Dense(2)])
        >>> variables = model.init(jax.random.key(0), jnp.ones((1, 3)))
        >>> jax.tree.map(jnp.shape, variables["params"]["layers_2"])
        {'bias': (2,), 'kernel': (4, 2)}

    Attributes:
        layers: modules and functions, at least one.

    Raises:
        LiftArgumentError: if `layers` is not a sequence, or is empty when it is called.
    """

    layers: Sequence[Callable[..., Any]]

    def __post_init__(self) -> None:
        if not isinstance(self.layers, Sequence):
            raise LiftArgumentError(
                "Sequential",
                Expected("a sequence of layers", given=self.layers),
                "Pass a list: `Sequential([first, second])`.",
                option="layers",
            )
        for index, layer in enumerate(self.layers):
            if isinstance(layer, type) and issubclass(layer, Module):
                fix = f"Make the module: `{layer.__name__}(…)`."
            elif not callable(layer):
                fix = "Leave it out, or write a function: `lambda x: …`."
            else:
                continue
            where = f"Sequential, layers[{index}]"
            raise LiftArgumentError(where, Expected("a module or a function", layer), fix, option="layers")
        super().__post_init__()

    @compact
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the first layer with these arguments, and return the result of the last one."""
        if not self.layers:
            what = "there are no layers to call."
            fix = "Pass at least one: `Sequential([layer])`."
            raise LiftArgumentError(f"Sequential at /{'/'.join(self.path)}", what, fix, option="layers")
        layer, *others = self.layers
        try:
            outputs = layer(*args, **kwargs)
            for layer in others:
                if isinstance(outputs, tuple):
                    outputs = layer(*outputs)
                elif isinstance(outputs, dict):
                    outputs = layer(**outputs)
                else:
                    outputs = layer(outputs)
        except LiftArgumentError as error:
            _advise(error, layer)
            raise
        return outputs


def _advise(error: LiftArgumentError, layer: Callable[..., Any]) -> None:
    """Say where a flag of training goes, if a layer lacks one."""
    flag = error.option
    is_missing = flag in _FLAGS and getattr(layer, flag, None) is None
    if is_missing and isinstance(layer, Module) and error.where == f'"{flag}" of {place(layer)}':
        made = f"`{type(layer).__name__}({flag}=not train)`"
        add_to_fix(error, f" A `Sequential` passes no flags: make its layers in a method that has one, {made}.")
