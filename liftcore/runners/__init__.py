"""The ways to run a pure body, from which the lifted transformations in `liftcore.lift` are made.

mapping, shard_mapping  for each element along an axis; on the devices of a mesh
looping, while_loops    in a loop of known or unknown length
carry                   what iterations pass on and share, and what must not change
in_place                stacked variables that a loop writes over
branching               as one of several
differentiating         differentiated
custom_derivatives      with a rule for its derivative
variable_maps           on variables in another form than the stored one
jitting, jitted         compiled, and the calls of it: directly, through the stages of a lift, ahead of time
eager                   outside `jax.jit`, under a hidden one
axes, arguments         the axes of arguments and variables; which arguments are static or donated
shardings               where a compiled body finds and leaves its values
"""
