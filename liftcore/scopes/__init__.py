"""Scopes: places in a tree of variables. A scope reads, writes and creates variables, names children and draws keys."""
