"""The lifted transformations of liftcore for objects, one in each file."""
