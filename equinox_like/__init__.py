"""JAX transformations of functions of any Python objects, and modules that are pytrees, with the names of Equinox."""

from liftcore.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__, ".elsewhere")
