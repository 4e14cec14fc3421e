from .averages import ExponentialMovingAverage
from .dynamic_scale import DynamicScale, DynamicScaleResult
from .early_stopping import EarlyStopping
from .examples import per_example_gradients
from .labelling import labels, mask
from .microbatches import accumulate_gradients
from .sizes import count, size_bytes
from .train_state import TrainState

__all__ = [
    "DynamicScale",
    "DynamicScaleResult",
    "EarlyStopping",
    "ExponentialMovingAverage",
    "TrainState",
    "accumulate_gradients",
    "count",
    "labels",
    "mask",
    "per_example_gradients",
    "size_bytes",
]
