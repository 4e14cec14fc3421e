from . import orbax_utils
from .dynamic_scale import DynamicScale, DynamicScaleResult
from .early_stopping import EarlyStopping
from .gradients import accumulate_gradients, per_example_gradients
from .labelling import labels, mask, part_of
from .metrics import Accuracy, Average, Metric, MultiMetric, evaluate
from .parts import count, size_bytes
from .train_state import TrainState
from .updates import ExponentialMovingAverage, apply_updates, update_average

__all__ = [
    "Accuracy",
    "Average",
    "DynamicScale",
    "DynamicScaleResult",
    "EarlyStopping",
    "ExponentialMovingAverage",
    "Metric",
    "MultiMetric",
    "TrainState",
    "accumulate_gradients",
    "apply_updates",
    "count",
    "evaluate",
    "labels",
    "mask",
    "orbax_utils",
    "part_of",
    "per_example_gradients",
    "size_bytes",
    "update_average",
]
