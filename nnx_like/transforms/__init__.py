"""The lifted transformations of liftcore for objects, one family in each file."""
