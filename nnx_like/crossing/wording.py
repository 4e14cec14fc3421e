"""Errors of the core in the terms of objects: a variable is named by its path, and the line to write is one of ours.

The core speaks of collections, which are groups here, and of its own options. While a transformation runs, what it says
of these is said again in terms of paths, axes and `StateAxes`.
"""

from __future__ import annotations

import contextlib
import contextvars
import re
from collections.abc import Iterator

from liftcore.errors import LiftError, rewords

from .groups import Groups

__all__ = ["in_terms_of"]

_running: contextvars.ContextVar[Groups | None] = contextvars.ContextVar("running", default=None)

_FIXES = (
    (
        r"Give it an axis, `variable_axes=\{[^}]*\}`",
        "Give it an axis, `nnx.StateAxes({nnx.BatchStat: 0, ...: None})`",
    ),
    (r"Carry it: `variable_carry=[^`]*`", "Carry it: `nnx.StateAxes({nnx.BatchStat: nnx.Carry, ...: None})`"),
    (r"Stack it, `variable_axes=\{[^}]*\}`", "Stack it, `nnx.StateAxes({nnx.BatchStat: 0, ...: None})`"),
    (r" The first argument is the carry; what is mapped comes after it\.", ""),
)
"""What the core says to write, and what to write here."""


@contextlib.contextmanager
def in_terms_of(groups: Groups) -> Iterator[None]:
    """While the block runs, errors of the core speak in terms of these groups."""
    before = _running.set(groups)
    try:
        yield
    finally:
        _running.reset(before)


@rewords
def _reword(error: LiftError) -> None:
    groups = _running.get()
    if groups is None:
        return
    names = "|".join(map(re.escape, sorted(groups.specs, key=len, reverse=True)))
    if not names:
        return
    place = rf"""(?:variables)?(?:\[\d+\])?\[["'](?:{names})["']\]\[(?:"([^"]*)"|'([^']*)')\]"""
    key = rf"""["'](?:{names})/([^"']*)["']"""
    error.where, error.what = (
        re.sub(key, _path, re.sub(place, _path, text))
        for text in (error.where, error.what)
    )
    error.where = error.where.removesuffix(" at /")
    error.what = error.what.replace("carried variable ", "").replace(" (variable_broadcast)", "")
    for pattern, instead in _FIXES:
        error.fix = re.sub(pattern, instead, error.fix)


def _path(found: re.Match[str]) -> str:
    """The path that a key is; the key of a variable that is an argument itself ends with a dot."""
    return next(filter(None, found.groups()), "").removesuffix(".")
