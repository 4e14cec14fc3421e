"""Looking at what a model does: `explain`, and what is traced anew and why."""
