"""The ways to run a pure body, from which the lifted transformations in `liftcore.lift` are made.

whole                       as it is, with all variables in one group
elements, shards            for each element along an axis; on the devices of a mesh
loop, repeat                in a loop of known or unknown length
branches                    as one of several
derivative, custom          differentiated; with a custom rule
compiled, ahead, direct     compiled, for calls from anywhere; ahead of time; without the stages of a lift
eager                       outside `jax.jit`, under a hidden one
variable_maps, mapped       on variables that the body sees in another form than the stored one
axes, mesh_axes, arguments, shardings, donation, boxes, varying
                            the treatment of arguments and variables
carry, invariance, scalars  checks of loops and branches
"""
