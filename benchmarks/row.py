"""One line of the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from .sides import PURE

__all__ = ["Row"]


@dataclasses.dataclass(frozen=True)
class Row:
    """What was measured of one thing on each side.

    Attributes:
        item: the item that it belongs to, such as `trace`.
        what: what was measured, in words.
        unit: `s` for times; else of what there are so many.
        values: for each side the value.
        targets: for each of our sides the most that it may be: of a time the ratio to that of pure JAX.
        is_count: whether values are exact counts, which tests assert; timings are told only.
    """

    item: str
    what: str
    unit: str
    values: Mapping[str, float]
    targets: Mapping[str, float] = dataclasses.field(default_factory=dict)
    is_count: bool = False

    def ratio(self, side: str) -> float | None:
        """The time over that of pure JAX, if that was measured."""
        base = self.values.get(PURE)
        return self.values[side] / base if self.unit == "s" and base and side in self.values else None

    def reached(self, side: str) -> float:
        """What the target of a side is compared with: the ratio of times, or the value."""
        found = self.ratio(side)
        return self.values[side] if found is None else found

    def is_met(self) -> bool | None:
        """Whether all targets are met; None where there are none."""
        if not self.targets:
            return None
        return all(self.reached(side) <= target for side, target in self.targets.items())
