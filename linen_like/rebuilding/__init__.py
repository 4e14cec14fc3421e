"""Takes modules apart into scopes, and makes them again on other scopes, as lifted transformations need.

splitting  a bound module without its place, to make it again on other scopes; modules that a function closes over
on_scopes  functions of modules as functions of scopes, for one call of a lift; a module among any arguments
"""

from liftcore.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
