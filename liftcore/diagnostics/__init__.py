"""Diagnostics of models: `explain` describes lifts, and `retraces` reports what is traced again and why."""
