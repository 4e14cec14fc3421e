"""What an import brings, and that names which are loaded at their first use are as good as others."""

from __future__ import annotations

import ast
import configparser
import importlib
import pickle
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

import equinox_like
import liftcore
import linen_like
import nnx_like
import pax_like
from benchmarks.fresh import new_modules
from liftcore.lazy import from_stub
from tests.architecture.sources import PACKAGES, ROOT, sources

LAZY = pytest.mark.parametrize("name", [name for name, source in sources().items() if source.stub])

BY_HAND = """
import jax, jax.numpy as jnp
keys = jax.random.split(jax.random.fold_in(jax.random.key(0), 1))
x = jnp.ones((1, 3))
jax.nn.relu(x @ jax.nn.initializers.lecun_normal()(keys[0], (3, 8)) + jnp.zeros(8))
"""
MODEL = """
import jax, jax.numpy as jnp, linen_like as nn
class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.relu(nn.Dense(8)(x)))
x = jnp.ones((1, 3))
Model().apply(Model().init(jax.random.key(0), x), x)
"""


def ours(modules: Sequence[str]) -> list[str]:
    return [name for name in modules if name.partition(".")[0] in PACKAGES]


# -- what an import brings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", PACKAGES)
def test_an_import_brings_names_only(package: str) -> None:
    assert set(new_modules(f"import {package}")) == {package, "liftcore", "liftcore.lazy"}


def test_a_small_model_brings_only_what_it_uses() -> None:
    modules = new_modules(MODEL, over=BY_HAND)
    assert len(ours(modules)) <= 62, modules
    assert {name.partition(".")[0] for name in modules} <= {"jax", *PACKAGES}
    parts = {name.split(".")[1] for name in ours(modules) if "." in name}
    assert not parts & {"runners", "lift", "lifting", "transforms", "stacks", "serialization", "saving"}
    files = {name.rpartition(".")[2] for name in ours(modules)}
    assert not files & {
        "attention",
        "convolution",
        "normalization",
        "recurrent",
        "fp8",
        "tabulation",
        "html",
        "spmd",
        "explanation",
    }


def test_liftcore_brings_no_module_layer() -> None:
    assert not [name for name in new_modules("from liftcore import *") if name.startswith("linen_like")]


def test_all_names_together_bring_nothing_that_is_installed_beside() -> None:
    modules = new_modules("from liftcore import *\nfrom linen_like import *", over="import jax, jax.extend.core")
    foreign = set(modules) - set(ours(modules))
    known = {"jax", "msgpack", "_cython_3_3_0"} | set(sys.stdlib_module_names)
    assert {name.partition(".")[0] for name in foreign} <= known
    assert len(foreign) <= 20


# -- what the tests and the examples import ----------------------------------------------------------------------------

OTHER_NAMES = {"orbax-checkpoint": "orbax", "pytest-xdist": "xdist", "pyyaml": "yaml", "scikit-learn": "sklearn"}
"""Packages that are imported under another name than the one they are installed by."""


def extras(*names: str) -> set[str]:
    """What `pip install .[names]` brings, by the names under which it is imported."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options"]["install_requires"].split("\n")
    for name in names:
        lines += setup["options.extras_require"][name].split("\n")
    found = set[str]()
    for line in filter(None, lines):
        if more := re.fullmatch(r"liftcore\[(.*)\]", line):
            found |= extras(*more[1].split(","))
        elif not line.startswith("#"):
            package = re.split("[<=>;]", line)[0].strip()
            found.add(OTHER_NAMES.get(package, package))
    return found


def imported_at_once(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The packages that a file needs before any function of it runs."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        elif not isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from imported_at_once(ast.iter_child_nodes(node))


def test_files_that_the_readme_runs_import_only_what_it_installs() -> None:
    """Otherwise the tests run only where the peers, or what the site needs, happen to be installed."""
    files = [
        ROOT / "conftest.py",
        *(path for folder in ("tests", "examples") for path in (ROOT / folder).rglob("*.py")),
    ]
    known = {"tests", "benchmarks", "docs", *PACKAGES, *extras("test"), *sys.stdlib_module_names}
    known |= {"ml_dtypes", *(path.stem for path in (ROOT / "examples").glob("*.py"))}  # the first comes with jaxlib
    missing = {
        str(path.relative_to(ROOT)): needed
        for path in files
        if (needed := set(imported_at_once(ast.parse(path.read_text(encoding="utf-8")).body)) - known)
    }
    assert not missing


# -- names that are loaded at their first use --------------------------------------------------------------------------


@pytest.mark.rest
def test_each_name_is_the_right_one_whatever_was_imported_before() -> None:
    run = subprocess.run([sys.executable, "-m", "tests.architecture.orders"], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stdout.strip()) == (0, ""), run.stderr


@LAZY
def test_a_package_lists_its_names(name: str) -> None:
    package = importlib.import_module(name)
    assert dir(package) == sorted(package.__all__)
    held: dict[str, object] = {}
    exec(f"from {name} import *", held)
    assert set(package.__all__) <= set(held)


@LAZY
def test_a_name_is_kept_once_it_is_loaded(name: str) -> None:
    package = importlib.import_module(name)
    for one in package.__all__:
        assert getattr(package, one) is vars(package)[one]


@LAZY
def test_another_name_is_none(name: str) -> None:
    package = importlib.import_module(name)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'") as caught:
        package.nothing  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("nothing", package)
    assert not hasattr(package, "nothing")
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec(f"from {name} import nothing")


@pytest.mark.parametrize(
    "package",
    [liftcore, liftcore.nn, linen_like, equinox_like, pax_like, nnx_like],
    ids=lambda package: package.__name__,
)
def test_functions_and_classes_can_be_pickled_by_name(package: ModuleType) -> None:
    for name in package.__all__:
        value = getattr(package, name)
        if getattr(value, "__module__", "").partition(".")[0] in PACKAGES and hasattr(value, "__qualname__"):
            assert pickle.loads(pickle.dumps(value)) is value


def test_threads_that_ask_first_at_the_same_time_get_the_same() -> None:
    code = """
import sys, threading, linen_like as nn
sys.setswitchinterval(1e-6)
start, found = threading.Barrier(8), []
def ask(names):
    start.wait()
    found.append({name: getattr(nn, name) for name in names})
names = nn.__all__
threads = [threading.Thread(target=ask, args=(names[20 * i:] + names[:20 * i],)) for i in range(8)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
print(len(found), all(one[name] is getattr(nn, name) for one in found for name in names))
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["8", "True"]


@pytest.mark.rest
def test_loading_computes_nothing_so_that_it_may_happen_inside_a_trace() -> None:
    code = """
import importlib, jax
from tests.architecture.sources import sources
print(jax.make_jaxpr(lambda: [importlib.import_module(module) for module in sources()] and None)())
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "".join(run.stdout.split()) == "{lambda;.letin()}"


def test_a_stub_may_rename_and_take_from_files_and_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "__init__.pyi").write_text("from . import part\nfrom .part import x as y\nfrom math import pi\n")
    (folder / "__init__.py").write_text(
        "from liftcore.lazy import from_stub\n__getattr__, __dir__, __all__ = from_stub(__name__, __file__)\n"
    )
    (folder / "part.py").write_text("x = 3\n")
    (folder / "more.py").write_text("x = 4\n")
    monkeypatch.syspath_prepend(folder.parent)
    made = importlib.import_module("made")
    assert made.__all__ == ["part", "pi", "y"]
    assert (made.y, made.part.x, round(made.pi, 2)) == (3, 3, 3.14)
    assert made.more.x == 4  # as in other packages, whose files are there once one was loaded


@pytest.mark.parametrize(
    "package", [liftcore, linen_like, equinox_like, pax_like, nnx_like], ids=lambda one: one.__name__
)
def test_a_name_of_another_library_is_answered_with_what_to_write(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=r"^module '\w+' has no attribute 'Unknown'$"):
        _ = package.Unknown
    if package is liftcore:
        return
    instead = importlib.import_module(f"{package.__name__}.elsewhere").INSTEAD
    assert not set(instead) & set(package.__all__)
    for name, text in instead.items():
        assert not text.endswith(".")  # Python may add ". Did you mean: …"
        assert text.count("(") == text.count(")")
        with pytest.raises(AttributeError, match=re.escape(f"has no attribute {name!r}. {text}")):
            getattr(package, name)
        for used in re.findall(r"Use ([A-Z]\w+)\(", text):
            assert used in package.__all__, f"{name}: there is no {used}"


def test_a_package_without_its_stub_says_so() -> None:
    with pytest.raises(FileNotFoundError, match=r"gone.__init__\.pyi"):
        from_stub("gone", "/gone/__init__.py")


def test_what_is_installed_has_the_stubs() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["options.package_data"]["*"].split() == ["*.pyi", "py.typed"]


def test_what_is_no_name_is_no_attribute() -> None:
    assert not hasattr(liftcore, "filters.Any")
    assert not hasattr(liftcore, "")
