"""What a row of the table is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.lift.plain import Body, Rule

REVERSE, FORWARD = frozenset({"reverse mode"}), frozenset({"forward mode"})
"""Kinds of derivatives: what a row takes of its body, or what JAX has none of."""

SOWN = frozenset({"sown values"})
"""What a loop cannot pass that runs as often as it likes."""

DEVICES = frozenset({"devices"})
"""What a row gives its elements to, and is not given twice."""


class Row(NamedTuple):
    """One configuration of a lifted transformation.

    Attributes:
        lifted: from a body to its lifted form.
        plain: from a body over plain scopes to the same, without any lift.
        rule: how state is treated; None for a transformation that changes nothing.
        runs: how often the body's Python runs.
        shown: how it shows in paths, if otherwise than by its name; empty for one that lifts nothing.
        needs: what it asks of all in its body.
        refuses: what is not to be asked of it.
    """

    lifted: Callable[[Body], Body]
    plain: Callable[[Body], Body]
    rule: Rule | None = None
    runs: int = 1
    shown: str | None = None
    needs: frozenset[str] = frozenset()
    refuses: frozenset[str] = frozenset()


def unchanged(lift: Callable[..., Any], **options: Any) -> Row:
    """A transformation that changes nothing."""
    return Row(lambda body: lift(body, **options), lambda body: body)
