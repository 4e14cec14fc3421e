"""States: the variables of an object without the object, nested or flat, and functions over them."""

from liftcore.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
