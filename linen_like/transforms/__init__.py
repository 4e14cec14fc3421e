"""Lifted transformations of Module classes, of methods and of functions of a module, by family.

Names, order and defaults of the arguments are those of `flax.linen`; additional ones are keyword-only. Transformations
that Linen has for classes take a class or a function and return one; those that it runs at once are called as
`nn.grad(fn, mdl, *args)`. Those that Linen does not have take one of these two forms.
"""

from liftcore.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
