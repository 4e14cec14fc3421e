"""Each error has a fact for tools, or its place is in a table with the reason for having none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from liftcore.errors import LiftError
from tests.architecture.sources import Source, sources

pytestmark = pytest.mark.always  # any change may add an error

FACTS = {*LiftError.__annotations__}

WITHOUT_FACTS = {
    "equinox_like.rules.filter_custom_jvp.__call__.moved": "JAX does not say which keyword argument has a tangent",
    "equinox_like.rules.traced": "two structures differ, which are too large for a text",
    "liftcore.checkpoints.disk._in_use": "the other writer is a process or a thread",
    "liftcore.checkpoints.orbax_arrays.guarded": "the text is that of orbax",
    "liftcore.checkpoints.orbax_items.state_in": "the bytes are damaged",
    "liftcore.checkpoints.streams.span_of": "the file is in `where`, and has nothing to name but itself",
    "liftcore.pytrees.endless": "a cycle of values",
    "liftcore.pytrees.too_deep": "values nested too deeply",
    "liftcore.pipeline.checks.not_tagged": "a transformation ran the wrong body",
    "liftcore.runners.custom_derivatives.Ruled._check_draws": "keys are drawn in another order",
    "liftcore.runners.jitted.Jitted.lower.finish.run": "a compiled function is called with other values than it is for",
    "liftcore.runners.jitting.Compiled._steadily": "another thread",
    "liftcore.scopes.problems.ended": "a scope that has ended",
    "liftcore.scopes.problems.two_threads": "another thread",
    "linen_like.lifecycle.binding.bound_scope": "a module without variables",
    "linen_like.lifecycle.binding.contains_itself": "a cycle of modules",
    "linen_like.lifecycle.calling._wrap_setup.setup": "a module without variables",
    "linen_like.module.Module.unbind": "a module without variables",
    "linen_like.stacks.stack._stacked": "the text is that of JAX",
    "linen_like.stacks.stack.Stack.__getitem__": "a module without variables",
    "nnx_like.transforms.uniform._check_unchanged": "an operator changed some object",
}
"""The functions that make an error without a fact, each with the reason."""


class Made(NamedTuple):
    """A call that makes an error.

    Attributes:
        place: the module, and the function that the call is in.
        call: the call.
        function: the function, or None at the top of a file.
    """

    place: str
    call: ast.Call
    function: ast.FunctionDef | None

    def has_facts(self) -> bool:
        """Return whether the error gets a fact, other than those that callers of the function pass."""
        names = [
            one for one in self.call.keywords if one.arg in FACTS or (one.arg is None and not self._is_passed(one))
        ]
        return bool(names) or any(map(self._is_expected, self.call.args))

    def passes_on(self) -> bool:
        """Return whether the error gets the facts that callers of the function pass."""
        return any(map(self._is_passed, self.call.keywords))

    def _is_passed(self, keyword: ast.keyword) -> bool:
        named = self.function.args.kwarg if self.function else None
        return keyword.arg is None and named is not None and ast.unparse(keyword.value) == named.arg

    def _is_expected(self, argument: ast.expr) -> bool:
        """Return whether an argument is an `Expected`, also by the name of a variable."""
        values = [argument]
        if isinstance(argument, ast.Name) and self.function:
            assigned = [node for node in ast.walk(self.function) if isinstance(node, ast.Assign)]
            values = [one.value for one in assigned if argument.id in map(name_of, one.targets)]
        return any(isinstance(one, ast.Call) and name_of(one.func) == "Expected" for one in values)


def name_of(node: ast.AST) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def classes() -> set[str]:
    """Return the names of the classes of errors, except `StateError`, which itself has its path as a fact."""
    nodes = [node for source in sources().values() for node in source.tree.body if isinstance(node, ast.ClassDef)]
    names, known = {"LiftError"}, set[str]()
    while names - known:
        known |= names
        names = {node.name for node in nodes if known & {*map(name_of, node.bases)}}
    return known - {"StateError"}


def made(source: Source, names: set[str]) -> Iterator[Made]:
    """Yield the calls in a file that make an error: of a class, or of a parameter that is one."""

    def visit(node: ast.AST, place: str, function: ast.FunctionDef | None, called: set[str]) -> Iterator[Made]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            place = f"{place}.{node.name}"
        if isinstance(node, ast.FunctionDef):
            function = node
            called = called | {one.arg for one in node.args.args if "type[LiftError]" in ast.unparse(one)}
        if isinstance(node, ast.Call) and name_of(node.func) in called and node.args:
            yield Made(place, node, function)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, place, function, called)

    yield from visit(source.tree, source.module, None, names)


def lacking() -> set[str]:
    """Return the places that make an error without a fact."""
    names = classes()
    without = [one for source in sources().values() for one in made(source, names) if not one.has_facts()]
    takers = {one.function.name for one in without if one.passes_on() and one.function}
    calls = [one for source in sources().values() for one in made(source, takers)]
    return {one.place for one in without if not one.passes_on()} | {one.place for one in calls if not one.has_facts()}


def test_each_error_has_a_fact_or_a_reason_for_having_none() -> None:
    found = lacking()
    assert not found - WITHOUT_FACTS.keys(), "give the facts that the text states; docs/errors.md names them"
    assert not WITHOUT_FACTS.keys() - found, "these have facts now, or have gone"


@pytest.mark.parametrize(
    ("code", "lacks"),
    [
        ("def f():\n    raise LiftError('f', 'it is odd.', 'Drop it.')", {"f"}),
        ("def f():\n    raise LiftError('f', 'it is odd.', 'Drop it.', option='x')", set()),
        ("def f():\n    raise errors.LiftError('f', Expected('a number', 'x'), 'Pass one.')", set()),
        ("def f():\n    what = Expected('a number', 'x')\n    raise LiftError('f', what, 'Pass one.')", set()),
        ("def f(kind: type[LiftError]):\n    raise kind('f', 'it is odd.', 'Drop it.')", {"f"}),
        ("def f(**facts):\n    raise LiftError('f', '.', '.', **facts)\ndef g():\n    f('x')", {"g"}),
        ("def f(**facts):\n    raise LiftError('f', '.', '.', **facts)\ndef g():\n    f('x', given=1)", set()),
        ("class Error(LiftError): pass\ndef f(error):\n    raise Error('f', '.', '.', **error.facts)", set()),
    ],
)
def test_the_check_finds_an_error_without_facts(code: str, lacks: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    source = next(iter(sources().values()))._replace(module="m", tree=ast.parse(code))
    monkeypatch.setattr(f"{__name__}.sources", lambda: {"m": source})
    assert lacking() == {f"m.{name}" for name in lacks}


def test_what_was_expected_and_given_is_rendered_from_facts() -> None:
    texts = [
        f"{source.module}: {ast.unparse(node)}"
        for source in sources().values()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.JoinedStr | ast.Constant) and re.match(r"f?['\"]expected .*, given ", ast.unparse(node))
    ]
    assert [text.partition(":")[0] for text in texts] == ["liftcore.errors"], "write `Expected`: " + "\n".join(texts)
