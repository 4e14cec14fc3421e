"""The same models on each side, with the same operations."""
