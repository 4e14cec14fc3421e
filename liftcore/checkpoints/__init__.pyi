from .files import load_file, save_file
from .folders import Checkpoints
from .matching import match_state
from .orbax import OrbaxCheckpoints
from .orbax_foreign import load_orbax
from .placing import Stored
from .renaming import each_holding
from .safetensors import load_safetensors, safetensors_metadata, save_safetensors
from .weights import export_weights, load_weights
from .weights_rules import WeightRule

__all__ = [
    "Checkpoints",
    "OrbaxCheckpoints",
    "Stored",
    "WeightRule",
    "each_holding",
    "export_weights",
    "load_file",
    "load_orbax",
    "load_safetensors",
    "load_weights",
    "match_state",
    "safetensors_metadata",
    "save_file",
    "save_safetensors",
]
