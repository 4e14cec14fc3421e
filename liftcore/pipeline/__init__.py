"""The pipeline that every lift goes through.

    transformation, pack   the ways in: a lift, from a transformation over groups of variables and RNG streams
    Use                    one use of a lift, in six stages: dedupe, filter, transform, reconstruct, repack, commit
    Body                   a function of scopes in it, as a pure function of groups
    Split, Prologue        a body in two parts: what makes its initial values, and the remainder
    outline                the same for a transformation that makes one equation of its body
    Changes, Record        what a body did: its output groups, and all that is no array

The lifts of this library are written with these names alone; [Custom lifts](docs/pack.md) shows how.
"""

from ..lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
