"""Programs that once failed, each of the least size: what a run of `python -m tests.fuzz` finds is pasted here."""

from __future__ import annotations

from tests.fuzz.programs import CARRY, Body, Call, Draw, Key, Lift, Local, Make, Num, Op, Program, Read, Tree, Write

X = Local("x")
SPLITS = (("params", False), ("dropout", False), ("noise", False))


def carrying(*statements: object) -> Program:
    """A scan of three iterations that carries the state, round statements."""
    groups = (("params", None), ("consts", 0), ("state", CARRY), ("cache", CARRY))
    lift = Lift("scan", 3, groups, SPLITS)
    return Program(Body((Call("a", lift, (Body(statements, X),), (X, X), "outer"),), X))


def one(kind: str, *statements: object, place: str | None = None) -> Call:
    """A lift without options, round statements."""
    return Call("b", Lift(kind), (Body(statements, X),), (X,), place)


COUNTED = (
    Make("n", "state", "n", Num(0)),
    Write("state", "n", Num(1), raw=True),
    Make("w", "state", "w", Read("state", "n")),
)
"""A variable that is made from a carried one after that was written."""

CASES: dict[str, Program] = {
    "an initial value reads a carried variable": carrying(*COUNTED),
    **{
        f"an initial value reads a carried variable under {kind}": carrying(one(kind, *COUNTED, place=place))
        for kind in ("remat", "jit", "named_call", "map_variables")
        for place in (None, "inner")
    },
    "a later branch derives from what an earlier one makes": Program(
        Body(
            (
                Call(
                    "a",
                    Lift("switch"),
                    (
                        Body((Make("b", "state", "w", Op("vector", (X,))),), X),
                        Body(
                            (
                                Make("b", "state", "w", Op("vector", (Num(5),))),
                                Make("c", "state", "v", Op("add", (Read("state", "w"), Num(0.5)))),
                            ),
                            X,
                        ),
                    ),
                    (Op("int32", (Op("sum", (X,)),)), X),
                ),
            ),
            X,
        )
    ),
    "draws after branches of which the longest is the first": Program(
        Body(
            (
                Call(
                    "a",
                    Lift("switch"),
                    (
                        Body((Draw("b", "noise"), Draw("c", "noise")), Op("add", (Local("b"), Local("c")))),
                        Body((Draw("b", "noise"),), Local("b")),
                        Body((), X),
                    ),
                    (Num(2), X),
                ),
                Draw("d", "noise"),
            ),
            Local("d"),
        )
    ),
    "a Python number under remat meets bfloat16": Program(
        Body(
            (
                one(
                    "remat",
                    Make("w", "params", "w", Num(1.5)),
                    Make("v", "state", "v", Op("mul", (X, Read("params", "w")))),
                ),
            ),
            X,
        ),
        "bfloat16",
    ),
    "a carried Python number becomes a float": carrying(
        Make("n", "state", "n", Num(0)), Write("state", "n", Op("sum", (Op("float32", (X,)),)), raw=True)
    ),
    "a tree as a parameter of a jitted body": Program(
        Body((one("jit", Make("w", "params", "w", Tree("dict", (X, Op("sum", (X,)))))),), Read("params", "w"))
    ),
}


def nested(outer: Lift, inner: Lift, *statements: object) -> Program:
    """A loop in a loop, round statements."""
    scans = outer.kind == "scan"
    call = Call("b", inner, (Body(statements, X),), (X, Local("y") if scans else X), "inner")
    return Program(Body((Call("a", outer, (Body((call,), X),), (X, X) if scans else (X,), "outer"),), X))


CASES["what an inner scan makes from what the outer one carries"] = nested(
    Lift("scan", 2, (("state", CARRY), ("consts", 0)), SPLITS),
    Lift("scan", 1, (("consts", CARRY), ("state", 0)), SPLITS),
    Make("v", "state", "v", Op("add", (X, Local("y")))),
    Make("w", "consts", "w", Read("state", "v")),
)

LOGGED = (Make("v", "consts", "v", X), Make("w", "cache", "w", Read("consts", "v")))
BOTH = Lift("scan", 2, (("cache", CARRY), ("consts", 0)), SPLITS)
TWICE = Call("b", BOTH, (Body(LOGGED, Op("add", (Read("cache", "w"), Num(10.0)))),), (X, X), "inner")
CASES["what an inner scan makes from the last value of what the outer one carries"] = Program(
    Body((Call("a", BOTH, (Body((TWICE,), Op("tanh", (X,))),), (X, X), "outer"),), X)
)

MAPPED = Call(
    "b",
    Lift("map_variables", 0, (("state", None),)),
    (Body((Make("v", "state", "v", Tree("frozen", ())), Write("state", "v", Num(1))), Read("state", "v")),),
    (X,),
)
CASES["an empty frozen value, mapped in one branch"] = Program(
    Body((Call("a", Lift("cond"), (Body((), X), Body((MAPPED,), X)), (Op("positive", (X,)), X)),), X)
)

DRAWN = Call(
    "c",
    Lift("call"),
    (
        Body(
            (Make("w", "params", "w", Key("params")), Draw("d", "other")),
            Op("add", (Local("w"), Op("add", (Local("d"), X)))),
        ),
    ),
    (X,),
    "m",
    times=2,
)
for _kind, _around in (("custom_vjp", "vjp"), ("custom_jvp", "jvp")):
    _ruled = Call("b", Lift(_kind), (Body((DRAWN,), Local("c")),), (X,), "n")
    CASES[f"{_kind} of a body that is called twice and draws"] = Program(
        Body((Call("a", Lift(_around), (Body((_ruled,), Local("b")),), (X,), "o"), Draw("e", "other")), Local("a"))
    )

_COUNTING = Lift("fori_loop", 2, (("state", CARRY),), SPLITS, ("traced",))
CASES["a loop whose condition uses no scope"] = Program(
    Body((Call("a", _COUNTING, (Body(COUNTED, X),), (X,), "m", times=2),), X)
)
