"""Random streams: keys by name, drawn in order, split for transformations and put back."""
