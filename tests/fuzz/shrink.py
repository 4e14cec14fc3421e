"""Smaller programs that still fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from tests.fuzz.programs import Body, Call, Key, Local, Num, Op, Program, Tree
from tests.fuzz.rules import legal


def smaller(value: Any) -> Iterator[Any]:
    """Plain data with one piece less, or a simpler one, anywhere in it."""
    if isinstance(value, Body):
        yield from smaller_bodies(value)
    if isinstance(value, Op):
        yield from value.args
    if isinstance(value, Op | Tree | Key) or (isinstance(value, Local) and value.name != "x"):
        yield Local("x")
    if isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from ((*value[:i], each, *value[i + 1 :]) for each in smaller(item))
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            for each in smaller(getattr(value, field.name)):
                yield dataclasses.replace(value, **{field.name: each})


def smaller_bodies(body: Body) -> Iterator[Body]:
    """The body without a statement, without a lift round statements, or with nothing that it stacks."""
    for i in reversed(range(len(body.statements))):
        yield dataclasses.replace(body, statements=body.statements[:i] + body.statements[i + 1 :])
    for i, statement in enumerate(body.statements):
        for inner in statement.bodies if isinstance(statement, Call) else ():
            statements = (*body.statements[:i], *inner.statements, *body.statements[i + 1 :])
            yield dataclasses.replace(body, statements=statements)
    if body.stacked != Num(0):
        yield dataclasses.replace(body, stacked=Num(0))


def shrink(program: Program, fails: Callable[[Program], bool], tries: int = 120) -> Program:
    """A small program that fails still.

    Args:
        program: one that fails.
        fails: whether a program does.
        tries: how many to run at most.
    """
    seen = {program}
    progress = True
    while progress:
        progress = False
        for each in smaller(program):
            each = legal(each)
            if each in seen or len(repr(each)) >= len(repr(program)):
                continue
            if not tries:
                return program
            seen.add(each)
            tries -= 1
            if fails(each):
                program, progress = each, True
                break
    return program
