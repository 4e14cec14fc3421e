from .matching import Stored, match_state

__all__ = [
    "Stored",
    "match_state",
]
