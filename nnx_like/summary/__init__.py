"""Tables of a model: its calls, their inputs and outputs, and its variables with their sizes."""

__all__: list[str] = []
