"""The pipeline that every lift goes through.

    transformation, pack   the entry points: each makes a lift from a function over groups of variables and RNG streams
    Lifter                 a lift with its options; the functions it lifts go through six stages: dedupe, filter,
                           transform, reconstruct, repack, commit
    Body                   a function of scopes in such a call, as a pure function of groups
    Split, Prologue        a body in two parts: the computation of its initial values, and the remainder
    outline                splits a body for a transformation that turns it into one equation
    Changes, Record        the effects of a body: its output groups, and all effects that are not arrays

The lifts of this library are written with these names, and yours can be; [Write a lift](docs/pack.md) shows how.
"""

from ..lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__, renamed={"Use": ("Body", "0.4")})
