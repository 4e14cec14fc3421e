"""One bound module in several threads: one of them has it, the others read what it holds through modules of their own.

While a call runs it notes down, with the modules of a tree, which methods are running, the names that are taken and the
attributes that `setup` sets. So a thread that calls while another one is in a call runs a twin: the same module, on a
tree of its own with the same variables, which may be read and nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from liftcore import Scope

from .binding import constructor_arguments, deep_clone, ensure_setup
from .fields import Base

__all__ = ["entered"]


@contextlib.contextmanager
def entered(module: Any) -> Iterator[Any]:
    """The module, which this thread has to itself within the `with` block; or its twin, where another thread has it."""
    tree = module.scope.tree
    if not tree.claim():
        kept = _twin(module)
        yield kept[1]  # its root, which it holds weakly, must live as long
        return
    try:
        yield module
    finally:
        tree.open()


def _twin(module: Any) -> tuple[Any, Any]:
    """The twin of the root that a module lies below, and that of the module itself."""
    tree, root, below = module.scope.tree, module, []
    while isinstance(root.parent, Base) and root.parent.scope is not None and root.parent.scope.tree is tree:
        below.append(root)
        root = root.parent
    reader = tree.reader()
    twins = deep_clone(root, _at(reader, root.scope), False, {}, {})
    twin = twins
    for one in reversed(below):
        twin = _child(twin, one)
        if twin is None:  # made in a call, and handed out
            return twins, type(module)(parent=_at(reader, module.scope), **constructor_arguments(module))
    return twins, twin


def _child(twin: Any, module: Any) -> Any:
    """The submodule of a twin that stands at the place of another module."""
    ensure_setup(twin)
    children = (twin._state.children or {}).values()
    return next((child for child in children if child.scope.path == module.scope.path), None)


def _at(reader: Any, scope: Scope) -> Scope:
    """The place of a scope, in a reader of its tree."""
    root = scope
    while root.parent is not None:
        root = root.parent
    return Scope.at(reader, reader.root, root.path, None).below(scope.path[len(root.path) :])
