"""Checkpoints on disk: single files, folders of files, and the files of other libraries.

    save_file, load_file       one file, replaced as a whole, with a checksum for each array
    Checkpoints                a folder of such files: save(step, tree), latest(), restore(target)
    OrbaxCheckpoints           a folder that orbax writes: in the background, from many hosts
    load_orbax                 a folder that orbax wrote without this library
    match_state                compares a saved state with a target, and restores it; strict by default
    each_holding               turns a function of modules into one of whole states, optimizer states included
    load_safetensors, load_weights, …      files and weights of other frameworks

A file is not trusted. Only plain data comes out of it, its sizes are checked against the bytes that are available, and
every problem is a `SerializationError` that names the place.
"""

from ..lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
