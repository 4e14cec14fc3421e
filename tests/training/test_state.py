from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from liftcore.errors import LiftArgumentError
from liftcore.filters import DenyList, OfType, PathContains, to_predicate
from liftcore.frozen_dict import FrozenDict
from liftcore.meta import Partitioned
from liftcore.serialization import from_bytes, to_bytes, to_state_dict
from liftcore.struct import field
from liftcore.training import DynamicScale, TrainState

HEAD = PathContains("head")


def params() -> dict[str, Any]:
    return {"encoder": {"w": jnp.full((3, 4), 0.5)}, "head": {"w": jnp.full((4, 1), 2.0), "b": jnp.zeros(1)}}


def model(params: Any, x: Any) -> Any:
    def value(box: Any) -> Any:
        return box.value if isinstance(box, Partitioned) else box

    hidden = jnp.sin(x @ value(params["encoder"]["w"]))
    return hidden @ value(params["head"]["w"]) + value(params["head"]["b"])


def loss_fn(params: Any, x: Any) -> Any:
    return jnp.mean(model(params, x) ** 2)


X = jnp.arange(6.0).reshape(2, 3)


def made(
    trainable: Any = True, tx: Any = None, given: Any = None, cls: type[TrainState] = TrainState, **extra: Any
) -> Any:
    given = params() if given is None else given
    return cls.create(apply_fn=model, params=given, tx=tx or optax.adam(0.1), trainable=trainable, **extra)


@jax.jit
def step(state: Any, x: Any) -> Any:
    loss, grads = state.value_and_grad(loss_fn)(x)
    return state.apply_gradients(grads=grads), loss


class WithStats(TrainState):
    batch_stats: Any
    key: Any = None


def test_a_subclass_has_more_fields_which_a_step_replaces() -> None:
    state = made(cls=WithStats, batch_stats=jnp.zeros(2))
    grads = jax.grad(loss_fn)(state.params, X)
    after = state.apply_gradients(grads=grads, batch_stats=jnp.ones(2))
    assert isinstance(after, WithStats)
    assert (int(after.step), float(after.batch_stats[0]), after.key) == (1, 1.0, None)
    assert len(jax.tree.leaves(state)) == len(jax.tree.leaves((state.params, state.opt_state))) + 2


def test_a_step_is_that_of_optax_by_hand() -> None:
    state, tx = made(), optax.adam(0.1)
    grads = jax.grad(loss_fn)(state.params, X)
    updates, opt_state = tx.update(grads, tx.init(state.params), state.params)
    after = state.apply_gradients(grads=grads)
    expected = optax.apply_updates(state.params, updates)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, (after.params, after.opt_state), (expected, opt_state)))


@pytest.mark.parametrize(
    "trainable",
    [HEAD, DenyList(PathContains("encoder")), [PathContains("b"), HEAD], lambda path, value: "head" in path],
)
def test_frozen_parameters_stay_and_have_no_state(trainable: Any) -> None:
    state = made(trainable)
    after, _ = step(state, X)
    assert jnp.array_equal(after.params["encoder"]["w"], state.params["encoder"]["w"])
    assert not jnp.array_equal(after.params["head"]["w"], state.params["head"]["w"])
    assert set(state.opt_state[0].mu) == {"head"}
    assert len(jax.tree.leaves(state.opt_state)) == 5  # a count, and two moments of two parameters


def test_gradients_of_frozen_parameters_are_not_computed() -> None:
    def products(state: Any) -> int:
        return str(jax.make_jaxpr(lambda x: state.value_and_grad(loss_fn)(x)[1])(X)).count("dot_general")

    # Forward there are two; backward one for each kernel that is trained, and one for what is between the layers.
    assert (products(made()), products(made(HEAD))) == (5, 3)


def test_a_single_variable_may_be_trainable_and_none() -> None:
    after, _ = step(made(PathContains("b")), X)
    assert jnp.array_equal(after.params["head"]["w"], params()["head"]["w"])
    nothing = made(None, tx=optax.sgd(0.1))
    after, loss = step(nothing, X)
    assert int(after.step) == 1
    assert jnp.isfinite(loss)
    assert nothing.trainable_params == {}


@pytest.mark.parametrize("trainable", [True, HEAD])
@pytest.mark.parametrize("kind", ["boxes", "frozen dict"])
def test_params_keep_their_structure(trainable: Any, kind: str) -> None:
    boxed = jax.tree.map(lambda leaf: Partitioned(leaf, (None,) * leaf.ndim), params())
    given = boxed if kind == "boxes" else FrozenDict(params())
    state = made(trainable, given=given)
    after, _ = step(state, X)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    plain, _ = step(made(trainable), X)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, jax.tree.leaves(after.params), jax.tree.leaves(plain.params)))


def test_a_filter_sees_what_is_in_the_params_with_their_boxes() -> None:
    given = params()
    given["head"]["w"] = Partitioned(given["head"]["w"], (None, None))
    state = made(OfType(Partitioned), given=given)
    assert set(state.trainable_params["head"]) == {"w"}


@pytest.mark.parametrize("trainable", [True, HEAD])
def test_the_filter_of_a_state_takes_no_other_collection(trainable: Any) -> None:
    takes = to_predicate(made(trainable).trainable)
    assert takes(("params", "head", "w"), 1.0)
    assert not takes(("batch_stats", "head", "w"), 1.0)


def test_params_may_be_any_pytree_if_all_are_trained() -> None:
    state = made(given=[jnp.ones(2), (jnp.ones(3),)])
    after = state.apply_gradients(grads=jax.tree.map(jnp.ones_like, state.params))
    assert jax.tree.structure(after) == jax.tree.structure(state)


def test_a_state_goes_through_a_loop_and_compiles_once() -> None:
    traces = []

    @jax.jit
    def run(state: Any, xs: Any) -> Any:
        traces.append(1)
        return jax.lax.scan(lambda state, x: step(state, x), state, xs)

    xs = jnp.stack([X, X + 1])
    state, losses = run(made(HEAD), xs)
    assert losses.shape == (2,)
    assert int(state.step) == 2
    run(made(HEAD, tx=state.tx), xs)
    assert len(traces) == 1


def test_a_state_is_restored_from_its_bytes() -> None:
    state, _ = step(made(HEAD), X)
    assert set(to_state_dict(state)) == {"step", "params", "opt_state"}
    restored = from_bytes(made(HEAD), to_bytes(state))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, jax.tree.leaves(state), jax.tree.leaves(restored)))


def test_a_transformation_is_given_further_arguments() -> None:
    def update(updates: Any, state: Any, params: Any = None, *, value: Any, **_: Any) -> Any:
        return jax.tree.map(lambda leaf: -value * leaf, updates), state

    tx = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
    state = made(HEAD, tx=tx)
    grads = jax.tree.map(jnp.ones_like, state.trainable_params)
    after = state.apply_gradients(grads=grads, tx_args={"value": 3.0})
    assert float(after.params["head"]["b"][0]) == -3.0


def test_none_is_no_update_and_dtypes_stay() -> None:
    tx = optax.stateless(lambda updates, params: {"a": None, "b": jnp.float32(1.5)})
    given = {"a": jnp.float32(1), "b": jnp.bfloat16(1)}
    after = made(tx=tx, given=given).apply_gradients(grads=given)
    assert float(after.params["a"]) == 1
    assert (after.params["b"].dtype, float(after.params["b"])) == (jnp.bfloat16, 2.5)


def test_overwritten_values_are_the_gradients_and_have_no_state() -> None:
    given = {"params": params(), "_overwrite_with_gradient": {"scale": jnp.ones(1)}}

    def loss(params: Any, x: Any) -> Any:
        return loss_fn(params["params"], x) + (3 * params["_overwrite_with_gradient"]["scale"]).sum()

    for trainable in (True, HEAD):
        state = made(trainable, given=given)
        _, grads = state.value_and_grad(loss)(X)
        after = state.apply_gradients(grads=grads)
        assert float(after.params["_overwrite_with_gradient"]["scale"][0]) == 3.0
        assert jnp.array_equal(after.params["params"]["encoder"]["w"], params()["encoder"]["w"]) == (trainable is HEAD)
        assert jax.tree.structure(after) == jax.tree.structure(state)
        assert set(state.opt_state[0].mu) == ({"head"} if trainable is HEAD else {"encoder", "head"})


def test_with_overwritten_values_other_collections_stay() -> None:
    given = {"params": params(), "_overwrite_with_gradient": {"scale": jnp.ones(1)}, "batch_stats": {"n": jnp.ones(2)}}
    state = made(given=given)
    _, grads = state.value_and_grad(lambda params, x: loss_fn(params["params"], x) + params["batch_stats"]["n"].sum())(
        X
    )
    assert set(grads) == {"params", "_overwrite_with_gradient"}
    assert state.apply_gradients(grads=grads).params["batch_stats"] is given["batch_stats"]


def test_variables_of_parameters_only_may_be_parameters() -> None:
    state, _ = step(made(given={"encoder": params()["encoder"], "head": params()["head"]}), X)
    variables = made(given={"params": params()})
    _, grads = variables.value_and_grad(lambda variables, x: loss_fn(variables["params"], x))(X)
    assert jnp.allclose(variables.apply_gradients(grads=grads).params["params"]["head"]["w"], state.params["head"]["w"])


def test_the_file_has_the_name_that_flax_gives_it() -> None:
    from liftcore.training import train_state

    assert train_state.TrainState is TrainState


def test_another_derivative_serves_as_well() -> None:
    state = made(HEAD)
    scale, finite, (loss, twice), grads = state.value_and_grad(
        lambda params, x: (loss_fn(params, x), 2), has_aux=True, using=DynamicScale().value_and_grad
    )(X)
    assert bool(finite)
    assert twice == 2
    assert int(scale.fin_steps) == 1
    plain, expected = state.value_and_grad(loss_fn)(X)
    assert jnp.allclose(loss, plain)
    assert jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b), grads, expected))


def test_the_trainable_part_may_be_given_by_hand() -> None:
    state = made(HEAD)
    grads = jax.grad(lambda part: loss_fn(state.with_trainable(part), X))(state.trainable_params)
    expected = state.value_and_grad(loss_fn)(X)[1]
    assert jax.tree.all(jax.tree.map(jnp.array_equal, grads, expected))


ERRORS = {
    "all gradients": (lambda s: s.apply_gradients(grads=jax.grad(loss_fn)(s.params, X)), "unexpected encoder/w"),
    "none of some": (lambda s: s.apply_gradients(grads={"head": {"w": jnp.ones((4, 1))}}), "missing head/b"),
    "gradients of each example": (
        lambda s: s.apply_gradients(grads={"head": {"w": jnp.ones((5, 4, 1)), "b": jnp.ones(1)}}),
        r"grads: given head/w of shape \(5, 4, 1\), not \(4, 1\)",
    ),
    "a misspelt part": (
        lambda s: s.with_trainable({"haed": s.trainable_params["head"]}),
        r"with_trainable: missing head/b, head/w; unexpected haed/b, haed/w",
    ),
    "a part of the part": (lambda s: s.with_trainable({"head": {"b": 1.0}}), "with_trainable: missing head/w"),
    "no mapping for a part": (lambda s: s.with_trainable([1.0]), "missing head/b, head/w; unexpected 0"),
    "no gradients": (lambda s: s.apply_gradients(grads=None), "grads: missing head/b, head/w"),
    "no gradient of an array": (lambda s: made(given=jnp.ones(2)).apply_gradients(grads=None), "grads: missing ."),
    "parameters given": (lambda s: s.value_and_grad(loss_fn)(s.params, X), "Leave them out"),
    "no pair": (
        lambda s: s.value_and_grad(loss_fn, has_aux=True)(X),
        r"TrainState.value_and_grad: .* a pair, as `has_aux` demands, given a float32\[\] array",
    ),
    "a text": (lambda s: made("encoder"), r'PathContains\("encoder"\)'),
    "no field": (
        lambda s: made(batch_stats=1),
        r'TrainState has no field "batch_stats".*class State\(TrainState\): batch_stats',
    ),
    "no field of a subclass": (lambda s: made(cls=WithStats, seen=1), "Add `seen: Any` to the class WithStats"),
    "near a field": (lambda s: made(cls=WithStats, batch_stat=1), "Write `batch_stats=…`"),
    "no value": (lambda s: made(cls=WithStats), "fields without a value: batch_stats. Pass `batch_stats=…`"),
    "own field": (lambda s: made(step=3), "`state.replace.step=….`"),
    "field replaced": (lambda s: s.apply_gradients(grads=s.trainable_params, key=1), 'TrainState has no field "key"'),
    "all variables": (lambda s: made(given={"params": params(), "batch_stats": {}}), "Write `variables=…` instead"),
    "a function for an optimizer": (
        lambda s: made(tx=optax.sgd),
        r"tx: expected an optimizer .* given the function sgd. Call it: `tx=sgd\(1e-3\)`",
    ),
    "no optimizer": (lambda s: TrainState.create(apply_fn=model, params=params(), tx=None), "given None. For example"),
    "misspelt": (lambda s: made(PathContains("haed")), "matches no variable .available: params/head/b"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_wrong_use_says_what_is_right(name: str) -> None:
    use, text = ERRORS[name]
    with pytest.raises(LiftArgumentError, match=text):
        use(made(HEAD))


# -- subclasses and collections ----------------------------------------------------------------------------------------


def test_a_subclass_declares_a_field_again_by_keyword() -> None:
    class State(TrainState):
        batch_stats: Any
        rngs: Any = None

    state = State.create(apply_fn=len, params={"w": jnp.ones(2)}, tx=optax.sgd(0.1), batch_stats=1, rngs=2)
    assert (state.batch_stats, state.rngs) == (1, 2)
    with pytest.raises(TypeError, match="positional"):
        State(0, len, {}, None, (), 1, 2)


@pytest.mark.parametrize("name", ["variables", "apply", "run", "minimize", "apply_gradients", "replace"])
def test_a_field_has_no_name_of_a_method(name: str) -> None:
    with pytest.raises(LiftArgumentError, match=f"class State: `{name}` is a method or property of TrainState"):
        type("State", (TrainState,), {"__annotations__": {name: Any}})


def test_a_field_may_hold_a_function_and_be_declared_again() -> None:
    class State(TrainState):
        act: Any = field(pytree_node=False, default=len)

    class Own(State):
        act: Any = field(pytree_node=False, default=max)

    assert Own.create(apply_fn=len, params={"w": jnp.ones(2)}, tx=optax.sgd(0.1)).act is max


def test_collections_are_passed_once_and_have_names_of_their_own() -> None:
    class State(TrainState):
        batch_stats: Any = None

    variables = {"params": {"w": jnp.ones(2)}, "batch_stats": {}}
    options: dict[str, Any] = {"apply_fn": len, "variables": variables, "tx": optax.sgd(0.1)}
    with pytest.raises(LiftArgumentError, match="the `model_state` was passed too"):
        TrainState.create(model_state={"cache": {}}, **options)
    with pytest.raises(LiftArgumentError, match='"batch_stats" is a collection and a field of State'):
        State.create(**options)
    state = TrainState.create(**options)
    with pytest.raises(LiftArgumentError, match='"step" is a collection and a field of TrainState'):
        TrainState.create(apply_fn=len, params={"w": 1.0}, tx=optax.sgd(0.1), model_state={"step": {}})
    lost = state.replace(apply_fn=lambda *_, **__: (3, {}), model_state={"batch_stats": {"n": 1}})
    with pytest.raises(LiftArgumentError, match="has other variables than before"):
        lost.apply(1)
    for mutable in ("batch_stats", ["batch_stats"], False, []):
        with pytest.raises(LiftArgumentError, match="`mutable` names no further collection"):
            state.apply(1, mutable=mutable)
    assert state.replace(apply_fn=lambda *_, **__: (3, {})).apply(1)[1].model_state == {"batch_stats": {}}


def test_a_checkpoint_keeps_the_kind_of_the_model_state() -> None:
    variables = FrozenDict({"params": {"w": jnp.ones(2)}, "batch_stats": {"n": jnp.zeros(1)}})
    state = TrainState.create(apply_fn=len, variables=variables, tx=optax.sgd(0.1))
    state = state.replace(model_state=FrozenDict(state.model_state))
    again = from_bytes(state, to_bytes(state))
    assert jax.tree.structure(again) == jax.tree.structure(state)
