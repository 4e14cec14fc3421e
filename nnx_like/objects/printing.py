"""Print objects: one attribute per line, arrays by type and shape, and the sizes of all variables below."""

from __future__ import annotations

import importlib
import importlib.util
import reprlib
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from liftcore.pytrees import Size, has_type

from ..variablelib.kinds import RngState
from ..variablelib.variable import Variable
from .markers import DICTS, NATIVE, has_data, is_data

__all__ = ["display", "kind_name", "object_text", "sizes_by_kind", "treescope_of", "value_text"]


_INDENT = "  "


def object_text(node: Any) -> str:
    """Format an object with everything below it; an object that was printed before, by its class and path only.

    Args:
        node: the object.
    """
    return _text(node, "", {})


def _object(node: Any, path: str, seen: dict[int, str]) -> str:
    numbered = type(node)._numbered
    lines = []
    for name, value in vars(node).items():
        step = f"[{name}]" if numbered and name.isdigit() else f".{name}"
        label = "" if numbered and name.isdigit() else f"{name}="
        lines.append(f"{label}{_text(value, path + step, seen)}")
    return _block(f"{type(node).__name__}(", lines, ")", _sizes_text(sizes_by_kind([node])))


def _text(value: Any, path: str, seen: dict[int, str]) -> str:
    if _is_object(value) or isinstance(value, Variable) or (type(value) in NATIVE and has_data(value)):
        if id(value) in seen:
            return f"{type(value).__name__}(…)  # {seen[id(value)] or 'the whole object'}"
        seen[id(value)] = path
    if _is_object(value):
        return _object(value, path, seen)
    if isinstance(value, Variable):
        return _variable(value)
    if type(value) in (list, tuple) and has_data(value):
        lines = [_text(one, f"{path}[{number}]", seen) for number, one in enumerate(value)]
        return _block("[" if type(value) is list else "(", lines, "]" if type(value) is list else ")", "")
    if type(value) in DICTS and has_data(value):
        lines = [f"{name!r}: {_text(one, f'{path}[{name!r}]', seen)}" for name, one in value.items()]
        kind = "" if type(value) is dict else type(value).__name__
        return _block(f"{kind}({{" if kind else "{", lines, "})" if kind else "}", "")
    return value_text(value)


def _is_object(value: Any) -> bool:
    return hasattr(type(value), "_numbered")


def _variable(value: Variable[Any]) -> str:
    raw = value.get_raw_value()
    told = "".join(f", {name}={one!r}" for name, one in value.get_metadata().items())
    size = str(Size.of(raw))
    return f"{type(value).__name__}({value_text(raw)}{told})" + (f"  # {size}" if size else "")


def _block(start: str, lines: Iterable[str], end: str, comment: str) -> str:
    """Format lines between brackets, with the comma of each before its comment."""
    inner = [textwrap.indent(_comma(line), _INDENT) for line in lines]
    first = f"{start}  # {comment}" if comment else start
    if not inner:
        return f"{start}{end}"
    return "\n".join([first, *inner, end])


def _comma(text: str) -> str:
    """Add a comma at the end of a string, or before the comment in its last line."""
    *above, last = text.split("\n")
    code, mark, comment = last.partition("  # ") if not above else (last, "", "")
    return "\n".join([*above, f"{code},{mark}{comment}"])


@reprlib.recursive_repr("…")
def value_text(value: Any) -> str:
    """Format a value in one line: arrays by type and shape, classes and functions by name.

    Example:
        >>> import jax.numpy as jnp
        >>> value_text({"x": jnp.ones((2, 3)), "fn": len, "n": 1})
        "{'x': float32[2,3], 'fn': len, 'n': 1}"

    Args:
        value: any value.
    """
    if has_type(value):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if type(value) in (list, tuple):
        inner = ", ".join(map(value_text, value))
        return f"[{inner}]" if type(value) is list else f"({inner}{',' * (len(value) == 1)})"
    if type(value) is dict:
        return f"{{{', '.join(f'{name!r}: {value_text(one)}' for name, one in value.items())}}}"
    if callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__).rpartition("<locals>.")[2]
    return " ".join(repr(value).split())


# --- sizes


def kind_name(variable: Variable[Any]) -> str:
    """Return the name under which a variable is counted: its kind; keys and counts of RNG streams have one name.

    Args:
        variable: the variable.
    """
    return RngState.__name__ if isinstance(variable, RngState) else type(variable).__name__


def sizes_by_kind(values: Iterable[Any]) -> dict[str, Size]:
    """Return the sizes of the variables below some values, by the name of their kind.

    Args:
        values: objects, or lists, tuples and dicts of objects. Shared variables count once.
    """
    sizes: dict[str, Size] = {}
    for variable in _variables(values, set()):
        size, name = Size.of(variable.get_raw_value()), kind_name(variable)
        if size.count:
            sizes[name] = Size.sum([sizes.get(name, Size()), size])
    return dict(sorted(sizes.items()))


def _variables(values: Iterable[Any], seen: set[int]) -> Iterator[Variable[Any]]:
    for value in values:
        if isinstance(value, Variable):
            if id(value) not in seen:
                seen.add(id(value))
                yield value
        elif _is_object(value):
            if id(value) not in seen:
                seen.add(id(value))
                yield from _variables(vars(value).values(), seen)
        elif not is_data(value):  # other data holds no variables
            yield from _variables(has_data(value), seen)


def _sizes_text(sizes: Mapping[str, Size]) -> str:
    """Format sizes by kind in one line, with the total if there are several.

    Example:
        >>> _sizes_text({"BatchStat": Size(3, 12), "Param": Size(6, 24)})
        'BatchStat: 3 (12 B), Param: 6 (24 B), Total: 9 (36 B)'

    Args:
        sizes: the size of each kind.
    """
    total = {"Total": Size.sum(sizes.values())} if len(sizes) > 1 else {}
    return ", ".join(f"{name}: {size}" for name, size in {**sizes, **total}.items())


def treescope_of(node: Any, path: str | None, subtree_renderer: Any) -> Any:
    """Return the view of an object in `treescope`, which calls this.

    Args:
        node: the object.
        path: its path, as treescope gives it.
        subtree_renderer: renders the attributes.
    """
    attributes = dict(vars(node))
    if type(node)._numbered and all(name.isdigit() for name in attributes):
        attributes = {f"_{name}": value for name, value in attributes.items()}
    return importlib.import_module("treescope.repr_lib").render_object_constructor(
        object_type=type(node), attributes=attributes, path=path, subtree_renderer=subtree_renderer
    )


# --- notebooks --------------------------------------------------------------------------------------------------------


def display(*args: Any) -> None:
    """Show objects and other values: with `treescope` in a notebook, otherwise printed.

    Example:
        >>> import nnx_like as nnx
        >>> nnx.display(nnx.Dict(rate=0.5))
        Dict(
          rate=0.5,
        )

    Args:
        *args: the values to show.
    """
    if _is_notebook() and importlib.util.find_spec("treescope") is not None:
        treescope = importlib.import_module("treescope")
        for arg in args:
            treescope.display(arg, ignore_exceptions=True, autovisualize=True)
    else:
        for arg in args:
            print(arg)


def _is_notebook() -> bool:
    """Return whether the program runs under IPython, which then is imported already."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None
