"""Lazy imports: the names of a package are loaded when they are first used.

The stub beside an `__init__.py` declares the file of each name, for type checkers, editors and `from_stub`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

__all__ = ["from_stub", "unknown", "without_links"]


def from_stub(
    package: str, file: str, elsewhere: str | None = None, renamed: Mapping[str, tuple[str, str]] = MappingProxyType({})
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return what an `__init__.py` needs to offer the names that the `__init__.pyi` next to it declares.

    A name is loaded from the module that the stub imports it from, when it is first used, and then kept. The modules of
    the package are available too. No module may have the name of an object that its package imports from elsewhere:
    Python would replace the object by the module.

    Example:
        The whole `__init__.py`, with `from .linear import dense` in the stub::

            from liftcore.lazy import from_stub

            __getattr__, __dir__, __all__ = from_stub(__name__, __file__)

    Args:
        package: the `__name__` of the package.
        file: the `__file__` of the package.
        elsewhere: a module of the package, such as `".elsewhere"`, for names that users know from other libraries. Its
            `INSTEAD` maps such names to texts about what to write here. The error about an unknown name ends with this
            text. The module is loaded only for the error.
        renamed: for each former name, the present one, and the first release without the former name. A former name
            still works, with a `DeprecationWarning`.

    Returns:
        `__getattr__`, `__dir__` and `__all__` of the package.
    """
    homes = _homes(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))

    def load(name: str) -> Any:
        if name in renamed:
            present, release = renamed[name]
            text = f"{package}.{name} is now named {present}, and leaves in {release}. Write `{package}.{present}`."
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return getattr(sys.modules[package], present)
        home, attribute = homes.get(name, (".", name))  # a name that is not in the stub may be a module
        if home != ".":
            value = getattr(importlib.import_module(home, package), attribute)
            setattr(sys.modules[package], name, value)
            return value
        if not attribute.isidentifier() or importlib.util.find_spec(f".{attribute}", package) is None:
            raise unknown(package, name, elsewhere)
        return importlib.import_module(f".{attribute}", package)

    names = sorted(homes)
    return load, lambda: names, names


def unknown(module: str, name: str, elsewhere: str | None) -> AttributeError:
    """Return the error about an unknown name of a module.

    Args:
        module: the `__name__` of the module.
        name: the unknown name.
        elsewhere: the module with texts for names of other libraries; see `from_stub`.
    """
    text = f"module {module!r} has no attribute {name!r}"
    instead = importlib.import_module(elsewhere, module).INSTEAD.get(name) if elsewhere else None
    return AttributeError(f"{text}. {instead}" if instead else text, name=name, obj=sys.modules[module])


def without_links(text: str) -> str:
    """Return a text with the words of its Markdown links, and without their targets.

    Example:
        >>> without_links("see [speed](objects.md#speed)")
        'see speed'

    Args:
        text: the text.
    """
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)


_PARSING = threading.Lock()
"""In Python 3.11, parsing in several threads at once may fail: "AST constructor recursion depth mismatch"."""


def _homes(stub: str) -> dict[str, tuple[str, str]]:
    """Return, for each name that a stub imports, its module and its name there."""
    with _PARSING:
        body = ast.parse(stub).body
    return {
        alias.asname or alias.name: ("." * statement.level + (statement.module or ""), alias.name)
        for statement in body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
