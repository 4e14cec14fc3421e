"""Checkpoints on disk: one file, a folder of them, and what other libraries wrote.

    save_file, load_file       one file, replaced as a whole, with a checksum for each array
    Checkpoints                a folder of such files: save(step, tree), latest(), restore(target)
    match_state                what a target expects, compared with what was saved; strict unless told otherwise
    each_holding               of a function of modules one of whole states, optimiser states included

What is read is hostile until it is checked: only plain data comes out of a file, sizes are checked against what is
there, and everything that is wrong is a `SerializationError` which says where.
"""

from ..lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
