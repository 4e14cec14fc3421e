"""The metadata of a variable as a static part of pytrees."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from liftcore import static_key
from liftcore.statics import Alike, Undescribed

__all__ = ["StaticMetadata"]


class StaticMetadata:
    """The static part of a variable, which JAX stores in the tree definition.

    Args:
        metadata: the metadata of the variable, which is never changed in place. The order of names does not matter.
    """

    __slots__ = ("key", "metadata")

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.metadata = metadata
        self.key = tuple([(name, _key(metadata[name])) for name in sorted(metadata)]) if metadata else ()

    def __eq__(self, other: object) -> bool:
        return type(other) is StaticMetadata and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return repr(self.metadata)

    def __reduce__(self) -> Any:
        return StaticMetadata, (self.metadata,)


def _key(value: Any) -> Hashable:
    try:
        return static_key(value)
    except Undescribed:
        return Alike(value)
