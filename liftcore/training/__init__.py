"""Training: the state of a run, metrics, loss scaling, averages, and gradients of microbatches or single examples.

    the state of a run     TrainState
    parts of a model       labels, mask (turn filters into trees for optax); count, size_bytes
    mixed precision        DynamicScale, DynamicScaleResult
    averages               ExponentialMovingAverage
    metrics                evaluate; Average, Accuracy, MultiMetric, and Metric, their base class
    gradients              accumulate_gradients, per_example_gradients
    early stopping         EarlyStopping
    your own states        apply_updates, part_of, update_average

An optimizer is any pair of functions like optax's `init` and `update`. Importing this package does not need optax.

Example:
    >>> import jax, jax.numpy as jnp, liftcore, optax
    >>> from liftcore.filters import PathContains
    >>> def model(scope, x):
    ...     x = scope.child(liftcore.nn.dense, "encoder")(x, 8)
    ...     return scope.child(liftcore.nn.dense, "head")(x, 1)
    >>> _, variables = liftcore.init(model)(jax.random.key(0), jnp.ones((4, 3)))
    >>> state = TrainState.create(
    ...     apply_fn=liftcore.apply(model),
    ...     params=variables["params"],
    ...     tx=optax.adam(1e-3),
    ...     trainable=PathContains("head"),
    ... )
    >>> def loss_fn(params, x):
    ...     return jnp.mean(state.apply_fn({"params": params}, x) ** 2)
    >>> loss, grads = state.value_and_grad(loss_fn)(jnp.ones((4, 3)))
    >>> list(grads), int(state.apply_gradients(grads=grads).step)
    (['head'], 1)
"""

from ..lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__, ".elsewhere")
