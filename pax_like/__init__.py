"""Mutable modules that are pytrees, and whose attributes have kinds: parameters, states, modules, others."""

from liftcore.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__, ".elsewhere")
