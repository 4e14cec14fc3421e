"""Layers: objects with parameters, thin over the functions of `liftcore.nn`."""
