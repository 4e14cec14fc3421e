"""Objects with reference semantics: modules that change in place, and transformations that accept them as arguments."""

from liftcore.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__, ".elsewhere")
