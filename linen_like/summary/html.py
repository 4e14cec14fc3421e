"""HTML: shows a module in a notebook, with `treescope` if it is installed, otherwise as nested lists."""

from __future__ import annotations

import html
import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from liftcore.diagnostics import lines_of
from liftcore.filters import leaves_of

from ..lifecycle.fields import Base, modules_in

__all__ = ["mimebundle", "module_html"]


def mimebundle(module: Base) -> dict[str, str]:
    """Return what IPython asks `_repr_mimebundle_` of a module for: its text and its HTML.

    It is not `_repr_html_`, since treescope would call that and show the result beside its own view.
    """
    return {"text/plain": repr(module), "text/html": module_html(module)}


def module_html(module: Base) -> str:
    """Return a module as HTML: its fields and submodules, and its variables if it is bound.

    Example:
        >>> import linen_like as nn
        >>> module_html(nn.Dense(3)).count("<") > 0
        True

    Args:
        module: a module, bound or not.
    """
    variables = None if module.scope is None else module.scope.variables()
    if importlib.util.find_spec("treescope") is not None:
        render = importlib.import_module("treescope").render_to_html
        return str(render(module)) + ("" if variables is None else str(render(variables)))
    return _plain(module, "", variables)


def _plain(module: Base, label: str, variables: Mapping[str, Any] | None = None) -> str:
    """Return a module as a list that can be folded; the variables of the outermost module come last."""
    items, inside = [], set()
    for name in type(module)._field_names:
        value = getattr(module, name)
        modules = modules_in(value)
        inside |= {id(below) for below in modules}
        if not modules:
            items.append(f"<li>{_escaped(f'{name} = ' + ', '.join(lines_of(value, Base)))}</li>")
        items += [f"<li>{_plain(below, f'{name} = ')}</li>" for below in modules]
    children = (module._state.children or {}).items()
    items += [f"<li>{_plain(child, f'+ {name}: ')}</li>" for name, child in children if id(child) not in inside]
    held = {"/".join(path): ", ".join(lines_of(value)) for path, value in leaves_of(variables or {})}
    items += [f"<li>{_escaped(f'{path}: {text}')}</li>" for path, text in held.items()]
    named = "" if module.name is None else f" {module.name!r}"
    summary = f"<summary>{_escaped(label)}<b>{_escaped(type(module).__name__)}</b>{_escaped(named)}</summary>"
    return f"<details open>{summary}<ul>{''.join(items)}</ul></details>"


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)
