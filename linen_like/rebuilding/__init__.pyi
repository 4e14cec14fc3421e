from .on_scopes import split_module

__all__ = ["split_module"]
