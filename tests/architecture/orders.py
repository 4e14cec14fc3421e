"""Is each name of a package the right thing, whatever was imported before? `python -m tests.architecture.orders`

Prints what is not; `test_imports.py` expects nothing.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping

from tests.architecture.sources import PACKAGES, Import, offers, sources

OFFERED = {package: offers(source) for package, source in sources().items() if source.stub}
"""Of each package with a stub, where each name comes from."""


def forget() -> None:
    """Makes the process one that has imported nothing of ours."""
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]


def wrong(names: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """The names, of all that are given by package, that are not what the stub says."""
    for package, some in names.items():
        for name in some:
            one = OFFERED[package][name]
            if getattr(importlib.import_module(package), name) is not _right(package, one):
                yield f"{package}.{name}"


def _right(package: str, one: Import) -> object:
    if one.module == package:
        return importlib.import_module(f"{package}.{one.name}")
    return getattr(importlib.import_module(one.module), str(one.name))


def loaded() -> dict[str, list[str]]:
    """The names that packages hold by now: others are asked for, and cannot be wrong by what was imported before."""
    return {
        package: [name for name in names if name in vars(sys.modules[package])]
        for package, names in OFFERED.items()
        if package in sys.modules
    }


def everything() -> None:
    """Imports every file."""
    for module in sources():
        importlib.import_module(module)


def problems() -> Iterator[str]:
    """What is wrong after each file alone, and with all files after all names, and before them."""
    for module in sources():
        forget()
        importlib.import_module(module)
        yield from (f"{name} after {module}" for name in wrong(loaded()))
    forget()
    yield from wrong(OFFERED)
    everything()
    yield from (f"{name} before all files" for name in wrong(OFFERED))
    forget()
    everything()
    yield from (f"{name} after all files" for name in wrong(OFFERED))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:  # each file is compiled once, and imported often
        sys.pycache_prefix, sys.dont_write_bytecode = folder, False
        print(*problems(), sep="\n")
