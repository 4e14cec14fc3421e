"""Variables as a user gave them, checked before a scope is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import ApplyScopeInvalidVariablesStructureError, ApplyScopeInvalidVariablesTypeError, shown

__all__ = ["check_variables"]


def check_variables(variables: Any) -> None:
    """Checks that variables are `{collection: {module: {name: value}}}`, and that nothing lies one level too deep."""
    if not isinstance(variables, Mapping):
        raise ApplyScopeInvalidVariablesTypeError(
            "variables",
            f"expected a mapping {{collection: {{name: value}}}}, given {shown(variables)}.",
            'Pass the variables that `init` returned, such as {"params": {…}}.',
        )
    inner = variables.get("params")
    if isinstance(inner, Mapping) and isinstance(inner.get("params"), Mapping):
        raise ApplyScopeInvalidVariablesStructureError(
            'variables["params"]',
            'it holds another "params", so the variables lie one level too deep.',
            'Pass `variables` where you pass `{"params": variables}`.',
        )
    for name, found in variables.items():
        if not isinstance(name, str):
            raise ApplyScopeInvalidVariablesTypeError(
                "variables", f"expected names of collections, given {shown(name)}.", 'Name it: {"params": {…}}.'
            )
        if not isinstance(found, Mapping):
            raise ApplyScopeInvalidVariablesTypeError(
                f'variables["{name}"]',
                f"expected a collection (a mapping from names), given {shown(found)}.",
                'Pass {"params": params}, not params alone.',
            )
