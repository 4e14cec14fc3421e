"""Writes the table of flax's public names into `from-flax.md`: `python docs/flax_names.py`. It needs flax.

The script finds names that are the same in both libraries. For the others, `elsewhere.py` of each package says what to
use instead. The script fails if a name is missing here, or if flax has no such name.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from liftcore.elsewhere import FLAX
from linen_like.elsewhere import LINEN

PAGE = Path(__file__).parent / "from-flax.md"
BEGIN, END = "<!-- made by flax_names.py: begin -->", "<!-- made by flax_names.py: end -->"

COUNTERPARTS = {
    "flax": ("liftcore", "linen_like"),
    "flax.core": ("liftcore",),
    "flax.linen": ("linen_like",),
    "flax.struct": ("liftcore.struct",),
    "flax.serialization": ("liftcore.serialization",),
    "flax.traverse_util": ("liftcore.traverse_util",),
    "flax.training": ("liftcore.training",),
    "flax.jax_utils": (),
    "flax.metrics": (),
}
"""For each part of flax, the packages here that may have its names."""

INSTEAD = {**FLAX, "flax.linen": LINEN}
"""For each part of flax, what to use in place of names that are not here: the packages say it in their errors, too."""


def shown(package: str, name: str) -> str:
    """A name as the table shows it. A file of `flax.training` is shown with the names that it defines."""
    if package != "flax.training":
        return f"`{name}`"
    held = vars(importlib.import_module(f"{package}.{name}"))
    inner = [one for one, value in held.items() if getattr(value, "__module__", "") == f"{package}.{name}"]
    return f"`{name}` ({', '.join(f'`{one}`' for one in sorted(inner) if not one.startswith('_'))})"


def public(package: str) -> list[str]:
    """The public names of a part of flax: its `__all__`, or its own names without an underscore, and its files."""
    module = importlib.import_module(package)
    files = {info.name for info in pkgutil.iter_modules(getattr(module, "__path__", []))}
    names = set(getattr(module, "__all__", ())) or {name for name, value in vars(module).items() if _own(value)}
    if package == "flax.linen":  # activation functions and initializers are JAX's
        names |= {name for name, value in vars(module).items() if not isinstance(value, types.ModuleType)}
    return sorted(name for name in names | files if not name.startswith("_"))


def _own(value: Any) -> bool:
    foreign = isinstance(value, types.ModuleType | TypeVar)
    return not foreign and str(getattr(value, "__module__", "")).partition(".")[0] == "flax"


def offered(package: str, name: str) -> str | None:
    """The module here that has the same name."""
    modules = COUNTERPARTS[package]
    return next((one for one in modules if name in getattr(importlib.import_module(one), "__all__", ())), None)


def filed(package: str, name: str) -> str | None:
    """The package here that has a file of the same name."""
    packages = (one for one in COUNTERPARTS[package] if hasattr(importlib.import_module(one), "__path__"))
    return next((one for one in packages if importlib.util.find_spec(f"{one}.{name}")), None)


def rows(package: str) -> Iterator[tuple[str, str]]:
    """Yields the rows for one part of flax: names, and where they are. Names with the same answer share a row."""
    said: dict[str, list[str]] = {}
    instead = dict(INSTEAD.get(package, {}))
    for name in public(package):
        module = offered(package, name) or (None if name in instead else filed(package, name))
        text = f"the same name in `{module}`" if module else instead.pop(name, None)
        if text is None:
            raise SystemExit(f"say in elsewhere.py what to use for {package}.{name}")
        said.setdefault(text, []).append(shown(package, name))
    if instead:
        raise SystemExit(f"docs/flax_names.py: {package} has no {sorted(instead)}, or they are here")
    for text, names in sorted(said.items(), key=lambda item: (not item[0].startswith("the same name"), item[1])):
        yield ", ".join(names), text


def table() -> str:
    """The tables of all parts of flax."""
    parts = [BEGIN]
    for package in COUNTERPARTS:
        lines = [f"| {names} | {text} |" for names, text in rows(package)]
        parts.append("\n".join([f"### {package}", "", "| name | here |", "|---|---|", *lines]))
    return "\n\n".join([*parts, END])


def written() -> str:
    """The tables that are on the page."""
    text = PAGE.read_text(encoding="utf-8")
    return text[text.index(BEGIN) : text.index(END) + len(END)]


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text(encoding="utf-8").replace(written(), table()), encoding="utf-8")
