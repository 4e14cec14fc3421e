"""Which names of another framework go to which paths: templates with fields, and the names sorted by rule."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from ..errors import LiftArgumentError

__all__ = ["Change", "WeightGroup", "WeightRule", "grouped"]

Change: TypeAlias = Callable[[Any], Any]

_FIELD = re.compile(r"\{(?P<name>[A-Za-z_]\w*)(?::(?P<regex>(?:[^{}]|\{[^{}]*\})*))?\}")
_NAMED = ("linear", "conv")


@dataclasses.dataclass(frozen=True, init=False)
class WeightRule:
    """Where arrays with certain names go, and how each of them is changed.

    Names and paths are templates. A field such as `{part}` stands for one name between dots, `{part:query|key}` for
    what a regular expression matches; in the path it stands for the same text, with slashes for dots.

    A field that the path does not name is the number of a layer: the arrays of all numbers, from 0 on, are stacked
    along a new first axis, as `scan` has the variables of its layers.

    Where the target has other dimensions in the same order, they are split or joined: a bias of shape `(384,)` goes
    into one of `(12, 32)`.

    Example:
        >>> WeightRule("layer.{i}.attn.{part:query|key|value}.weight", "params/layers/{part}/kernel", "linear").path
        ('params/layers/{part}/kernel',)

    Args:
        foreign: a template of the names in the other framework; several, whose arrays are joined along `axis`.
        path: a template of the paths, with slashes; several, among which an array is divided along `axis`; `None` for
            arrays that are left out.
        change: what is done to each array, before it is stacked: `"linear"` swaps the axes of `(out, in)`; `"conv"`
            makes `(out, in, *window)` to `(*window, in, out)`; a function of an array of NumPy does anything else.
        axis: the axis of the other framework's arrays along which they are joined or divided; `None` gives the same
            array to all paths.
        sizes: how long the parts along `axis` are, which are of one length by default.

    Raises:
        LiftArgumentError: if a template or `change` cannot be used.
    """

    foreign: tuple[str, ...]
    path: tuple[str, ...]
    change: Change | str | None
    axis: int | None
    sizes: tuple[int, ...] | None

    def __init__(
        self,
        foreign: str | Iterable[str],
        path: str | Iterable[str] | None,
        change: Change | str | None = None,
        *,
        axis: int | None = 0,
        sizes: Iterable[int] | None = None,
    ) -> None:
        found = {
            "foreign": _texts(foreign),
            "path": () if path is None else _texts(path),
            "change": change,
            "axis": axis,
            "sizes": None if sizes is None else tuple(sizes),
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        for what, fix in self._problems():
            raise LiftArgumentError(str(self), what, fix)
        for template in self.foreign:
            _pattern(template, self.stacked)

    def _problems(self) -> Iterator[tuple[str, str]]:
        """What is wrong, each with a way out."""
        if not self.foreign:
            yield "there is no foreign name.", "Give a template."
        if len(self.foreign) > 1 and len(self.path) > 1:
            yield "several names go to several paths.", "Write a rule for each path."
        fields = [_fields(template) for template in self.foreign]
        if any(one != fields[0] for one in fields):
            yield "the foreign names have different fields.", "Give them the same ones."
        if any(_fields(path).keys() - fields[0].keys() for path in self.path):
            yield "a path has a field that the foreign name lacks.", "Name it there too."
        if len(self.stacked) > 1:
            yield f"no path names one of {self.stacked}.", "Name all but one, along which arrays are stacked."
        if not (self.change is None or callable(self.change) or self.change in _NAMED):
            yield f"`change` is {self.change!r}.", f"Give one of {_NAMED}, or a function."
        if self.sizes is not None and (len(self.path) < 2 or len(self.sizes) != len(self.path)):
            yield f"`sizes` is {self.sizes}, of {len(self.path)} parts.", "Give the length of the part of each path."

    @property
    def stacked(self) -> tuple[str, ...]:
        """The fields that no path names."""
        named = {field for path in self.path for field in _fields(path)}
        return tuple(field for field in _fields(self.foreign[0]) if field not in named) if self.path else ()

    def matched(self, name: str) -> tuple[int, dict[str, str]] | None:
        """Which of the foreign templates a name has the form of, and the texts of the fields.

        Args:
            name: the name of an array in the file.
        """
        for number, template in enumerate(self.foreign):
            match = _pattern(template, self.stacked).fullmatch(name)
            if match:
                return number, match.groupdict()
        return None

    def __str__(self) -> str:
        return f'rule of "{", ".join(self.foreign)}"'


def _texts(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _fields(template: str) -> dict[str, None]:
    return {match["name"]: None for match in _FIELD.finditer(template)}


@functools.lru_cache(1024)
def _pattern(template: str, stacked: tuple[str, ...]) -> re.Pattern[str]:
    """The regular expression of the names that a template stands for."""
    parts, at, known = [], 0, set()
    for match in _FIELD.finditer(template):
        name = match["name"]
        regex = match["regex"] or (r"\d+" if name in stacked else r"[^.]+")
        parts += [_literal(template, template[at : match.start()])]
        parts += [f"(?P={name})" if name in known else f"(?P<{name}>{regex})"]
        at = match.end()
        known.add(name)
    try:
        return re.compile("".join([*parts, _literal(template, template[at:])]))
    except re.error as error:
        what = f"the template holds no regular expression ({error})."
        raise LiftArgumentError(f'"{template}"', what, "Write `{name}` or `{name:regex}`.") from error


def _literal(template: str, text: str) -> str:
    if "{" in text or "}" in text:
        raise LiftArgumentError(f'"{template}"', "a brace is no part of a field.", "Write `{name}` or `{name:regex}`.")
    return re.escape(text)


# --- names by rule ----------------------------------------------------------------------------------------------------


class WeightGroup(NamedTuple):
    """The names that make the arrays of one path, or of several among which they are divided.

    Attributes:
        rule: the rule.
        paths: the paths.
        rows: for each layer the names that are joined; one row where nothing is stacked.
    """

    rule: WeightRule
    paths: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def grouped(names: Iterable[str], rules: Iterable[WeightRule]) -> tuple[list[WeightGroup], list[str], list[str]]:
    """Sorts names by the first rule that takes them.

    Returns:
        The groups; the names that no rule takes; and what is wrong, in words.
    """
    rules, unused, problems = list(rules), [], []
    tables: dict[tuple[int, tuple[str, ...]], dict[int, dict[int, str]]] = {}
    for name in names:
        found = next(((at, hit) for at, rule in enumerate(rules) if (hit := rule.matched(name))), None)
        if found is None:
            unused.append(name)
            continue
        at, (part, fields) = found
        layer = _layer(fields[rules[at].stacked[0]]) if rules[at].stacked else 0
        if layer is None:
            problems.append(f"{name} ({rules[at]}): {rules[at].stacked[0]} is no number of a layer")
            continue
        paths = tuple(_filled(path, fields) for path in rules[at].path)
        key = tuple(text for field, text in fields.items() if field not in rules[at].stacked)
        row = tables.setdefault((at, paths or key), {}).setdefault(layer, {})
        if row.setdefault(part, name) != name:
            problems.append(f"{', '.join(paths)} ({rules[at]}): {row[part]} and {name} go there both")
    groups = []
    for (at, paths), table in tables.items():
        problems += _gaps(rules[at], paths, table)
        rows = tuple(tuple(table[layer][part] for part in sorted(table[layer])) for layer in sorted(table))
        groups.append(WeightGroup(rules[at], paths if rules[at].path else (), rows))
    return groups, unused, problems


def _layer(text: str) -> int | None:
    """The number of a layer, below ten thousand: names of a file may hold any number, and gaps are counted."""
    return int(text) if text.isdecimal() and len(text) < 5 else None


def _filled(path: str, fields: Mapping[str, str]) -> str:
    return _FIELD.sub(lambda match: fields[match["name"]].replace(".", "/"), path)


def _gaps(rule: WeightRule, paths: tuple[str, ...], table: Mapping[int, Mapping[int, str]]) -> list[str]:
    """What is missing of the layers and the parts of a group."""
    if not rule.path:
        return []
    where = f"{', '.join(paths)} ({rule})"
    missing = [number for number in range(max(table)) if number not in table]
    problems = [f"{where}: there is no layer {', '.join(map(str, missing))}, but layer {max(table)}"] if missing else []
    for layer, parts in table.items():
        lacking = [rule.foreign[part] for part in range(len(rule.foreign)) if part not in parts]
        if lacking:
            of_layer = f" of layer {layer}" if rule.stacked else ""
            problems.append(f"{where}: beside {', '.join(parts.values())} there is no {', '.join(lacking)}{of_layer}")
    return problems
