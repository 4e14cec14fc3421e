"""The source files of the packages, parsed: what each of them imports, and what it defines."""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("liftcore", "linen_like", "equinox_like", "pax_like", "nnx_like")


class Import(NamedTuple):
    """One name that a file imports: `from module import name`, or `import module` (where name is None)."""

    module: str
    name: str | None
    line: int


class Source(NamedTuple):
    """One file.

    Attributes:
        module: its dotted name; that of the package for an `__init__`.
        path: where it is.
        tree: what is in it.
        stub: what is in the `.pyi` beside it, if there is one: the names of a package that are loaded at first use.
    """

    module: str
    path: Path
    tree: ast.Module
    stub: ast.Module | None

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def package(self) -> str:
        return self.module if self.is_package else self.module.rpartition(".")[0]

    def imported(self) -> ModuleType:
        return importlib.import_module(self.module)


@functools.cache
def sources() -> dict[str, Source]:
    """All files of the packages, by module."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            stub = path.with_suffix(".pyi")
            found[module] = Source(module, path, _parsed(path), _parsed(stub) if stub.exists() else None)
    return found


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(source: Source) -> Iterator[Import]:
    """What a file imports when it runs: at its top, in its functions, or by its stub; not what is for types."""
    yield from _imports(source, source.tree)
    if source.stub is not None:
        yield from _imports(source, source.stub)


def offers(source: Source) -> dict[str, Import]:
    """What the stub of a package says that it offers, by name."""
    return {one.name: one for one in _imports(source, source.stub) if one.name} if source.stub else {}


def _imports(source: Source, tree: ast.Module) -> Iterator[Import]:
    for node in _running(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, None, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = source.package.rsplit(".", node.level - 1)[0] if node.level > 1 else source.package
            above = [base] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(module, alias.name, node.lineno)


def targets(source: Source) -> Iterator[str]:
    """The modules of ours that a file imports, `from . import rng` read as the module that it names."""
    for one in imports(source):
        if one.module.partition(".")[0] in PACKAGES:
            below = f"{one.module}.{one.name}"
            yield below if below in sources() else one.module


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _running(node)


def public_definitions(source: Source) -> set[str]:
    """The names without underscore that a file itself defines at its top."""
    names: set[str] = set()
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}
