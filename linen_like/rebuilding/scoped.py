"""A module among the arguments of any transformation: see `liftcore.Scoped`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from liftcore import Scope

from ..lifecycle.context import context
from ..lifecycle.fields import Base
from .on_scopes import RebuildPlan, on_scopes

__all__ = ["split_module"]


def split_module(module: Base) -> tuple[Sequence[Scope], Callable[[Sequence[Scope]], Any]]:
    """Return the scopes of a module and a function that makes it again on others; an unbound module has no scopes."""
    if module.scope is None:
        return [], UnboundModule(module)
    given = on_scopes(f"a {type(module).__name__} among arguments", module, [_itself])
    return given.scopes, OnOtherScopes(given.calls[0].plan)


def _itself(module: Any) -> Any:
    return module


@dataclasses.dataclass(frozen=True)
class UnboundModule:
    """Returns a module that has no scopes.

    Attributes:
        module: the module.
    """

    module: Any

    def __call__(self, scopes: Sequence[Scope]) -> Any:
        """Return the module."""
        return self.module


class OnOtherScopes:
    """Makes a module on other scopes.

    Attributes:
        plan: the plan to make it.
    """

    def __init__(self, plan: RebuildPlan) -> None:
        self.plan = plan

    def __call__(self, scopes: Sequence[Scope]) -> Any:
        """Make the module on some scopes."""
        return self.plan.made(scopes)[0]

    def __static_fields__(self) -> dict[str, Any]:
        key = self.plan.key()
        return {"module": object() if key is None else key, "captures": context.captures[-1]}

    def __snapshot__(self) -> OnOtherScopes:
        return OnOtherScopes(self.plan.__snapshot__())
