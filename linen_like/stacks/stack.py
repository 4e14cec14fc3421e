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
import numpy as np

import liftcore
from liftcore import Changes, Scope
from liftcore.errors import AxisSizeError, Expected, LiftArgumentError, LoopInvarianceError
from liftcore.filters import leaves_of, merge, partition, union
from liftcore.meta import add_axis, remove_axis
from liftcore.problems import other_structure, other_types
from liftcore.pytrees import is_array, is_number, split_leaves
from liftcore.typing import Filter, PyTree

from ..errors import UnboundModuleError
from ..lifecycle.binding import bound_scope, place
from ..lifecycle.calling import nowrap
from ..lifecycle.fields import Base
from ..lifting import lift_functions
from ..module import Module

__all__ = ["Stack", "check_sizes", "one_by_one"]


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
    args, kwargs = fixed[0].join(arrays)
    return block(x, *args, **kwargs, **layered), None


def _apart(tree: PyTree) -> tuple[list[Any], Any]:
    """Return the arrays of a pytree, and the rest, which can be compared."""
    arrays, others = split_leaves(tree, is_array)
    kinds = tuple((type(leaf), str(leaf)) if is_number(leaf) else type(leaf) for leaf in others.leaves)
    return arrays, (others, kinds)  # 1, 1.0 and True are equal, as are 0.0 and -0.0; their kinds differ


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


# --- one by one -------------------------------------------------------------------------------------------------------


def one_by_one(
    fn: Callable[..., tuple[PyTree, None]],
    length: int,
    *,
    variable_broadcast: Filter = False,
    variable_carry: Filter = False,
    split_rngs: Mapping[Any, bool] | bool = True,
    metadata_params: Mapping[Any, Any] = liftcore.NO_AXES,
) -> Callable[..., Any]:
    """Like `liftcore.scan` along axis 0 of all variables, but a loop in Python: the function runs once for each layer.

    Example:
        >>> def layer(scope, x, by):
        ...     return x * by * scope.param("w", lambda key: jnp.ones(())), None
        >>> (x, _), variables = liftcore.init(one_by_one(layer, 3))(jax.random.key(0), 1.0, jnp.arange(1.0, 4.0))
        >>> float(x), variables["params"]["w"].shape
        (6.0, (3,))

    Args:
        fn: called as `fn(scopes, carry, slices, *args)`; returns the next carry and None.
        length: the number of layers.
        variable_broadcast: a filter of the shared variables, which must exist.
        variable_carry: a filter of the carried variables.
        split_rngs: maps filters of RNG streams to bools: whether iterations draw different keys. One bool applies to
            all streams.
        metadata_params: passed to boxed metadata (see `liftcore.meta`) that gains the axis, such as the name of the
            axis, `{PARTITION_NAME: "layers"}`. Without a name, the axis is unnamed.

    Returns:
        `lifted(scopes, carry, xs, *args)`, which returns the last carry and None.

    Raises:
        AxisSizeError: when called, if variables are stacked from another number of layers.
        CarryTypeError: when called, if a layer changes the type of the carry.
        LiftArgumentError: when called, if layers make, write or sow different variables.
        LoopInvarianceError: when called, if a layer makes or writes a shared variable.
    """
    rules = {...: split_rngs} if isinstance(split_rngs, bool) else dict(split_rngs)
    filters = [variable_broadcast, variable_carry, True]

    def lifted(scopes: PyTree, carry: PyTree, xs: PyTree, *args: Any) -> tuple[PyTree, None]:
        name = f"loop({getattr(fn, '__name__', type(fn).__name__)})"
        first: Scope = jax.tree.leaves(scopes, is_leaf=lambda value: isinstance(value, Scope))[0]
        where = f"{name} at {first.path_text}"

        def transform(scope_fn: Any, repack_fn: Any, variables: Any, rngs: Any, carry: PyTree) -> Any:
            shared, carried, stacked = variables
            check_sizes(where, stacked, length)
            stacked = remove_axis(stacked, 0, metadata_params)
            keys = [_keys(group, split, length) for group, split in zip(rngs, rules.values(), strict=True)]
            layers = []
            for index in range(length):
                inner = scope_fn([shared, carried, _slice(stacked, index)], [each[index] for each in keys])
                after, _ = fn(inner, carry, _slice(xs, index), *args)
                layer = repack_fn(inner)
                _check_type(where, "carry", carry, after)
                carry, carried = after, _carried(where, carried, layer[1])
                layers.append(layer)
            return (carry, None), _together(where, layers, metadata_params)

        filled = liftcore.pack(transform, filters, [*filters, liftcore.Captured()], list(rules), name)
        return filled(scopes, carry)

    return lifted


def _slice(tree: PyTree, index: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _keys(group: PyTree, split: bool, length: int) -> list[PyTree]:
    """Return the root keys of each layer."""
    if not split:
        return [group] * length
    keys = jax.tree.map(lambda key: jax.random.split(key, length), group)
    return [_slice(keys, index) for index in range(length)]


def _carried(where: str, before: PyTree, changes: Changes) -> PyTree:
    """Return the carried variables for the next layer."""
    for old, new in zip(before, changes.values, strict=True):
        known = dict(leaves_of(old))
        for path, value in leaves_of(new):
            if path in known:
                _check_type(where, f'carried variable "{"/".join(path)}"', known[path], value)
    return tuple(merge(*trees) for trees in zip(before, changes.created, changes.values, strict=True))


def _together(where: str, layers: Sequence[Any], params: Mapping[Any, Any]) -> tuple[PyTree, ...]:
    """Combine the output groups of all layers into those of the stack."""
    shared, carried, stacked, captured = zip(*layers, strict=True)
    for changes in shared:
        names = sorted("/".join(path) for part in changes for tree in part for path, _ in leaves_of(tree))
        if names:
            what = f"{names} is shared by all layers (variable_broadcast), but a layer makes or writes it."
            fix = f'Carry it from one layer to the next: `variable_carry="{names[0].split("/")[0]}"`.'
            raise LoopInvarianceError(where, what, fix, variable=names[0], option="variable_broadcast")
    whole = [tuple(merge(*trees) for trees in zip(*part, strict=True)) for part in zip(*carried, strict=True)]
    return shared[0], Changes(*whole), add_axis(_stacked(where, stacked), 0, params), _stacked(where, captured)


def _stacked(where: str, trees: Sequence[PyTree]) -> PyTree:
    try:
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
    except (ValueError, TypeError) as error:
        raise LiftArgumentError(
            where,
            f"the layers make, write or sow different variables, which cannot be stacked: {error}",
            "Make, write and sow the same variables, with the same shapes and dtypes, in every layer.",
        ) from error


def check_sizes(where: str, stacked: PyTree, length: int) -> None:
    """Check that stacked variables have one slice for each layer.

    Args:
        where: the stack, for the error.
        stacked: the groups of variables.
        length: the number of layers.

    Raises:
        AxisSizeError: if one has more or fewer.
    """
    for tree in stacked:
        for path, value in leaves_of(tree):
            for leaf in jax.tree.leaves(value):
                if np.shape(leaf)[:1] != (length,):
                    what = f'"{"/".join(path)}" has shape {np.shape(leaf)}, but there are {length} layers along axis 0.'
                    fix = "Pass variables of that number of layers, or set `length` to their number of layers."
                    raise AxisSizeError(
                        where, what, fix, variable="/".join(path), expected=f"{length} layers", given=np.shape(leaf)
                    )


def _check_type(where: str, what: str, before: PyTree, after: PyTree) -> None:
    """Check that a layer returns a value of the type that it was given."""
    olds: Any = jax.tree.structure(before)
    news: Any = jax.tree.structure(after)
    if olds != news:
        raise other_structure(where, what, olds, news, "Return a value with the structure that the layer was given.")
    pairs = zip(jax.tree.leaves_with_path(before), jax.tree.leaves(after), strict=True)
    changed = [
        (f"{what}{jax.tree_util.keystr(path)}", _type(old), _type(new))
        for (path, old), new in pairs
        if _type(old) != _type(new) and not _is_promoted(old, new)
    ]
    if changed:
        raise other_types(where, "layer", changed, "Cast one of them, such as `x.astype(jnp.float32)`.")


def _type(value: Any) -> str:
    aval = jax.typeof(value)
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"


def _is_promoted(old: Any, new: Any) -> bool:
    """Return whether a number without a dtype of its own got one, which JAX's loops allow."""
    before, after = jax.typeof(old), jax.typeof(new)
    return before.weak_type and before.shape == after.shape and jnp.result_type(old, new) == after.dtype
