"""The names that `flax.core.scope` has: scopes, the functions that make them, and filters. See `scopes/scope.py`."""

from __future__ import annotations

from .entry import apply, bind, init, lazy_init
from .filters import DenyList, intersect, subtract, union
from .scopes.scope import Scope
from .scopes.scoped import Variable
from .typing import Filter

__all__ = [
    "CollectionFilter",
    "DenyList",
    "Filter",
    "PRNGSequenceFilter",
    "Scope",
    "Variable",
    "apply",
    "bind",
    "init",
    "intersect_filters",
    "lazy_init",
    "subtract_filters",
    "union_filters",
]

CollectionFilter = Filter
"""Type: a filter of collections."""

PRNGSequenceFilter = Filter
"""Type: a filter of RNG streams."""

intersect_filters, subtract_filters, union_filters = intersect, subtract, union
