"""Rows of advice: a program that raises, the fix in the error's text, and the program after the edit that the fix asks.

A file of rows has the form of a diff. What stands before its first row are the imports of all its programs. A row is

    @@ what goes wrong
    >the fix, in the words of the error; `…` stands for any text, such as the path of a folder
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
from collections.abc import Iterable, Iterator, Mapping
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

    def says(self, text: str, whole: bool) -> bool:
        """Return whether a text is the fix, or contains it."""
        pattern = ".*?".join(map(re.escape, self.fix.split("…")))
        return (re.fullmatch if whole else re.search)(pattern, text, re.DOTALL) is not None

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


def fixes(sources: Iterable[str]) -> Iterator[str]:
    """Yield the fixes that files pass to errors, each as a regular expression that its texts match."""
    trees = [ast.parse(source) for source in sources if any(word in source for word in ("Error", "fix", "warn("))]
    takers = dict(taker for tree in trees for taker in _takers(tree))
    for tree in trees:
        everywhere = {one.name: _returned(one) for one in _functions(tree)} | _assigned(tree.body)
        statements = [one for one in tree.body if not isinstance(one, ast.ClassDef | ast.FunctionDef)]
        for scope in [*statements, *_functions(tree)]:
            nodes = list(ast.walk(scope))
            given = [fix for node in nodes if isinstance(node, ast.Call) for fix in _given(node, takers)]
            if given:
                assigned = {**everywhere, **_assigned(nodes)}
                yield from (text for fix in given for text in _texts(fix, assigned))


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """Return the functions of a file, and the methods of its classes."""
    bodies = [tree.body, *(one.body for one in tree.body if isinstance(one, ast.ClassDef))]
    return [one for body in bodies for one in body if isinstance(one, ast.FunctionDef)]


def _takers(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names of functions with a parameter `fix`, and its place."""
    for node in _functions(tree):
        names = [one.arg for one in node.args.args if one.arg != "self"]
        if "fix" in names and not node.name.startswith("__"):
            yield node.name, names.index("fix")


def _given(call: ast.Call, takers: Mapping[str, int]) -> list[ast.expr]:
    """Return the fix among the arguments of a call; notes and warnings are nothing else."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if name in ("add_note", "warn"):
        return call.args[:1]
    place = 2 if name.endswith("Error") and len(call.args) == 3 else takers.get(name, len(call.args))
    return [*call.args[place : place + 1], *(one.value for one in call.keywords if one.arg == "fix")]


def _returned(function: ast.FunctionDef) -> list[ast.expr]:
    """Return the values that a function may return, unless they are in a block of a block."""
    nodes = [one for node in function.body for one in (node, *ast.iter_child_nodes(node))]
    return [node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None]


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    """Return the values that are assigned to names."""
    found: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target, value in zip(_parts(_target(node)), _parts(node.value), strict=False):
                if isinstance(target, ast.Name) and not isinstance(value, ast.Name):
                    found.setdefault(target.id, []).append(value)
    return found


def _target(node: ast.Assign | ast.AnnAssign) -> ast.expr:
    return node.target if isinstance(node, ast.AnnAssign) else node.targets[0]


def _parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _texts(node: ast.expr | None, assigned: Mapping[str, list[ast.expr]]) -> Iterator[str]:
    """Yield the texts that an expression may be, as far as the file tells."""
    match node:
        case ast.Constant(value=str()):
            yield re.escape(node.value)
        case ast.JoinedStr():
            yield "".join(re.escape(one.value) if isinstance(one, ast.Constant) else ".*" for one in node.values)
        case ast.BinOp(op=ast.Add()):
            ends = list(_texts(node.right, assigned)) or [".*"]
            yield from (begin + end for begin in _texts(node.left, assigned) for end in ends)
        case ast.IfExp():
            yield from _all([node.body, node.orelse], assigned)
        case ast.BoolOp():
            yield from _all(node.values, assigned)
        case ast.Dict():
            yield from _all(node.values, assigned)
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)) | ast.Subscript(value=ast.Name(id=name)):
            yield from _all(assigned.get(name, []), {**assigned, name: []})


def _all(nodes: Iterable[ast.expr | None], assigned: Mapping[str, list[ast.expr]]) -> Iterator[str]:
    for node in nodes:
        yield from _texts(node, assigned)
