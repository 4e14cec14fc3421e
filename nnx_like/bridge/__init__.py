"""The bridge: use objects in scopes and Linen-style modules, and the reverse, with one tree of variables.

- `adopt`, `object_in_scope`: an object inside a function of a scope, or inside a method of a Linen-style module.
- `ToNNX` (also called `FromLinen`): a Linen-style module, or a function of a scope, as an object.
- `ToLinen`, `to_linen`: an object as a Linen-style module.
- `lazy_init`: creates the variables of everything that is wrapped in an object, before the first call.
- `nnx_attrs_to_linen_vars`, `linen_vars_to_nnx_attrs`: convert between plain dicts of variables and objects' variables.
"""

from liftcore.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
