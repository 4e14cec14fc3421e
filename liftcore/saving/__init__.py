"""Nested dicts of arrays as bytes, and back."""
