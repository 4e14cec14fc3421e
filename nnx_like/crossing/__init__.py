"""The crossing: arguments with objects become a scope of liftcore, and what happened to it happens to the objects."""
