"""Objects: attributes by reference, which are pytrees too."""

__all__: list[str] = []
