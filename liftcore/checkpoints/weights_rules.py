"""Rules that map the names of another framework to paths: templates with fields, and names grouped by rule."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ..caches import bounded
from ..errors import Expected, LiftArgumentError, shown

__all__ = ["Change", "WeightGroup", "WeightRule", "grouped"]

Change: TypeAlias = Callable[[Any], Any]

_FIELD = re.compile(r"\{(?P<name>[A-Za-z_]\w*)(?::(?P<regex>(?:[^{}]|\{[^{}]*\})*))?\}")
_NAMED = ("linear", "conv")


@dataclasses.dataclass(frozen=True, init=False)
class WeightRule:
    """A rule that maps arrays with certain names to paths, and changes their layout.

    Names and paths are templates. In a name, a field such as `{part}` matches the text between two dots, and
    `{part:query|key}` matches a regular expression. In a path, the field is replaced by that text, with slashes for
    dots.

    A field that no path uses is the number of a layer. The arrays of all layers, from number 0 on, are stacked along a
    new first axis, like the variables of the layers of a `scan`.

    If the target's shape only splits or joins dimensions, the array is reshaped: a bias of shape `(384,)` fits one of
    shape `(12, 32)`.

    Example:
        >>> WeightRule("layer.{i}.attn.{part:query|key|value}.weight", "params/layers/{part}/kernel", "linear").path
        ('params/layers/{part}/kernel',)

    Args:
        foreign: a template for the names in the other framework; or several, whose arrays are joined along `axis`.
        path: a template for the paths, with slashes; or several, among which each array is split along `axis`; or
            `None` to leave the arrays out.
        change: the change to each array, after it is joined or split and before it is stacked: `"linear"` swaps the
            axes of `(out, in)`; `"conv"` transposes `(out, in, *window)` to `(*window, in, out)`; a function of a NumPy
            array makes any other change. Or a tuple or list with a change for each path.
        axis: the axis of the other framework's arrays along which they are joined or split; `None` gives the same array
            to all paths.
        sizes: the sizes of the parts along `axis`; equal ones by default.
        groups: the number of groups along `axis`, each of which holds a share of every part. For queries, keys and
            values whose rows are `(head, 3, depth)`, as in GPT-NeoX and BLOOM, it is the number of heads.

    Raises:
        LiftArgumentError: if an argument is not valid.
    """

    foreign: tuple[str, ...]
    path: tuple[str, ...]
    change: Change | str | tuple[Change | str | None, ...] | None
    axis: int | None
    sizes: tuple[int, ...] | None
    groups: int

    def __init__(
        self,
        foreign: str | Iterable[str],
        path: str | Iterable[str] | None,
        change: Change | str | Sequence[Change | str | None] | None = None,
        *,
        axis: int | None = 0,
        sizes: Iterable[int] | None = None,
        groups: int = 1,
    ) -> None:
        found = {
            "foreign": _texts(foreign),
            "path": () if path is None else _texts(path),
            "change": tuple(change) if isinstance(change, list) else change,
            "axis": axis,
            "sizes": None if sizes is None else tuple(sizes),
            "groups": groups,
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)
        for option, what, fix in self._problems():
            raise LiftArgumentError(str(self), what, fix, option=option)
        for template in self.foreign:
            _pattern(template, self.stacked)

    def _problems(self) -> Iterator[tuple[str, str | Expected, str]]:
        """Yield each problem: the field, what is wrong, and the fix."""
        if not self.foreign:
            yield "foreign", "there is no foreign name.", "Give a template."
        if len(self.foreign) > 1 and len(self.path) > 1:
            yield "path", "several names go to several paths.", "Write a rule for each path."
        fields = [_fields(template) for template in self.foreign]
        if any(one != fields[0] for one in fields):
            yield "foreign", "the foreign names have different fields.", "Give them the same fields."
        if any(_fields(path).keys() - fields[0].keys() for path in self.path):
            yield "path", "a path has a field that the foreign name lacks.", "Add the field to the foreign name."
        if len(self.stacked) > 1:
            fix = "Leave out only one field, along which arrays are stacked."
            yield "path", f"no path has the fields {self.stacked}.", fix
        yield from self._change_problems()
        if not isinstance(self.axis, int | None):
            yield "axis", Expected("an int or None", self.axis), "Give the number of an axis, or None."
        if self.sizes is not None and (len(self.path) < 2 or len(self.sizes) != len(self.path)):
            what = Expected(f"sizes for {len(self.path)} path(s)", self.sizes)
            yield "sizes", what, "Give a size for each of several."

        if not isinstance(self.groups, int) or self.groups < 1 or (self.groups > 1 and self.axis is None):
            fix = "Give the number of groups along `axis`, such as that of heads."
            yield "groups", Expected("1, or several and an `axis`", self.groups), fix

    def _change_problems(self) -> Iterator[tuple[str, str | Expected, str]]:
        if isinstance(self.change, tuple) and len(self.change) != len(self.path):
            what = f"`change` has {len(self.change)} changes for {len(self.path)} path(s)."
            yield "change", what, "Give one for each path."
        if not all(change is None or callable(change) or change in _NAMED for change in self.changes):
            yield "change", Expected("known changes", self.change), f"Give one of {_NAMED}, or a function."

    @property
    def changes(self) -> tuple[Change | str | None, ...]:
        """The change for each path."""
        return self.change if isinstance(self.change, tuple) else (self.change,) * max(1, len(self.path))

    @property
    def stacked(self) -> tuple[str, ...]:
        """The fields that no path has."""
        named = {field for path in self.path for field in _fields(path)}
        return tuple(field for field in _fields(self.foreign[0]) if field not in named) if self.path else ()

    def matched(self, name: str) -> tuple[int, dict[str, str]] | None:
        """Return the number of the foreign template that matches a name, and the texts of its fields, or `None`.

        Args:
            name: the name of an array in the other framework.
        """
        for number, template in enumerate(self.foreign):
            match = _pattern(template, self.stacked).fullmatch(name)
            if match:
                return number, match.groupdict()
        return None

    def __str__(self) -> str:
        return f'rule for "{", ".join(self.foreign)}"'


def _texts(value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    for text in texts:
        if not isinstance(text, str):
            raise LiftArgumentError("WeightRule", Expected("a template", given=text), "Give a text.")
    return texts


def _fields(template: str) -> dict[str, None]:
    return {match["name"]: None for match in _FIELD.finditer(template)}


@bounded(1024)
def _pattern(template: str, stacked: tuple[str, ...]) -> re.Pattern[str]:
    """Return the regular expression for the names that a template matches."""
    literals, names, expressions = (_FIELD.split(template)[part::3] for part in range(3))
    regex = _literal(template, literals[0])
    for at, (name, own, after) in enumerate(zip(names, expressions, literals[1:], strict=True)):
        own = own or (r"\d+" if name in stacked else r"[^.]+")
        regex += f"(?P={name})" if name in names[:at] else f"(?P<{name}>{own})"
        regex += _literal(template, after)
    try:
        return re.compile(regex)
    except re.error as error:
        what = f"the template has an invalid regular expression ({error})."
        fix = "Correct the expression after the colon."
        raise LiftArgumentError(f'"{template}"', what, fix, given=template) from error


def _literal(template: str, text: str) -> str:
    if "{" in text or "}" in text:
        what, fix = "a brace is not part of a field.", "Write `{name}` or `{name:regex}`."
        raise LiftArgumentError(f'"{template}"', what, fix, given=template)
    return re.escape(text)


# --- names by rule ----------------------------------------------------------------------------------------------------


class WeightGroup(NamedTuple):
    """The names whose arrays go to one path, or are split among several.

    Attributes:
        rule: the rule that matches the names.
        paths: the paths.
        rows: for each layer, the names whose arrays are joined; one row if nothing is stacked.
    """

    rule: WeightRule
    paths: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def grouped(
    where: str, arrays: Mapping[str, Any], rules: Iterable[WeightRule]
) -> tuple[list[WeightGroup], list[str], list[str], dict[str, str]]:
    """Group the names of arrays by the first rule that matches them.

    Returns:
        The groups; the names that no rule matches; the problems, as text; and, for each path that a rule would give to
        an array which an earlier rule takes, a text that says so.

    Raises:
        LiftArgumentError: if there is no mapping of arrays, or a rule is not a `WeightRule`.
    """
    names, rules = _checked(where, arrays, rules)
    unused, problems = list[str](), list[str]()
    tables: dict[tuple[int, tuple[str, ...]], dict[int, dict[int, str]]] = {}
    for name in names:
        found = next(((at, hit) for at, rule in enumerate(rules) if (hit := rule.matched(name))), None)
        if found is None:
            unused.append(name)
            continue
        at, (part, fields) = found
        layer = _layer(fields[rules[at].stacked[0]]) if rules[at].stacked else 0
        if layer is None:
            problems.append(f"{name} ({rules[at]}): {rules[at].stacked[0]} is not the number of a layer")
            continue
        paths = tuple(_filled(path, fields) for path in rules[at].path)
        key = tuple(text for field, text in fields.items() if field not in rules[at].stacked)
        row = tables.setdefault((at, paths or key), {}).setdefault(layer, {})
        if row.setdefault(part, name) != name:
            problems.append(f"{', '.join(paths)} ({rules[at]}): {row[part]} and {name} both go there")
    groups = []
    for (at, paths), table in tables.items():
        problems += _gaps(rules[at], paths, table)
        rows = tuple(tuple(table[layer][part] for part in sorted(table[layer])) for layer in sorted(table))
        groups.append(WeightGroup(rules[at], paths if rules[at].path else (), rows))
    return groups, unused, problems, _passed_over(names, rules, {at for at, _ in tables})


def _passed_over(names: Sequence[str], rules: Sequence[WeightRule], used: set[int]) -> dict[str, str]:
    """Return a text for each path of a rule that comes too late: earlier rules take all names that it matches."""
    texts = {}
    for late in (rule for at, rule in enumerate(rules) if at not in used):
        for name, (part, fields) in ((name, hit) for name in names if (hit := late.matched(name))):
            earlier = next(rule for rule in rules if rule.matched(name))
            changes = ", ".join(getattr(one, "__qualname__", repr(one)) for one in (*earlier.changes, *late.changes))
            fix = f"WeightRule({late.foreign[part]!r}, {[*earlier.path, *late.path]}, [{changes}], axis=None)"
            for path in (_filled(path, fields) for path in late.path):
                texts[path] = f"{path}: the {earlier} takes it; one rule gives an array to several paths: {fix}"
    return texts


def _checked(where: str, arrays: Any, rules: Any) -> tuple[list[str], list[WeightRule]]:
    """Return the names of the arrays and the rules, after checking that they are of the right classes."""
    if not isinstance(arrays, Mapping):
        fix = "Pass a mapping, such as `load_safetensors(path, separator=None)`."
        raise LiftArgumentError(where, Expected("arrays by name", given=arrays), fix)
    fix = 'Write a list of rules, such as `[WeightRule("{layer}.bias", "params/{layer}/bias")]`.'
    if isinstance(rules, WeightRule) or not isinstance(rules, Iterable):
        given = f"one {rules}" if isinstance(rules, WeightRule) else shown(rules)
        raise LiftArgumentError(f"{where}, rules", Expected("a list of rules", given=given), fix)
    rules = list(rules)
    for rule in rules:
        if not isinstance(rule, WeightRule):
            raise LiftArgumentError(f"{where}, rules", Expected("rules", given=rule), fix)
    return list(arrays), rules


def _layer(text: str) -> int | None:
    """Return the number of a layer, or `None` from ten thousand on: a huge one would make a huge list of gaps."""
    return int(text) if text.isdecimal() and len(text) < 5 else None


def _filled(path: str, fields: Mapping[str, str]) -> str:
    return _FIELD.sub(lambda match: fields[match["name"]].replace(".", "/"), path)


def _gaps(rule: WeightRule, paths: tuple[str, ...], table: Mapping[int, Mapping[int, str]]) -> list[str]:
    """Return the layers and parts that are missing in a group, as text."""
    if not rule.path:
        return []
    where = f"{', '.join(paths)} ({rule})"
    missing = [number for number in range(max(table)) if number not in table]
    problems = [f"{where}: no layer {', '.join(map(str, missing))}, but a layer {max(table)}"] if missing else []
    for layer, parts in table.items():
        lacking = [rule.foreign[part] for part in range(len(rule.foreign)) if part not in parts]
        if lacking:
            of_layer = f" of layer {layer}" if rule.stacked else ""
            problems.append(f"{where}: {', '.join(parts.values())} without {', '.join(lacking)}{of_layer}")
    return problems
