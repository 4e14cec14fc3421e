"""Seeing a model: its calls as data and as tables, and itself in a notebook.

recording, rows, cost   the calls of one `init`, computed with shapes only; who owns what, and what it costs
tabulate                `tabulate`, `summarize`, `module_paths`
table, html             how these, and modules, are drawn
"""

from __future__ import annotations

from .tabulate import Summary, module_paths, summarize, tabulate

__all__ = ["Summary", "module_paths", "summarize", "tabulate"]
