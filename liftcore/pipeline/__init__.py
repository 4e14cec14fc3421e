"""The pipeline that every lift goes through: six stages, and a body in two parts."""
