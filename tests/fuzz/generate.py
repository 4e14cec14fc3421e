"""Random programs, small ones first."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from tests.fuzz.programs import (
    CARRY,
    INPUTS,
    Body,
    Call,
    Draw,
    Has,
    Key,
    Let,
    Lift,
    Local,
    Make,
    Num,
    Op,
    Program,
    Read,
    Sow,
    Tree,
    Write,
)
from tests.fuzz.rules import BRANCHES, DERIVATIVES, RULED, legal

KINDS = {
    "call": 1,
    "vmap": 3,
    "scan": 5,
    "remat": 2,
    "jit": 2,
    "cond": 2,
    "switch": 1,
    "fori_loop": 2,
    "while_loop": 2,
    "named_call": 1,
    "pack": 1,
    "map_variables": 1,
    "vjp": 1,
    "grad": 1,
    "jvp": 1,
    "custom_vjp": 2,
    "custom_jvp": 1,
    "custom_vmap": 1,
}
FEATURES = (
    *KINDS,
    "scalars",
    "trees",
    "frozen",
    "empty",
    "bfloat16",
    "paths",
    "branches_share",
    "chain",
    "sow",
    "draws",
    "closures",
    "raw",
    "has",
    "fallback",
    "again",
    "same",
    "idle",
    "until",
    "twice",
)
"""What can be left out."""


class Generator:
    """Makes one program.

    Args:
        seed: of its choices.
        without: features, of those in `FEATURES`, that it leaves out.
    """

    def __init__(self, seed: int, without: frozenset[str] = frozenset()) -> None:
        self.random, self.without, self.count = random.Random(seed), without, 0
        self.before = 0
        self.sequences = self.random.sample(["params", "dropout", "noise"], 2)

    def may(self, feature: str, chance: float) -> bool:
        return feature not in self.without and self.random.random() < chance

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def program(self) -> Program:
        depth = self.random.choice([1, 1, 2, 2, 3])
        kinds = [
            kind for kind in INPUTS if kind not in self.without and (kind != "scalar" or "scalars" not in self.without)
        ]
        weights = [6 if kind == "float32" else 1 for kind in kinds]
        body = self.body(depth, [], ["x"])
        return legal(Program(body, self.random.choices(kinds, weights)[0]))

    def body(self, depth: int, made: list[tuple[str, str]], names: list[str]) -> Body:
        """A body in a scope with variables that were made, and local values."""
        made, names, statements = made, list(names), []
        size = self.random.choice([2, 3, 4])
        calls = set(self.random.choices(range(size), k=self.random.choice([1, 1, 1, 2]))) if depth else set()
        for index in range(size):
            if index in calls:
                statements.append(self.call(depth, made, names))
                if self.may("same", 0.2):
                    statements.append(self.same(statements[-1], made, names))
            elif self.may("chain", 0.2):
                statements.extend(self.chain(made, names))
            else:
                statements.append(self.simple(made, names))
        if calls and self.may("draws", 0.3):
            # Draws that follow a lift show how many it counted.
            statements.append(Draw(self.named(names), self.random.choice(self.sequences)))
            return Body(tuple(statements), Op("add", (Local(names[-1]), Local("x"))), self.expr(made, names, 1))
        return Body(tuple(statements), Op("tanh", (self.expr(made, names, 2),)), self.expr(made, names, 1))

    def chain(self, made: list[tuple[str, str]], names: list[str]) -> list[Any]:
        """A variable, written or not, and another one that is made from it."""
        kind = self.random.choice(["state", "cache"])
        first, then = (kind, self.fresh("v")), (self.random.choice([kind, kind, "params", "consts"]), self.fresh("v"))
        begins = [self.expr(made, names, 1), Op("float32", (Num(0),)), Key(self.random.choice(self.sequences))]
        if "scalars" not in self.without:
            begins.append(Num(self.random.choice([0, 0.0])))
        if "draws" in self.without:
            del begins[2]
        found = [Make(self.named(names), *first, self.random.choice(begins))]
        if self.random.random() < 0.7:
            found.append(Write(*first, Num(1), "raw" not in self.without))
        read: Any = Read(*first)
        if self.random.random() < 0.5:
            read = Op("add", (read, self.expr(made, names, 1)))
        made += [first, then]
        return [*found, Make(self.named(names), *then, read)]

    def simple(self, made: list[tuple[str, str]], names: list[str]) -> Any:
        kinds = ["make"] * 5 + ["write"] * 3 + ["let"]
        kinds += ["draw"] * ("draws" not in self.without) + ["sow"] * ("sow" not in self.without)
        kinds += ["has"] * ("has" not in self.without)
        kind = self.random.choice(kinds)
        writable = [one for one in made if one[0] in ("state", "cache")]
        if kind == "write" and writable:
            return Write(*self.random.choice(writable), self.expr(made, names, 2), self.may("raw", 0.3))
        if kind == "sow":
            return Sow(self.fresh("s"), self.expr(made, names, 1))
        if kind == "has" and made:
            return Has(self.named(names), *self.random.choice(made))
        if kind == "let":
            return Let(self.named(names), self.expr(made, names, 2))
        if kind == "draw":
            return Draw(self.named(names), self.sequence())
        before = [one for one in made[: self.before] if one[0] != "params"]
        if before and self.may("again", 0.15):  # inside a lift: what was made outside is declared again
            return Make(self.named(names), *self.random.choice(before), Num(0))
        collection = self.random.choice(["params", "consts", "state", "state", "cache"])
        init = self.init(made, names)
        made.append((collection, self.fresh("v")))
        return Make(self.named(names), *made[-1], init)

    def named(self, names: list[str]) -> str:
        names.append(self.fresh("a"))
        return names[-1]

    def sequence(self) -> str:
        return "other" if self.may("fallback", 0.2) else self.random.choice(self.sequences)

    def init(self, made: list[tuple[str, str]], names: list[str], depth: int = 0) -> Any:
        if depth < 2 and self.may("trees", 0.15 + 0.1 * depth):
            sizes = [1, 2] if "empty" in self.without else [0, 1, 2]
            kind = self.random.choice(["dict", "tuple"] + ["frozen"] * ("frozen" not in self.without))
            return Tree(kind, tuple(self.init(made, names, depth + 1) for _ in range(self.random.choice(sizes))))
        if self.may("draws", 0.25):
            return Key(self.sequence())
        if self.may("scalars", 0.15):
            return Num(self.random.choice([0, 0.0, 1, 1.5, True]))
        expr = self.expr(made, names, 2)
        return expr if not isinstance(expr, Num) or "scalars" not in self.without else Op("float32", (expr,))

    def expr(self, made: list[tuple[str, str]], names: list[str], depth: int) -> Any:
        chance = self.random.random()
        if depth and chance < 0.45:
            return Op(self.random.choice(["add", "mul"]), tuple(self.expr(made, names, depth - 1) for _ in range(2)))
        if depth and chance < 0.6:
            casts = ["tanh", "sum", "float32", "int32", "vector"] + ["bfloat16"] * ("bfloat16" not in self.without)
            return Op(self.random.choice(casts), (self.expr(made, names, depth - 1),))
        if made and chance < 0.8:
            return Read(*self.random.choice(made))
        if chance < 0.95 or "scalars" in self.without:
            return Local(self.random.choice([*names[-3:], "x"]))
        return Num(self.random.choice([2, 0.5, 1]))

    def call(self, depth: int, made: list[tuple[str, str]], names: list[str]) -> Call:
        kinds = [kind for kind in KINDS if kind not in self.without]
        kind = self.random.choices(kinds, [KINDS[kind] for kind in kinds])[0]
        lift = self.lift(kind, made)
        here = not any(isinstance(axis, int) for _, axis in lift.groups) and kind not in DERIVATIVES
        place = None if here and self.random.random() < 0.5 else self.fresh("m")
        seen = made if place is None else []
        if kind == "while_loop" and seen and self.may("until", 0.4):
            lift = dataclasses.replace(lift, until=self.random.choice(seen))
        closes = "closures" not in self.without and kind not in RULED
        inner = [*(names if closes else []), "x"] + ["y"] * (kind in ("vmap", "scan", "fori_loop"))
        count = {"cond": 2, "switch": 3}.get(kind, 1)
        before, self.before = self.before, len(seen)
        bodies = tuple(self.body(depth - 1, list(seen), inner) for _ in range(count))
        self.before = before
        if kind in BRANCHES and self.may("branches_share", 0.6):
            bodies = self.sharing(bodies)
        if kind == "grad":
            param = Make(self.fresh("a"), "params", self.fresh("v"), Op("vector", (self.expr(seen, inner, 1),)))
            bodies = (Body((param, *bodies[0].statements), Op("add", (Local(param.into), bodies[0].result))),)
        args = [self.expr(made, names, 1) if self.random.random() < 0.5 else Local("x")]
        if kind in ("vmap", "scan"):
            args.append(self.expr(made, names, 1))
        if kind == "cond":
            args.insert(0, Op("positive", (self.expr(made, names, 2),)))
        if kind == "switch":
            args.insert(0, Op("int32", (Op("sum", (self.expr(made, names, 1),)),)))
        again = place is not None and kind not in BRANCHES and self.may("twice", 0.3)
        return Call(self.named(names), lift, bodies, tuple(args), place, 2 if again else 1)

    def same(self, call: Call, made: list[tuple[str, str]], names: list[str]) -> Call:
        """The lifted function of a call once more, in this scope or in another one, on another value."""
        x: Any = self.random.choice([Local(call.into), self.expr(made, names, 1)])
        args = (*call.args[:-1], x) if call.lift.kind in BRANCHES else (x, *call.args[1:])
        place = None if call.place is None else self.fresh("m")
        return dataclasses.replace(call, into=self.named(names), args=args, place=place)

    def sharing(self, bodies: tuple[Body, ...]) -> tuple[Body, ...]:
        """Branches that make variables of the same names, and derive others from them."""
        shared, derived = ("state", self.fresh("v")), ("state", self.fresh("v"))
        found = []
        for number, body in enumerate(bodies):
            first = Make(self.fresh("a"), *shared, Op("vector", (Op("add", (Local("x"), Num(number))),)))
            then = Make(self.fresh("a"), *derived, Op("vector", (Op("add", (Read(*shared), Num(0.5))),)))
            new = [first, then][: 2 if number else self.random.choice([1, 1, 2])]
            found.append(Body((*new, *body.statements), Op("add", (Local(new[-1].into), body.result)), body.stacked))
        return tuple(found)

    def lift(self, kind: str, made: list[tuple[str, str]]) -> Lift:
        """A transformation with options."""
        choices = {"vmap": [0, 0, -1, None], "scan": [0, -1, None, CARRY, CARRY]}.get(kind, [None, CARRY])
        if kind == "map_variables":
            collections = self.random.sample(["params", "consts", "state", "cache"], 2)
            return Lift(kind, 0, tuple((collection, None) for collection in collections))
        if kind not in ("vmap", "scan", "fori_loop", "while_loop"):
            return Lift(kind)
        groups: list[tuple[Any, Any]] = []
        for collection in ("params", "consts", "state", "cache"):
            axis = self.random.choice(choices)
            if collection in ("state", "cache") and kind != "vmap" and self.random.random() < 0.7:
                axis = CARRY
            if self.may("paths", 0.15):
                # Numbers in names count up, so that this is a variable or a scope of the body that follows.
                near = f"v{self.count + self.random.randint(1, 8)}"
                groups.append(((collection, near), self.random.choice(choices)))
            groups.append((collection, axis))
        order = {"scan": [None, CARRY], "fori_loop": [CARRY, None], "while_loop": [CARRY, None]}.get(kind, [])
        groups.sort(key=lambda group: order.index(group[1]) if group[1] in order else len(order))
        splits = tuple((name, self.random.random() < 0.5) for name in ("params", "dropout", "noise"))
        size = 0 if kind in ("fori_loop", "while_loop") and self.may("idle", 0.15) else self.random.choice([1, 2, 3, 3])
        flags = tuple(
            name
            for name, kinds in (("reverse", ["scan"]), ("unroll", ["scan"]), ("traced", ["fori_loop"]))
            if kind in kinds and self.random.random() < 0.2
        )
        return Lift(kind, size, tuple(groups), splits, flags)
