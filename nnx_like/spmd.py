"""Shardings of variables, by the names of axes in their metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh

from liftcore import mesh_specs, meta
from liftcore.calls import boundary
from liftcore.mesh_specs import LogicalRules
from liftcore.struct import field

from .crossing.inside import PARTITION_NAME
from .graph.functions import split
from .transforms.uniform import eval_shape
from .variablelib.shardings import axis_names, axis_rules, is_variable, mesh_of

__all__ = [
    "PARTITION_NAME",
    "as_abstract",
    "get_abstract_model",
    "get_named_sharding",
    "get_partition_spec",
    "logical_axis_rules",
]

Tree = TypeVar("Tree")


def logical_axis_rules(rules: LogicalRules | Mapping[str, Any]) -> AbstractContextManager[None]:
    """Map logical axis names to mesh axes within a `with` block. Functions compiled under other rules are traced again.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> kernel = nnx.Param(jnp.ones((2, 3)), sharding=("embed", "hidden"))
        >>> with nnx.logical_axis_rules([("embed", None), ("hidden", "model")]):
        ...     nnx.get_partition_spec(kernel).get_value()
        P(None, 'model')

    Args:
        rules: a mapping, or pairs, from a logical name to a mesh axis, a tuple of mesh axes, or None. Pairs are tried
            in order; a pair is skipped if another axis of the value already has its mesh axis. The metadata
            `sharding_rules` of a variable has precedence.
    """
    return mesh_specs.logical_axis_rules(list(rules.items()) if isinstance(rules, Mapping) else rules)


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

    Raises:
        LiftArgumentError: if a name or a mesh axis occurs twice in the names of a variable.
    """
    return _mapped(lambda _, leaf: mesh_specs.spec_by_rules(axis_names(leaf), axis_rules(leaf)), tree)


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

    Raises:
        LiftArgumentError: if a name is neither in the rules nor an axis of the mesh, a mesh axis shards two dimensions
            of a value, or its size does not divide that of a dimension. One error lists all variables.
    """
    leaves = jax.tree.leaves_with_path(tree, is_leaf=is_variable)
    shardings = meta.get_sharding({_text(path): _Box.of(leaf) for path, leaf in leaves}, mesh)
    return _mapped(lambda path, _: shardings[_text(path)], tree)


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
        mesh: the mesh; by default that in the metadata of each variable, or the one of `jax.set_mesh`.

    Returns:
        The same pytree, with new variables that hold `jax.ShapeDtypeStruct`s.
    """

    def abstract(path: Any, leaf: Any) -> Any:
        on, name = mesh_of(leaf) if mesh is None else mesh, _text(path)
        sharding = meta.get_sharding({name: _Box.of(leaf)}, on)[name] if on.axis_names else None
        value = leaf.get_raw_value() if is_variable(leaf) else leaf
        return jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=sharding), value)

    return _mapped(abstract, tree)


@boundary
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


def _mapped(change: Callable[[Any, Any], Any], tree: Tree) -> Tree:
    def one(path: Any, leaf: Any) -> Any:
        changed = change(path, leaf)
        return leaf.replace(changed) if is_variable(leaf) else changed

    return jax.tree.map_with_path(one, tree, is_leaf=is_variable)


def _text(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "the value"


class _Box(meta.Partitioned):
    """Boxed metadata as liftcore knows it, for a variable."""

    rules: LogicalRules = field(default=(), pytree_node=False)

    @classmethod
    def of(cls, leaf: Any) -> Any:
        value = leaf.get_raw_value() if is_variable(leaf) else leaf
        return cls(value, axis_names(leaf), rules=axis_rules(leaf))
