"""Variables: values with a kind and metadata, which objects hold and change in place."""
