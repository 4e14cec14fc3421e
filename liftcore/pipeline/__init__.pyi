from .changes import Changes, Record, with_created, without_created
from .outlining import outline
from .packing import Lifter, Transform, keeping_lifter, lifter_of, pack, transformation
from .reuse import once
from .splitting import Part, Prologue, Split, closure_convert, trace
from .stages import Layout
from .use import Body, Use, Via, call_inside

__all__ = [
    "Body",
    "Changes",
    "Layout",
    "Lifter",
    "Part",
    "Prologue",
    "Record",
    "Split",
    "Transform",
    "Use",
    "Via",
    "call_inside",
    "closure_convert",
    "keeping_lifter",
    "lifter_of",
    "once",
    "outline",
    "pack",
    "trace",
    "transformation",
    "with_created",
    "without_created",
]
