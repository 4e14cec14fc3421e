from .scoped import split_module

__all__ = ["split_module"]
