"""What the devices of a compiled program send each other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

__all__ = ["KINDS", "collectives"]

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

_HEAD = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_KIND = re.compile(rf" = (.+?) ({'|'.join(KINDS)})(?:-start)?\(")
_CALLED = re.compile(r"(body|condition|calls|to_apply)=%?([\w.-]+)")
_TIMES = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_ARRAY = re.compile(r"\b([a-z]+)(\d+)\[([\d,]*)\]")


def collectives(program: str) -> Counter[str]:
    """Return the bytes that the collectives of one run give to each device, by kind.

    Collectives in the body of a loop count once for each iteration.

    Args:
        program: the text of a compiled program, as `compiled.as_text()` returns it.
    """
    computations: dict[str, list[str]] = {}
    entry = ""
    for line in program.splitlines():
        if head := _HEAD.match(line):
            name = head[2]
            computations[name] = []
            entry = name if head[1] else entry
        elif line.startswith(" "):
            computations[name].append(line)
    return _moved(entry, computations, {})


def _moved(name: str, computations: Mapping[str, list[str]], known: dict[str, Counter[str]]) -> Counter[str]:
    """Return what one run of a computation moves; `known` are the computations that were counted."""
    if name not in known:
        found: Counter[str] = Counter()
        for line in computations[name]:
            if moving := _KIND.search(line):
                found[moving[2]] += sum(map(_bytes, _ARRAY.findall(moving[1])))
            times = _TIMES.search(line)
            for how, called in _CALLED.findall(line):
                runs = int(times[1]) if times and how == "body" else 1
                found.update({kind: runs * size for kind, size in _moved(called, computations, known).items()})
        known[name] = found
    return known[name]


def _bytes(array: tuple[str, str, str]) -> int:
    """Return the size of an array, such as `("f", "32", "4,8")`."""
    _, bits, shape = array
    size = int(bits) // 8
    for dimension in filter(None, shape.split(",")):
        size *= int(dimension)
    return size
