"""`Stack`: a block repeated many times, each time with its own parameters, which are stored stacked.

An option selects whether the layers run in one JAX loop or one by one. It changes nothing else: names, values, draws
and gradients are the same. So you can change it between making, training and debugging a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, overload

import jax
import jax.numpy as jnp

import liftcore
from liftcore.errors import AxisSizeError, Expected, LiftArgumentError
from liftcore.filters import merge, partition, union
from liftcore.leaves import is_array, is_number, split_leaves
from liftcore.meta import remove_axis
from liftcore.typing import Filter, PyTree

from ..errors import UnboundModuleError
from ..lifecycle.binding import bound_scope, place
from ..lifecycle.calling import nowrap
from ..lifecycle.fields import Base
from ..lifting import lift_functions
from ..module import Module
from .one_by_one import check_sizes, one_by_one

__all__ = ["Stack"]

_MODES = ("scan", "loop", "jit")


class Stack(Module):
    """Runs a block `length` times: each layer gets the result of the one before.

    Variables have the names that they have in the block, and a leading axis with one slice for each layer. Each layer
    has its own keys: layer `i` draws from `jax.random.split(root, length)[i]`. A block that is made in a compact method
    belongs to the module of that method; one that is made in `setup` or outside belongs to the stack.

    `init` makes the variables of all layers at once, in any mode. The mode selects how they run afterwards:

    - "scan": in one `jax.lax.scan`. The block is traced and compiled once.
    - "loop": one by one in Python, with values that can be printed.
    - "jit": one by one, as one compiled function; the block is traced and compiled once.

    On a bound stack, `stack[2]` is the block with the variables of that layer, and `stack[2:5]` is a shorter stack. Use
    them to inspect layers and to compute. They do not write variables or draw keys in the model.

    Example:
        >>> import jax, jax.numpy as jnp, linen_like as nn
        >>> class Block(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x, scale=1.0):
        ...         return x + scale * nn.relu(nn.Dense(3)(x))
        >>> stack, x = Stack(Block(), 4), jnp.ones(3)
        >>> variables = stack.init(jax.random.key(0), x)
        >>> jax.tree.map(jnp.shape, variables)
        {'params': {'block': {'Dense_0': {'bias': (4, 3), 'kernel': (4, 3, 3)}}}}
        >>> stack.apply(variables, x, per_layer={"scale": jnp.linspace(0.0, 1.0, 4)}).shape
        (3,)
        >>> stack.bind(variables)[2](x).shape
        (3,)

    Attributes:
        block: the module, which maps its first argument to a value of the same type.
        length: the number of layers.
        mode: "scan", "loop" or "jit".
        remat: whether to compute each layer again in the backward pass; or a policy that selects intermediate values to
            store anyway, see `jax.checkpoint`.
        unroll: the number of layers in one step of the compiled loop; see `jax.lax.scan`.
        variable_carry: a filter of variables that pass from one layer to the next, such as a counter.
        variable_broadcast: a filter of variables that all layers share.
        split_rngs: maps filters of RNG streams to bools: whether layers draw different keys, as they do from streams
            that no filter matches. One bool applies to all streams.
        metadata_params: passed to boxed metadata that gains the axis of layers; see `nn.scan`.
    """

    block: Module
    length: int
    mode: str = "scan"
    remat: bool | Callable[..., Any] = False
    unroll: int | bool = 1
    variable_carry: Filter = False
    variable_broadcast: Filter = False
    split_rngs: Mapping[Any, bool] | bool = True
    metadata_params: Mapping[Any, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.block, Base):
            where = "block of Stack"
            fix = "Write `Stack(Block(…), length)`."
            raise LiftArgumentError(where, Expected("a module", self.block), fix, option="block")
        if self.mode not in _MODES:
            raise LiftArgumentError(
                "mode of Stack",
                Expected(f"one of {_MODES}", self.mode),
                'Write `mode="scan"`.',
                option="mode",
                available=_MODES,
            )
        if not isinstance(self.length, Integral) or self.length < 1:
            raise LiftArgumentError(
                "length of Stack",
                Expected("the number of layers, an int of at least 1", self.length),
                "Write `Stack(Block(…), 4)`.",
                option="length",
            )
        super().__post_init__()

    def __call__(self, x: PyTree, *args: Any, per_layer: Mapping[str, PyTree] | None = None, **kwargs: Any) -> PyTree:
        """Run all layers.

        Args:
            x: the first argument of the first layer.
            *args: further arguments of the block, the same for all layers. Values that are not arrays are passed on
                unchanged.
            per_layer: keyword arguments of the block that differ between layers: pytrees of arrays with a leading axis
                of `length`. Initializers in the block may use them.
            **kwargs: keyword arguments, the same for all layers.

        Returns:
            The result of the last layer.
        """
        bound_scope(self, "call")
        layered = _layered(place(self), {} if per_layer is None else per_layer, self.length)
        given = x, layered, *_apart((args, kwargs))
        run = lift_functions(self._lifted, layer, name=f"call of {place(self)}", compared=True)
        try:
            return run(self.block, *given)[0]
        except AxisSizeError:  # the advice of a scan does not apply: the block chooses no axes
            check_sizes(place(self), [self._variables(bound_scope(self.block, "call"))[1]], self.length)
            raise

    @overload
    def __getitem__(self, index: int) -> Module: ...

    @overload
    def __getitem__(self, index: slice) -> Stack: ...

    @nowrap
    def __getitem__(self, index: int | slice) -> Module:
        """Return the block with the variables of one layer, or a stack of some of the layers.

        Raises:
            IndexError: if there is no such layer.
            UnboundModuleError: if the stack is unbound, or has no variables yet.
        """
        numbers = range(self.length)[index]  # raises an error if there is no such layer
        where = f"{place(self)}[{_shown(index)}]"
        scope = bound_scope(self.block, where)
        whole, stacked = self._variables(scope)
        if not stacked and not whole:
            raise UnboundModuleError(
                where,
                "the stack has no variables to take a layer from.",
                "Make them first, with `init` or by calling the stack.",
            )
        block = self.block.unbind()[0]
        if isinstance(numbers, int):
            stacked = remove_axis(stacked, 0, self.metadata_params or {})
            return block.bind(merge(whole, jax.tree.map(lambda leaf: leaf[numbers], stacked)))
        found = merge(whole, jax.tree.map(lambda leaf: leaf[index], stacked))
        shorter = self.clone(block=block, length=len(numbers), name=None)
        return shorter.bind({collection: {"block": tree} for collection, tree in found.items()})

    @nowrap
    def _variables(self, scope: liftcore.Scope) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the variables that the layers share or carry, and the stacked ones."""
        filters = [union(self.variable_broadcast, self.variable_carry)]
        (whole,), stacked = partition(scope.collections_below(), filters, scope.path)
        return whole, stacked

    @nowrap
    def __len__(self) -> int:
        return self.length

    @nowrap
    def _lifted(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Turn the function of one layer into a function of scopes that runs all layers."""
        rules = self.split_rngs
        options: dict[str, Any] = {
            "variable_carry": self.variable_carry,
            "variable_broadcast": self.variable_broadcast,
            "split_rngs": {**rules, ...: rules.get(..., True)} if isinstance(rules, Mapping) else rules,
            "metadata_params": self.metadata_params or {},
        }
        in_scan = self.mode == "scan" or self.is_initializing()
        if self.mode == "jit" and not in_scan:
            fn = liftcore.jit(fn, static_argnames="fixed")
        if self.remat:  # around the compiled function, so that it is found again
            policy = None if self.remat is True else self.remat
            fn = liftcore.remat(fn, policy=policy, prevent_cse=not in_scan, static_argnames="fixed")
        if not in_scan:
            return one_by_one(fn, self.length, **options)
        axes = (0, liftcore.broadcast, liftcore.broadcast)
        return liftcore.scan(fn, self.length, unroll=self.unroll, in_axes=axes, variable_axes={True: 0}, **options)


def layer(block: Module, x: PyTree, layered: Mapping[str, PyTree], arrays: Sequence[Any], fixed: Any) -> Any:
    """Run one layer, in the form that `nn.scan` takes."""
    args, kwargs = _joined(arrays, fixed)
    return block(x, *args, **kwargs, **layered), None


def _apart(tree: PyTree) -> tuple[list[Any], Any]:
    """Return the arrays of a pytree, and the rest, which can be compared."""
    arrays, others = split_leaves(tree, is_array)
    kinds = tuple((type(leaf), str(leaf)) if is_number(leaf) else type(leaf) for leaf in others.leaves)
    return arrays, (others, kinds)  # 1, 1.0 and True are equal, as are 0.0 and -0.0; their kinds differ


def _joined(arrays: Sequence[Any], fixed: Any) -> Any:
    others, _ = fixed
    return others.join(arrays)


def _layered(where: str, per_layer: Any, length: int) -> dict[str, PyTree]:
    """Check the arguments that differ between layers, and return them."""
    if not isinstance(per_layer, Mapping):
        kind = type(per_layer).__name__
        raise LiftArgumentError(
            f"per_layer of {where}",
            Expected("a mapping from names of arguments to arrays", kind, words=kind),
            f'Write `per_layer={{"scale": jnp.ones({length})}}`.',
            option="per_layer",
        )
    layered: dict[str, PyTree] = jax.tree.map(jnp.asarray, dict(per_layer))
    for path, leaf in jax.tree.leaves_with_path(layered):
        if leaf.shape[:1] != (length,):
            raise AxisSizeError(
                f"per_layer{jax.tree_util.keystr(path)} of {where}",
                f"it has shape {leaf.shape}, but there are {length} layers along axis 0.",
                "Pass an array with one entry for each layer; pass values that all layers share as an argument.",
                option="per_layer",
                expected=f"{length} layers",
                given=leaf.shape,
            )
    return layered


def _shown(index: Any) -> str:
    if not isinstance(index, slice):
        return str(index)
    return ":".join("" if one is None else str(one) for one in (index.start, index.stop))
