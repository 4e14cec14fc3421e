"""Scopes: live places in a tree of variables, which read, write, make, name and draw."""
