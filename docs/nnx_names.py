"""Writes the table of NNX's public names into `from-nnx.md`: `python docs/nnx_names.py`. It needs flax.

The script finds names that are the same in both packages. For the others, this file lists where they are, or why they
are left out and what to use instead. The script fails if a name is missing here, or if NNX has no such name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path

PAGE = Path(__file__).parent / "from-nnx.md"
BEGIN, END = "<!-- made by nnx_names.py: begin -->", "<!-- made by nnx_names.py: end -->"

THERE, HERE = "flax.nnx", "nnx_like"

_MODE = (
    "there is one mode: objects may be shared and may change, and calls are fast",
    "remove the call, and the argument `graph=`",
)
_CONTEXT = (
    "internal to NNX: it keeps track of objects in JAX functions for which NNX has no transformation",
    "use the transformation of `nnx_like`; around plain JAX functions, call `split` outside and `merge` inside",
)
_TREES = "internal to NNX's transformations", "use `StateAxes`, `StateSharding` and `DiffState` as prefixes, or `split`"
_PARTIAL = (
    "it makes slow calls faster; here calls are fast, since the walk over an object is kept: see "
    "[speed](objects.md#speed)",
    "use `jit`, with the objects as arguments",
)
_REFS = "another model of state, with JAX references in place of variables", "use a `Variable`"
_EAGER = (
    "a global option that places arrays on devices when a variable is created",
    "use `jit` with `out_shardings`, see [sharding](objects.md#sharding-large-models)",
)
_OWN_FILE = "internal to NNX"

ELSEWHERE = {
    "abstract_with_sharding": "`as_abstract`",
    "graphlib": "`nnx_like.graph`, which has `flatten` and `unflatten`; the functions themselves in `nnx_like`",
    "helpers": "`Dict`, `List`, `Sequential` and `TrainState` in `nnx_like`",
    "module": "`Module`, `capture`, `iter_modules`, `view`, `view_info` and `with_attributes` in `nnx_like`",
    "nn": "`nnx_like.layers`; each layer is also in `nnx_like`",
    "object": "`Object`, `Pytree` and the marks in `nnx_like`",
    "pytreelib": "`Pytree`, `data`, `static`, `dataclass` and others in `nnx_like`",
    "summary": "`tabulate` in `nnx_like`",
    "training": "`nnx_like.optimizer`, `nnx_like.metrics`; `EMA` and `TrainState` in `nnx_like`",
    "transforms": "each transformation in `nnx_like`",
    "visualization": "`display` in `nnx_like`",
    "wrappers": "`nnx_like.bridge`",
}
"""Names that are here in another place, or under another name."""

LEFT_OUT = {
    "A": ("a type variable", "use `typing.TypeVar`"),
    "M": ("a type variable", "use `typing.TypeVar`"),
    "MergeContext": _CONTEXT,
    "NodeStates": _TREES,
    "SplitContext": _CONTEXT,
    "UpdateContext": _CONTEXT,
    "cached_partial": _PARTIAL,
    "compat": ("the functions of NNX with its older mode as the default", "use the functions of `nnx_like`"),
    "current_update_context": _CONTEXT,
    "deprecations": (_OWN_FILE, "use `warnings.deprecated` or `typing_extensions.deprecated`"),
    "extract": _TREES,
    "from_tree": _TREES,
    "ids": (_OWN_FILE, "use `id`"),
    "jit_partial": _PARTIAL,
    "merge_context": _CONTEXT,
    "prefix": _TREES,
    "proxy_caller": (_OWN_FILE, "use `call` and `TrainState.apply`"),
    "reprlib": (_OWN_FILE, "use `repr`, `display` and `tabulate`"),
    "set_graph_mode": _MODE,
    "set_graph_updates": _MODE,
    "split_context": _CONTEXT,
    "to_tree": _TREES,
    "tracers": (_OWN_FILE, "use `liftcore.trace_state`"),
    "transform_metadata": (
        "each transformation that adds an axis changes the metadata",
        "use the argument `transform_metadata` of `vmap`, `scan` and `pmap`",
    ),
    "update_context": _CONTEXT,
    "use_eager_sharding": _EAGER,
    "using_eager_sharding": _EAGER,
    "var_defaults": ("global options of other models of state", "use the metadata of each variable"),
    "vars_as": _REFS,
    "with_vars": _REFS,
}
"""Names that are left out: the reason, and what to use instead."""


def public() -> list[str]:
    """The names of NNX without an underscore, and its files."""
    module = importlib.import_module(THERE)
    files = {info.name for info in pkgutil.iter_modules(module.__path__)}
    return sorted(name for name in {*dir(module), *files} if not name.startswith("_"))


def offered() -> set[str]:
    """The public names here."""
    return set(importlib.import_module(HERE).__all__)


def rows() -> Iterator[tuple[str, str, str]]:
    """Yields names, where they are or what to use instead, and why. Names with the same answer share a row."""
    names, here = public(), offered()
    said = {**ELSEWHERE, **LEFT_OUT}
    if missing := sorted(set(names) - here - said.keys()):
        raise SystemExit(f"docs/nnx_names.py: say in ELSEWHERE or LEFT_OUT what to use for {missing}")
    if wrong := sorted(name for name in said if name not in names or name in here):
        raise SystemExit(f"docs/nnx_names.py: {THERE} has no {wrong}, or they are here")
    yield _listed(name for name in names if name in here), f"the same name in `{HERE}`", ""
    yield from ((f"`{name}`", text, "") for name, text in sorted(ELSEWHERE.items()))
    for (reason, instead), some in _by_text(LEFT_OUT).items():
        yield _listed(some), f"left out: {instead}", reason


def _by_text(said: Mapping[str, tuple[str, str]]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for name, text in sorted(said.items(), key=lambda item: item[0].lower()):
        found.setdefault(text, []).append(name)
    return found


def _listed(names: Iterator[str] | list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def table() -> str:
    """The table."""
    lines = [f"| {names} | {text} | {reason} |" for names, text, reason in rows()]
    return "\n".join([BEGIN, "", "| name | here | reason |", "|---|---|---|", *lines, "", END])


def written() -> str:
    """The table that is on the page."""
    text = PAGE.read_text(encoding="utf-8")
    return text[text.index(BEGIN) : text.index(END) + len(END)]


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text(encoding="utf-8").replace(written(), table()), encoding="utf-8")
