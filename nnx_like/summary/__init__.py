"""Tables of what a model is made of: its calls, their inputs and outputs, and its variables with their sizes."""

__all__: list[str] = []
