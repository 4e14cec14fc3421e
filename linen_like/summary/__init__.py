"""Seeing a model: its calls as data and as tables, and itself in a notebook.

recording, rows, cost   the calls of one `init`, computed with shapes only; who owns what, and what it costs
tabulation              `tabulate`, `summarize`, `module_paths`
table, html             how these, and modules, are drawn
"""

from liftcore.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
