"""Graphs of objects: their definitions, their values, and what is done with both."""
