"""Public names of `flax.linen`, of its files, and of `flax.nnx` are there or told of: imports go on to work."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import types
from typing import Any, TypeVar

import pytest

import equinox_like
import liftcore
import liftcore.training
import linen_like
import nnx_like
from docs import flax_names, nnx_names
from liftcore.lazy import without_links
from linen_like import kw_only_dataclasses as keywords
from linen_like import typing as linen_typing
from nnx_like.elsewhere import ELSEWHERE, LEFT_OUT

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
    "summary": {"Row"},
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


# --- names that are left out, and parameters --------------------------------------------------------------------------

STYLE_OF = {"flax": liftcore, "flax.core": liftcore, "flax.linen": linen_like, "flax.nnx": nnx_like}
STYLE_OF |= {"flax.serialization": liftcore.serialization, "flax.training": liftcore.training}


def left_out() -> list[tuple[Any, str, str]]:
    """For each name of the tables that is not here, the package where a reader looks for it, and the reason."""
    found = []
    for part, package in STYLE_OF.items():
        names = {**ELSEWHERE, **LEFT_OUT} if part == "flax.nnx" else flax_names.INSTEAD.get(part, {})
        for name, text in names.items():
            reason = text[0] if isinstance(text, tuple) else text
            found.append((package, name, without_links(reason)))
    equinox = importlib.import_module("equinox_like.elsewhere").INSTEAD
    return found + [(equinox_like, name, reason) for name, reason in equinox.items()]


@pytest.mark.parametrize(("package", "name", "reason"), left_out(), ids=lambda one: one if isinstance(one, str) else "")
def test_a_name_that_is_left_out_says_why(package: Any, name: str, reason: str) -> None:
    if importlib.util.find_spec(f"{package.__name__}.{name}") if hasattr(package, "__path__") else None:
        return  # a file of the same name, with other content
    with pytest.raises(AttributeError, match=re.escape(reason)) as raised:
        getattr(package, name)
    assert (raised.value.name, hasattr(package, name)) == (name, False)
    with pytest.raises(ImportError, match=name):
        exec(f"from {package.__name__} import {name}")


@pytest.mark.parametrize("part", [*STYLE_OF, "flax.struct", "flax.traverse_util", "equinox"])
def test_every_public_name_is_here_or_says_why_not(part: str) -> None:
    theirs = importlib.import_module(part) if part != "equinox" else pytest.importorskip("equinox")
    ours = {**STYLE_OF, "equinox": equinox_like}.get(part) or importlib.import_module(part.replace("flax", "liftcore"))
    names = [name for name in getattr(theirs, "__all__", None) or dir(theirs) if not name.startswith("_")]
    foreign = {"importlib", "annotations"} | {name for name in names if inspect.ismodule(vars(theirs).get(name))}
    if part.startswith("flax") and part not in ("flax.nnx", "flax.linen", "flax.core", "flax"):
        foreign |= set(names) - own(theirs)  # what a file imports
    silent = []
    for name in set(names) - foreign - set(dir(liftcore.typing)):
        try:
            getattr(ours, name)
        except AttributeError as error:
            silent += [name] if str(error).endswith(f"no attribute {name!r}") else []
    assert silent == []


def test_names_are_where_one_looks_for_them() -> None:
    for path in (
        "liftcore.scope.CollectionFilter", "liftcore.scope.PRNGSequenceFilter", "liftcore.scope.union_filters",
        "liftcore.struct.TNode", "liftcore.training.orbax_utils.save_args_from_target", "linen_like.recurrent.Carry",
        "linen_like.summary.Table", "liftcore.config", "liftcore.configurations.config", "nnx_like.A", "nnx_like.M",
    ):  # fmt: skip
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name)
    for module, name in ((linen_like.spmd, "set_logical_axis_rules"), (linen_like.partitioning, "set_axis_rules")):
        with pytest.raises(AttributeError, match=r"with .*axis_rules"):
            getattr(module, name)


def test_flags_of_flax_have_one_value() -> None:
    config = liftcore.config
    their_flags = [name for name in dir(importlib.import_module("flax").config) if name.startswith(("flax_", "nnx_"))]
    assert {name for name in their_flags if not hasattr(config, name)} == set()
    for name in their_flags:
        config.update(name, getattr(config, name))
        setattr(config, name, getattr(config, name))
    config.update("flax_use_flaxlib", True)
    with config.temp_flip_flag("fix_rng_separator", True):
        assert not config.flax_return_frozendict
    for name, value, text in (
        ("flax_return_frozendict", True, "it is False here: variables are plain dicts"),
        ("nnx_graph_mode", False, "there is one mode"),
        ("flax_colour", True, "there is no such flag"),
    ):
        with pytest.raises(liftcore.errors.LiftArgumentError, match=text):
            config.update(name, value)
    assert not hasattr(config, "flax_colour")


PAGES = {"flax.nnx": "from-nnx.md", "equinox": "from-equinox.md"}


def parameters_left_out(page: str) -> dict[str, set[str]]:
    """The parameters that a page says are left out: by the function, the class, or the name of the method."""
    _, _, text = (
        flax_names.PAGE.with_name(page).read_text(encoding="utf-8").partition("## Parameters that are left out\n")
    )
    rows = [row.split("|")[1:3] for row in text.partition("\n## ")[0].splitlines() if row.startswith("| `")]
    known: dict[str, set[str]] = {}
    for names, parameters in [[re.findall(r"`([^`]+)`", cell) for cell in row] for row in rows]:
        for name in names:
            known.setdefault(name, set()).update(parameters)
    return known


def parameters(fn: Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return {}


def missing(theirs: Any, ours: Any) -> set[str]:
    """The named parameters of a function that another one neither has nor collects."""
    here = parameters(ours)
    collects = any(one.kind is one.VAR_KEYWORD for one in here.values())
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    named = {name for name, one in parameters(theirs).items() if one.kind not in several}
    absent = named - here.keys() if here else set()
    return absent & {"graph", "graph_updates"} if collects else absent


@pytest.mark.parametrize(
    "part", ["flax.nnx", "flax.linen", "flax.serialization", "flax.struct", "flax.traverse_util", "equinox"]
)
def test_functions_have_the_parameters_of_the_peer_or_the_page_says_why_not(part: str) -> None:
    theirs = importlib.import_module(part) if part != "equinox" else pytest.importorskip("equinox")
    ours = {**STYLE_OF, "equinox": equinox_like}.get(part) or importlib.import_module(part.replace("flax", "liftcore"))
    found: dict[str, set[str]] = {}
    for name in dir(theirs):
        one, mine = getattr(theirs, name), getattr(ours, name, None)
        if name.startswith("_") or not callable(one) or mine is None:
            continue
        found[name] = missing(one, mine)
        if inspect.isclass(one):
            for method in vars(one):
                both = vars(one)[method], getattr(mine, method, None)
                if (not method.startswith("_") or method == "__call__") and all(map(inspect.isfunction, both)):
                    found[f"{name}.{method}"] = missing(*both)
    said = parameters_left_out(PAGES.get(part, "from-flax.md"))
    for name, params in found.items():
        known = [said.get(one, set()) for one in (name, name.partition(".")[0], name.rpartition(".")[2])]
        assert params - set().union(*known) == set(), name
