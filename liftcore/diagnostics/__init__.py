"""Reports about functions and models: `explain`, `retraces`, counts of operations, and what tables of models share."""

from liftcore.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
