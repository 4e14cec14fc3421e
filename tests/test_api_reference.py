"""docs/api.md lists exactly the public names of each module, and other pages name what there is."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import equinox_like
import liftcore
import linen_like
import nnx_like
import pax_like
from docs.reference import pages

pytestmark = pytest.mark.always  # names and pages change in any change
DOCS = Path(__file__).parents[1] / "docs"
PACKAGES = ("liftcore", "linen_like", "equinox_like", "pax_like", "nnx_like")
LINE = re.compile(r"- `(\w+)`: \S.*")


def sections() -> dict[str, list[str]]:
    """The lines of each section, by its heading."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in (DOCS / "api.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            lines = found[line.removeprefix("## ")] = []
        else:
            lines.append(line)
    return found


SECTIONS = sections()


def named(heading: str) -> Any:
    """The module or class that a heading names."""
    package, _, name = heading.rpartition(".")
    owner = importlib.import_module(package) if package else None
    if owner is not None and inspect.isclass(getattr(owner, name, None)):
        return getattr(owner, name)
    return importlib.import_module(heading)


def public_names(value: Any) -> set[str]:
    """The names in `__all__`; without one, those that a module defines itself."""
    if hasattr(value, "__all__"):
        return set(value.__all__)
    return {
        name
        for name, found in vars(value).items()
        if not name.startswith("_") and (name.isupper() or getattr(found, "__module__", None) == value.__name__)
    }


def in_order(names: set[str]) -> list[str]:
    """As in an index, where capitals do not come first."""
    return sorted(names, key=lambda name: (name.lower(), name))


@pytest.mark.parametrize("heading", SECTIONS)
def test_a_section_lists_the_public_names_in_order(heading: str) -> None:
    items = [line for line in SECTIONS[heading] if line.startswith("- ")]
    names = [match[1] for line in items if (match := LINE.fullmatch(line))]
    assert len(names) == len(items)
    owner = named(heading)
    if owner is liftcore.nn:  # layers first, then what they are made of
        layers = SECTIONS[heading].index("What layers are made of:")
        first = len([line for line in SECTIONS[heading][:layers] if line.startswith("- ")])
        assert set(names) == public_names(owner)
        assert names == in_order(set(names[:first])) + in_order(set(names[first:]))
    elif inspect.ismodule(owner):
        assert names == in_order(public_names(owner))
    else:  # of a class, what its users need
        assert names == in_order(set(names))
        assert all(hasattr(owner, name) for name in names)


@pytest.mark.parametrize("page", ["api.md", "error-classes.md"])
def test_pages_that_are_made_from_the_packages_are_up_to_date(page: str) -> None:
    assert pages()[page] == (DOCS / page).read_text(encoding="utf-8"), "run `python docs/reference.py`"


def test_every_public_module_has_a_section() -> None:
    packages = {package.__name__: package for package in (liftcore, linen_like, equinox_like, pax_like, nnx_like)}
    public = {
        getattr(module, name).__name__  # of a module that two packages offer the one
        for module in packages.values()
        for name in module.__all__
        if inspect.ismodule(getattr(module, name))
    }
    assert public | set(packages) <= set(SECTIONS)


def test_every_error_has_a_section_in_the_catalogue() -> None:
    headings = set(re.findall(r"^### (\w+)$", (DOCS / "errors.md").read_text(encoding="utf-8"), re.MULTILINE))
    homes = (liftcore.errors, linen_like.errors, equinox_like.errors, pax_like.errors, nnx_like.errors)
    errors = {name for home in homes for name in public_names(home) if _is_error(getattr(home, name))}
    assert headings == errors - {"LiftError", "UnliftedSequenceError"}


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def test_every_folder_is_in_the_architecture_page() -> None:
    files = [path for package in PACKAGES for path in (DOCS.parent / package).rglob("*.py")]
    folders = {f"{path.parent.relative_to(DOCS.parent).as_posix()}/" for path in files}
    named = set(re.findall(r"`([\w/]+/)`", (DOCS / "architecture.md").read_text(encoding="utf-8")))
    assert folders - named <= {"liftcore/"}


def test_the_architecture_page_names_files_that_exist() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    homes = [DOCS.parent, *(DOCS.parent / package for package in PACKAGES)]
    for name in set(re.findall(r"`([\w/]+(?:\.py|/))`", text)):
        assert any((home / name).exists() for home in homes), name


# -- names in texts ----------------------------------------------------------------------------------------------------

ALIASES = {
    "jnp": ("jax.numpy",),
    "np": ("numpy",),
    "nn": ("linen_like", "liftcore.nn"),
    "eqx": ("equinox_like",),
    "pax": ("pax_like",),
    "nnx": ("nnx_like",),
    "lax": ("jax.lax",),
}
ROOTS = (
    *PACKAGES, "jax", "flax", "optax", "orbax", "equinox", "numpy", "dataclasses", "functools",
    "importlib", "inspect", "itertools", "math", "pickle", "typing", *ALIASES,
)  # fmt: skip
"""What dotted names begin with; names of values, such as `scope.param`, are no names of ours."""

_STYLES = (linen_like, equinox_like, pax_like, nnx_like)
_HOMES = (liftcore, liftcore.errors, liftcore.filters, liftcore.meta, *_STYLES, *(style.errors for style in _STYLES))
CLASSES: dict[str, list[Any]] = {}
"""The classes of each name: each style has a `Module`."""
for home in _HOMES:
    for public in getattr(home, "__all__", vars(home)):
        if inspect.isclass(getattr(home, public)):
            CLASSES.setdefault(public, []).append(getattr(home, public))
DOTTED = re.compile(rf"(?<![\w./@\"'])(?:{'|'.join([*ROOTS, *CLASSES])})(?:\.[A-Za-z_]\w*)+")


def dotted(text: str) -> set[str]:
    """The dotted names between backticks, outside of blocks of code, which run."""
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return {name for span in spans for name in DOTTED.findall(span) if not name.endswith((".py", ".md"))}


def is_there(name: str) -> bool:
    """Whether a dotted name leads to something; of a library that is not installed nobody can tell."""
    first, *parts = name.split(".")
    if first in CLASSES:
        return any(_leads(one, parts) for one in CLASSES[first])
    homes = ALIASES.get(first, (first,))
    return any(importlib.util.find_spec(home.partition(".")[0]) is None or _found(home, parts) for home in homes)


def _found(module: str, parts: list[str]) -> bool:
    home = importlib.import_module(module)
    if _leads(home, parts) or not hasattr(home, "__path__"):
        return _leads(home, parts)
    below = f"{module}.{parts[0]}"
    return importlib.util.find_spec(below) is not None and (len(parts) == 1 or _found(below, parts[1:]))


def _leads(value: Any, parts: list[str]) -> bool:
    for part in parts:
        if not hasattr(value, part):  # a field without a default is an annotation only
            return any(part in getattr(base, "__annotations__", {}) for base in getattr(value, "__mro__", ()))
        value = getattr(value, part)
    return True


TEXTS = [*DOCS.glob("*.md"), *DOCS.parent.glob("*.md")]
SOURCES = [path for package in PACKAGES for path in (DOCS.parent / package).rglob("*.py")]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_every_dotted_name_in_a_page_is_there(path: Path) -> None:
    assert [name for name in sorted(dotted(path.read_text(encoding="utf-8"))) if not is_there(name)] == []


def test_every_dotted_name_in_a_docstring_is_there() -> None:
    names = {name for path in SOURCES for name in dotted(path.read_text(encoding="utf-8"))}
    assert [name for name in sorted(names) if not is_there(name)] == []


def test_what_is_not_there_is_found_out() -> None:
    wrong = ("jax.nn.unbox", "nn.nothing", "Scope.nothing", "liftcore.meta.x.y", "jax.nothing.x")
    assert [name for name in wrong if is_there(name)] == []
    assert dotted("See `jax.nn.unbox(x)`, `x: jax.Array` and `a.b`.") == {"jax.nn.unbox", "jax.Array"}


def test_links_between_pages_lead_somewhere() -> None:
    def anchor(heading: str) -> str:
        return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")

    pages = {path.name: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")}
    for name, text in pages.items():
        for page, part in re.findall(r"\]\(([\w.-]*\.md)?(?:#([^)]*))?\)", text):
            target = pages[page or name]
            anchors = {anchor(heading) for heading in re.findall(r"^#+ (.*)$", target, re.MULTILINE)}
            assert not part or part in anchors, f"{name}: {page}#{part}"


ARGUMENT = re.compile(r"^ {4}(\w[\w*, ]*|\*+\w+): (.*\n(?: {8}.*\n)*)", re.MULTILINE)


@pytest.mark.parametrize(
    "package",
    [liftcore, liftcore.nn, linen_like, equinox_like, pax_like, nnx_like],
    ids=lambda package: package.__name__,
)
def test_every_argument_is_explained_where_it_stands(package: Any) -> None:
    public = {name: getattr(package, name) for name in package.__all__}
    methods = {
        f"{name}.{method}": getattr(one, method)
        for name, one in public.items()
        if inspect.isclass(one)
        for method in vars(one)
        if not method.startswith("_") and callable(getattr(one, method))
    }
    elsewhere = {}
    for name, one in {**public, **methods}.items():
        doc = inspect.getdoc(one) or ""
        for section in re.findall(r"^(?:Args|Attributes):\n((?: {4}.*\n|\n)*)", f"{doc}\n", re.MULTILINE):
            found = {arg: text for arg, text in ARGUMENT.findall(section) if re.match(r"(see|as in|as for) ", text)}
            elsewhere |= {f"{name}: {arg}": text for arg, text in found.items()}
        returns = re.search(r"^Returns:\n {4}((See|As) .*)", doc, re.MULTILINE)
        elsewhere |= {f"{name} returns": returns[1]} if returns else {}
    assert not elsewhere
