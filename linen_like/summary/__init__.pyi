from .html import mimebundle
from .names import Table
from .tabulation import Summary, module_paths, summarize, tabulate

__all__ = ["Summary", "Table", "mimebundle", "module_paths", "summarize", "tabulate"]
