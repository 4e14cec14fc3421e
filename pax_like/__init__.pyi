from . import errors
from .adopting import Adopted, adopt
from .gradient import value_and_grad
from .kinds import PaxKind
from .layers import BatchNorm, Conv, Dropout, Layer, LayerNorm, Linear
from .lifting import lift
from .module import Module
from .purity import module_and_value, pure

__all__ = [
    "Adopted",
    "BatchNorm",
    "Conv",
    "Dropout",
    "Layer",
    "LayerNorm",
    "Linear",
    "Module",
    "PaxKind",
    "adopt",
    "errors",
    "lift",
    "module_and_value",
    "pure",
    "value_and_grad",
]
