"""Models of other libraries as functions of a scope, unchanged.

    from_linen      a module of flax.linen
    from_nnx        an object of flax.nnx
    from_haiku      a function that Haiku transformed
    from_equinox    a model of Equinox, with or without a `State`
    watching        notes the calls of foreign models and of their parts
    with_lora       low-rank updates for the kernels of these, or of any function of a scope

Their arrays are variables of the scope, their keys come from its RNG streams, and every lift works on them. A library
is imported when its function is called.
"""

from ..lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
