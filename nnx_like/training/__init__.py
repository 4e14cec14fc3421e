"""Training: optimizers over optax, metrics, averages of parameters."""
