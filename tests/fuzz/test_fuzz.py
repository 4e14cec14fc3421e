from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import pytest

from tests.fuzz import lifted, programs
from tests.fuzz.cases import CASES, SPLITS, nested
from tests.fuzz.compare import COLLECTIONS, WAYS, mismatches, rngs
from tests.fuzz.generate import Generator
from tests.fuzz.kinds import KINDS, in_turn
from tests.fuzz.objects import runs as object_runs
from tests.fuzz.plain import run_plain
from tests.fuzz.programs import CARRY, Body, Call, Draw, Lift, Local, Make, Num, Op, Program, Read, Write
from tests.fuzz.rules import legal
from tests.fuzz.runs import first_legal
from tests.fuzz.shrink import shrink

X = Local("x")


@pytest.mark.parametrize("name", CASES)
def test_what_once_failed(name: str) -> None:
    assert legal(CASES[name]) == CASES[name]
    assert mismatches(CASES[name]) == {}


@pytest.mark.parametrize("seed", range(10))
def test_some_programs(seed: int) -> None:
    assert first_legal(Generator(seed), WAYS[1::2])[1] == {}


def test_the_plain_run_is_the_loop() -> None:
    counted = (Make("n", "state", "n", Num(0)), Write("state", "n", Num(1), raw=True))
    stacked = Make("w", "consts", "w", Read("state", "n"))
    lift = Lift("scan", 3, (("state", CARRY), ("consts", 0)), (("params", False), ("dropout", False), ("noise", False)))
    call = Call("a", lift, (Body((*counted, stacked), X),), (X, Num(0)), "m")
    _, variables, _ = run_plain(Body((call,), X), {}, rngs(0), COLLECTIONS, jnp.ones(3))
    assert variables["state", "m", "n"] == 3
    assert variables["consts", "m", "w"].tolist() == [1, 2, 3]


def test_rules_take_out_a_shared_value_that_depends_on_the_iteration() -> None:
    def program(init: Any) -> Program:
        lift = Lift("vmap", 2, (("params", None),), (("params", True), ("dropout", False), ("noise", False)))
        return Program(Body((Call("a", lift, (Body((Make("w", "params", "w", init),), Num(0)),), (Num(0),)),), Num(0)))

    assert legal(program(Num(1.0))) == program(Num(1.0))
    assert legal(program(X)).body.statements[0].bodies[0].statements == ()
    assert legal(program(programs.Key("params"))).body.statements[0].bodies[0].statements == ()


def test_rules_take_out_what_a_loop_makes_from_what_it_carries_where_a_lift_around_shares_it() -> None:
    def program(axis: Any, init: Any) -> Program:
        return nested(
            Lift("while_loop", 2, (("consts", axis), ("state", None)), SPLITS),
            Lift("scan", 1, (("state", CARRY), ("consts", 0)), SPLITS),
            Make("v", "state", "v", Num(0)),
            Make("w", "consts", "w", init),
        )

    def left(program: Program) -> int:
        return len(legal(program).body.statements[0].bodies[0].statements[0].bodies[0].statements)

    assert left(program(None, Read("state", "v"))) == 1
    assert left(program(CARRY, Read("state", "v"))) == left(program(None, Num(1))) == 2


def test_rules_take_out_a_parameter_made_from_what_has_another_shape_later() -> None:
    def program(added: Any) -> Program:
        wide = Write("state", "n", added, raw=True)
        return Program(Body((Make("n", "state", "n", Num(0)), Make("w", "params", "w", Local("n")), wide), Num(0)))

    assert legal(program(Num(1))) == program(Num(1))
    assert [statement.name for statement in legal(program(X)).body.statements] == ["n", "n"]


def test_rules_let_a_lift_declare_again_and_a_named_call_not() -> None:
    again = Make("b", "state", "n", Num(0))

    def program(*kinds: str) -> Program:
        inner: Any = again
        for kind in reversed(kinds):
            inner = Call("a", Lift(kind), (Body((inner,), X),), (X,))
        return Program(Body((Make("n", "state", "n", Num(0)), inner), X))

    for kinds in (("jit",), ("jit", "named_call"), ("named_call", "remat")):
        assert legal(program(*kinds)) == program(*kinds)
        assert mismatches(program(*kinds)) == {}
    assert "'b'" not in repr(legal(program("named_call")))


def test_rules_let_one_scope_have_a_name() -> None:
    inner = Call("a", Lift("call"), (Body((Make("b", "state", "n", X),), X),), (X,), "m")
    once = Call("c", Lift("jit"), (Body((inner,), X),), (X,))
    again = dataclasses.replace(once, into="d")
    assert legal(Program(Body((once, again), X))).body.statements[1].bodies[0].statements == ()
    apart = (dataclasses.replace(once, place="one"), dataclasses.replace(again, place="two"))
    assert legal(Program(Body(apart, X))).body.statements == apart
    assert mismatches(Program(Body(apart, X))) == {}


def test_equal_lifts_of_a_body_are_one_lifted_function(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    monkeypatch.setattr(lifted, "KINDS", {"jit": lambda *args: built.append(args) or lifted._one(*args)})
    once = Call("a", Lift("jit"), (Body((Make("b", "state", "n", X),), Local("b")),), (X,), "one")
    other = dataclasses.replace(once, bodies=(Body((), Num(1)),), place="three")
    again = dataclasses.replace(once, into="c", args=(Local("a"),), place="two")
    assert mismatches(Program(Body((once, again, other), X)), WAYS[:1]) == {}
    assert len(built) == 2


def test_a_loop_of_no_iterations_makes_what_the_first_would_make() -> None:
    counted = (Make("n", "state", "n", Op("add", (X, X))), Write("state", "n", Num(1)), Draw("k", "noise"))
    lift = Lift("fori_loop", 0, (("state", CARRY),), (("params", False), ("dropout", False), ("noise", True)))
    call = Call("a", lift, (Body(counted, Local("k")),), (X,))
    program = Program(Body((call, Draw("d", "noise")), Local("a")))
    result, variables, world = run_plain(program.body, {}, rngs(0), COLLECTIONS, jnp.ones(3))
    assert result.tolist() == [1, 1, 1]
    assert variables["state", "n"].tolist() == [2, 2, 2]
    assert world.counts == {((), "noise"): 2}
    assert mismatches(program) == {}


def test_a_while_loop_ends_early_where_a_variable_is_large() -> None:
    lift = Lift("while_loop", 4, (("state", CARRY),), (("params", False), ("dropout", False), ("noise", False)))
    call = Call(
        "a", dataclasses.replace(lift, until=("state", "n")), (Body((Write("state", "n", Num(1), True),), X),), (X,)
    )
    program = Program(Body((Make("n", "state", "n", Num(0)), call), Local("a")))
    assert legal(program) == program
    assert run_plain(program.body, {}, rngs(0), COLLECTIONS, jnp.ones(3))[1]["state", "n"] == 2
    assert mismatches(program, WAYS[:1]) == {}
    assert legal(Program(Body((call,), X))).body.statements == ()


def test_a_weakly_typed_carry_stays_so_for_all_iterations_as_in_jax() -> None:
    lift = Lift("while_loop", 3, (("state", CARRY),), (("params", False), ("dropout", False), ("noise", False)))
    body = Body((Make("n", "state", "n", Num(1.5)), Write("state", "n", Local("n"))), Op("mul", (X, Local("n"))))
    program = Program(Body((Call("a", lift, (body,), (Op("bfloat16", (X,)),)),), Local("a")))
    result, variables, _ = run_plain(program.body, {}, rngs(0), COLLECTIONS, jnp.ones(3))
    assert result.dtype == jnp.bfloat16
    assert not variables["state", "n"].weak_type
    assert mismatches(program) == {}


def test_a_program_whose_types_depend_on_the_iteration_is_drawn_again() -> None:
    widened = (Make("n", "state", "n", Num(0)), Write("state", "n", X, raw=True))
    lift = Lift("while_loop", 2, (("state", CARRY),), (("params", False), ("dropout", False), ("noise", False)))
    drawn = [Program(Body((Call("a", lift, (Body(widened, X),), (X,)),), Num(0))), Program(Body((), X))]
    generator = Generator(0)
    generator.program = iter(drawn).__next__  # type: ignore[method-assign]
    assert first_legal(generator) == (Program(Body((), X)), {})


def test_programs_are_source_of_themselves() -> None:
    program = Generator(5).program()
    assert Generator(5).program() == program
    assert repr(program).startswith("Program(body=Body(statements=(")


def test_a_failing_program_is_made_small() -> None:
    wanted = Make("w", "state", "w", Op("tanh", (X,)))
    statements = (Make("v", "state", "v", Num(0)), wanted, programs.Let("a", Read("state", "v")))
    small = shrink(Program(Body(statements, Local("a"))), lambda program: "name='w'" in repr(program))
    assert small.body.statements == (Make("w", "state", "w", X),)


def test_kinds_take_turns() -> None:
    shares = {name: kind.share for name, kind in KINDS.items()}
    kinds = [kind for kind, _ in in_turn(list(KINDS), range(8 * sum(shares.values())))]
    assert {name: kinds.count(name) for name in shares} == {name: 8 * share for name, share in shares.items()}
    assert in_turn(["objects"], [7, 8]) == [("objects", 7), ("objects", 8)]


def test_a_failing_program_over_objects_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        object_runs, "differences", lambda program: "value 1: 2" if "kind='swap'" in repr(program) else None
    )
    found, source = next(one for one in (object_runs.attempt(seed, frozenset(), True) for seed in range(99)) if one[0])
    assert found.strip() == "value 1: 2"
    assert source.count("Step(") == 1
