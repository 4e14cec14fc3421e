"""JAX's initializers, called as `initializer(key, shape, dtype)`: those of `liftcore.nn.initializers`."""

from __future__ import annotations

from liftcore.nn.initializers import *
from liftcore.nn.initializers import __all__ as __all__
