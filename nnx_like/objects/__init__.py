"""Objects with attributes by reference, which are also pytrees."""

__all__: list[str] = []
