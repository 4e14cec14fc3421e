"""Rewords errors of the core for objects: names a variable by its path, and suggests options of this package.

The core speaks of collections, which are groups here, and of its own options. While a transformation runs, this file
replaces them by paths, axes and `StateAxes`. It only looks for the names of groups and options, so the sentences of
the core may change.
"""

from __future__ import annotations

import contextlib
import contextvars
import re
from collections.abc import Iterator, Mapping
from typing import Any

from liftcore.errors import AxisSizeError, LiftError, rewords

from ..variablelib.kinds import RngState
from ..variablelib.variable import Variable
from .groups import Groups

__all__ = ["in_terms_of"]

_running: contextvars.ContextVar[tuple[Groups, Any] | None] = contextvars.ContextVar("running", default=None)

_OPTION = re.compile(r"`variable_(axes|carry|broadcast)=[^`]*`")
_ASIDE = re.compile(r"\s*\(variable_\w+\)|\bcarried variable (?=\S*\.)| The first argument is the carry;[^.]*\.")
"""Parts to drop, since they do not apply here: the option behind a group, and the position of the core's carry."""


_SPLIT = (
    "Give each element keys of its own: pass `rngs.split(…)`, or split during the call, "
    "`nnx.split_rngs(splits=…)(nnx.{}(…))`."
)
"""The fix for streams that are mapped over without having been split."""


@contextlib.contextmanager
def in_terms_of(groups: Groups, walk: Any) -> Iterator[None]:
    """Reword errors of the core in terms of objects while the block runs.

    Args:
        groups: the groups of the transformation.
        walk: the walk over the arguments; its `holders` are the variables by group and key.
    """
    before = _running.set((groups, walk))
    try:
        yield
    finally:
        _running.reset(before)


@rewords
def _reword(error: LiftError) -> None:
    running = _running.get()
    if running is None or not running[0].specs:
        return
    named = _Named(*running)
    error.where, error.what = named.said(error.where).removesuffix(" at /"), named.said(error.what)
    error.what = _ASIDE.sub("", error.what).replace("`broadcast`", "None")
    error.fix = _OPTION.sub(named.option, _ASIDE.sub("", error.fix)).replace("(scope, …)", "(…)")
    if isinstance(error, AxisSizeError) and named.has_streams:
        error.fix = _SPLIT.format(running[0].where.partition("(")[0])


class _Named:
    """Replaces names of variables in texts of the core, and remembers their kinds."""

    def __init__(self, groups: Groups, walk: Any) -> None:
        names = "|".join(map(re.escape, sorted(groups.specs, key=len, reverse=True)))
        key = rf"""["']({names})/([^"']*)["']"""
        self._patterns = [
            re.compile(rf"""(?:variables)?(?:\[\d+\])?\[["']({names})["']\]\[(?:"([^"]*)"|'([^']*)')\]"""),
            re.compile(key),
        ]
        self._lists = re.compile(rf"\[((?:{key})(?:, (?:{key}))*)\]")
        self._walk = walk
        self._kinds: dict[str, None] = {}
        self.has_streams = False

    def said(self, text: str) -> str:
        """Return a text with paths in place of groups and keys; a list of them loses its brackets."""
        places, keys = self._patterns
        return keys.sub(self._path, self._lists.sub(r"\1", places.sub(self._path, text)))

    def _path(self, found: re.Match[str]) -> str:
        """Return the path for a key. The key of a variable that is itself an argument ends with a dot."""
        group, *keys = found.groups()
        key: str = next(filter(None, keys), "")
        holders: Mapping[str, Mapping[Any, Any]] = self._walk.holders
        holder = holders.get(group, {}).get(key, (None,))[0]
        if isinstance(holder, Variable):
            self.has_streams = self.has_streams or isinstance(holder, RngState)
            ours = type(holder).__module__.startswith("nnx_like.")
            self._kinds[f"{'nnx.' * ours}{type(holder).__name__}"] = None
        return key.removesuffix(".")

    def option(self, found: re.Match[str]) -> str:
        """Return the line to write here in place of an option of the core, for the variables that were named."""
        kinds = ", ".join(self._kinds)
        kinds = f"({kinds})" if len(self._kinds) > 1 else kinds
        spec = {"axes": "0", "carry": "nnx.Carry", "broadcast": "None"}[found[1]]
        spec = "None" if ": None, " in found[0] else spec  # it shares a part, and gives the rest an axis
        rest = ", ...: None" if spec != "None" else ", ...: 0"
        return f"`nnx.StateAxes({{{kinds}: {spec}{rest}}})`" if kinds else f"`nnx.StateAxes({{...: {spec}}})`"
