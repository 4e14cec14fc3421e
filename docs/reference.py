"""Writes the pages that list public names, `api.md` and `error-classes.md`: `python docs/reference.py`."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import equinox_like.errors
import liftcore
import liftcore.errors
import linen_like
import linen_like.errors
import nnx_like.errors
import pax_like.errors

DOCS = Path(__file__).parent
PACKAGES = ("liftcore", "linen_like", "equinox_like", "pax_like", "nnx_like")

SECTIONS = (
    "liftcore", "liftcore.Scope", "liftcore.Variable", "liftcore.Rest", "liftcore.Blueprint", "liftcore.nn",
    "liftcore.nn.initializers",
    "liftcore.filters", "liftcore.rng",
    "liftcore.serialization", "liftcore.checkpoints", "liftcore.checkpoints.Checkpoints",
    "liftcore.struct", "liftcore.frozen_dict", "liftcore.traverse_util", "liftcore.cursor", "liftcore.typing",
    "liftcore.training", "liftcore.training.orbax_utils", "liftcore.generation", "liftcore.foreign", "liftcore.scope",
    "liftcore.pipeline", "liftcore.meta", "liftcore.mesh_specs", "liftcore.statics", "liftcore.pytrees",
    "liftcore.diagnostics", "liftcore.owners", "liftcore.caches", "liftcore.pickling",
    "liftcore.lazy", "liftcore.errors", "liftcore.problems", "liftcore.calls",
    "linen_like", "linen_like.Module", "linen_like.initializers", "linen_like.convert", "linen_like.partitioning",
    "linen_like.errors", "equinox_like", "equinox_like.errors",
    "pax_like", "pax_like.Module", "pax_like.errors",
    "nnx_like", "nnx_like.Module", "nnx_like.Variable", "nnx_like.State", "nnx_like.Rngs", "nnx_like.filterlib",
    "nnx_like.variablelib", "nnx_like.statelib", "nnx_like.graph", "nnx_like.rnglib", "nnx_like.spmd",
    "nnx_like.traversals", "nnx_like.layers.initializers",
    "nnx_like.training.optimizer", "nnx_like.training.metrics", "nnx_like.bridge", "nnx_like.errors",
)  # fmt: skip

OF_SCOPE = {
    "child", "collections", "default_name", "get_variable", "has_rng", "has_variable", "invalidate",
    "is_collection_empty", "is_initializing", "is_mutable_collection", "is_valid", "make_rng", "mutable_variables",
    "name", "name_reserved", "param", "parent", "path", "path_text", "perturb", "push", "put_variable", "put_variables",
    "reserve", "rewound", "sow", "temporary", "variable", "variables",
}  # fmt: skip
"""The names of `Scope` that users need; lifts use the others."""

BY_HAND = {
    "liftcore.Blueprint.is_traced": "Tells which leaves are stored in variables.",
    "liftcore.NO_AXES": "The default of `variable_axes` and `split_rngs`: nothing is lifted.",
    "liftcore.Scope.name": "The last name of the path, or None at a root.",
    "liftcore.Scope.parent": "The scope that this one was pushed on, or None at a root and at the entry of a lift.",
    "liftcore.Scope.path": "The names from the root to this scope, without the names of lifts.",
    "liftcore.Variable.collection": "The name of its collection.",
    "liftcore.Variable.name": "Its name.",
    "liftcore.Variable.scope": "The scope that holds it.",
    "liftcore.Variable.unbox": "Whether `value` is the content of a boxed value, not the box.",
    "liftcore.broadcast": "For `in_axes` and `out_axes` of `scan`: the value is the same in all iterations.",
    "liftcore.checkpoint": "Another name of `remat`.",
    "liftcore.scope.CollectionFilter": "Type: a filter of collections.",
    "liftcore.scope.Filter": "Type: a filter; see `liftcore.filters`.",
    "liftcore.scope.PRNGSequenceFilter": "Type: a filter of RNG streams.",
    "liftcore.mesh_specs.LogicalRules": "Type: pairs of a logical name and a mesh axis, several as a tuple, or None.",
    "liftcore.meta.AxisName": "Type: a name, a tuple of names, or None for an unnamed axis.",
    "liftcore.meta.PARTITION_NAME": "The key in `metadata_params` for the name of the axis that a lift adds.",
    "liftcore.nn.initializers.Initializer": "Type: `(key, shape, dtype) -> array`.",
    "liftcore.nn.PaddingLike": "Type: what `padding` may be.",
    "liftcore.nn.PromoteDtypeFn": "Type: a function like `promote_dtype`.",
    "liftcore.pipeline.Transform": "Type: `(body, variable_groups, rng_groups, *args) -> (result, output groups)`.",
    "liftcore.pipeline.Via": "Type: `(body, *operands) -> (result, output groups)`.",
    "liftcore.rng.word": "The former name of `fold_in_data`.",
    "liftcore.rng.DEFAULT": (
        "`params`: the stream for a single key, and the stream to draw from if a stream was not given."
    ),
    "liftcore.traverse_util.empty_node": "Represents an empty dict in a flat dict.",
    "linen_like.Module.name": "Its name in the parent.",
    "linen_like.Module.parent": "The module that this is a submodule of, or the scope it was put on.",
    "linen_like.PARTITION_NAME": "Same as `liftcore.meta.PARTITION_NAME`.",
    "linen_like.avg_pool": "The mean of each window; see `liftcore.nn.avg_pool`.",
    "linen_like.broadcast": "Same as `liftcore.broadcast`.",
    "linen_like.checkpoint": "Another name of `remat`.",
    "linen_like.hard_swish": "Another name of `hard_silu`.",
    "linen_like.initializers.Initializer": "Type: `(key, shape, dtype) -> array`.",
    "linen_like.max_pool": "The largest value of each window; see `liftcore.nn.max_pool`.",
    "linen_like.min_pool": "The smallest value of each window; see `liftcore.nn.min_pool`.",
    "linen_like.normalize": "Another name of `standardize`.",
    "linen_like.pool": "A reduction of each window; see `liftcore.nn.pool`.",
    "linen_like.swish": "Another name of `silu`.",
    "linen_like.partitioning.LogicalRules": "Same as `liftcore.mesh_specs.LogicalRules`.",
    "nnx_like.Data": "In the body of a class: `name: Data[T]` does what `name: T = data()` does.",
    "nnx_like.Initializer": "Type: `(key, shape, dtype) -> array`.",
    "nnx_like.Object": "An older name of `Pytree`.",
    "nnx_like.PARTITION_NAME": "The key of `transform_metadata` for the name of the axis that variables gain.",
    "nnx_like.PureState": "Type: a definition and its state, a pair.",
    "nnx_like.Static": "In the body of a class: `name: Static[T]` does what `name: T = static()` does.",
    "nnx_like.Variable.required_metadata": "The names of metadata that each variable has: none.",
    "nnx_like.Variable.type": "The kind: the class of the variable.",
    "nnx_like.Variable.value": "The value, read and written with hooks.",
    "nnx_like.avg_pool": "The mean of each window; see `liftcore.nn.avg_pool`.",
    "nnx_like.checkpoint": "Another name of `remat`.",
    "nnx_like.combine_masks": "Combines several masks into one; see `liftcore.nn.combine_masks`.",
    "nnx_like.filterlib.Filter": "Type: anything that `to_predicate` accepts.",
    "nnx_like.filterlib.FilterLiteral": "Type: a filter that contains no other filters.",
    "nnx_like.filterlib.Key": "Type: one step of a path, which can be hashed and compared.",
    "nnx_like.filterlib.PathParts": "Type: a path, a tuple of keys.",
    "nnx_like.filterlib.Predicate": "Type: `(path, value) -> bool`.",
    "nnx_like.graph.Key": "Same as `nnx_like.filterlib.Key`.",
    "nnx_like.layers.initializers.Initializer": "Type: `(key, shape, dtype) -> array`.",
    "nnx_like.make_attention_mask": "A mask of queries and keys; see `liftcore.nn.make_attention_mask`.",
    "nnx_like.make_causal_mask": "A mask that hides later positions; see `liftcore.nn.make_causal_mask`.",
    "nnx_like.max_pool": "The largest value of each window; see `liftcore.nn.max_pool`.",
    "nnx_like.min_pool": "The smallest value of each window; see `liftcore.nn.min_pool`.",
    "nnx_like.pool": "A reduction of each window; see `liftcore.nn.pool`.",
    "nnx_like.pure": "Another name of `as_pure`.",
    "nnx_like.traversals.empty_node": "Represents an empty dict in a flat dict.",
    "nnx_like.spmd.PARTITION_NAME": "The key of `transform_metadata` for the name of the axis that variables gain.",
    "nnx_like.variables": "Another name of `state`.",
}
"""The lines for names that have no docstring of their own."""

TYPES = {
    "Array": "an array of JAX",
    "ArrayLike": "anything that JAX accepts as an array",
    "Axis": "an axis, or None",
    "Collection": "the dict of one collection",
    "Dtype": "anything that JAX accepts as a dtype",
    "Filter": "a predicate or one of its short forms",
    "InOutAxes": "a pytree prefix of axes",
    "Initializer": "`(key, shape, dtype) -> array`",
    "Key": "one PRNG key",
    "Path": "`(collection, *modules, name)`",
    "Predicate": "`(path, value) -> bool`",
    "PyTree": "any pytree",
    "RNGs": "one key, or a mapping from names to keys",
    "Shape": "a sequence of sizes",
    "Variables": "`{collection: {module: {name: value}}}`",
}


def api() -> str:
    """The page that lists all public names."""
    lead = (
        "# API\n\n"
        "Every public name, with one line. On the documentation site, each name links to its entry, which has the "
        "signature, all\narguments, the result, the errors and an example. In Python, use `help(name)`. A test keeps "
        "this list complete.\n"
    )
    return lead + "".join(map(_section, SECTIONS))


def error_classes() -> str:
    """The page that lists all classes of errors."""
    lead = "All classes of errors. [Errors](errors.md) shows code that raises each of them, and its message."
    lines = ["# Classes of errors", "", lead, ""]
    for module in (liftcore.errors, linen_like.errors, equinox_like.errors, pax_like.errors, nnx_like.errors):
        lines += [f"## {module.__name__}", "", "| class | is also | when |", "|---|---|---|"]
        for name, found in sorted(vars(module).items()):
            if inspect.isclass(found) and found.__module__ == module.__name__ and name == found.__name__:
                bases = [base for base in found.__mro__[1:] if base not in (Exception, BaseException, object)]
                also = ", ".join(f"`{base.__name__}`" for base in bases)
                lines.append(f"| `{name}` | {also} | {_first(found)} |")
        lines.append("")
    return "\n".join(lines)


def _section(heading: str) -> str:
    owner = _named(heading)
    lead = _lead(heading, owner)
    lines = {name: f"- `{name}`: {_line(heading, owner, name)}\n" for name in _names(heading, owner)}
    listed = "".join(lines.values())
    if owner is liftcore.nn:
        layers = "".join(line for name, line in lines.items() if _is_layer(getattr(owner, name)))
        helpers = "".join(line for name, line in lines.items() if not _is_layer(getattr(owner, name)))
        listed = f"Layers, functions of a scope:\n\n{layers}\nWhat layers are made of:\n\n{helpers}"
    return f"\n## {heading}\n\n{lead}{listed}"


def _is_layer(found: Any) -> bool:
    """Whether something is a function whose first argument is a scope."""
    return inspect.isfunction(found) and [*inspect.signature(found).parameters][:1] == ["scope"]


def _lead(heading: str, owner: Any) -> str:
    """The line below the heading of a module or a class."""
    return re.split(r"(?<=[.:])\s", _first(owner))[0].rstrip(":.") + ".\n\n" if "." in heading else ""


def _named(heading: str) -> Any:
    package, _, name = heading.rpartition(".")
    found = getattr(importlib.import_module(package), name, None) if package else None
    return found if inspect.isclass(found) else importlib.import_module(heading)


def _names(heading: str, owner: Any) -> list[str]:
    """The public names, as an index sorts them: capitals do not come first."""
    return sorted(_public(heading, owner), key=lambda name: (name.lower(), name))


def _public(heading: str, owner: Any) -> list[str]:
    if inspect.isclass(owner):
        if owner is liftcore.Scope:
            return [name for name in dir(owner) if name in OF_SCOPE]
        return [name for name in vars(owner) if not name.startswith("_")]
    if hasattr(owner, "__all__"):
        return list(owner.__all__)
    held = {name: found for name, found in vars(owner).items() if not name.startswith("_")}
    return [name for name, found in held.items() if getattr(found, "__module__", None) == heading or name.isupper()]


def _line(heading: str, owner: Any, name: str) -> str:
    """The line for one name."""
    found = getattr(owner, name) if inspect.ismodule(owner) else inspect.getattr_static(owner, name)
    found = found.fget if isinstance(found, property) else found
    home = getattr(found, "__module__", None) or ""
    if f"{heading}.{name}" in BY_HAND:
        return BY_HAND[f"{heading}.{name}"]
    if heading == "liftcore.typing":
        return f"Type: {TYPES[name]}."
    if inspect.ismodule(found):
        return f"Module: see [below](#{found.__name__.replace('.', '').lower()})."
    if home.startswith("liftcore") and not heading.startswith("liftcore"):
        return f"Same as `{_of_liftcore(heading, name, found)}`."
    if home.partition(".")[0] not in PACKAGES:
        return f"See `{_elsewhere(heading, name, found)}`."
    return _first(found)


def _of_liftcore(heading: str, name: str, found: Any) -> str:
    """Return the public name in liftcore of something that another package offers too."""
    sections = [section for section in SECTIONS if section.startswith("liftcore") and inspect.ismodule(_named(section))]
    for own in (name, getattr(found, "__name__", name)):
        for section in sections:
            if own in _names(section, _named(section)) and getattr(_named(section), own) is found:
                return f"{section}.{own}"
    raise SystemExit(f"docs/reference.py: say in BY_HAND what {heading}.{name} is")


def _elsewhere(heading: str, name: str, found: Any) -> str:
    """The full name in JAX of something that JAX defines."""
    for module in ("jax.nn.initializers", "jax.nn", "jax.numpy", "jax.scipy.special"):
        if getattr(importlib.import_module(module), name, None) is found:
            return f"{module}.{name}"
    raise SystemExit(f"docs/reference.py: say in BY_HAND what {heading}.{name} is")


def _first(value: Any) -> str:
    """The first paragraph of a docstring, as one line."""
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def pages() -> dict[str, str]:
    """The text of each page, by its name."""
    return {"api.md": api(), "error-classes.md": error_classes()}


if __name__ == "__main__":
    for page, text in pages().items():
        (DOCS / page).write_text(text, encoding="utf-8")
