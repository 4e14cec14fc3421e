"""Benchmarks: what the library costs over pure JAX written by hand. `python -m benchmarks --help` tells how to run."""
