"""RNG streams: named streams of keys, which can be split for a transformation and restored."""

from liftcore.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
