"""Rows of advice: a program that raises, the fix in the error's text, and the program after the edit that the fix asks.

A file of rows has the form of a diff. What stands before its first row are the imports of all its programs. A row is

    @@ what goes wrong
    >the fix, in the words of the error; the text ends what the error says
     a line of the program
    -the line that is wrong
    +the line that the fix asks for
    =an expression that is true after the corrected program

Code that the fix quotes must be part of the edit: the edit writes or deletes a word of it, or the corrected program has
all of it, where `…` stands for any code.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent


class Row(NamedTuple):
    """A program that raises, and the one that its error asks for."""

    name: str
    imports: str
    fix: str
    wrong: str
    right: str
    expected: tuple[str, ...]

    def run(self, program: str) -> dict[str, Any]:
        """Run one of the two programs; return its names."""
        names: dict[str, Any] = {"__name__": __name__}  # dataclasses look their module up
        exec(compile(self.imports, f"{self.name}, imports", "exec"), names)
        exec(compile(program, self.name, "exec"), names)
        return names

    def is_followed(self) -> bool:
        """Return whether the edit is what the fix quotes; a sentence without code is followed by any edit."""
        return any(map(self._follows, re.split(r"[.;] ", self.fix)))

    def _follows(self, sentence: str) -> bool:
        quoted = re.findall(r"`([^`]+)`", sentence)
        changed = Counter(_words(self.right))
        changed.subtract(_words(self.wrong))
        if any(changed[word] for word in _words(" ".join(quoted))):
            return True
        wrong, right = _spaceless(self.wrong), _spaceless(self.right)
        return not quoted or any(_is_in(piece, right) != _is_in(piece, wrong) for piece in quoted)


def _is_in(piece: str, program: str) -> bool:
    return re.search(".*?".join(map(re.escape, _spaceless(piece).split("…"))), program) is not None


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def _spaceless(text: str) -> str:
    return re.sub(r"\s", "", text)


def rows() -> list[Row]:
    """Return the rows of all files."""
    return [row for path in sorted(FOLDER.glob("*.diff")) for row in _read(path)]


def _read(path: Path) -> Iterator[Row]:
    imports, *parts = re.split(r"^@@ ", path.read_text(), flags=re.MULTILINE)
    for part in parts:
        name, *lines = part.rstrip().split("\n")
        marked = [(line[:1] or " ", line[1:]) for line in lines]
        text = {mark: "\n".join(line for one, line in marked if one in mark) for mark in (">", " -", " +")}
        assert {mark for mark, _ in marked} <= set(">-+= "), f"{path.name}, {name}: a line has an unknown mark"
        expected = tuple(line for mark, line in marked if mark == "=")
        yield Row(f"{path.stem}: {name}", imports, text[">"], text[" -"], text[" +"], expected)


def fixes(source: str) -> Iterator[tuple[int, str]]:
    """Yield the fixes that a file passes to errors: the line, and a regular expression that their texts match."""
    tree = ast.parse(source)
    methods = [node for one in tree.body for node in (one.body if isinstance(one, ast.ClassDef) else [one])]
    everywhere = _assigned(tree.body)
    for scope in methods:
        assigned = {**everywhere, **_assigned(ast.walk(scope))}
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and len(node.args) == 3 and _name(node.func).endswith("Error"):
                yield from ((node.lineno, text) for text in _texts(node.args[2], assigned))


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    """Return the values that are assigned to names."""
    found: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target, value in zip(_parts(node.targets[0]), _parts(node.value), strict=False):
                if isinstance(target, ast.Name) and not isinstance(value, ast.Name):
                    found.setdefault(target.id, []).append(value)
    return found


def _parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _texts(node: ast.expr, assigned: dict[str, list[ast.expr]]) -> Iterator[str]:
    match node:
        case ast.Constant(value=str()):
            yield re.escape(node.value)
        case ast.JoinedStr():
            yield "".join(re.escape(one.value) if isinstance(one, ast.Constant) else ".*" for one in node.values)
        case ast.IfExp():
            yield from _texts(node.body, assigned)
            yield from _texts(node.orelse, assigned)
        case ast.Name():
            for value in assigned.get(node.id, []):
                yield from _texts(value, assigned)
