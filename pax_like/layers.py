"""Layers: the functions of `liftcore.nn` as modules."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import liftcore
from liftcore import nn
from liftcore.errors import LiftArgumentError
from liftcore.owners import check_function_of_scope
from liftcore.typing import Filter, Path

from .module import Module
from .structure import PaxKind

__all__ = ["BatchNorm", "Conv", "Dropout", "Layer", "LayerNorm", "Linear"]


class Layer(Module):
    """A function of a scope, or a Linen-style module, as a module whose attributes are its variables.

    Variables in "params" are parameters; all others are states, which a call in training may change. Variables below a
    name are attributes of a module with this name.

    Example:
        >>> import jax, linen_like, pax_like as pax
        >>> layer = pax.Layer(linen_like.GroupNorm(num_groups=1), jax.random.key(0), jax.numpy.ones((1, 4)))
        >>> layer.name_to_kind["scale"], layer(jax.numpy.ones((2, 4))).shape
        (<PaxKind.PARAMETER: 2>, (2, 4))

    Args:
        fn: the function, called as `fn(scope, *args, **kwargs)`, or the module.
        rngs: a key for each RNG stream, or one key for "params".
        *args: the arguments of a first call, or their types; nothing is computed with their values.
        **kwargs: the keyword arguments of this call.

    Raises:
        LiftArgumentError: if two variables of different collections have the same path.
    """

    def __init__(self, fn: Any, rngs: Any, *args: Any, **kwargs: Any) -> None:
        check_function_of_scope("Layer", fn, "a module with kinds")
        is_module = hasattr(type(fn), "lazy_init")
        make = fn.lazy_init if is_module else liftcore.lazy_init(fn, liftcore.DenyList("intermediates"))
        self._fn = fn
        self._paths = tuple(_fill(self, make(rngs, *args, **kwargs)))

    def __call__(self, *args: Any, rngs: Any = None, **kwargs: Any) -> Any:
        """Call the function.

        Args:
            *args: its positional arguments.
            rngs: a key for each RNG stream that it draws from.
            **kwargs: its keyword arguments.
        """
        held = {path: getattr(_group(self, path), path[-1]) for path in self._paths}
        variables = liftcore.traverse_util.unflatten_dict(held)
        states = [collection for collection in variables if collection != "params"]
        apply = _apply(self._fn, states if self.is_training else [])
        result, changed = apply(variables, *args, rngs=rngs, **kwargs)
        for path in self._paths:  # the value at a path may have become a dict
            if path[0] in changed:
                setattr(_group(self, path), path[-1], functools.reduce(operator.getitem, path, changed))
        return result


class Group(Module):
    """The variables below one name of a `Layer`."""


def _fill(module: Module, variables: Any) -> Iterator[Path]:
    """Make variables attributes of a module, and of groups in it; yield their paths."""
    for path, value in liftcore.traverse_util.flatten_dict(variables).items():
        collection, *names, name = path
        group: Any = module
        for each in names:
            if each not in group.name_to_kind:
                group.register_module(each, Group())
            group = getattr(group, each)
        if not isinstance(group, Group | Layer) or name in group.name_to_kind:
            where = f"{'.'.join(path[1:])} of {type(module).__name__}"
            what = f'a variable of "{collection}" has the same name as another one.'
            fix = "Rename one of them, or put them into different scopes."
            raise LiftArgumentError(where, what, fix, variable=".".join(path[1:]), collection=collection)
        group.register_subtree(name, value, PaxKind.PARAMETER if collection == "params" else PaxKind.STATE)
        yield path


def _group(module: Any, path: Path) -> Any:
    """Return the module with the variable at a path, which begins with the collection."""
    return functools.reduce(getattr, path[1:-1], module)


def _apply(fn: Any, mutable: Filter) -> Callable[..., Any]:
    return functools.partial(fn.apply, mutable=mutable) if hasattr(type(fn), "apply") else liftcore.apply(fn, mutable)


class Linear(Layer):
    """`liftcore.nn.dense` as a module.

    Example:
        >>> import jax, pax_like as pax
        >>> pax.Linear(3, 2, key=jax.random.key(0))(jax.numpy.ones((4, 3))).shape
        (4, 2)

    Args:
        in_features: the size of the last axis of inputs.
        features: the size of the last axis of results.
        key: a key for the initial values.
        **options: the options of `liftcore.nn.dense`.

    Attributes:
        kernel: parameter of shape (in_features, features).
        bias: parameter of shape (features,).
    """

    kernel: Any
    bias: Any

    def __init__(self, in_features: int, features: int, *, key: Any, **options: Any) -> None:
        fn = functools.partial(nn.dense, features=features, **options)
        super().__init__(fn, key, _types(1, in_features))


class Conv(Layer):
    """`liftcore.nn.conv` as a module.

    Example:
        >>> import jax, pax_like as pax
        >>> conv = pax.Conv(3, 8, (5, 5), key=jax.random.key(0), strides=2)
        >>> conv(jax.numpy.ones((1, 16, 16, 3))).shape
        (1, 8, 8, 8)

    Args:
        in_features: the size of the last axis of inputs.
        features: the size of the last axis of results.
        kernel_size: the size of the window, one for each spatial axis.
        key: a key for the initial values.
        **options: the options of `liftcore.nn.conv`.

    Attributes:
        kernel: parameter of shape (*kernel_size, in_features, features).
        bias: parameter of shape (features,).
    """

    kernel: Any
    bias: Any

    def __init__(
        self, in_features: int, features: int, kernel_size: int | Iterable[int], *, key: Any, **options: Any
    ) -> None:
        window = (kernel_size,) if isinstance(kernel_size, int) else tuple(kernel_size)
        fn = functools.partial(nn.conv, features=features, kernel_size=window, **options)
        super().__init__(fn, key, _types(1, *window, in_features))


class BatchNorm(Layer):
    """`liftcore.nn.batch_norm` as a module. Calls in training update the statistics, and all other calls use them.

    Example:
        >>> import jax, pax_like as pax
        >>> norm = pax.BatchNorm(3, momentum=0.5)
        >>> y = norm(jax.numpy.ones((4, 3)))
        >>> norm.mean.tolist(), norm.eval()(jax.numpy.ones((4, 3)))[0, 0].round(2)
        ([0.5, 0.5, 0.5], Array(0.71, dtype=float32))

    Args:
        features: the size of the last axis.
        key: a key, for initializers that need one; the default ones do not.
        **options: the options of `liftcore.nn.batch_norm`.

    Attributes:
        scale: parameter of shape (features,).
        bias: parameter of shape (features,).
        mean: state of shape (features,).
        var: state of shape (features,).
    """

    scale: Any
    bias: Any
    mean: Any
    var: Any

    def __init__(self, features: int, *, key: Any = None, **options: Any) -> None:
        fn = functools.partial(nn.batch_norm, **options)
        super().__init__(fn, _or_any(key), _types(1, features), use_running_average=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Normalize inputs.

        Args:
            *args: an array of shape (…, features).
            **kwargs: options of `liftcore.nn.batch_norm`, such as `mask`.
        """
        return super().__call__(*args, **{"use_running_average": not self.is_training, **kwargs})


class LayerNorm(Layer):
    """`liftcore.nn.layer_norm` as a module.

    Example:
        >>> import jax, pax_like as pax
        >>> pax.LayerNorm(3)(jax.numpy.arange(3.0)).round(1)
        Array([-1.2,  0. ,  1.2], dtype=float32)

    Args:
        features: the size of the last axis.
        key: a key, for initializers that need one; the default ones do not.
        **options: the options of `liftcore.nn.layer_norm`.

    Attributes:
        scale: parameter of shape (features,).
        bias: parameter of shape (features,).
    """

    scale: Any
    bias: Any

    def __init__(self, features: int, *, key: Any = None, **options: Any) -> None:
        super().__init__(functools.partial(nn.layer_norm, **options), _or_any(key), _types(1, features))


class Dropout(Module):
    """`liftcore.nn.dropout` as a module. It drops elements only in training; a state holds the key.

    Example:
        >>> import jax, pax_like as pax
        >>> dropout = pax.Dropout(0.5, key=jax.random.key(0))
        >>> dropout(jax.numpy.ones(8)), dropout.eval()(jax.numpy.ones(2))
        (Array([2., 2., 0., 2., 2., 2., 2., 0.], dtype=float32), Array([1., 1.], dtype=float32))

    Args:
        rate: the probability that an element is dropped.
        key: a key, from which each call in training derives one.
        **options: the options of `liftcore.nn.dropout`.

    Attributes:
        rate: the probability that an element is dropped.
        key: state: the key from which the next call derives its key.
    """

    key: Any

    def __init__(self, rate: float, *, key: Any, **options: Any) -> None:
        self.rate = rate
        self.options = tuple(options.items())
        self.register_state("key", key)

    def __call__(self, inputs: Any) -> Any:
        """Drop elements, and scale the others.

        Args:
            inputs: an array.
        """
        if not self.is_training:
            return inputs
        self.key, now = jax.random.split(self.key)
        options = dict(self.options)
        return nn.dropout(liftcore.bind({}), inputs, self.rate, deterministic=False, key=now, **options)


def _types(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _or_any(key: Any) -> Any:
    return jax.random.key(0) if key is None else key
