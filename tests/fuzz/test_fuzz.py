from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from tests.fuzz import programs
from tests.fuzz.__main__ import LEFT_OUT
from tests.fuzz.cases import CASES
from tests.fuzz.compare import COLLECTIONS, WAYS, mismatches, rngs
from tests.fuzz.generate import Generator
from tests.fuzz.plain import IllegalError, run_plain
from tests.fuzz.programs import CARRY, Body, Call, Lift, Local, Make, Num, Op, Program, Read, Write
from tests.fuzz.rules import legal
from tests.fuzz.shrink import shrink


@pytest.mark.parametrize("name", CASES)
def test_what_once_failed(name: str) -> None:
    assert legal(CASES[name]) == CASES[name]
    assert mismatches(CASES[name]) == {}


@pytest.mark.parametrize("seed", range(10))
def test_some_programs(seed: int) -> None:
    try:
        assert mismatches(Generator(seed, frozenset(LEFT_OUT)).program(), WAYS[1::2]) == {}
    except IllegalError:
        pytest.skip("its types depend on the iteration")


def test_the_plain_run_is_the_loop() -> None:
    counted = (Make("n", "state", "n", Num(0)), Write("state", "n", Num(1), raw=True))
    stacked = Make("w", "consts", "w", Read("state", "n"))
    lift = Lift("scan", 3, (("state", CARRY), ("consts", 0)), (("params", False), ("dropout", False), ("noise", False)))
    call = Call("a", lift, (Body((*counted, stacked), Local("x")),), (Local("x"), Num(0)), "m")
    _, variables, _ = run_plain(Body((call,), Local("x")), {}, rngs(0), COLLECTIONS, jnp.ones(3))
    assert variables["state", "m", "n"] == 3
    assert variables["consts", "m", "w"].tolist() == [1, 2, 3]


def test_rules_take_out_a_shared_value_that_depends_on_the_iteration() -> None:
    def program(init: Any) -> Program:
        lift = Lift("vmap", 2, (("params", None),), (("params", True), ("dropout", False), ("noise", False)))
        return Program(Body((Call("a", lift, (Body((Make("w", "params", "w", init),), Num(0)),), (Num(0),)),), Num(0)))

    assert legal(program(Num(1.0))) == program(Num(1.0))
    assert legal(program(Local("x"))).body.statements[0].bodies[0].statements == ()
    assert legal(program(programs.Key("params"))).body.statements[0].bodies[0].statements == ()


def test_programs_are_source_of_themselves() -> None:
    program = Generator(5).program()
    assert Generator(5).program() == program
    assert repr(program).startswith("Program(body=Body(statements=(")


def test_a_failing_program_is_made_small() -> None:
    wanted = Make("w", "state", "w", Op("tanh", (Local("x"),)))
    statements = (Make("v", "state", "v", Num(0)), wanted, programs.Let("a", Read("state", "v")))
    small = shrink(Program(Body(statements, Local("a"))), lambda program: "name='w'" in repr(program))
    assert small.body.statements == (Make("w", "state", "w", Local("x")),)
