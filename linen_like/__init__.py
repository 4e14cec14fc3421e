"""linen_like: a Module layer with the API of `flax.linen`, on top of liftcore.

Example:
    >>> import jax, linen_like as nn
    >>> class MLP(nn.Module):
    ...     features: tuple[int, ...]
    ...     @nn.compact
    ...     def __call__(self, x):
    ...         for size in self.features[:-1]:
    ...             x = nn.relu(nn.Dense(size)(x))
    ...         return nn.Dense(self.features[-1])(x)
    >>> model, x = MLP((8, 2)), jax.numpy.ones((5, 3))
    >>> variables = model.init(jax.random.key(0), x)
    >>> list(variables["params"])
    ['Dense_0', 'Dense_1']
    >>> model.apply(variables, x).shape
    (5, 2)
"""

from liftcore.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__, ".elsewhere")
