"""Shardings of variables, by the names of axes in their metadata."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .crossing.metadata import PARTITION_NAME
from .graph.functions import split
from .transforms.uniform import eval_shape
from .variablelib.variable import Variable

__all__ = [
    "PARTITION_NAME",
    "as_abstract",
    "get_abstract_model",
    "get_named_sharding",
    "get_partition_spec",
    "logical_axis_rules",
]

Tree = TypeVar("Tree")
Rules = Sequence[tuple[str, Any]]

_rules: contextvars.ContextVar[Rules] = contextvars.ContextVar("rules", default=())


@contextlib.contextmanager
def logical_axis_rules(rules: Rules | Mapping[str, Any]) -> Iterator[None]:
    """Map logical axis names to mesh axes within a `with` block.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> kernel = nnx.Param(jnp.ones((2, 3)), sharding=("embed", "hidden"))
        >>> with nnx.logical_axis_rules([("embed", None), ("hidden", "model")]):
        ...     nnx.get_partition_spec(kernel).get_value()
        P(None, 'model')

    Args:
        rules: a mapping, or pairs, from a logical name to a mesh axis, a tuple of mesh axes, or None. The first pair
            with the name applies. The metadata `sharding_rules` of a variable have precedence.
    """
    before = _rules.set(tuple(rules.items() if isinstance(rules, Mapping) else rules))
    try:
        yield
    finally:
        _rules.reset(before)


def get_partition_spec(tree: Tree) -> Tree:
    """Return a pytree with the `PartitionSpec` of each variable in place of its value.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> layer = nnx.Dict(w=nnx.Param(jnp.ones((2, 3)), sharding=(None, "model")), b=nnx.Param(jnp.ones(3)))
        >>> specs = nnx.get_partition_spec(nnx.state(layer))
        >>> specs.w.get_value(), specs.b.get_value()
        (P(None, 'model'), P())

    Args:
        tree: a state, an object, or any pytree that holds variables. Variables without axis names are replicated.

    Returns:
        The same pytree, with new variables; other leaves become `P()`.
    """
    return _mapped(_spec, tree)


def get_named_sharding(tree: Tree, mesh: Mesh) -> Tree:
    """Return a pytree with the `NamedSharding` of each variable in place of its value.

    Example:
        >>> import jax, numpy as np
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("model",))
        >>> nnx.get_named_sharding(nnx.Param(jnp.ones(3), sharding=("model",)), mesh).get_value().spec
        P('model',)

    Args:
        tree: a state, an object, or any pytree that holds variables.
        mesh: the mesh.

    Returns:
        The same pytree, with new variables; other leaves are replicated.
    """
    return _mapped(lambda leaf: NamedSharding(mesh, _spec(leaf)), tree)


def as_abstract(tree: Tree, mesh: Any = None) -> Tree:
    """Return a pytree of shapes with shardings, for example to restore a checkpoint.

    Example:
        >>> import jax, numpy as np
        >>> import nnx_like as nnx
        >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("model",))
        >>> model = nnx.eval_shape(lambda: nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> nnx.as_abstract(model, mesh).kernel.get_value().sharding.spec
        P()

    Args:
        tree: a pytree with variables, of arrays or of their shapes.
        mesh: the mesh; by default the one of `jax.set_mesh`.

    Returns:
        The same pytree, with new variables that hold `jax.ShapeDtypeStruct`s.
    """
    mesh = jax.sharding.get_abstract_mesh() if mesh is None else mesh

    def abstract(leaf: Any) -> Any:
        value = leaf.get_raw_value() if isinstance(leaf, Variable) else leaf
        sharding = None if not mesh.axis_names else NamedSharding(mesh, _spec(leaf))
        return jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=sharding), value)

    return _mapped(abstract, tree)


def get_abstract_model(init_fn: Callable[[], Any], mesh: Any) -> tuple[Any, Any]:
    """Return the definition and the abstract state of an object, without computing anything.

    Example:
        >>> import jax, numpy as np
        >>> import nnx_like as nnx
        >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("model",))
        >>> graphdef, state = nnx.get_abstract_model(lambda: nnx.Linear(2, 3, rngs=nnx.Rngs(0)), mesh)
        >>> state.kernel.get_value().shape, state.kernel.get_value().sharding.spec
        ((2, 3), P())

    Args:
        init_fn: a function without arguments that returns the object.
        mesh: the mesh of the shardings.

    Returns:
        The `GraphDef`, and a `State` whose variables hold `jax.ShapeDtypeStruct`s with shardings.
    """
    graphdef, state = split(eval_shape(init_fn))
    return graphdef, as_abstract(state, mesh)


def _mapped(change: Callable[[Any], Any], tree: Tree) -> Tree:
    def one(leaf: Any) -> Any:
        changed = change(leaf)
        return leaf.replace(changed) if isinstance(leaf, Variable) else changed

    return jax.tree.map(one, tree, is_leaf=lambda leaf: isinstance(leaf, Variable))


def _spec(leaf: Any) -> PartitionSpec:
    names = leaf.get_metadata("out_sharding", None) if isinstance(leaf, Variable) else None
    if not names:
        return PartitionSpec()
    rules = (*leaf.get_metadata("sharding_rules", ()), *_rules.get())
    return PartitionSpec(*[_on_mesh(name, rules) for name in names])


def _on_mesh(name: Any, rules: Rules) -> Any:
    """Return the mesh axis for an axis name of a variable."""
    if isinstance(name, (tuple, list)):
        return tuple([_on_mesh(one, rules) for one in name])
    return next((axis for logical, axis in rules if logical == name), name)
