"""Lifted transformations of Module classes, of methods and of functions of a module, by family.

Names, order and defaults of the arguments are those of `flax.linen`; what is added is keyword-only. Those that Linen
has for classes are given a class or a function and return one; those that it runs at once are called as
`nn.grad(fn, mdl, *args)`. The ones that Linen does not have keep to these two forms.
"""

from liftcore.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
