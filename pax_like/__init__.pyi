from . import errors
from .layers import BatchNorm, Conv, Dropout, Layer, LayerNorm, Linear
from .lifting import lift, module_and_value, pure, value_and_grad
from .module import Module
from .structure import PaxKind
from .variables import Adopted, adopt

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
