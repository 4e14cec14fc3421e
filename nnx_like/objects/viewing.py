"""Views: copies with other static attributes that share the variables."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ..errors import StructureError
from ..filterlib import to_predicate
from .module import Module, iter_modules
from .pytree import Pytree
from .traversal import recursive_map

__all__ = ["view", "view_info", "with_attributes"]

Node = TypeVar("Node")


def with_attributes(node: Node, /, *, only: Any = ..., raise_if_not_found: bool = True, **attributes: Any) -> Node:
    """Copy objects and set attributes of the copy, which shares variables and arrays; see `Module.set_attributes`.

    Example:
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(drop=nnx.Dict(rate=0.1), w=nnx.Param(1.0))
        >>> other = nnx.with_attributes(model, rate=0.5)
        >>> other.drop.rate, model.drop.rate, other.w is model.w
        (0.5, 0.1, True)

    Args:
        node: an object, or lists, tuples and dicts of objects.
        only: a filter of the modules that get the attributes.
        raise_if_not_found: whether it is an error if no module has one of the attributes.
        **attributes: names and values. They are set in each module that has an attribute of that name.

    Returns:
        New objects, which share the variables of the old ones.

    Raises:
        StructureError: if no module has one of the attributes.
    """
    found: set[str] = set()

    def assign(module: Module) -> None:
        for name in [name for name in attributes if hasattr(module, name)]:
            setattr(module, name, attributes[name])
            found.add(name)

    made: Node = _changed(node, only, assign)
    if raise_if_not_found and not found.issuperset(attributes):
        raise StructureError(
            "with_attributes",
            f"no module that the filter matches has the attributes {sorted(set(attributes) - found)}.",
            "Leave them out, or pass `raise_if_not_found=False`.",
        )
    return made


def view(node: Node, /, *, only: Any = ..., raise_if_not_found: bool = True, **kwargs: Any) -> Node:
    """Copy objects in another mode; the copy shares the variables. Calls `set_view` on each of its modules.

    To support this in a module of your own, define a method `set_view`. It gets the keyword arguments that match its
    parameters. Give each parameter the default None, which means no change.

    Example:
        >>> import nnx_like as nnx
        >>> class Noise(nnx.Module):
        ...     def __init__(self):
        ...         self.deterministic = False
        ...     def set_view(self, deterministic: bool | None = None):
        ...         if deterministic is not None:
        ...             self.deterministic = deterministic
        >>> model = nnx.Dict(noise=Noise())
        >>> nnx.view(model, deterministic=True).noise.deterministic, model.noise.deterministic
        (True, False)

    Args:
        node: an object, or lists, tuples and dicts of objects.
        only: a filter for the modules that change.
        raise_if_not_found: whether it is an error if no module takes one of the arguments.
        **kwargs: the arguments of `set_view`.

    Returns:
        New objects, which share the variables of the old ones.

    Raises:
        StructureError: if no module takes one of the arguments.
    """
    used: set[str] = set()

    def ask(module: Any) -> None:
        if hasattr(module, "set_view"):
            given = _given(module.set_view, kwargs)
            module.set_view(**given)
            used.update(given)

    made: Node = _changed(node, only, ask)
    if raise_if_not_found and not used.issuperset(kwargs):
        raise StructureError(
            "view",
            f"no `set_view` of a matching module takes {sorted(set(kwargs) - used)}.",
            "See `view_info` for the arguments that they take, or pass `raise_if_not_found=False`.",
        )
    return made


def _changed(node: Any, only: Any, change: Callable[[Any], None]) -> Any:
    """Return new objects, and change those that a filter matches."""
    matches = to_predicate(only)

    def renew(path: tuple[Any, ...], part: Any) -> Any:
        if isinstance(part, Pytree) and matches(path, part):
            change(part)
        return part

    return recursive_map(renew, node)


def _given(fn: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments that match parameters of a function."""
    parameters = inspect.signature(fn).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return kwargs
    return {name: value for name, value in kwargs.items() if name in parameters}


def view_info(node: Any, /, *, only: Any = ...) -> str:
    """Describe the arguments of `view` that the modules of a model support.

    Example:
        >>> import nnx_like as nnx
        >>> class Noise(nnx.Module):
        ...     def set_view(self, deterministic: bool | None = None):
        ...         '''Sets the mode.
        ...
        ...         Args:
        ...             deterministic: whether to add no noise.
        ...         '''
        >>> print(nnx.view_info(nnx.Dict(noise=Noise())))
        Noise:
          deterministic: bool | None = None
            whether to add no noise.

    Args:
        node: a module, or lists, tuples and dicts of modules.
        only: a filter for the modules to report.

    Returns:
        The parameters of `set_view` with their documentation, for each class of modules that has this method.
    """
    matches = to_predicate(only)
    kinds = {type(module) for path, module in iter_modules(node) if matches(path, module)}
    told = [kind for kind in kinds if hasattr(kind, "set_view")]
    return "\n".join(line for kind in sorted(told, key=lambda kind: kind.__qualname__) for line in _told(kind))


def _told(kind: Any) -> Iterator[str]:
    yield f"{kind.__qualname__}:"
    texts = _described(inspect.getdoc(kind.set_view) or "")
    for name, parameter in list(inspect.signature(kind.set_view).parameters.items())[1:]:
        if parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            yield f"  {_shown(parameter)}"
            yield from (f"    {line}" for line in texts.get(name, ()))


def _shown(parameter: inspect.Parameter) -> str:
    text = str(parameter)
    return text.replace(f": {parameter.annotation!r}", f": {parameter.annotation}") if _is_text(parameter) else text


def _is_text(parameter: inspect.Parameter) -> bool:
    return isinstance(parameter.annotation, str)


def _described(doc: str) -> dict[str, list[str]]:
    """Return the lines for each parameter in the section "Args:" of a docstring."""
    _, _, section = doc.partition("Args:\n")
    section = re.split(r"^\S", section, maxsplit=1, flags=re.MULTILINE)[0]
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in textwrap.dedent(section).rstrip().splitlines():
        start = re.match(r"(\w+)[^:]*: *(.*)", line)
        if start:
            lines = found[start[1]] = [start[2]]
        elif line.strip():
            lines.append(line.strip())
    return found
