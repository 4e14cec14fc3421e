"""Flatten nested dicts to dicts of paths, and nest them again; traverse nested containers.

Example:
    >>> flatten_dict({"dense": {"kernel": 1, "bias": 2}}, sep="/")
    {'dense/kernel': 1, 'dense/bias': 2}
    >>> path_aware_map(lambda path, x: -x if "bias" in path else x, {"dense": {"kernel": 1, "bias": 2}})
    {'dense': {'kernel': 1, 'bias': -2}}
    >>> t_identity["layers"].each().update(abs, {"layers": [-1, 2]})
    {'layers': [1, 2]}
"""

from ..lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
