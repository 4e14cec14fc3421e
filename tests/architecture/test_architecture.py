"""How the packages hang together: levels, cycles, public names and sizes."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator

import pytest

import liftcore
import linen_like
import linen_like.lifecycle.fields
from tests.architecture.sources import PACKAGES, Source, imports, offers, public_definitions, sources, targets

LEVELS = (
    {"errors", "calls", "typing", "texts", "values", "pytrees", "lazy", "tracing", "caches", "_compat", "elsewhere"},
    {
        "filters",
        "problems",
        "rng",
        "meta",
        "mesh_specs",
        "portions",
        "statics",
        "rest",
        "struct",
        "traverse_util",
        "frozen_dict",
        "owners",
        "pickling",
        "configurations",
        "cursor",
    },
    {"scopes", "saving", "serialization"},
    {"pipeline", "entry", "checkpoints", "sharded_init"},
    {"runners"},
    {"lift", "nn", "diagnostics"},
    {"training", "generation", "doctor", "scope", "foreign"},
)
"""The rooms and files of liftcore; each imports from its own level and those above it here."""

MODULE_LEVELS = (
    {"errors", "dtypes", "initializers"},
    {"lifecycle"},
    {"summary", "rebuilding"},
    {"module"},
    {"lifting"},
)
"""Those of linen_like; what is not named here, the layers and what else users import, stands on all of them."""

OBJECT_LEVELS = (
    {"errors", "filterlib", "traversals"},
    {"variablelib"},
    {"objects", "statelib"},
    {"graph"},
    {"crossing"},
    {"transforms"},
    {"rnglib", "spmd", "training"},
    {"layers", "summary", "modes"},
    {"bridge"},
)
"""Those of nnx_like."""

MODULES = sources()
CORE = {name: source for name, source in MODULES.items() if name.startswith("liftcore.")}
LINEN = {name: source for name, source in MODULES.items() if name.startswith("linen_like.")}
OBJECTS = {name: source for name, source in MODULES.items() if name.startswith("nnx_like.")}
STYLES = {name: source for name, source in MODULES.items() if name not in CORE and name != "liftcore"}


def for_each(checked: Iterable[Source]) -> Callable[[Callable[[Source], None]], Callable[[], None]]:
    """Makes a check of one file a test of several. It names each file that fails."""

    def decorate(check: Callable[[Source], None]) -> Callable[[], None]:
        def test() -> None:
            problems = []
            for source in checked:
                try:
                    check(source)
                except AssertionError as error:
                    problems.append(f"{source.module}: {error}")
            assert not problems, "\n".join(problems)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate


def level(module: str) -> int:
    part = module.split(".")[1]
    found = [number for number, names in enumerate(LEVELS) if part in names]
    assert found, f"{module} has no level: add it to LEVELS"
    return found[0]


# -- imports -----------------------------------------------------------------------------------------------------------


@for_each(CORE.values())
def test_a_file_imports_only_from_its_level_and_lower_ones(source: Source) -> None:
    for target in targets(source):
        assert target != "liftcore", "a file never imports its package root"
        assert target.startswith("liftcore."), target
        assert level(target) <= level(source.module), target


def module_level(module: str) -> int:
    part = module.split(".")[1]
    return next((number for number, names in enumerate(MODULE_LEVELS) if part in names), len(MODULE_LEVELS))


@for_each(LINEN.values())
def test_a_file_of_the_module_layer_imports_only_from_its_level_and_lower_ones(source: Source) -> None:
    for target in targets(source):
        if target.startswith("linen_like."):
            assert module_level(target) <= module_level(source.module), target


def object_level(module: str) -> int:
    found = [number for number, names in enumerate(OBJECT_LEVELS) if module.split(".")[1] in names]
    assert found, f"{module} has no level: add it to OBJECT_LEVELS"
    return found[0]


@for_each(OBJECTS.values())
def test_a_file_of_objects_imports_only_from_its_level_and_lower_ones(source: Source) -> None:
    for target in targets(source):
        assert target != "nnx_like", "a file never imports its package root"
        if target.startswith("nnx_like."):
            assert object_level(target) <= object_level(source.module), target


@for_each(STYLES.values())
def test_styles_do_not_know_each_other(source: Source) -> None:
    """Except for the bridge between objects and Linen-style modules."""
    own = source.module.split(".")[0]
    others = {one.split(".")[0] for one in targets(source)} - {own, "liftcore"}
    assert others <= ({"linen_like"} if source.module.startswith("nnx_like.bridge") else set())


@pytest.mark.parametrize("package", ["liftcore.lift", "liftcore.nn", "linen_like"])
def test_no_file_imports_its_package_from_inside(package: str) -> None:
    for source in MODULES.values():
        if source.package == package and not source.is_package:
            assert package not in set(targets(source)), source.module


def test_layers_and_lifts_do_not_know_each_other() -> None:
    for source in CORE.values():
        part = source.module.split(".")[1]
        if part in ("lift", "nn"):
            other = "liftcore.nn" if part == "lift" else "liftcore.lift"
            assert not [target for target in targets(source) if target.startswith(other)], source.module


def test_no_import_goes_in_a_circle() -> None:
    edges = {name: set(targets(source)) - {name} for name, source in MODULES.items()}

    def circle(path: tuple[str, ...], done: set[str]) -> tuple[str, ...] | None:
        for target in sorted(edges.get(path[-1], ())):
            if target in path:
                return (*path[path.index(target) :], target)
            if target not in done:
                found = circle((*path, target), done)
                if found:
                    return found
                done.add(target)
        return None

    done: set[str] = set()
    assert [found for name in edges if (found := circle((name,), done))] == []


PUBLIC = {"liftcore"} | {f"liftcore.{name}" for name in liftcore.__all__ if inspect.ismodule(getattr(liftcore, name))}
PUBLIC |= {"liftcore.nn.initializers", "liftcore.elsewhere"}
"""The package, the modules that it offers, and what styles say about names of other libraries."""


NAMES_OF_USERS = {"Accuracy", "Average", "Cache", "Metric", "MultiMetric", "TrainState", "Variable"}
"""Classes of nnx_like under the names that users of NNX know, which the core has for something else."""


def test_no_two_classes_share_a_name() -> None:
    """Within a style: each has a `Module`, and layers have the names that their users know."""
    classes = [(name.partition(".")[0], node) for name, one in MODULES.items() for node in one.tree.body]
    classes = [(package, node) for package, node in classes if isinstance(node, ast.ClassDef) and node.name[0] != "_"]
    derived = {node.name for _, node in classes for base in node.bases if ast.unparse(base).endswith(f".{node.name}")}
    core = {node.name for package, node in classes if package == "liftcore"} - NAMES_OF_USERS
    assert not core & {node.name for package, node in classes if package != "liftcore" and node.name not in derived}
    for style in PACKAGES:
        names = [node.name for package, node in classes if package == style and node.name not in derived]
        assert sorted(names) == sorted(set(names))


def test_modules_reach_their_scopes_in_two_places_only() -> None:
    users = {name for name, one in MODULES.items() for each in imports(one) if each.name == "on_scopes"}
    assert users == {"linen_like.lifting", "linen_like.transforms.trees"}


def test_lifting_reads_what_the_base_of_modules_says() -> None:
    base = linen_like.lifecycle.fields.Base
    documented = set(re.findall(r"^    (_\w+):", inspect.getdoc(base) or "", re.MULTILINE))
    private = {name for name in {*dir(linen_like.Module), "_state"} if re.match("_[a-z]", name)}
    lifting = [
        one for one in LINEN.values() if one.module == "linen_like.lifting" or one.package.endswith("rebuilding")
    ]
    nodes = [node for one in lifting for node in ast.walk(one.tree)]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)} & private
    assert documented == read | {"_recipe"}  # which only `recipe_of` reads


@for_each(STYLES.values())
def test_the_module_layer_uses_public_names_of_liftcore_only(source: Source) -> None:
    aliases = {}
    for one in imports(source):
        if one.module.split(".")[0] != "liftcore":
            continue
        assert one.module in PUBLIC, f"line {one.line}: {one.module} is not public"
        if one.name is None:
            aliases[one.module.split(".")[0]] = MODULES["liftcore"]
            continue
        assert one.name in importable(MODULES[one.module]), f"line {one.line}: {one.module}.{one.name} is not public"
        if f"{one.module}.{one.name}" in MODULES:
            aliases[one.name] = MODULES[f"{one.module}.{one.name}"]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            used = aliases[node.value.id]
            assert node.attr in exported(used), f"line {node.lineno}: {used.module}.{node.attr} is not public"


@for_each(STYLES.values())
def test_styles_do_not_read_the_state_of_scopes(source: Source) -> None:
    """What a style needs to know is a method of a scope."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and node.attr in ("tree", "node", "counter"):
            assert ast.unparse(node.value) == "jax", f"line {node.lineno}: {ast.unparse(node)}"


@for_each([one for one in CORE.values() if one.package in ("liftcore.lift", "liftcore.runners")])
def test_lifts_and_runners_use_public_names_of_the_pipeline_only(source: Source) -> None:
    """So that what a user writes with them can do all that ours do."""
    public = exported(MODULES["liftcore.pipeline"])
    for one in imports(source):
        if one.module.startswith("liftcore.pipeline"):
            assert one.name in public, f"line {one.line}: {one.name}"


COMPUTES = {
    "equinox_like.checking": "`error_if` tests values",
    "equinox_like.shard": "`filter_shard` is that function of JAX",
    "equinox_like.vmap": "moves the axis that a user named",
    "linen_like.cells": "the gates in one product, and default activations that can be pickled",
    "linen_like.stacks.stack": "stacks the outputs of layers",
    "linen_like.stacks.stacking": "stacks the variables of layers",
    "nnx_like.layers.activations": "`PReLU` may have a dtype of its own",
    "nnx_like.layers.cells": "the gates in one product, and default activations that can be pickled",
    "nnx_like.layers.parameters": "folds the value of an initializer, inside its metadata",
    "nnx_like.rnglib.streams": "one count for each key",
    "nnx_like.training.ema": "rounds averages of integers",
    "nnx_like.training.metrics": "sums and deviations",
    "nnx_like.variablelib.variable": "sets one element of a value",
}
"""The files of the styles that compute, and what. The list may only shrink: what two need is in liftcore, once."""

PLAIN = {"array", "asarray", "dtype", "issubdtype", "ndim", "ones", "result_type", "shape", "size", "zeros"}
"""Functions of JAX that say what an array is, or make the first value of a variable."""


def test_styles_leave_computing_to_liftcore() -> None:
    def computes(source: Source) -> bool:
        calls = [ast.unparse(node.func) for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
        found = [re.match(r"(?:jnp|lax|jax\.(?:numpy|lax|nn))\.(?:asarray\(\w+\)\.)?(\w+)", call) for call in calls]
        return any(one is not None and one[1] not in PLAIN for one in found)

    assert {source.module for source in STYLES.values() if computes(source)} == COMPUTES.keys()


def test_liftcore_knows_no_module_layer() -> None:
    for source in CORE.values():
        layers = [one for one in imports(source) if one.module.split(".")[0] in PACKAGES[1:]]
        assert not layers, source.module


@for_each(MODULES.values())
def test_a_file_imports_the_standard_library_and_the_dependencies_only(source: Source) -> None:
    allowed = {
        "jax",
        "numpy",
        "msgpack",
        "ml_dtypes",
        "liftcore",
        "linen_like",
        "equinox_like",
        "pax_like",
        "nnx_like",
    }  # jax itself needs ml_dtypes
    if source.module.startswith("liftcore.foreign."):
        allowed |= {"equinox", "flax", "haiku"}  # in functions, which get a model of that library
    roots = {one.module.split(".")[0] for one in imports(source)} - set(sys.stdlib_module_names)
    assert roots <= allowed


@for_each(MODULES.values())
def test_what_jax_keeps_private_is_left_alone(source: Source) -> None:
    assert not [one for one in imports(source) if one.module.startswith("jax._") or f"{one.name}".startswith("_src")]


# -- public names ------------------------------------------------------------------------------------------------------


def exported(source: Source) -> set[str]:
    names = getattr(source.imported(), "__all__", None)
    return public_definitions(source) if names is None else set(names)


def importable(source: Source) -> set[str]:
    return exported(source) | {"*", "__all__"}


STUBS = for_each([one for one in MODULES.values() if one.stub])


@STUBS
def test_a_package_exports_exactly_the_names_of_its_stub(source: Source) -> None:
    assert source.stub is not None
    assigned = [node for node in source.stub.body if isinstance(node, ast.Assign)]
    [listed] = [node.value for node in assigned if ast.unparse(node.targets[0]) == "__all__"]
    names = ast.literal_eval(listed)
    assert set(names) == exported(source) == set(offers(source))
    assert len(set(names)) == len(names)
    assert public_definitions(source) == set()


@STUBS
def test_no_file_has_the_name_of_something_that_its_package_takes_from_elsewhere(source: Source) -> None:
    """When Python loads a file, it becomes an attribute of its package, and would hide what is offered by that name."""
    for name, one in offers(source).items():
        if f"{source.module}.{name}" in MODULES:
            assert one.module == source.module, f"{one.module}.{name}"


@for_each(MODULES.values())
def test_all_lists_names_that_are_there_once(source: Source) -> None:
    names = getattr(source.imported(), "__all__", [])
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(source.imported(), name)] == []


@for_each(MODULES.values())
def test_a_file_takes_from_another_what_that_one_offers(source: Source) -> None:
    for one in imports(source):
        if one.name and one.module in MODULES and f"{one.module}.{one.name}" not in MODULES:
            assert one.name in importable(MODULES[one.module]), f"line {one.line}: {one.module}.{one.name}"


@for_each(MODULES.values())
def test_a_file_says_its_one_idea_first(source: Source) -> None:
    doc = ast.get_docstring(source.tree)
    assert doc
    assert doc.splitlines()[0].rstrip().endswith((".", ":", "?"))


@pytest.mark.parametrize(
    "folder", ["liftcore.runners", "linen_like.lifecycle", "linen_like.rebuilding", "linen_like.stacks"]
)
def test_a_folder_that_lists_its_files_lists_them_all(folder: str) -> None:
    files = {module.rpartition(".")[2] for module in MODULES if module.rpartition(".")[0] == folder}
    lines = (ast.get_docstring(MODULES[folder].tree) or "").splitlines()
    rows = [line.partition("  ")[0].split(", ") for line in lines]
    listed = [name for names in rows if files & set(names) for name in names]
    assert sorted(listed) == sorted(files)


@for_each(MODULES.values())
def test_what_is_public_is_documented(source: Source) -> None:
    module = source.imported()
    for name in exported(source):
        thing = getattr(module, name)
        if getattr(thing, "__module__", None) == source.module and (
            inspect.isfunction(thing) or inspect.isclass(thing)
        ):
            assert inspect.getdoc(thing), f"{source.module}.{name}"


# -- sizes -------------------------------------------------------------------------------------------------------------


@for_each(MODULES.values())
def test_a_file_has_at_most_600_lines(source: Source) -> None:
    assert len(source.path.read_text().splitlines()) <= 600


def functions(source: Source) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(source.tree) if isinstance(node, ast.FunctionDef))


@for_each(MODULES.values())
def test_a_function_has_at_most_60_lines(source: Source) -> None:
    for function in functions(source):
        body = function.body[1:] if ast.get_docstring(function) else function.body
        lines = body[-1].end_lineno - body[0].lineno + 1 if body and body[-1].end_lineno else 0
        assert lines <= 60, f"{function.name} has {lines}"


@for_each(MODULES.values())
def test_a_docstring_has_at_most_50_lines(source: Source) -> None:
    for function in functions(source):
        assert len((ast.get_docstring(function) or "").splitlines()) <= 50, function.name


@for_each(MODULES.values())
def test_no_default_can_be_changed(source: Source) -> None:
    for name, thing in vars(source.imported()).items():
        for function in [thing, *(vars(thing).values() if inspect.isclass(thing) else ())]:
            if not inspect.isfunction(function) or function.__module__ != source.module:
                continue
            defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
            assert not [default for default in defaults if isinstance(default, list | dict | set)], name


# -- methods -----------------------------------------------------------------------------------------------------------


def test_only_methods_for_users_are_calls_of_a_module() -> None:
    """So that interceptors, captured outputs and profiles show what a user knows."""
    shown = [
        f"{name}.{method}"
        for name, layer in inspect.getmembers(linen_like, inspect.isclass)
        if issubclass(layer, linen_like.Module)
        for method in dir(layer)
        if method.startswith("_") and not method.startswith("__")
        if getattr(inspect.getattr_static(layer, method), "is_module_method", False)
    ]
    assert shown == []
