"""How items are measured."""

from __future__ import annotations

from typing import NamedTuple

from .sides import OURS, PURE

__all__ = ["Settings"]


class Settings(NamedTuple):
    """What the command line says.

    Attributes:
        rounds: how many samples of each side are taken.
        peers: the peers that are measured beside.
    """

    rounds: int
    peers: tuple[str, ...] = ()

    @property
    def sides(self) -> tuple[str, ...]:
        """All sides, that of pure JAX first."""
        return (PURE, *OURS, *self.peers)

    @property
    def linens(self) -> tuple[str, ...]:
        """Those that have the API of Linen."""
        return ("linen_like", *(peer for peer in self.peers if peer == "flax"))
