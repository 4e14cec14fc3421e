"""The lifted transformations of liftcore, over objects: one file for each."""
