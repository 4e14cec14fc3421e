"""Names of a package that are loaded when they are first used.

The stub beside an `__init__.py` says which file each name is in: to type checkers and editors, and to `from_stub`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["from_stub"]


def from_stub(
    package: str, file: str, elsewhere: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return what an `__init__.py` needs so that `__init__.pyi` next to it says what the package offers.

    A name that the stub imports is loaded from where the stub imports it, at its first use, and kept. The files of the
    package can be asked for as well. No file may have the name of something that its package takes from elsewhere:
    Python would put the file in its place.

    Example:
        The whole `__init__.py`, with `from .linear import dense` in the stub::

            from liftcore.lazy import from_stub

            __getattr__, __dir__, __all__ = from_stub(__name__, __file__)

    Args:
        package: its `__name__`.
        file: its `__file__`.
        elsewhere: a module of the package, such as `".elsewhere"`, for names that users know from other libraries. Its
            `INSTEAD` is a dict from such names to texts that say what to write here, and the error about an unknown
            name ends with this text. The module is loaded only then.

    Returns:
        `__getattr__`, `__dir__` and `__all__` of the package.
    """
    homes = _homes(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))

    def load(name: str) -> Any:
        home, attribute = homes.get(name, (".", name))  # what the stub does not name may be a file
        if home != ".":
            value = getattr(importlib.import_module(home, package), attribute)
            setattr(sys.modules[package], name, value)
            return value
        if not attribute.isidentifier() or importlib.util.find_spec(f".{attribute}", package) is None:
            text = f"module {package!r} has no attribute {name!r}"
            instead = importlib.import_module(elsewhere, package).INSTEAD.get(name) if elsewhere else None
            text = f"{text}. {instead}" if instead else text
            raise AttributeError(text, name=name, obj=sys.modules[package])
        return importlib.import_module(f".{attribute}", package)

    names = sorted(homes)
    return load, lambda: names, names


def _homes(stub: str) -> dict[str, tuple[str, str]]:
    """Of each name that a stub imports, the module that it is imported from, and what it is called there."""
    return {
        alias.asname or alias.name: ("." * statement.level + (statement.module or ""), alias.name)
        for statement in ast.parse(stub).body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
