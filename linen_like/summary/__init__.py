"""Inspecting a model: its calls as data and as tables, and the model itself in a notebook.

recording     the calls of one `init`, computed with shapes only; their variables and their costs
tabulation    `tabulate`, `summarize`, `module_paths`
explanation   `explain` for modules
html          a module in a notebook
"""

from liftcore.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
