from .html import mimebundle
from .tabulation import Summary, module_paths, summarize, tabulate

__all__ = ["Summary", "mimebundle", "module_paths", "summarize", "tabulate"]
