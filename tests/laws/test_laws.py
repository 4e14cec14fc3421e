"""The ten laws, asked of every row of the table of transformations, and of generated programs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import liftcore
from liftcore import Scope
from liftcore.errors import (
    InvalidScopeError,
    JaxTransformError,
    ModifyScopeVariableError,
    ScopeParamNotFoundError,
    UnliftedCollectionError,
    UnliftedStreamError,
)
from tests.laws.programs import MUTABLE, Meaning, inside_a_row, programs, refusals
from tests.lift import only as kinds
from tests.lift import plain
from tests.lift.nests import Counted
from tests.lift.only import only
from tests.lift.quick import assert_same, compiled, key, uniform
from tests.lift.rows.row import DEVICES, FORWARD, REVERSE, SOWN
from tests.lift.table import COLLECTIONS, FILTERED, FRESH, SHARED, SHOWN, TABLE, TRANSPARENT, fit, refused

X = jnp.array([0.1, 0.2, 0.3])
ROWS = pytest.mark.parametrize("name", TABLE)
LIFTS = pytest.mark.parametrize("name", [name for name in TABLE if SHOWN[name]])

BASIC = ("vmap", "vmap, shared", "scan", "scan, shared", "remat", "jit")
ALONE = ("remat, policy", "add_metadata_axis", "named_call", "fori_loop, traced", *FILTERED)
"""Rows that are nested by generated programs only, as other rows are much like them."""


def paired(inner: str, name: str) -> bool:
    """Whether two rows are nested one in the other, for each to have been in all that differ."""
    if not fit((inner, name)) or {inner, name} & set(ALONE) or inner == name == "hessian":
        return False
    return inner in BASIC or name in BASIC or inner == name


PAIRS = [(inner, name) for inner in TABLE for name in TABLE if paired(inner, name)]

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
generated = settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=SLOW)


def keys(first: int = 0) -> dict[str, Any]:
    return {"params": key(first), "dropout": key(first + 1)}


def block(scope: Any, x: Any) -> Any:
    """Does all that a body may do: makes, reads and writes variables of each kind, draws, and captures."""
    y, result = made(scope, x)
    scope.sow("intermediates", "y", y)
    return result


def silent_block(scope: Any, x: Any) -> Any:
    """The same, without what some loops cannot pass."""
    return made(scope, x)[1]


def made(scope: Any, x: Any) -> tuple[Any, Any]:
    """What a block makes, and what it returns."""
    w = scope.param("w", uniform, (3,))
    shift = scope.variable("consts", "shift", lambda: jnp.arange(3.0)).value
    noise = scope.variable("state", "noise", lambda: uniform(scope.make_rng("dropout")))
    start = scope.variable("state", "start", lambda: 2 * x)
    count = scope.variable("counter", "count", lambda: jnp.zeros(()))
    if scope.is_mutable_collection("state"):
        noise.value = 0.5 * noise.value + x
    if scope.is_mutable_collection("counter"):
        count.value += 1
    y = jnp.tanh(x * w + shift) + 0.1 * noise.value * jnp.cos(count.value) + jnp.sin(start.value)
    return y, jnp.tanh(y + uniform(scope.make_rng("dropout")) + scope.child(dense, "dense")(x))


def block_in(*names: str) -> Callable[..., Any]:
    """A block that can be nested in some transformations."""
    return silent_block if SOWN & refused(names) else block


def lifted_block(name: str, way: str = "lifted") -> Callable[..., Any]:
    """A block under a transformation."""
    return getattr(TABLE[name], way)(block_in(name))


def dense(scope: Any, x: Any) -> Any:
    return x @ scope.param("kernel", uniform, (3, 3))


def calls(body: Callable[..., Any], times: int = 2) -> Callable[..., Any]:
    """A model that uses a body under automatic names, with a parameter and a draw of its own around it."""

    def model(scope: Any, x: Any) -> Any:
        for _ in range(times):
            x = scope.child(body, prefix="block_")(x) * scope.push(prefix="scale_").param("s", uniform, (3,))
        return x + uniform(scope.make_rng("dropout"))

    return model


def given_variables(body: Callable[..., Any]) -> Any:
    variables = liftcore.init(body)(keys(), X)[1]
    variables.pop("intermediates", None)
    return variables


def everything(side: Any, body: Callable[..., Any], refuses: frozenset[str]) -> Callable[..., Any]:
    """All that `init`, `apply` and derivatives of it give, of liftcore or of the plain reference."""

    def run(first: Any, later: Any, x: Any) -> Any:
        y, variables = side.init(body)(first, x)
        held = {name: found for name, found in variables.items() if name != "intermediates"}
        apply = side.apply(body, mutable=MUTABLE)

        def loss(params: Any, x: Any) -> Any:
            result = apply({**held, **params}, x, rngs=later)
            floats = [leaf for leaf in jax.tree.leaves(result) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]
            return sum(jnp.sum(leaf) for leaf in floats), result

        args = {"params": held.get("params", {})}, x
        if not REVERSE & refuses:
            grads, result = jax.grad(loss, argnums=(0, 1), has_aux=True)(*args)
            return y, variables, result, grads
        if not FORWARD & refuses:
            _, slope, result = jax.jvp(loss, args, jax.tree.map(lambda leaf: 0.5 * leaf + 1, args), has_aux=True)
            return y, variables, result, slope
        return y, variables, loss(*args)[1]

    return run


def assert_equals_the_loop(
    lifted: Callable[..., Any], unlifted: Callable[..., Any], refuses: frozenset[str] = frozenset()
) -> None:
    """Checks values, variables and those derivatives that are not refused against plain Python."""
    args = keys(), keys(10), X
    assert_same(compiled(everything(liftcore, lifted, refuses), *args), everything(plain, unlifted, refuses)(*args))


# -- 1. pure -----------------------------------------------------------------------------------------------------------


@ROWS
def test_law_1_pure(name: str) -> None:
    model = calls(lifted_block(name))
    step = jax.jit if DEVICES & TABLE[name].needs else (lambda fn: fn)  # eagerly, pmap takes no result of a pmap
    init, apply = step(liftcore.init(model)), step(liftcore.apply(model, mutable=True))
    variables = init(keys(), X)[1]
    variables.pop("intermediates", None)
    before, structure = jax.tree.flatten(variables)
    numbers = [np.array(leaf) for leaf in before]
    first, again = (apply(variables, X, rngs=keys(10)) for _ in range(2))
    assert_same(first, again, exact=True)
    after, same = jax.tree.flatten(variables)
    assert same == structure
    assert all(one is other for one, other in zip(before, after, strict=True))
    assert all((leaf == number).all() for leaf, number in zip(after, numbers, strict=True))
    assert_same(init(keys(), X), init(keys(), X), exact=True)


# -- 2. once -----------------------------------------------------------------------------------------------------------


def nested(names: tuple[str, ...], body: Callable[..., Any], way: str = "lifted") -> Callable[..., Any]:
    """A body under transformations, the first of them innermost."""
    for depth, name in enumerate(names):
        inner = getattr(TABLE[name], way)(body)

        def body(scope: Any, x: Any, inner: Any = inner, depth: int = depth) -> Any:
            scale = scope.param(f"u{depth}", uniform, (3,))
            return jnp.tanh(scope.child(inner, f"level{depth}")(x) * scale)

    return body


def assert_runs(names: tuple[str, ...]) -> None:
    """Checks how often a body runs under transformations, the first of them innermost."""
    body, times = Counted(block_in(*names)), math.prod(TABLE[name].runs for name in names)
    model, refuses = nested(names, body), refused(names)
    _, variables = jax.eval_shape(liftcore.init(model), keys(), X)
    assert body.since() == times, "init"
    variables.pop("intermediates", None)
    for mutable in ([], ["counter"], True):
        jax.eval_shape(liftcore.apply(model, mutable=mutable), variables, X, rngs=keys())
        assert body.since() == times, f"apply, mutable={mutable}"
    loss = liftcore.apply(lambda scope, x: model(scope, x).sum(), mutable=["state", "counter"])
    if not REVERSE & refuses:
        jax.eval_shape(jax.grad(loss, has_aux=True, allow_int=True), variables, X, rngs=keys())
        assert body.since() == times, "grad"
    if not FORWARD & refuses:
        jax.eval_shape(
            lambda held, x: jax.jvp(lambda x: loss(held, x, rngs=keys()), (x,), (x,), has_aux=True), variables, X
        )
        assert body.since() == times, "jvp"


DEEP = [(name,) * depth for name in TABLE for depth in (1, 2, 3, 4) if fit((name,) * depth)]
DEEP = [names for names in DEEP if names.count("hessian") < 3]  # JAX takes minutes for derivatives of such an order


@pytest.mark.parametrize("names", DEEP, ids="-".join)
def test_law_2_once_at_every_depth(names: tuple[str, ...]) -> None:
    assert_runs(names)


@pytest.mark.parametrize(
    "names",
    [
        ("scan", "remat", "vmap", "jit"),
        ("jit", "vmap", "scan, shared", "remat"),
        ("vmap, shared", "scan", "jit", "scan"),
        ("remat", "remat, policy", "scan", "vmap"),
    ],
)
def test_law_2_once_in_a_mixture(names: tuple[str, ...]) -> None:
    assert_runs(names)


OTHERS = (("scan", "remat", "vmap"), ("cond", "jit", "scan, shared"), ("vjp", "map", "jit"), ("jvp", "map", "jit"))


@pytest.mark.parametrize(
    "names", [(name, *others) for name in TABLE for others in OTHERS if fit((name, *others))], ids="-".join
)
def test_law_2_once_inside_three_others(names: tuple[str, ...]) -> None:
    assert_runs(names)


@ROWS
def test_law_2_once_when_it_is_run_too(name: str) -> None:
    body = Counted(block_in(name))
    lifted = TABLE[name].lifted(body)
    variables, times = given_variables(lifted), TABLE[name].runs
    assert body.since() == times
    liftcore.apply(lifted, mutable=True)(variables, X, rngs=keys())
    assert body.since() == times
    liftcore.apply(lifted)(variables, X, rngs=keys())
    assert body.since() == times
    derivative = jax.jacfwd if REVERSE & TABLE[name].refuses else jax.grad
    derivative(lambda x: liftcore.apply(lifted)(variables, x, rngs=keys()).sum())(X)
    assert body.since() == (0 if name in ("jit", "filter_jit") else times)


# -- 3. transparent ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(TRANSPARENT))
def test_law_3_transparent_names_values_and_draws(name: str) -> None:
    bare, lifted = calls(block), calls(lifted_block(name))
    assert_same(liftcore.init(lifted)(keys(), X)[1]["params"], liftcore.init(bare)(keys(), X)[1]["params"], exact=True)
    (y, variables), (expected, others) = liftcore.init(lifted)(keys(), X), liftcore.init(bare)(keys(), X)
    assert_same(variables, others)
    assert_same(y, expected)
    assert list(variables["params"]) == ["block_0", "scale_0", "block_1", "scale_1"]


@pytest.mark.parametrize("name", sorted(TRANSPARENT))
def test_law_3_transparent_draws_bit_for_bit(name: str) -> None:
    def draws(scope: Any, x: Any) -> Any:
        found = [scope.make_rng("dropout"), scope.push("a").make_rng("noise"), scope.make_rng()]
        return [jax.random.key_data(one) for one in found]

    def model(scope: Any, lift: Callable[..., Any]) -> Any:
        first, own, last = lift(draws)(scope.push(), X), scope.make_rng("dropout"), lift(draws)(scope.push(), X)
        return first, jax.random.key_data(own), last

    apply = liftcore.apply(model)
    for rngs in (keys(), {name: jax.random.PRNGKey(3) for name in ("params", "dropout")}):
        ours, bare = (apply({}, lift, rngs=rngs) for lift in (TABLE[name].lifted, lambda body: body))
        jax.tree.map(np.testing.assert_array_equal, ours, bare)


def equations(jaxpr: Any) -> Iterator[str]:
    """The names of all equations but those that only hold others."""
    for eqn in jaxpr.eqns:
        inner = [value for value in eqn.params.values() if hasattr(value, "eqns") or hasattr(value, "jaxpr")]
        for one in inner:
            yield from equations(getattr(one, "jaxpr", one))
        if not inner:
            yield eqn.primitive.name


@pytest.mark.parametrize("name", sorted(TRANSPARENT))
@pytest.mark.parametrize("mutable", [[], ["state"]])
def test_law_3_transparent_adds_no_equation(name: str, mutable: list[str]) -> None:
    def body(scope: Any, x: Any) -> Any:
        state = scope.variable("state", "s")
        if scope.is_mutable_collection("state"):
            state.value = state.value + x
        return jnp.tanh(scope.child(dense, "dense")(x)) * state.value

    variables = {"params": {"dense": {"kernel": jnp.ones((3, 3))}}, "state": {"s": X}}

    def count(model: Callable[..., Any]) -> Counter[str]:
        return Counter(equations(jax.make_jaxpr(liftcore.apply(model, mutable))(variables, X)))

    assert count(TABLE[name].lifted(body)) == count(body)


# -- 4. fresh ----------------------------------------------------------------------------------------------------------


@pytest.mark.rest
@generated
@given(programs(FRESH))
def test_law_4_no_key_is_drawn_twice(program: Any) -> None:
    model = Meaning(program, "lifted")
    captured = compiled(lambda rngs: liftcore.init(model)(rngs, X)[1].get("intermediates", {}), keys())
    drawn = [leaf for path, leaf in plain.flat(captured).items() if path[-1].endswith("_key")]
    words = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(drawn)] or [np.zeros(0)])
    assert len(np.unique(words)) == len(words)


KINDS = pytest.mark.parametrize("name", [name for name in kinds.KINDS if name != "remat_scan"])


@KINDS
def test_law_4_a_sequence_that_is_not_lifted_is_an_error(name: str) -> None:
    def draw(scope: Any, x: Any) -> Any:
        return x + uniform(scope.push("inner").make_rng("dropout"))

    with pytest.raises(UnliftedStreamError) as caught:
        liftcore.apply(lambda scope, x: only(name, draw, [], ["params"])(scope.push("a"), x))({}, X, rngs=keys())
    assert f"/a/{name}(" in caught.value.where
    assert caught.value.where.startswith('make_rng("dropout") at ')
    assert "dropout" in caught.value.fix
    y = liftcore.apply(only(name, draw, [], ["params"]))({}, X, rngs={"params": key(0)})
    assert y.shape[-1] == 3, "one that was never given draws from params"


@KINDS
def test_law_4_params_that_are_not_lifted_are_no_fallback(name: str) -> None:
    def draw(scope: Any, x: Any) -> Any:
        return x + uniform(scope.make_rng("noise"))

    with pytest.raises(UnliftedStreamError, match=r'make_rng\("noise"\)'):
        liftcore.apply(only(name, draw, [], ["dropout"]))({}, X, rngs=keys())
    liftcore.apply(only(name, draw, [], ["noise"]))({}, X, rngs=keys())


def rewinding(scope: Any, x: Any) -> Any:
    """A body that draws, and begins to draw from the first key again."""
    below = scope.push("below")
    x = x + uniform(below.make_rng("dropout")) + uniform(scope.make_rng("dropout"))
    scope = scope.rewound(rewind_rngs=True)
    x = x * uniform(scope.make_rng("dropout")) * uniform(scope.push("below").make_rng("dropout"))
    return x + uniform(scope.make_rng("dropout"))


def rewound_in_places(body: Callable[..., Any]) -> Callable[..., Any]:
    """A model that runs a body where more, fewer or no keys than it draws were drawn before, and draws after it.

    The last place is itself rewound, so the body counts apart from the scope that was there before.
    """

    def model(scope: Any, x: Any) -> Any:
        for name, before, rewinds in (("a", 5, False), ("b", 0, False), ("c", 2, True)):
            place = scope.push(name)
            back = place.rewound(rewind_rngs=rewinds)
            drawing = [place, place.rewound().push("below"), place.rewound().push("other")]
            drawing += [back, back.rewound().push("below")] if rewinds else []
            for _ in range(before):
                for each in drawing:
                    x = x + uniform(each.make_rng("dropout"))
            x = body(back.rewound(), x)
            for each in drawing:
                x = x * uniform(each.make_rng("dropout"))
        return x

    return model


@ROWS
def test_law_4_rewinding_draws_again_what_was_drawn_inside_as_outside(name: str) -> None:
    row = TABLE[name]
    lifted, unlifted = row.lifted(rewinding), row.plain(rewinding)
    assert_equals_the_loop(rewound_in_places(lifted), rewound_in_places(unlifted), row.refuses)


@pytest.mark.parametrize("inner", ["jit", "remat", "vmap", "scan", "cond", "fold_rngs", "with_rngs"])
@pytest.mark.parametrize("outer", ["jit", "vmap", "with_rngs"])
def test_law_4_rewinding_draws_again_what_was_drawn_further_in(inner: str, outer: str) -> None:
    def both(way: str) -> Callable[..., Any]:
        within = getattr(TABLE[inner], way)(rewinding)

        def after(scope: Any, x: Any) -> Any:
            x = within(scope, x + uniform(scope.make_rng("dropout")))
            return x + uniform(scope.make_rng("dropout"))

        return rewound_in_places(getattr(TABLE[outer], way)(after))

    assert_equals_the_loop(both("lifted"), both("plain"))


# -- 5. only what changed ----------------------------------------------------------------------------------------------


@ROWS
def test_law_5_what_is_only_read_is_not_copied_out(name: str) -> None:
    def body(scope: Any, x: Any) -> Any:
        read = [scope.variable(collection, "read").value.sum() for collection in COLLECTIONS]
        count = scope.variable("counter", "written")
        count.value += 1
        return x + sum(read)

    row = TABLE[name]
    size = row.rule.size if row.rule else 3
    shapes = {
        collection: (3, size) if row.rule and row.rule.axes[collection] in (1, -1) else (size, size)
        for collection in COLLECTIONS
    }
    variables = {collection: {"read": jnp.ones(shape)} for collection, shape in shapes.items()}
    variables["counter"]["written"] = jnp.zeros(size)
    _, mutated = liftcore.apply(row.lifted(body), mutable=True)(variables, X)
    for collection in COLLECTIONS:
        assert mutated[collection]["read"] is variables[collection]["read"]
    assert mutated["counter"]["written"] is not variables["counter"]["written"]


@ROWS
def test_law_5_a_body_that_only_reads_changes_nothing(name: str) -> None:
    lifted = TABLE[name].lifted(lambda scope, x: x * scope.variable("consts", "c").value)
    root = liftcore.bind({"consts": {"c": X}, "fixed": {"c": X}}, mutable=True)
    lifted(root, X)
    assert root.variables()["consts"]["c"] is X
    assert not root.tree.written
    assert not root.tree.created


# -- 6. all or nothing -------------------------------------------------------------------------------------------------


class Broken(Exception):
    pass


@LIFTS
def test_law_6_if_the_body_raises_the_outer_scopes_are_as_before(name: str) -> None:
    kept: list[Any] = []

    def broken(scope: Any, x: Any) -> Any:
        kept.append(scope)
        block_in(name)(scope, x)
        raise Broken

    def after(root: Scope) -> Any:
        draws = [root.make_rng("dropout"), root.push("dense").make_rng(), root.make_rng()]
        return jax.tree.map(jax.random.key_data, draws)

    root, untouched = (liftcore.bind({"consts": {"n": X}}, keys(), mutable=True) for _ in range(2))
    with pytest.raises(Broken):
        TABLE[name].lifted(broken)(root, X)
    assert root.variables() == {"consts": {"n": X}}
    assert root.names() == untouched.names()
    assert_same(after(root), after(untouched), exact=True)
    with pytest.raises(InvalidScopeError, match=f"scope at /{SHOWN[name]}"):
        kept[0].make_rng()


@LIFTS
@pytest.mark.parametrize("before", [(), (1.0,), None], ids=["a tuple before", "a value before", "nothing before"])
def test_law_6_if_a_reduction_of_a_captured_value_raises_the_outer_scopes_are_as_before(name: str, before: Any) -> None:
    """A body has ended when its captured values are added up, outside, where the rest of it might be already."""
    if name == "while_loop":
        pytest.skip("a loop of unknown length captures nothing")

    def broken(sown: Any, value: Any) -> Any:
        raise Broken

    def block(scope: Any, x: Any, reduce_fn: Any) -> Any:
        y = block_in(name)(scope, x)
        scope.sow("intermediates", "first", y)
        scope.push("inner").sow("intermediates", "seen", y)
        scope.sow("intermediates", "seen", y, tuple, reduce_fn)
        scope.sow("intermediates", "last", y)
        return y

    def state(root: Scope) -> Any:
        tree = root.tree
        return root.variables(), root.names(), dict(tree.created), dict(tree.written), set(tree.unsplit), len(tree.sown)

    def bound() -> Scope:
        given = {"consts": {"n": X}} if before is None else {"consts": {"n": X}, "intermediates": {"seen": before}}
        return liftcore.bind(given, keys(), mutable=True)

    root, untouched = bound(), bound()
    with pytest.raises(Broken):
        TABLE[name].lifted(lambda scope, x: block(scope, x, broken))(root, X)
    assert state(root) == state(untouched)
    right = TABLE[name].lifted(lambda scope, x: block(scope, x, lambda sown, value: (*sown, value)))
    twice, once = right(root, X), right(untouched, X)  # so no key is drawn twice either
    assert_same((twice, root.variables()), (once, untouched.variables()), exact=True)


@LIFTS
def test_law_6_inner_scopes_are_dead_after_the_lift(name: str) -> None:
    kept: list[Any] = []

    def body(scope: Any, x: Any) -> Any:
        kept.extend([scope, scope.push("inner"), scope.variable("consts", "n")])
        return x

    TABLE[name].lifted(body)(liftcore.bind({"consts": {"n": X}, "fixed": {"n": X}}, mutable=True), X)
    scope, inner, variable = kept[:3]
    for use in (lambda: inner.put_variable("state", "m", 0), lambda: scope.push("b"), lambda: variable.value):
        with pytest.raises(InvalidScopeError, match="Return what you need from the function"):
            use()


# -- 7. loud -----------------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("act", ["write", "create", "read"])
def test_law_7_a_collection_that_is_not_lifted_is_an_error(name: str, act: str) -> None:
    def body(scope: Any, x: Any) -> Any:
        inner = scope.push("inner")
        if act == "write":
            inner.put_variable("cache", "c", x)
        elif act == "create":
            inner.variable("cache", "new", lambda: x)
        else:
            inner.get_variable("cache", "c")
        return x

    root = liftcore.bind({"cache": {"a": {"inner": {"c": X}}}}, keys(), mutable=True)
    with pytest.raises(UnliftedCollectionError) as caught:
        only(name, body, ["params"], ["params"])(root.push("a"), X)
    where, name_of = caught.value.where, "new" if act == "create" else "c"
    assert where.startswith(f'"cache/{name_of}" at /a/{name}(')
    assert where.endswith("/inner")
    assert "cache" in caught.value.fix
    assert root.variables() == {"cache": {"a": {"inner": {"c": X}}}}


@LIFTS
def test_law_7_a_live_scope_inside_is_guarded_against_raw_transformations(name: str) -> None:
    def body(scope: Any, x: Any) -> Any:
        return jax.vmap(lambda x: x * scope.push("layer").param("w", uniform, ()))(x)

    with pytest.raises(JaxTransformError) as caught:
        liftcore.init(TABLE[name].lifted(body))(keys(), X)
    assert caught.value.where.startswith(f'naming "layer" at /{SHOWN[name]}(')
    assert "jax.vmap" in caught.value.what
    assert "`liftcore.vmap`" in caught.value.fix


@LIFTS
@pytest.mark.parametrize("act", ["draw", "write", "name"])
def test_law_7_an_outer_scope_cannot_be_changed_from_inside(name: str, act: str) -> None:
    root = liftcore.bind({"consts": {"n": X}}, keys(), mutable=True)

    def body(scope: Any, x: Any) -> Any:
        if act == "draw":
            root.make_rng()
        elif act == "write":
            root.put_variable("consts", "n", x)
        else:
            root.push("a")
        return x

    with pytest.raises(JaxTransformError, match=rf"it belongs outside (remat_)?{SHOWN[name]}\("):
        TABLE[name].lifted(body)(root, X)
    assert root.variables()["consts"]["n"] is X


@LIFTS
def test_law_7_an_immutable_collection_stays_so(name: str) -> None:
    def body(scope: Any, x: Any) -> Any:
        scope.variable("state", "n").value = x
        return x

    row = TABLE[name]
    variables = {"state": {"n": jnp.ones((row.rule.size, row.rule.size) if row.rule else 3)}}
    with pytest.raises(ModifyScopeVariableError) as caught:
        liftcore.apply(row.lifted(body), mutable=["counter"])(variables, X)
    assert caught.value.where.startswith(f'"state/n" at /{SHOWN[name]}(')
    assert 'mutable=["counter", "state"]' in caught.value.fix


@LIFTS
def test_law_7_a_parameter_that_is_missing_is_named_where_it_is_missing(name: str) -> None:
    lifted = TABLE[name].lifted(lambda scope, x: x * scope.push("dense").param("w", uniform, (3,)))
    rule = TABLE[name].rule
    kernel = jnp.ones((rule.size if rule else 1, 3))
    with pytest.raises(ScopeParamNotFoundError, match=r"available there: \['kernel'\]") as caught:
        liftcore.apply(lifted)({"params": {"dense": {"kernel": kernel}}}, X)
    assert caught.value.where.startswith(f'"params/w" at /{SHOWN[name]}(')
    assert caught.value.where.endswith("/dense")


# -- 8. init anywhere --------------------------------------------------------------------------------------------------


@ROWS
def test_law_8_questions_answer_as_at_entry(name: str) -> None:
    answers: list[Any] = []

    def body(scope: Any, x: Any) -> Any:
        answers.append((scope.has_variable("counter", "n"), scope.is_initializing()))
        count = scope.variable("counter", "n", lambda: jnp.zeros(()))
        count.value += 1
        answers.append(scope.has_variable("counter", "n"))
        return x + count.value

    lifted = TABLE[name].lifted(body)
    _, variables = liftcore.init(lifted)(keys(), X)
    assert answers[:2] == [(False, True), True]
    answers.clear()
    liftcore.apply(lifted, mutable=True)(variables, X)
    assert answers[:2] == [(True, False), True]
    answers.clear()
    _, made = liftcore.apply(lifted, mutable=True)({}, X)
    assert answers[:2] == [(False, False), True]
    assert_same(made, variables)


# -- 9. equals the loop ------------------------------------------------------------------------------------------------


@ROWS
def test_law_9_equals_the_loop(name: str) -> None:
    assert_equals_the_loop(calls(lifted_block(name)), calls(lifted_block(name, "plain")), TABLE[name].refuses)


@ROWS
@pytest.mark.parametrize("kind", ["typed", "raw"])
def test_law_9_equals_the_loop_with_real_keys(name: str, kind: str) -> None:
    make = jax.random.key if kind == "typed" else jax.random.PRNGKey
    rngs = {"params": make(0), "dropout": make(1)}
    ours = liftcore.init(lifted_block(name))(rngs, X)
    theirs = plain.init(lifted_block(name, "plain"))(rngs, X)
    assert_same(ours, theirs)


@ROWS
@pytest.mark.parametrize("mutable", [(), ("counter",), ("state", "intermediates")])
def test_law_9_equals_the_loop_whatever_is_mutable(name: str, mutable: tuple[str, ...]) -> None:
    lifted, unlifted = lifted_block(name), lifted_block(name, "plain")
    variables = given_variables(lifted)

    ours = liftcore.apply(lifted, mutable=mutable or [])(variables, X, rngs=keys(10))
    assert_same(ours, plain.apply(unlifted, mutable=mutable)(variables, X, rngs=keys(10)))


@ROWS
def test_law_9_several_scopes_go_in_as_one(name: str) -> None:
    def both(scopes: Any, x: Any) -> Any:
        parent, child, again = scopes
        y = block_in(name)(child, x)
        count = again.rewound().variable("counter", "count", lambda: jnp.zeros(()))
        if again.is_mutable_collection("counter"):
            count.value += 1
        return y * parent.param("u", uniform, (3,)) + parent.push("inner", reuse=True).get_variable("counter", "count")

    def alone(scope: Any, x: Any) -> Any:
        child = scope.push("inner")
        return both((scope, child, child), x)

    def aliased(scope: Any, x: Any) -> Any:
        child = scope.push("inner")
        return TABLE[name].lifted(both)((scope, child, child), x)

    def results(model: Callable[..., Any]) -> Any:
        y, variables = liftcore.init(model)(keys(), X)
        held = {collection: found for collection, found in variables.items() if collection != "intermediates"}
        return y, variables, liftcore.apply(model, mutable=MUTABLE)(held, X, rngs=keys(10))

    assert_same(*compiled(lambda: (results(aliased), results(TABLE[name].lifted(alone)))))


@ROWS
def test_law_9_values_may_be_any_pytree(name: str) -> None:
    def body(scope: Any, x: Any) -> Any:
        cache = scope.variable("state", "cache", lambda: (jnp.zeros(3), [x], None))
        held = scope.variable("state", "key", lambda: jax.random.key_data(scope.make_rng("dropout")))
        empty = scope.variable("state", "empty", tuple).value
        total, (first,), nothing = cache.value
        assert nothing is None
        if scope.is_mutable_collection("state"):
            cache.value = (total + x, [first], None)
        return x + total + first + len(empty) + held.value.sum() % 2

    lifted, unlifted = TABLE[name].lifted(body), TABLE[name].plain(body)
    variables = liftcore.init(lifted)(keys(), X)
    assert_same(variables, plain.init(unlifted)(keys(), X))
    ours = liftcore.apply(lifted, mutable=["state"])(variables[1], X, rngs=keys(10))
    assert_same(ours, plain.apply(unlifted, mutable=["state"])(variables[1], X, rngs=keys(10)))


@pytest.mark.parametrize("name", ["vmap", "scan", "remat", "jit", "vjp", "map"])
def test_law_9_a_dictionary_may_gain_keys_and_lose_them(name: str) -> None:
    def body(scope: Any, x: Any, drop: bool = False) -> Any:
        cache = scope.variable("state", "cache", lambda: {"old": x})
        cache.value = {"new": {"deep": x}} if drop else {"old": cache.value["old"] + x, "new": {"deep": x}}
        return x

    lifted = TABLE[name].lifted(body)
    made = liftcore.init(lifted)(keys(), X)[1]["state"]["cache"]
    given_one = {"state": {"cache": {"old": made["old"]}}}
    _, mutated = liftcore.apply(lifted, mutable=["state"])(given_one, X)
    for cache in (made, mutated["state"]["cache"]):
        assert jax.tree.map(lambda leaf: 0, cache) == {"old": 0, "new": {"deep": 0}}
    drops = TABLE[name].lifted(lambda scope, x: body(scope, x, drop=True))
    _, mutated = liftcore.apply(drops, mutable=["state"])(given_one, X)
    assert jax.tree.map(lambda leaf: 0, mutated["state"]["cache"]) == {"new": {"deep": 0}}


@pytest.mark.rest
@generated
@given(programs(depth=1, size=4))
def test_law_9_programs_equal_the_loop(program: Any) -> None:
    assert_equals_the_loop(Meaning(program, "lifted"), Meaning(program, "plain"), refusals(program))


# -- 10. composes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("inner", "name"), PAIRS)
def test_law_10_every_lift_nests_in_every_other(name: str, inner: str) -> None:
    body, names = block_in(inner, name), (inner, name)
    assert_equals_the_loop(nested(names, body), nested(names, body, "plain"), refused(names))


@pytest.mark.rest
@generated
@given(programs(depth=2, size=2))
def test_law_10_nested_programs_equal_the_loop(program: Any) -> None:
    assert_equals_the_loop(Meaning(program, "lifted"), Meaning(program, "plain"), refusals(program))


@pytest.mark.parametrize("names", [("scan",) * 4, ("vmap", "scan", "jit", "scan"), ("remat", "scan", "remat", "vmap")])
def test_law_10_deep_nests_equal_the_loop(names: tuple[str, ...]) -> None:
    def small(scope: Any, x: Any) -> Any:
        count = scope.variable("counter", "count", lambda: jnp.zeros(()))
        if scope.is_mutable_collection("counter"):
            count.value += 1
        shift = scope.variable("consts", "shift", lambda: jnp.arange(3.0)).value
        return jnp.tanh(x * scope.param("w", uniform, (3,)) + shift + jnp.cos(count.value))

    assert_equals_the_loop(nested(names, small), nested(names, small, "plain"))


@pytest.mark.rest
@generated
@given(inside_a_row())
def test_law_1_and_2_hold_for_programs_inside_every_lift(drawn: tuple[str, Any]) -> None:
    name, program = drawn
    body, times = Counted(Meaning(program, "lifted")), TABLE[name].runs
    lifted = TABLE[name].lifted(body)
    before = jax.eval_shape(liftcore.init(lifted), keys(), X)
    assert body.since() == times
    assert jax.tree.structure(before) == jax.tree.structure(jax.eval_shape(liftcore.init(lifted), keys(), X))
    assert body.since() == (0 if name == "jit" else times)


def test_the_table_covers_every_kind_of_group() -> None:
    axes = {axis for row in TABLE.values() if row.rule for axis in row.rule.axes.values()}
    assert {None, plain.CARRY, plain.PART, 0, 1, -1} <= axes
    assert set(TABLE) >= SHARED | TRANSPARENT
