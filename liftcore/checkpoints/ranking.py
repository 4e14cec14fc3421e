"""Which steps a folder keeps: the last ones, and in addition those with the best metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from ..errors import Expected, LiftArgumentError

__all__ = ["Ranking"]


class Ranking(NamedTuple):
    """The options of a folder that say which steps it keeps.

    Attributes:
        keep: the number of steps to keep, counted from the last; None keeps all.
        best: the number of steps to keep in addition.
        metric: the name of the metric that decides.
        mode: `"min"` if the least value is the best, `"max"` if the greatest is.
    """

    keep: int | None
    best: int
    metric: str
    mode: str

    @classmethod
    def checked(cls, where: str, keep: Any, best: Any, metric: str, mode: Any) -> Self:
        """Return the options of a user.

        Raises:
            LiftArgumentError: if one has another value.
        """
        if (keep is not None and not _at_least(1, keep)) or not _at_least(0, best):
            what = f"`keep` is {keep!r} and `best` is {best!r}."
            fix, option = "Give numbers of steps, or `keep=None` to keep all.", "keep" if _at_least(0, best) else "best"
            raise LiftArgumentError(where, what, fix, option=option)
        if mode not in ("min", "max"):
            wrong, fix = Expected('"min" or "max"', given=mode), 'Give "min" or "max".'
            raise LiftArgumentError(where, wrong, fix, option="mode", available=("min", "max"))
        return cls(keep, best, metric, mode)

    def numbers(self, where: str, metrics: Any) -> dict[str, float]:
        """Return the metrics of a step as floats.

        Args:
            where: the name of the caller, for errors.
            metrics: numbers by name, or None.

        Raises:
            LiftArgumentError: if one is not a number, or if the one that decides is missing.
        """
        if not isinstance(metrics, Mapping | None):
            fix = 'Write `metrics={"loss": …}`.'
            raise LiftArgumentError(where, Expected("numbers by name", given=metrics), fix, option="metrics")
        found = {}
        for name, value in (metrics or {}).items():
            try:
                found[name] = math.fsum([value])  # `float` would accept a text too
            except (TypeError, ValueError, OverflowError) as error:
                wrong = Expected(f"a number as {name!r}", given=value)
                raise LiftArgumentError(where, wrong, "Give one number for each metric, such as the mean.") from error
        if self.best and found and self.metric not in found:
            what = f"{self.metric!r} decides which steps are the best, but the metrics are {list(found)}."
            fix = f"Give it too, or another `metric` to `{where.partition('(')[0]}`."
            raise LiftArgumentError(where, what, fix, option="metric", given=self.metric, available=found)
        return found

    def best_first(self, metrics: Mapping[int, Mapping[str, float]]) -> list[int]:
        """Return the steps that have the metric, with the best one first, and of equal ones the last.

        Args:
            metrics: the metrics of each step. A metric that is NaN, as of a run that diverged, is none.
        """
        sign = 1 if self.mode == "min" else -1
        found = {step: sign * own[self.metric] for step, own in metrics.items() if self.metric in own}
        found = {step: value for step, value in found.items() if not math.isnan(value)}
        return sorted(found, key=lambda step: (found[step], -step))


def _at_least(least: int, value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= least
