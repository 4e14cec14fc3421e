"""Objects with reference semantics: modules that are changed in place, and transformations that take them anywhere."""

from liftcore.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
