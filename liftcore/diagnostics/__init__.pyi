from .summary import Table, cost_text, costs, lines_of

__all__ = ["Table", "cost_text", "costs", "lines_of"]
