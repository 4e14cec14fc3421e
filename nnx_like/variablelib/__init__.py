"""Variables: values with a kind and metadata, which objects hold and change in place."""

from liftcore.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
