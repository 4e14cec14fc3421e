"""Makes the pages of the API reference, with all signatures and arguments: a hook of MkDocs.

`docs/api.md` lists every public name with one line. In the site each section of it is a page as well, which no file
holds: it is made here from the same list, and mkdocstrings fills in what the docstrings say. A name that several
packages offer is explained once, where it comes first; its other entries lead there. Layers have pages of their own,
one for each kind, below `docs/layers.md`.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from docs import reference  # noqa: E402 - from the repository, wherever MkDocs was started
from docs.building import layer_pages  # noqa: E402

__all__ = ["api_pages", "entries", "on_config", "on_files", "on_page_markdown"]

MEMBERS = {
    "liftcore.Body": (
        "creates",
        "nested",
        "of",
        "path_text",
        "repack_fn",
        "scope_fn",
        "split",
        "unchanged",
        "where",
        "writes",
        "__call__",
    ),
    "liftcore.CompiledJit": ("as_text", "cost_analysis", "memory_analysis", "__call__"),
    "liftcore.Jitted": ("lower", "__call__"),
    "liftcore.LoweredJit": ("as_text", "compile", "cost_analysis"),
    "liftcore.Prologue": ("evaluate", "make"),
    "liftcore.Retraces": ("by_path",),
    "liftcore.Split": ("batched_prologue", "output_reads", "prologue", "reads", "remainder", "join"),
    "liftcore.pipeline.Lifter": ("__call__",),
    "liftcore.pipeline.Part": ("can_be_batched",),
}
"""Of classes whose objects the library makes, what a user needs of one; the reference shows no constructor."""

_LAYER: dict[str, bool | int] = {"heading_level": 3, "inherited_members": True}
_ITEM = re.compile(r"^- `(\w+)`:", re.MULTILINE)
_TABLE = re.compile(r"^\| kind .*\n(?:\|.*\n)+", re.MULTILINE)


@functools.cache
def entries() -> dict[str, str]:
    """For each public name, such as `liftcore.vmap`, the entry that explains it."""
    found = {section: section for section in reference.SECTIONS}
    first: dict[int, str] = {}  # what is explained already, by identity
    for section in reference.SECTIONS:
        owner = reference._named(section)
        for name in reference._names(section, owner):
            path, value = f"{section}.{name}", _value(owner, name)
            if inspect.ismodule(value):
                found[path] = value.__name__
            else:
                found[path] = first.setdefault(id(value), path) if _is_explained(path, value) else path
    return found


def api_pages() -> dict[str, str]:
    """The text of each page of the reference, by its path in the site."""
    pages = {_page(section): _text(section) for section in reference.SECTIONS}
    return pages | {_layer_page(kind): _layers(group) for kind, group in layer_pages.GROUPS.items()}


def on_config(config: Any) -> Any:
    """Called by MkDocs: puts the pages below "API" in the navigation, package by package, and those of layers."""
    packages: dict[str, list[dict[str, str]]] = {}
    for section in reference.SECTIONS:
        packages.setdefault(section.partition(".")[0], []).append({section: _page(section)})
    below = ["api.md", *({package: list(pages)} for package, pages in packages.items())]
    layers = [
        {"All layers": "layers.md"},
        *({group.title: _layer_page(kind)} for kind, group in layer_pages.GROUPS.items()),
    ]
    config.nav = _replaced(config.nav, {"api.md": below, "layers.md": layers})
    return config


def _replaced(nav: list[Any], pages: dict[str, list[Any]]) -> list[Any]:
    """A navigation in which some pages became sections."""
    found = []
    for item in nav:
        title, below = next(iter(item.items()))
        found.append({title: _replaced(below, pages) if isinstance(below, list) else pages.get(below, below)})
    return found


def on_files(files: Any, *, config: Any) -> Any:
    """Called by MkDocs: adds the pages."""
    from mkdocs.structure.files import File

    for path, text in api_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Called by MkDocs: the names that `api.md` and the table of `layers.md` list lead to their entries."""
    if page.file.src_uri == "layers.md":
        return _TABLE.sub(lambda _: _table(), markdown, count=1)
    if page.file.src_uri != "api.md":
        return markdown
    lead, *sections = re.split(r"^## ", markdown, flags=re.MULTILINE)
    return lead + "".join(f"## {_linked(text)}" for text in sections)


def _linked(text: str) -> str:
    section = text.partition("\n")[0].strip()
    known = entries()
    return _ITEM.sub(lambda m: f"- [`{m[1]}`][{known[f'{section}.{m[1]}']}]:", text)


def _page(section: str) -> str:
    return f"api/{section}.md"


def _layer_page(kind: str) -> str:
    return f"api/layers/{kind.replace(' ', '-')}.md"


def _table() -> str:
    """The table of all layers, with links."""
    rows = []
    for kind, group in layer_pages.GROUPS.items():
        cells = [", ".join(_link(path) for path in paths) for paths in group.paths().values()]
        rows.append(f"| [{kind}]({_layer_page(kind)}) | {' | '.join(cells)} |\n")
    head = "".join(layer_pages.table().splitlines(keepends=True)[:2])
    return head + "".join(rows)


def _link(path: str) -> str:
    return f"[`{path.rpartition('.')[2]}`][{entries()[path]}]"


def _layers(group: layer_pages.Group) -> str:
    """The page of one kind of layers: what [`shown_in_full`] says in full, a line for the rest."""
    text = f"# {group.title}\n\n[Layers](../../layers.md) has examples, and an overview of all kinds.\n\n"
    for package, paths in group.paths().items():
        if not paths:
            continue
        text += f"## In `{package}`\n\n"
        full = [path for path in paths if path in layer_pages.shown_in_full()]
        text += "".join(f"- {_link(path)}: {_line_of(path)}\n" for path in paths if path not in full) + "\n"
        text += "".join(_directive(path, layer_pages.methods(path), _LAYER) for path in full)
    return text


def _line_of(path: str) -> str:
    section, _, name = path.rpartition(".")
    return reference._line(section, reference._named(section), name)


def _text(section: str) -> str:
    owner = reference._named(section)
    names = reference._names(section, owner)
    if inspect.isclass(owner):
        options: dict[str, bool | int] = {"heading_level": 1, "show_root_full_path": True, "inherited_members": True}
        return _directive(section, [*names, "__call__"], options)
    lead = reference._lead(section, owner)
    return f"# {section} {{ #{section} }}\n\n{lead}" + "".join(_entry(section, owner, name) for name in names)


def _entry(section: str, owner: Any, name: str) -> str:
    """One name: in full, or a line that says what it is and where to read on."""
    path, value = f"{section}.{name}", _value(owner, name)
    target = entries()[path]
    if inspect.ismodule(value):
        return f"## `{name}`\n\nModule: see [`{target}`][{target}].\n\n"
    line = reference._line(section, owner, name)
    if target != path or path in reference.SECTIONS or path in layer_pages.shown_in_full():
        text = "Same as" if line == f"Same as `{target}`." else f"{line} See"
        return f"## `{name}`\n\n{text} [`{target}`][{target}].\n\n"
    if not _is_explained(path, value):
        return f"## `{name}` {{ #{path} }}\n\n{line}\n\n"
    if path in MEMBERS:
        return _directive(path, MEMBERS[path], {"merge_init_into_class": False})
    return f"::: {path}\n\n"


def _directive(path: str, members: Iterable[str], options: dict[str, bool | int]) -> str:
    """What mkdocstrings reads: a name, and how to show it."""
    lines = [f"      {option}: {str(value).lower()}\n" for option, value in options.items()]
    listed = "".join(f"\n        - {name}" for name in members) or " []"
    return f"::: {path}\n    options:\n{''.join(lines)}      members:{listed}\n\n"


def _value(owner: Any, name: str) -> Any:
    return getattr(owner, name) if inspect.ismodule(owner) else inspect.getattr_static(owner, name)


def _is_explained(path: str, value: Any) -> bool:
    """Whether a name has a docstring of its own to show: it is ours, and no other name of something."""
    ours = (getattr(value, "__module__", None) or "").partition(".")[0] in reference.PACKAGES
    return ours and callable(value) and path not in reference.BY_HAND and path.rpartition(".")[0] != "liftcore.typing"
