"""Generation: continue prompts with the tokens of a model that has a decode cache.

    generate          the whole prompt at once, then one token after the other, in one compiled program for each bucket
    Generated         the result of `generate`
    filter_logits     top-k and top-p
    sample_tokens     one token for each example: drawn, or the most probable one
    rewind            move the positions of a cache back

Example:
    >>> import jax, jax.numpy as jnp, liftcore
    >>> from liftcore import nn
    >>> def model(scope, tokens):
    ...     x = scope.child(nn.embedding, "words")(7, 8).lookup(tokens)[..., None, :]  # one head
    ...     cache = scope.child(nn.decode_cache, "cache")(x, x)
    ...     query, key, value, mask = (x, x, x, None) if cache is None else cache.append(x, x, x)
    ...     x = x + nn.dot_product_attention(query, key, value, mask=mask)
    ...     return scope.child(nn.dense, "head")(x[..., 0, :], 7)
    >>> _, variables = liftcore.init(model)(jax.random.key(0), jnp.zeros((1, 4), int))
    >>> generate(model, variables, [[1, 2, 3]], max_new_tokens=5).tokens.shape
    (1, 5)
"""

from ..lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
