"""The crossing: turns arguments with objects into a scope of liftcore, and applies its changes to the objects."""
