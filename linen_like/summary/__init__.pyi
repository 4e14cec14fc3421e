from .html import mimebundle
from .tabulation import Summary, module_paths, summarize, tabulate
from .tabulation import Summary as Table

__all__ = ["Summary", "Table", "mimebundle", "module_paths", "summarize", "tabulate"]
