"""Reads signatures and docstrings for the API reference as `help` has them: an extension of griffe.

Griffe reads source files. A dataclass made by a base class or a decorator has no `__init__` there, so its signature is
taken from the class itself. Sections of docstrings are brought into the one form that the pages show: fields of a
dataclass become arguments with types and defaults, and arguments that a base class explains are explained again.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import liftcore  # noqa: E402
import linen_like  # noqa: E402
from docs import reference  # noqa: E402 - from the repository, wherever MkDocs was started
from docs.building.api_pages import entries  # noqa: E402
from docs.building.layer_pages import computes, definition  # noqa: E402
from docs.building.links import link_names  # noqa: E402

__all__ = ["Docstrings", "Text"]

_OPTIONS: Any = {"returns_named_value": False, "returns_multiple_items": False, "warn_missing_types": False}
_ITEM = re.compile(r"^ {4}([\w*][\w*, ]*): *(\S.*\n(?: {8}.*\n)*|\n(?: {8}.*\n)+)", re.MULTILINE)
_ELSEWHERE = re.compile(r"[Ss]ee `(\w+)`\.?")
_RETURNS = re.compile(r"^(Returns|Yields):\n((?: {4}.*\n|\n)*)", re.MULTILINE)
_CODE = re.compile(r"^( {4}| *(>>>|\.\.\.)|\s*$)")
_LABEL = re.compile(r"(?<=[^\n])\n((?:Shapes|Parameters|Variables|Collections?|(?:RNG )?[Ss]treams|Source)): ")
_FIRST_SECTION = re.compile(r"^(?:Example|Args|Attributes|Returns|Raises):$|\Z", re.MULTILINE)
_IN_FUNCTIONS = {"x": "inputs", "rng": "key"}
"""What functions of `liftcore.nn` call arguments that layers have by another name."""


class Text:
    """The docstring of one object, in the form that griffe and Markdown read.

    Args:
        text: the docstring, less its indentation.
    """

    def __init__(self, text: str) -> None:
        self.returns = {match[1].lower(): textwrap.dedent(match[2]).strip() for match in _RETURNS.finditer(f"{text}\n")}
        text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
        text = _LABEL.sub(r"\n\n\1: ", text)  # a paragraph each
        self.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)


class Docstrings(griffe.Extension):
    """Completes what griffe has read of a package. Griffe calls `on_package`."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Called when all files of a package are read."""
        if pkg.name not in reference.PACKAGES:
            return
        for path, value in _public_classes(pkg.name):
            found = _at(loader, path)
            if found is not None:
                _sign(found, value)
        for one in _objects(pkg):
            if one.docstring is not None:
                _complete(one)
        for path, line in reference.BY_HAND.items():
            _explain(loader, path, line)


def _public_classes(package: str) -> Iterator[tuple[str, type]]:
    """Classes of the reference that a package defines, with their paths in its files."""
    for path in entries():
        section, _, name = path.rpartition(".")
        owner = reference._named(section) if section else None
        value = getattr(owner, name) if inspect.ismodule(owner) else None
        if inspect.isclass(value) and value.__module__.partition(".")[0] == package:
            yield f"{value.__module__}.{value.__qualname__}", value


def _at(loader: griffe.GriffeLoader, path: str) -> Any:
    try:
        found = loader.modules_collection[path]
        return found.final_target if found.is_alias else found
    except (KeyError, griffe.AliasResolutionError):
        return None


def _objects(one: Any) -> Iterator[Any]:
    """An object and all below that are defined there."""
    yield one
    for member in list(one.members.values()):
        if not member.is_alias:
            yield from _objects(member)


def _explain(loader: griffe.GriffeLoader, path: str, line: str) -> None:
    """Gives a name that has no docstring its line from the reference; griffe does not see slots of a class."""
    section, _, name = path.rpartition(".")
    found, owner = _at(loader, path), _at(loader, section)
    if found is None and owner is not None and owner.is_class:
        found = griffe.Attribute(name, parent=owner)
        owner.set_member(name, found)
    if found is not None and found.docstring is None:
        found.docstring = griffe.Docstring(line, parent=found, parser="google")


# -- signatures --------------------------------------------------------------------------------------------------------


def _sign(found: griffe.Class, value: type) -> None:
    """Gives a class the parameters that calling it takes, where its source does not show them."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return
    known = [one.name.lstrip("*") for one in found.parameters if one.name != "self"]
    if known == list(signature.parameters) or issubclass(value, BaseException | enum.Enum):
        return
    parameters = [_parameter(found, one) for one in signature.parameters.values()]
    this = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    init = griffe.Function("__init__", parameters=griffe.Parameters(this, *parameters), parent=found)
    found.set_member("__init__", init)


def _parameter(found: griffe.Class, one: inspect.Parameter) -> griffe.Parameter:
    given = getattr(one.annotation, "__forward_arg__", one.annotation)  # of a field of a NamedTuple
    annotation = given if isinstance(given, str) else inspect.formatannotation(given)
    shown = None if given is inspect.Parameter.empty else _expression(annotation, found)
    default = None if one.default is inspect.Parameter.empty else _default(found, one)
    kind = griffe.ParameterKind[one.kind.name.lower()]
    return griffe.Parameter(one.name, annotation=shown, kind=kind, default=default)


def _expression(text: str, found: griffe.Class) -> Any:
    try:
        return griffe.get_annotation(ast.parse(text, mode="eval").body, parent=found)
    except SyntaxError:
        return text


def _default(found: griffe.Class, one: inspect.Parameter) -> Any:
    """A default as the source writes it; as Python shows it where it is the field of another file."""
    field = found.members.get(one.name)
    written = getattr(field, "value", None)
    if written is not None and not str(written).startswith(("field(", "dataclasses.field(")):
        return written
    text = repr(one.default)
    if text.startswith("<class 'jax.numpy."):
        return f"jnp.{one.default.__name__}"
    return getattr(one.default, "__name__", "...") if text.startswith("<") else text


# -- docstrings --------------------------------------------------------------------------------------------------------


def _complete(one: Any) -> None:
    """Replaces what griffe reads in a docstring by what it says."""
    text = Text(_with_definition(one))
    one.docstring.value = "\n".join(line if _CODE.match(line) else link_names(line) for line in text.value.split("\n"))
    sections = one.docstring.parse("google", **_OPTIONS, warn_unknown_params=not one.is_class)
    for section in sections:
        if section.kind.value in text.returns:
            # What is returned is prose here: a colon in it does not part a type from the rest.
            item = section.value[0]
            item.name, item.description = "", text.returns[section.kind.value]
            item.annotation = getattr(one, "returns", None) or getattr(one, "annotation", None)
            section.value = [item]
    if one.is_class:
        sections = _with_fields(one, sections)
    elif one.is_function:
        sections = _with_arguments(one, sections)
    for section in sections:
        if section.kind.value == "parameters":
            section.title = "Arguments:"  # those of a layer are its arrays
    one.docstring.__dict__["parsed"] = sections


def _with_definition(one: Any) -> str:
    """The docstring, for a layer with the definition of the function that it computes."""
    written = str(one.docstring.value)
    layer = next(iter(_mro(one)), None) if one.is_class else None
    defined = layer and definition(layer)
    return _FIRST_SECTION.sub(lambda found: f"{defined}\n\n{found[0]}", written, count=1) if defined else written


def _with_arguments(one: griffe.Function, sections: list[Any]) -> list[Any]:
    """The sections of a function, with the arguments that only a base class explains, or what its docstring names."""
    found = [section for section in sections if section.kind.value == "parameters"]
    explained = {name: item for section in found for item in section.value for name in _names(item)}
    parameters = {p.name.lstrip("*"): p for p in one.parameters if p.name not in ("self", "cls")}
    if set(parameters) <= set(explained):
        return sections
    sources = _sources(one)
    for name, parameter in parameters.items():
        text = None if name in explained else _explained_by(sources, name)
        if text is None and one.name == "__call__" and name not in explained:
            text = _explained_by(sources, _IN_FUNCTIONS.get(name, name))
        if text is not None:
            explained[name] = _item(parameter, text)
    items = [explained[name] for name in parameters if name in explained]
    kept = [section for section in sections if section not in found]
    return [*kept[:1], griffe.DocstringSectionParameters(items), *kept[1:]] if items else sections


def _sources(one: griffe.Function) -> list[Any]:
    """What may explain an argument: the method of each base class, then functions that the docstring names.

    Of a call of a layer, that is the function of `liftcore.nn` that the layer computes as well.
    """
    classes = _mro(one.parent) if one.parent is not None and one.parent.is_class else []
    named = re.findall(r"`([\w.]+)`", one.docstring.value if one.docstring else "")
    module = sys.modules.get(one.module.path)
    pointed = [_resolved(module, classes, name) for name in named if name != one.name]
    methods = [vars(base).get(one.name) for base in classes[1:]]
    layer = computes(classes[0]) if classes and one.name == "__call__" else None
    pointed.append(getattr(liftcore.nn, layer) if layer else None)
    return [each for each in [*methods, *pointed] if callable(each)]


def _resolved(module: Any, classes: list[type], name: str) -> Any:
    """What a name in a docstring stands for: a method of the same class, something of the file, or a public name."""
    first, _, rest = name.partition(".")
    if not rest:
        return getattr(classes[0] if classes else None, name, None) or getattr(module, name, None)
    found: Any = {"nn": linen_like, "liftcore": liftcore}.get(first)
    for part in rest.split("."):
        found = getattr(found, part, None)
    return found


def _with_fields(one: griffe.Class, sections: list[Any]) -> list[Any]:
    """The sections of a class, with one that explains all that its constructor takes, in the order of the signature.

    Fields are explained as arguments or as attributes, and those of a base class in that class.
    """
    parameters = {p.name.lstrip("*"): p for p in one.parameters if p.name != "self"}
    mro, explained, kept, place = _mro(one), {}, [], None
    for section in sections:
        if section.kind.value in ("parameters", "attributes"):
            place = len(kept) if place is None else place
            explained |= {name: item.description for item in section.value for name in _names(item)}
            section.value = [item for item in section.value if not set(_names(item)) & set(parameters)]
            for item in section.value:
                if not any(item.name in getattr(base, "__annotations__", ()) for base in mro):
                    item.annotation = _property_type(one, item.name)  # of `a, b = c, d` griffe takes one for all
        if section.value:
            kept.append(section)
    items = []
    for name, parameter in parameters.items():
        text = explained.get(name) or _explained_by(mro, name)
        if text is not None:
            elsewhere = _ELSEWHERE.fullmatch(text.strip())
            text = (elsewhere and _explained_by([_global(mro, elsewhere[1])], name)) or text
            default = None if parameter.default is None else str(parameter.default)
            items.append(
                griffe.DocstringParameter(
                    parameter.name, annotation=parameter.annotation, value=default, description=text
                )
            )
    if items:
        kept.insert(1 if place is None else place, griffe.DocstringSectionParameters(items))
    return kept


def _item(parameter: griffe.Parameter, text: str) -> griffe.DocstringParameter:
    default = None if parameter.default is None else str(parameter.default)
    return griffe.DocstringParameter(parameter.name, annotation=parameter.annotation, value=default, description=text)


def _names(item: Any) -> list[str]:
    return [name.strip().lstrip("*") for name in item.name.split(",")]


def _property_type(one: griffe.Class, name: str) -> Any:
    found = one.all_members.get(name)
    return found.annotation if found is not None and "property" in found.labels else None


def _mro(one: griffe.Class) -> list[type]:
    """The class and its bases; none where it is made inside of a function."""
    found: Any = sys.modules.get(one.module.path)
    for name in one.path.removeprefix(f"{one.module.path}.").split("."):
        found = getattr(found, name, None)
    return list(found.__mro__) if inspect.isclass(found) else []


def _global(mro: list[type], name: str) -> Any:
    return getattr(sys.modules[mro[0].__module__], name, None) if mro else None


def _explained_by(classes: list[Any], name: str) -> str | None:
    """What the first of some classes that explains an argument says of it."""
    for one in classes:
        for names, text in _ITEM.findall(inspect.cleandoc(one.__doc__ or "") + "\n"):
            if name in [each.strip().lstrip("*") for each in names.split(",")]:
                return " ".join(text.split())
        package = (getattr(one, "__module__", None) or "").partition(".")[0]
        line = reference.BY_HAND.get(f"{package}.{getattr(one, '__name__', '')}.{name}")
        if line:
            return line
    return None
