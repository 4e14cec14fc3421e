from .html import mimebundle
from .tabulation import Summary, Table, module_paths, summarize, tabulate

__all__ = ["Summary", "Table", "mimebundle", "module_paths", "summarize", "tabulate"]
