"""Public names of `flax.linen`, of its files, and of `flax.nnx` are there or told of: imports go on to work."""

from __future__ import annotations

import importlib
import inspect
import types
from typing import Any, TypeVar

import pytest

import linen_like
from docs import flax_names, nnx_names
from linen_like import kw_only_dataclasses as keywords
from linen_like import typing as linen_typing

linen = pytest.importorskip("flax.linen")

FILES = (
    "activation", "attention", "batch_apply", "combinators", "dtypes", "initializers", "linear", "module",
    "normalization", "partitioning", "pooling", "recurrent", "spmd", "stochastic", "summary", "transforms",
)  # fmt: skip
"""All but `fp8_ops`: whatever in there is meant for users has its name in `flax.linen` too."""

GLOBAL = {"set_logical_axis_rules", "set_axis_rules"}
"""Left out: they would set rules for all code that runs later."""

INNER = {
    "batch_apply": {"arbitrary_mergeable_leaf", "merge_leading_dims", "ndim_at_least", "split_leading_dim"},
    "linear": {"canonicalize_padding"},
    "module": {
        "CompactNameScope", "Descriptor", "DescriptorWrapper", "InterceptorContext", "ModuleBase", "ParentDescriptor",
        "SetupState", "TestScope", "ThreadLocalStack", "capture_call_intermediates", "create_descriptor_wrapper",
        "module_field", "run_interceptors", "tuple_init", "tuple_reduce", "wrap_descriptor_once", "wrap_method_once",
    },
    "partitioning": {"ScanIn", "ScanOut", "core_remat_static"},
    "summary": {"Row", "Table"},
    "transforms": {
        "InstancePlaceholder", "VariablePlaceholder", "clean_clone", "decorator_lift_transform",
        "decorator_lift_transform_cached", "fork_rngs", "get_module_scopes", "lift_direct_transform", "lift_transform",
        "lift_transform_cached", "module_class_lift_transform", "module_class_lift_transform_cached",
        "set_module_scopes", "add_metadata_axis",
    },
}  # fmt: skip
"""What a file of flax has for itself: how it does things, and not what is done."""


def public(module: types.ModuleType) -> set[str]:
    return {name for name, value in vars(module).items() if not name.startswith("_") and not inspect.ismodule(value)}


def own(module: types.ModuleType) -> set[str]:
    """The functions and classes that a file defines."""
    defined = {name for name in public(module) if getattr(getattr(module, name), "__module__", "") == module.__name__}
    return {name for name in defined if not isinstance(getattr(module, name), TypeVar)}


def test_names_of_linen_are_there() -> None:
    assert public(linen) - GLOBAL - set(linen_like.__all__) == set()


@pytest.mark.parametrize("file", FILES)
def test_names_of_a_file_of_linen_are_there(file: str) -> None:
    theirs = importlib.import_module(f"flax.linen.{file}")
    ours = importlib.import_module(f"linen_like.{file}")
    missing = {name for name in own(theirs) if not hasattr(ours, name)}
    assert missing - GLOBAL - INNER.get(file, set()) == set()


def test_the_table_of_names_is_up_to_date() -> None:
    assert flax_names.table() == flax_names.written(), "run `python docs/flax_names.py`"


@pytest.mark.parametrize("package", flax_names.COUNTERPARTS)
def test_the_table_has_every_public_name(package: str) -> None:
    module = importlib.import_module(package)
    text = flax_names.written().partition(f"### {package}\n")[2].partition("### ")[0]
    names = set(getattr(module, "__all__", ())) | own(module)
    assert {name for name in names if f"`{name}`" not in text} == set()


def test_the_table_leads_to_what_is_there() -> None:
    for package, modules in flax_names.COUNTERPARTS.items():
        for name in flax_names.public(package):
            if module := flax_names.offered(package, name):
                assert module in modules
                assert hasattr(importlib.import_module(module), name)


def test_the_table_of_names_of_nnx_is_up_to_date() -> None:
    assert nnx_names.table() == nnx_names.written(), "run `python docs/nnx_names.py`"


def test_the_table_has_every_public_name_of_nnx() -> None:
    nnx = importlib.import_module("flax.nnx")
    text = nnx_names.written()
    assert [name for name in dir(nnx) if name[0] != "_" and f"`{name}`" not in text] == []
    assert len(nnx_names.public()) >= 236


ALIASES = importlib.import_module("flax.typing")
NO_ALIASES = {
    "BaseConfigContext", "HashableMapping", "MISSING", "Missing", "PytreeDeque", "ShapeDtype", "SizeBytes",
    "has_shape_dtype", "is_key_like",
}  # fmt: skip
"""What `flax.typing` has besides aliases: helpers of `flax.nnx`."""


def test_the_aliases_of_types_are_there() -> None:
    imported = {"Any", "Callable", "Generic", "Hashable", "Iterator", "Mapping", "Optional", "Protocol", "Sequence"}
    imported |= {"FrozenDict", "TypeGuard", "TypeVar", "Union", "deque", "partial", "annotations"}
    theirs = {name for name in public(ALIASES) if not isinstance(getattr(ALIASES, name), TypeVar)} - imported
    assert theirs - NO_ALIASES - set(linen_typing.__all__) == set()


@pytest.mark.parametrize("style", [keywords, importlib.import_module("flax.linen.kw_only_dataclasses")])
def test_fields_that_are_marked_as_keyword_only(style: Any) -> None:
    base = linen_like.Module if style is keywords else linen.Module

    class Block(base):  # type: ignore[misc, valid-type]
        features: int
        act: str = style.field(default="relu", kw_only=True)

    class Wide(Block):
        depth: int

    assert (Wide(2, 3).features, Wide(2, 3).depth, Wide(2, 3, act="gelu").act) == (2, 3, "gelu")
    with pytest.raises(TypeError):
        Wide(2, 3, "gelu")
