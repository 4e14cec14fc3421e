from .files import load_file, save_file
from .folders import Checkpoints
from .matching import match_state
from .orbax import OrbaxCheckpoints
from .placing import Stored
from .renaming import each_holding

__all__ = [
    "Checkpoints",
    "OrbaxCheckpoints",
    "Stored",
    "each_holding",
    "load_file",
    "match_state",
    "save_file",
]
