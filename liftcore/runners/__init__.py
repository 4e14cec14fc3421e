"""The ways to run a pure body, from which the lifted transformations in `liftcore.lift` are made.

elements, shards            along an axis; on the devices of a mesh
loop, repeat                in a loop of known or unknown length
branches                    as one of several
derivative, custom          differentiated; with a custom rule
compiled                    compiled, for calls from anywhere (`signature`, `shardings`)
variable_maps, mapped       on variables that the body sees in another form than the stored one
axes, arguments, carry, boxes, varying, invariance
                            the treatment of arguments and variables, and checks of them
"""
