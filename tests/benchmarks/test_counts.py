"""What the benchmarks count, asserted: runs of bodies, programs, equations, keys, modules, calls of our functions."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
import linen_like
from benchmarks.counts import compiled, equations, named
from benchmarks.fresh import new_modules
from benchmarks.items.compiling import again, ways
from benchmarks.items.importing import FIRST_USES, STATEMENTS
from benchmarks.items.nesting import body_runs, lifted, nest
from benchmarks.items.scanning import differing, stacks
from benchmarks.measure import first_seconds, without_collection
from benchmarks.models import core, linen, pure
from benchmarks.picture import draw
from benchmarks.row import Row
from benchmarks.sides import OURS, PEERS, PURE, Side, side

KEY, X = jax.random.key(0), jnp.ones((2, pure.WIDTH))
LINENS = ("linen_like",)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("model", ["loops", "remat_loops"])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_the_body_of_nested_loops_runs_once(name: str, model: str, depth: int) -> None:
    assert body_runs(lifted(name, model, depth)) == (1, 1)


@pytest.mark.parametrize("way", ways(linen_like))
def test_an_equal_module_is_not_compiled_again(way: str) -> None:
    assert again(ways(linen_like)[way]) == (1, 0)


@pytest.mark.parametrize("way", ways(linen_like))
def test_an_equal_module_has_one_program(way: str) -> None:
    call, variables = ways(linen_like)[way], {"params": {"kernel": jnp.ones((pure.WIDTH, pure.WIDTH))}}
    assert compiled(call, variables, X) >= 1
    assert [compiled(call, variables, X) for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize(("remat", "gradient"), [(False, False), (False, True), (True, True)])
def test_a_scanned_model_compiles_to_the_program_by_hand(remat: bool, gradient: bool) -> None:
    assert differing(LINENS, remat, gradient) == {"core": 0, "linen_like": 0}


def test_init_of_a_scanned_model_has_at_most_a_twentieth_more_equations_than_by_hand() -> None:
    counts = {name: equations(init, KEY, X) for name, (init, _) in stacks(LINENS, False).items()}
    assert max(counts.values()) <= 1.05 * counts[PURE], counts


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("model", ["mlp", "transformer"])
def test_apply_has_the_equations_by_hand_and_init_no_more(name: str, model: str) -> None:
    by_hand, ours = side(PURE, model, 2), side(name, model, 2)
    variables = ours.init(KEY, X)[1]
    assert equations(ours.apply, variables, X) == equations(by_hand.apply, variables, X)
    assert equations(ours.init, KEY, X) <= equations(by_hand.init, KEY, X)


@pytest.mark.parametrize("name", OURS)
def test_no_key_is_folded_for_an_initializer_that_ignores_it(name: str) -> None:
    kernels = 6  # of a block; its other ten parameters are zeros and ones
    assert named(side(name, "transformer", 2).init, "random_fold_in", KEY, X) == 2 * kernels


@pytest.mark.parametrize("name", OURS)
def test_an_import_brings_fewer_than_forty_modules(name: str) -> None:
    brought = new_modules(STATEMENTS[name])
    assert len(brought) < 40, brought


@pytest.mark.parametrize("name", OURS)
def test_a_first_use_brings_jax_and_no_other_package(name: str) -> None:
    brought = new_modules(FIRST_USES[name])
    assert {"core": "liftcore.scopes.scope", "linen_like": "linen_like.module"}[name] in brought
    others = {module.partition(".")[0] for module in brought} - {"jax", "jaxlib", "liftcore", "linen_like"}
    assert not others & {"IPython", "flax", "matplotlib", "optax", "orbax", "rich", "yaml"}


# --- how cost grows ---------------------------------------------------------------------------------------------------


def warm_calls(fn: Callable[..., Any], *args: Any) -> Counter[str]:
    """The same, where all is done already that is done once for all."""
    jax.eval_shape(fn, *args)
    return calls(fn, *args)


_BY_HASH = ("__eq__", "__hash__")
"""What tables call as often as the addresses of objects happen to fall together."""


def calls(fn: Callable[..., Any], *args: Any) -> Counter[str]:
    """How often each function of the library is called while another one is traced.

    Nothing is collected meanwhile: what goes away with the garbage of other tests may call some of them too.
    """
    packages = tuple(str(Path(package.__file__ or "").parent) for package in (liftcore, linen_like))
    found: Counter[str] = Counter()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(packages) and frame.f_code.co_name not in _BY_HASH:
            found[frame.f_code.co_qualname] += 1

    with without_collection():
        sys.setprofile(note)
        try:
            jax.make_jaxpr(lambda *args: fn(*args))(*args)
        finally:
            sys.setprofile(None)
    return found


def automatically_named(layers: int) -> Side:
    """Layers of the core whose names are those of the functions and a number."""

    def model(scope: liftcore.Scope, x: Any) -> Any:
        for _ in range(layers):
            x = scope.child(core.norm)(scope.child(core.dense)(x, pure.WIDTH))
        return x

    return Side(liftcore.init(model), liftcore.apply(model))


LAYERED: dict[str, Callable[[int], Side]] = {
    "core": functools.partial(side, "core", "mlp"),
    "linen_like": functools.partial(side, "linen_like", "mlp"),
    "core, automatic names": automatically_named,
}


@pytest.mark.parametrize("name", LAYERED)
@pytest.mark.parametrize("entry", ["init", "apply"])
def test_work_grows_with_layers_and_not_faster(name: str, entry: str) -> None:
    found = []
    for layers in (2, 4, 8):
        model = LAYERED[name](layers)
        given = (model.init, KEY, X) if entry == "init" else (model.apply, model.init(KEY, X)[1], X)
        found.append(warm_calls(*given))
    few, some, many = found
    assert {call: many[call] - some[call] for call in many} == {call: 2 * (some[call] - few[call]) for call in many}


@pytest.mark.parametrize("name", OURS)
def test_a_lift_does_no_work_for_each_variable_that_its_body_leaves_alone(name: str) -> None:
    axes: dict[str, Any] = {"variable_axes": {"params": 0}, "split_rngs": {}}
    found = []
    for size in (10, 100):
        variables = {"params": {f"w{i}": X for i in range(size)}}
        if name == "core":
            apply = liftcore.apply(liftcore.vmap(core.first_of_many, **axes))
        else:
            apply = linen_like.vmap(linen.lifted(linen_like).FirstOfMany, **axes)().apply
        found.append(warm_calls(apply, variables, X))
    assert found[0] == found[1]


NESTS: dict[str, Callable[[str, int], Side]] = {
    "loops": lambda name, depth: lifted(name, "loops", depth),
    "remat_loops": lambda name, depth: lifted(name, "remat_loops", depth),
    "vmap": lambda name, depth: nest(name, "vmap", depth),
    "remat": lambda name, depth: nest(name, "remat", depth),
    "jit": lambda name, depth: nest(name, "jit", depth),
}


@pytest.mark.parametrize("kind", NESTS)
@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("rngs", [None, KEY])
def test_depth_adds_the_same_work_at_each_level(name: str, kind: str, rngs: Any) -> None:
    found = []
    for depth in (1, 1, 2, 3, 4):  # the first does what is done once for all
        model = NESTS[kind](name, depth)
        run = functools.partial(model.apply, rngs=rngs)
        found.append(calls(run, model.init(KEY, X)[1], X))
    _, one, two, three, four = found
    assert {call: four[call] - three[call] for call in four} == {call: three[call] - two[call] for call in four}
    assert {call: three[call] - two[call] for call in four} == {call: two[call] - one[call] for call in four}


@pytest.mark.parametrize("kind", NESTS)
@pytest.mark.parametrize("name", OURS)
def test_depth_adds_to_init_only_what_sees_the_equations_of_initial_values(name: str, kind: str) -> None:
    found = [calls(NESTS[kind](name, depth).init, KEY, X).total() for depth in (1, 1, 2, 4, 5)]
    _, one, two, four, five = found
    assert five - four <= 1.25 * (two - one), found


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_the_table_and_writes_figures_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.__main__ import main

    files = [str(tmp_path / name) for name in ("table.json", "table.png")]
    main(["select", "recompiles", "--rounds", "1", "--peers", "--json", files[0], "--png", files[1]])
    printed = capsys.readouterr().out
    assert "vmap over 1000 variables" in printed
    assert "jax.jit(net.apply) of the same instance" in printed
    assert '"rows"' in Path(files[0]).read_text(encoding="utf-8")
    assert Path(files[1]).read_bytes().startswith(b"\x89PNG")


def test_a_picture_has_room_for_any_number_of_sides(tmp_path: Path) -> None:
    sides = (PURE, *OURS, *PEERS, "core, copy=False", "another")
    draw([Row("trace", "of many", "s", dict.fromkeys(sides, 1.0), {"core": 1.5})], str(tmp_path / "many.png"))
    assert (tmp_path / "many.png").stat().st_size


def test_peers_are_measured_beside_pure_jax_in_rounds_of_their_own() -> None:
    order: list[str] = []
    sides = {name: functools.partial(order.append, name) for name in (PURE, "core", "flax")}
    found = first_seconds({name: functools.partial(lambda call: call, call) for name, call in sides.items()}, 1)
    assert found.keys() == sides.keys()
    last = len(order) - order[::-1].index("core")
    assert "flax" not in order[len(sides) : last], "it was called to warm up, and then not before ours were done"
    assert {PURE, "flax"} <= set(order[last:])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--rounds 0", "--rounds 0: at least 1"),
        ("--peers flax recompiles", "invalid choice: 'recompiles'"),
        ("recompiles --png table.txt", "the name ends with .png"),
        ("recompiles --json nowhere/table.json", "nowhere/table.json: there is no such folder"),
        ("recompiles --peers --rounds 1 --png counts.png", "none of these items has a time"),
    ],
)
def test_the_command_tells_what_it_cannot_do(
    arguments: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.__main__ import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(arguments.split())
    assert told in f"{capsys.readouterr().err} {stopped.value}"


def test_the_command_names_its_items_where_it_is_asked_for_another(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.__main__ import main

    with pytest.raises(SystemExit):
        main(["everything"])
    assert "unknown: everything (items: import, trace" in capsys.readouterr().err
