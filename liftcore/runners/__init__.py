"""How a body is run once it is pure: what the lifted transformations in `liftcore.lift` are made of.

outline                 under a transformation that makes one equation of it
elements, shards           along an axis; on the devices of a mesh
loop, repeat            in a loop of known, and of unknown length
branches                as one of several
derivative, custom      differentiated; with a rule of its own
compiled                compiled, for calls from anywhere (`signature`, `shardings`)
maps                    on variables that are stored otherwise
axes, arguments, carry, changes, boxes, varying
what these say of arguments and variables
"""
