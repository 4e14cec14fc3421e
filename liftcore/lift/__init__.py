"""Lifted transformations, one a file, each written with `pack`."""
