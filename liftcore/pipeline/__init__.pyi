from .body import Body, Via, call_inside
from .checks import check_lift
from .packing import Lifter, Transform, keeping_lifter, lifter_of, outline, pack, transformation
from .reuse import once
from .splitting import Part, Prologue, Split, closure_convert, trace
from .stages import Changes, Layout, Record, with_created, without_created

Use = Body  # its former name

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
    "Via",
    "call_inside",
    "check_lift",
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
