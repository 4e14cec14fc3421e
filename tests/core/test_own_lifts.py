"""What someone who writes a lift of their own may do, and what they are told where it is wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import Captured, Loop, Scope
from liftcore.errors import AxisSizeError, LiftArgumentError, LiftError, LoopInvarianceError
from liftcore.pipeline import check_lift

KEY, X = jax.random.key(0), jnp.arange(8.0)
GROUPS = ["params", "state"]
OUT = [*GROUPS, Captured()]


def layer(scope: Scope, x: Any) -> Any:
    w = scope.param("w", lambda key: jnp.float32(2))
    n = scope.variable("state", "n", lambda: x * 0)
    n.value = n.value + x
    return x * w


def lift(transform: Callable[..., Any], into: Any = GROUPS, out: Any = OUT, rngs: Any = (True,)) -> Any:
    return liftcore.transformation(transform, into, out, rngs, name="mine")


Iteration = Callable[..., Any]


def right(body: Any, shared: Any, state: Any, x: Any, rngs: Any) -> Any:
    y, groups = body((shared, state[0]), rngs, x)
    return None, y, groups


def looped(iteration: Iteration = right, size: int = 8, state: Any = None, loop: Any = Loop, **options: Any) -> Any:
    """A lift that is a loop over the elements of its argument."""

    def transform(body: Any, variables: Any, rngs: Any, x: Any) -> Any:
        def step(inner: Any, shared: Any, state: Any, x: Any) -> Any:
            return iteration(inner, shared, state, x, rngs)

        begin = (variables[1], None) if state is None else state(variables)
        scan = functools.partial(jax.lax.scan, length=size)
        _, ys, groups = loop(size, scan).run(body, step, variables[0], begin, x, 0)
        return ys, groups

    return lift(transform, **options)


def test_a_loop_of_ones_own_is_a_loop() -> None:
    y, variables = liftcore.init(looped()(layer))(KEY, X)
    np.testing.assert_array_equal(y, 2 * X)
    assert variables == {"params": {"w": 2.0}, "state": {"n": 28.0}}


def split_whole(size: int = 3) -> Any:
    """A lift of two transformations: a loop, which is split once more as a whole, for what goes round it."""

    def transform(body: Any, variables: Any, rngs: Any, x: Any) -> Any:
        def via(body: Any, variables: Any, rngs: Any, x: Any) -> Any:
            def iteration(inner: Any, shared: Any, state: Any, _: Any) -> Any:
                y, groups = inner((shared, state[0]), rngs, x)
                return None, y, groups

            scan = functools.partial(jax.lax.scan, length=size)
            _, ys, groups = Loop(size, scan).run(body, iteration, variables[0], (variables[1], None), (), 0)
            return ys, groups

        split = body.split(variables, rngs, x, via=via)
        created = split.prologue(variables, rngs, x)
        return split.join(created, *jax.jit(split.remainder)(created, variables, rngs, x))

    return lift(transform)


INITIAL: dict[str, Callable[[Any], Any]] = {
    "a number": lambda x: jnp.zeros(()),
    "zeros": lambda x: jnp.zeros(3),
    "an argument": lambda x: x,
    "computed": lambda x: x + 1,
}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("init", INITIAL.values(), ids=INITIAL)
def test_two_transformations_in_one_lift_split_the_body_twice(init: Callable[[Any], Any], nested: bool) -> None:
    def counts(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n", init, x)
        n.value = n.value + 1
        return x + n.value

    model, args, runs = split_whole()(counts), (jnp.ones(3),), 3
    if nested:
        inner = model
        model = liftcore.scan(lambda scope, carry, _: (carry, inner(scope, carry)), 2, variable_carry="state")
        args, runs = (jnp.ones(3), None), 6
    _, variables = liftcore.init(model)(KEY, *args)
    np.testing.assert_array_equal(variables["state"]["n"], init(jnp.ones(3)) + runs)


@pytest.mark.parametrize("both", [False, True])
def test_an_iteration_that_runs_another_body_than_its_own_is_an_error(both: bool) -> None:
    def transform(body: Any, variables: Any, rngs: Any, x: Any) -> Any:
        def iteration(own: Any, shared: Any, state: Any, x: Any) -> Any:
            if both:
                own((shared, state[0]), rngs, x)
            y, groups = body((shared, state[0]), rngs, x)
            return None, y, groups

        _, ys, groups = Loop(8, jax.lax.scan).run(body, iteration, variables[0], (variables[1], None), x, 0)
        return ys, groups

    with pytest.raises(LiftArgumentError, match=r"mine\(layer\) at /: .* a body other than .* call that `body`"):
        liftcore.init(lift(transform)(layer))(KEY, X)


@pytest.mark.parametrize("nested", [False, True])
def test_the_two_functions_of_a_body_do_what_its_call_does(nested: bool) -> None:
    def by_hand(body: Any, variables: Any, rngs: Any, x: Any) -> Any:
        scope = body.scope_fn(variables, rngs)
        return body.fn(scope, x), body.repack_fn(scope)

    def transform(body: Any, variables: Any, rngs: Any, x: Any) -> Any:
        return liftcore.outline(jax.checkpoint, body, variables, rngs, x, via=by_hand)

    def twice(scope: Scope, x: Any) -> Any:
        return scope.child(lift(transform)(layer), "inner")(layer(scope, x))

    outer = liftcore.remat if nested else lambda fn: fn
    y, variables = liftcore.init(outer(twice))(KEY, X)
    np.testing.assert_array_equal(y, 4 * X)
    np.testing.assert_array_equal(variables["state"]["inner"]["n"], 2 * X)
    assert variables["params"] == {"w": 2.0, "inner": {"w": 2.0}}


def direct(act: Callable[..., Any]) -> Callable[..., Any]:
    """A lift of `act(body, variable_groups, rng_groups, x)`, that has one group to hand out."""
    return lambda: lift(act, out=GROUPS)


WRONG: dict[str, tuple[Callable[[], Any], type[LiftError], str]] = {
    "more iterations than slices": (lambda: looped(size=9), AxisSizeError, r"slices of shape \(8,\) .* size 9.*Pass 9"),
    "no group for captured values": (
        lambda: looped(out=GROUPS),
        LiftArgumentError,
        r"given 2\. List them in this",
    ),
    "a group too many": (
        lambda: looped(out=[*GROUPS, "cache", Captured()]),
        LiftArgumentError,
        r"0 for stacked ones .* given 3 and `Captured\(\)`",
    ),
    "an iteration of two results": (
        lambda: looped(lambda *args: right(*args)[1:]),
        LiftArgumentError,
        r"step of mine\(layer\) at /: it must return the next carry, .* given 2 values.*`return carry, y, groups`",
    ),
    "a state without a carry": (
        lambda: looped(state=lambda variables: variables[1]),
        LiftArgumentError,
        r"expected a pair of .*, the state of a loop, given .* Pass `\(variable_groups\[1\], carry\)`",
    ),
    "one group for all": (
        direct(lambda body, variables, rngs, x: body(variables[0], rngs, x)),
        LiftArgumentError,
        r"groups of variables, given a tuple of 1\. Write `body\(variable_groups, rng_groups",
    ),
    "one group of streams": (
        direct(lambda body, variables, rngs, x: body(variables, rngs[0][0], x)),
        LiftArgumentError,
        r"the 1 groups of RNG streams, given a dict",
    ),
    "a group of streams too many": (
        direct(lambda body, variables, rngs, x: body(variables, (*rngs, *rngs), x)),
        LiftArgumentError,
        r"the 1 groups of RNG streams, given a tuple of 2",
    ),
    "values for groups": (
        direct(lambda body, *operands: (0, tuple(group.values for group in body(*operands)[1]))),
        LiftArgumentError,
        r"one `Changes` for each of its 2 output filters; given .* Return the groups that `body",
    ),
    "values for groups, in a split": (
        direct(lambda body, *operands: body.split(*operands, via=lambda body, *operands: (0, ({}, {})))),
        LiftArgumentError,
        r"one `Changes` for each of its 2 output filters; given .* Return the groups that the body gave",
    ),
    "a filter for a list of filters": (
        lambda: lift(lambda *_: 0, into="params"),
        LiftArgumentError,
        r"in_variable_filters of mine: expected a list of filters, .* Write `\['params'\]`",
    ),
    "a Captured that is not the last": (
        lambda: lift(lambda *_: 0, out=[Captured(), "params"]),
        LiftArgumentError,
        r"out_variable_filters of mine: `Captured\(\)` must be the last",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_mistake_of_who_writes_a_lift_is_told_in_their_terms(wrong: str) -> None:
    make, error, text = WRONG[wrong]
    with pytest.raises(error, match=text):
        liftcore.init(make()(layer))(KEY, X)


def test_a_loop_of_ones_own_names_no_options_of_scan() -> None:
    def shared(scope: Scope, x: Any) -> Any:
        return scope.param("w", lambda key: x)

    with pytest.raises(
        LoopInvarianceError, match=r"\['params/w'\] is shared .*Stack it: put \"params\" into"
    ) as caught:
        liftcore.init(looped()(shared))(KEY, X)
    assert "variable_" not in str(caught.value)


def own_key(scope_fn: Any, repack_fn: Any, variable_groups: Any, rng_groups: Any, noise_key: Any, *args: Any) -> Any:
    raise AssertionError


def no_keywords(body: Any, variable_groups: Any, rng_groups: Any, *args: Any) -> Any:
    return body(variable_groups, rng_groups, *args)


REFUSED: dict[str, tuple[Callable[[], Any], Any, dict[str, Any], str]] = {
    "no keywords": (
        lambda: liftcore.transformation(no_keywords, [True], [True], [True], name="mine")(layer),
        (X,),
        {"more": X},
        r"mine\(layer\) at /: the call is `no_keywords\(a Body, .*, a float32\S* array, more=a float32\S* array\)`, "
        r"but `no_keywords` takes `\(body, variable_groups, rng_groups, \*args\)`",
    ),
    "no arguments": (
        lambda: liftcore.pack(lambda scope_fn, groups: 0, [True], [True], [True], name="mine"),
        (),
        {},
        r"mine at /: the call is `<lambda>\(the function \S+, the function \S+, .*\)`, but .* `\(scope_fn, groups\)`",
    ),
    "an argument is missing": (
        lambda: liftcore.pack(own_key, [True], [True], [True], name="mine"),
        (),
        {},
        r"mine at /: .* `own_key` takes `\(scope_fn, repack_fn, variable_groups, rng_groups, noise_key, \*args\)`",
    ),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_a_transformation_that_does_not_take_its_arguments_is_an_error_with_its_fix(refused: str) -> None:
    make, args, kwargs, text = REFUSED[refused]
    with pytest.raises(TypeError, match=text):
        liftcore.init(make())(KEY, *args, **kwargs)


def test_a_type_error_in_a_transformation_is_raised_as_it_is() -> None:
    def transform(scope_fn: Any, repack_fn: Any, *groups: Any) -> Any:
        return own_key()  # type: ignore[call-arg]

    with pytest.raises(TypeError, match="own_key"):
        liftcore.init(liftcore.pack(transform, [True], [True], [True]))(KEY)


# -- what a lift around another one sees of its initial values ---------------------------------------------------------


def looking(found: list[Any]) -> Any:
    """A lift that passes all through, and notes which operands the initial values of its body read."""

    def transform(body: Any, *operands: Any) -> Any:
        split = body.split(*operands)
        found.append(split.reads()[0][0])
        created = split.prologue(*operands)
        return split.join(created, *split.remainder(created, *operands))

    return liftcore.transformation(transform, [True], [True, Captured()], [True], "looking")


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])  # keys of the second one are drawn in a loop over elements
@pytest.mark.parametrize("lift", [lambda fn: fn, liftcore.remat, liftcore.jit])
def test_a_lift_sees_of_each_stacked_initial_value_what_it_reads_itself(lift: Any, impl: str) -> None:
    def step(scope: Scope, carry: Any, x: Any) -> Any:
        w = scope.param("w", jax.random.normal, (3,))
        v = scope.variable("state", "v", lambda: 2 * x)
        scope.variable("state", "u", lambda: v.value + w)
        return carry, None

    def scanned(scope: Scope, x: Any) -> Any:
        loop = liftcore.scan(step, variable_axes={True: 0}, split_rngs={"params": True})
        return loop(scope, 0.0, x)

    found: list[Any] = []
    liftcore.init(looking(found)(lift(scanned)))(jax.random.key(0, impl=impl), jnp.ones((2, 1)))
    assert found == [{"params": {"w": {1}}, "state": {"v": {2}, "u": {1, 2}}}]


@pytest.mark.parametrize("lift", [liftcore.remat, liftcore.jit])
def test_initial_values_that_read_each_other_are_computed_in_one_run_inside_a_lift(lift: Any) -> None:
    def chain(scope: Scope, x: Any, layers: int) -> Any:
        for layer in range(layers):
            x = jnp.tanh(x + scope.variable("state", f"v{layer}", lambda x=x: x.mean()).value)
        return x

    def runs(layers: int) -> int:
        model = liftcore.remat(lift(functools.partial(chain, layers=layers)))
        return str(jax.make_jaxpr(liftcore.init(model))(KEY, X)).count("tanh")

    assert runs(8) - runs(6) == runs(4) - runs(2)


# -- a mapping of one's own: a variable that its elements share --------------------------------------------------------


def mapped(split: bool = False) -> Any:
    """A lift that maps over 8 elements; they share `params`, and keys unless these are split."""

    def transform(body: Any, variables: Any, rngs: Any, x: Any) -> Any:
        keys = jax.tree.map(lambda key: jax.random.split(key, 8), rngs) if split else rngs
        first = functools.partial(jax.tree.map, lambda leaf: leaf[0])
        types = (variables[0], first(variables[1])), first(keys) if split else rngs, first(x)
        operands, axes = (variables, keys, x), ((None, 0), 0 if split else None, 0)

        def batch(fn: Callable[..., Any], in_axes: Any, out_axes: Any) -> Callable[..., Any]:
            return jax.vmap(fn, tuple(in_axes), out_axes, axis_size=8, axis_name="i")

        parts = body.split(*types, axes=[("i", 8)])
        created = parts.batched_prologue(batch, operands, axes, [None, 0, 0, 0])
        run = batch(parts.remainder, ([None, 0, 0, 0], *axes), (0, [None, 0, 0]))
        return parts.join(created, *run(created, *operands))

    return lift(transform)


def of_key(scope: Scope, x: Any) -> Any:
    return x * scope.param("w", jax.random.normal, ())


def of_input(scope: Scope, x: Any) -> Any:
    return x * scope.param("w", lambda key: x)


def of_input_and_constant(scope: Scope, x: Any) -> Any:
    return x * scope.param("w", lambda key: x + X.sum())


def of_variable(scope: Scope, x: Any) -> Any:
    n = scope.variable("state", "n", lambda: x)
    return x * scope.param("w", lambda key: n.value)


def of_the_mean(scope: Scope, x: Any) -> Any:
    return x * scope.param("w", lambda key: jax.lax.pmean(x, "i"))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("fn", "split"), [(of_key, True), (of_input, False), (of_input_and_constant, False), (of_variable, False)]
)
def test_a_shared_initial_value_that_differs_is_named(fn: Callable[..., Any], split: bool, nested: bool) -> None:
    model: Callable[..., Any] = mapped(split)(fn)
    if nested:
        inner = model
        model = liftcore.scan(lambda scope, x: (inner(scope, x), None), length=2, variable_carry=True, split_rngs=False)
    with pytest.raises(LoopInvarianceError) as caught:
        liftcore.init(model)(KEY, X)
    assert caught.value.what.startswith("['params/w'] is shared by all elements (axis None), but its initial value")
    assert "`group_axes`" in caught.value.fix


@pytest.mark.parametrize(("fn", "split"), [(of_key, False), (of_the_mean, False)])
def test_a_shared_initial_value_may_be_the_same_in_all_elements(fn: Callable[..., Any], split: bool) -> None:
    y, variables = liftcore.init(mapped(split)(fn))(KEY, X)
    assert variables["params"]["w"].shape == ()
    np.testing.assert_allclose(y, X * variables["params"]["w"])


def with_rule(fn: Any) -> Any:
    """A function with its own derivative as a rule."""
    rule = jax.custom_vjp(fn)
    rule.defvjp(lambda *operands: jax.vjp(fn, *operands), lambda pull, cotangents: pull(cotangents))
    return rule


def by_outline(body: Any, *operands: Any) -> Any:
    return liftcore.outline(with_rule, body, *operands)


def by_hand(body: Any, *operands: Any) -> Any:
    if not body.creates:
        return with_rule(body)(*operands)
    split = body.split(*operands)
    created = split.prologue(*operands)
    return split.join(created, *with_rule(split.remainder)(created, *operands))


def noisy(scope: Scope, x: Any) -> Any:
    return scope.param("w", lambda key: 2.0) * x * jax.random.normal(scope.make_rng("noise"))


def ruled(transform: Any) -> Any:
    return liftcore.transformation(transform, [True], [True, Captured(all=True)], [True])(noisy)


@pytest.mark.parametrize("outside", [jax.jit, jax.checkpoint, lambda fn: fn])
@pytest.mark.parametrize("around", [liftcore.jit, liftcore.remat, lambda fn: fn])
@pytest.mark.parametrize("transform", [by_outline, by_hand])
@pytest.mark.parametrize("mutable", [False, ["state"]])
def test_a_rule_of_a_derivative_draws_the_same_keys_whenever_it_runs(
    outside: Any, around: Any, transform: Any, mutable: Any
) -> None:
    if transform is by_hand and around is liftcore.jit:
        pytest.skip("the rule closes over values of the trace, which `outline` makes operands")

    def slopes(fn: Any) -> Any:
        def loss(params: Any) -> Any:
            def model(scope: Scope) -> Any:
                scope.make_rng("noise")
                return fn(scope.push("a"), 3.0) + fn(scope.push("b"), 5.0)

            y = liftcore.apply(model, mutable=mutable)({"params": params}, rngs={"noise": KEY})
            return y[0] if mutable else y

        return jax.grad(outside(loss))({"a": {"w": 2.0}, "b": {"w": 2.0}})

    found, expected = slopes(around(ruled(transform))), slopes(noisy)
    for name in ("a", "b"):
        np.testing.assert_allclose(found[name]["w"], expected[name]["w"], rtol=1e-5)


@pytest.mark.parametrize("around", [liftcore.jit, liftcore.remat, lambda fn: fn])
def test_a_body_with_a_rule_may_close_over_values_of_a_trace(around: Any) -> None:
    def slope(lift: Any, scale: Any) -> Any:
        def loss(w: Any) -> Any:
            fn = around(lift(lambda scope, x: scale * scope.param("w", lambda key: 2.0) * x))
            return liftcore.apply(fn)({"params": {"w": w}}, 3.0)

        return jax.grad(loss)(2.0)

    lift = liftcore.transformation(by_outline, [True], [True, Captured(all=True)], [True])
    assert jax.jit(functools.partial(slope, lift))(7.0) == slope(lambda fn: fn, 7.0) == 21


def test_a_body_tells_init_from_apply() -> None:
    asked: list[tuple[bool, bool]] = []

    def transform(body: Any, variables: Any, rngs: Any, x: Any) -> Any:
        asked.append((body.is_initializing(), body.creates))
        return body(variables, rngs, x)

    asking = lift(transform)(layer)
    _, variables = liftcore.init(liftcore.jit(asking))(KEY, X)
    liftcore.apply(liftcore.jit(asking), mutable="state")(variables, X)
    assert asked == [(True, True), (False, True)]


def keeping(fn: Callable[..., Any], local: Any = "params") -> Callable[..., Any]:
    def transform(body: Any, variables: Any, rngs: Any, *args: Any) -> Any:
        return body.writing_locally(local)(variables, rngs, *args)

    return lift(transform, [True], [True, Captured(all=True)])(fn)


def doubled(scope: Scope, x: Any) -> Any:
    y = layer(scope, x)
    scope.put_variable("params", "w", 2 * scope.get_variable("params", "w"))
    return y, layer(scope.rewound(), x)


def test_local_writes_end_with_the_body() -> None:
    (y, again), variables = liftcore.init(keeping(doubled))(KEY, X)
    np.testing.assert_array_equal(again, 2 * y)
    assert variables["params"] == {"w": 2}  # as created
    for mutable in ("state", True):
        (y, again), changed = liftcore.apply(keeping(doubled), mutable=mutable)(variables, X)
        np.testing.assert_array_equal(again, 2 * y)
        assert changed.get("params", {"w": 2}) == {"w": 2}
        np.testing.assert_array_equal(changed["state"]["n"], 4 * X)
    with pytest.raises(LiftError, match='collection "state" is immutable'):
        liftcore.apply(keeping(doubled))(variables, X)


@pytest.mark.parametrize("inner", [liftcore.jit, liftcore.remat, keeping], ids=["jit", "remat", "itself"])
def test_local_writes_inside_other_lifts(inner: Callable[..., Any]) -> None:
    shared = {"params": None, "state": 0}
    elements = liftcore.vmap(keeping(inner(doubled)), variable_axes=shared, split_rngs=False)
    (y, again), variables = liftcore.init(elements)(KEY, X)
    np.testing.assert_array_equal(y, 2 * X)
    np.testing.assert_array_equal(again, 2 * y)
    assert variables["params"] == {"w": 2}


def test_local_writes_create_nothing_that_is_immutable() -> None:
    with pytest.raises(LiftError, match='"params'):
        liftcore.apply(keeping(doubled), mutable="state")({}, X, rngs=KEY)


def test_sown_values_beside_a_filter_of_all_variables() -> None:
    def sower(scope: Scope, x: Any) -> None:
        scope.sow("intermediates", "x", x)

    for captured, is_apart in ((Captured(), False), (Captured(all=True), True)):
        seen: list[Any] = []

        def transform(body: Any, variables: Any, rngs: Any, x: Any, seen: list[Any] = seen) -> Any:
            output = body(variables, rngs, x)
            seen.extend(output[1])
            return output

        _, changed = liftcore.apply(lift(transform, [True], [True, captured])(sower), mutable=True)({}, 1.0)
        everything, sown = seen
        assert bool(jax.tree.leaves(sown)) == is_apart
        assert bool(jax.tree.leaves(everything)) == (not is_apart)
        assert changed == {"intermediates": {"x": (1.0,)}}


def test_a_lift_that_is_wrapped_like_a_transformation_of_jax_is_a_lift() -> None:
    check_lift("here", functools.wraps(jax.vmap)(lambda fn, **options: liftcore.vmap(fn, **options)))
    for transformation in (jax.vmap, jax.checkpoint, jax.lax.map, functools.partial(jax.vmap, in_axes=0)):
        with pytest.raises(LiftArgumentError, match="transforms pure functions"):
            check_lift("here", transformation)
