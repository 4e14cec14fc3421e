"""What an array of one style means inside another: what is trained, kept and shared, and which bridge fits."""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import equinox_like as eqx
import liftcore
import linen_like as nn
import nnx_like as nnx
import pax_like as pax
from liftcore.errors import (
    InvalidScopeError,
    LiftArgumentError,
    NameInUseError,
    ScopeParamShapeError,
    WrongStyleError,
)
from liftcore.owners import by_dtype, collections_of

bridge = nnx.bridge
KEY, X = jax.random.key(0), jnp.arange(6.0).reshape(2, 3)


class Tree(eqx.Module):
    """A pytree module with a parameter, integers and an activation."""

    w: Any
    order: Any
    act: Any

    def __init__(self, key: Any = None) -> None:
        self.w, self.order, self.act = jnp.eye(3), jnp.arange(3), jnp.tanh

    def __call__(self, x: Any) -> Any:
        return self.act(x @ self.w)[..., self.order]


class Kinds(pax.Module):
    """A module with kinds that counts its calls."""

    def __init__(self, key: Any = None) -> None:
        self.register_parameter("w", jnp.eye(3))
        self.register_state("n", jnp.zeros(()))

    def __call__(self, x: Any) -> Any:
        self.n = self.n + 1
        return x @ self.w


class Thing(nnx.Module):
    """An object that counts its calls."""

    def __init__(self, rngs: Any = None) -> None:
        self.w, self.n = nnx.Param(jnp.eye(3)), nnx.BatchStat(jnp.zeros(()))

    def __call__(self, x: Any) -> Any:
        self.n[...] += 1
        return x @ self.w[...]


class Plain(nn.Module):
    """A Linen-style module that counts its calls."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        n = self.variable("batch_stats", "n", lambda: jnp.zeros(()))
        n.value += 1
        return x @ self.param("w", lambda key: jnp.eye(3))


def scoped(scope: Any, x: Any) -> Any:
    scope.variable("batch_stats", "n", lambda: jnp.zeros(())).value += 1
    return x @ scope.param("w", lambda key: jnp.eye(3))


def applied() -> Any:
    return eqx.Applied.init(Plain(), KEY, X)


class InTree(eqx.Module):
    part: Any

    def __call__(self, x: Any) -> Any:
        return self.part(x)


class InKinds(pax.Module):
    def __init__(self, part: Any) -> None:
        self.part = part

    def __call__(self, x: Any) -> Any:
        return self.part(x)


class Empty(pax.Module):
    pass


class InThing(nnx.Module):
    def __init__(self, part: Any) -> None:
        self.part = part

    def __call__(self, x: Any) -> Any:
        return self.part(x)


MADE = {"tree": Tree, "kinds": Kinds, "object": Thing, "applied": applied}
OUTER = {"tree": InTree, "kinds": InKinds, "object": InThing}
KNOWN = {
    "tree": ["params", "constants", None],
    "kinds": ["params", "state"],
    "object": ["batch_stats", "params"],
    "applied": ["batch_stats", "params"],
}


# --- the kind of an array is that of its owner ------------------------------------------------------------------------


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("inner", MADE)
def test_an_array_keeps_its_collection_in_every_style(inner: str, outer: str) -> None:
    tree = OUTER[outer](MADE[inner]())
    found = collections_of({"a": [tree]}, by_dtype)
    states = {"state" if one != "params" and outer == "kinds" else one for one in KNOWN[inner] if one}
    assert {one for one in found if one} == states
    assert found.count("params") == 1


@pytest.mark.parametrize("inner", MADE)
def test_a_part_of_an_object_is_trained_and_listed(inner: str) -> None:
    model = nnx.List([{"a": MADE[inner]()}])
    [(path, _)] = nnx.state(model, nnx.Param).flat_state()
    optimizer = nnx.Optimizer(model, optax.sgd(0.5), wrt=nnx.Param)
    before = dict(nnx.state(model).flat_state())
    gradient = nnx.grad(lambda model: sum(map(jnp.sum, jax.tree.leaves(nnx.state(model, nnx.Param)))))(model)
    optimizer.update(model, gradient)
    changed = [one for one, leaf in nnx.state(model).flat_state() if leaf is not before[one] and inner != "object"]
    assert changed in ([path], [])
    assert jnp.allclose(jnp.asarray(dict(nnx.state(model).flat_state())[path]), jnp.eye(3) - 0.5)
    variables = bridge.nnx_attrs_to_linen_vars(model)
    assert len(jax.tree.leaves(variables["params"])) == 1
    assert set(variables) == {one for one in KNOWN[inner] if one}


@pytest.mark.parametrize("inner", MADE)
def test_a_part_of_a_module_with_kinds_is_trained(inner: str) -> None:
    model = InKinds([MADE[inner]()])
    assert model.name_to_kind["part"] is pax.PaxKind.MODULE
    assert len(jax.tree.leaves(model.parameters())) == 1
    assert not jax.tree.leaves(model.freeze().parameters())

    def loss(model: Any, x: Any) -> Any:
        return jnp.sum(model.part[0](x) if inner != "applied" else model.part[0](x, mutable="batch_stats")[0])

    (_, _), gradient = pax.value_and_grad(loss)(model, X)
    assert [leaf.shape for leaf in jax.tree.leaves(gradient)] == [(3, 3)]
    stepped = model.update(jax.tree.map(lambda p, g: p - g, model.parameters(), gradient))
    assert jax.tree.structure(stepped) == jax.tree.structure(model)


@pytest.mark.parametrize("kind", ["register_parameter", "register_state", "register_module"])
def test_a_pytree_with_an_activation_may_be_registered(kind: str) -> None:
    model = Empty()
    getattr(model, kind)("part", Tree())
    assert len(jax.tree.leaves(model.parameters())) == (kind != "register_state")
    _, variables = liftcore.init(lambda scope: pax.adopt(scope, model).run(lambda module: module.part(X)))({})
    assert ("params" in variables) == (kind != "register_state")


def test_statistics_of_an_object_stay_states_in_a_parameter() -> None:
    model = Empty()
    model.register_parameter("part", Thing())
    assert len(jax.tree.leaves(model.parameters())) == 1


@pytest.mark.parametrize("inner", MADE)
def test_trainable_knows_the_kinds_of_all_styles(inner: str) -> None:
    chosen = eqx.trainable({"a": InTree(MADE[inner]())})
    assert jax.tree.leaves(chosen).count(True) == 1
    other = next((one for one in KNOWN[inner] if one in ("state", "batch_stats")), None)
    if other:
        assert jax.tree.leaves(eqx.trainable([MADE[inner]()], other)).count(True) == 1


@pytest.mark.parametrize("inner", MADE)
def test_an_object_with_a_part_of_any_style_keeps_its_structure_in_filters_and_gradients(inner: str) -> None:
    model = InThing(MADE[inner]())
    chosen = eqx.trainable(model)
    gradient = eqx.filter_grad(lambda model: sum(map(jnp.sum, jax.tree.leaves(model))), arg=chosen)(model)
    assert len(jax.tree.leaves(eqx.filter(model, chosen))) == len(jax.tree.leaves(gradient)) > 0
    parts = eqx.partition(model, chosen)
    assert jax.tree.structure(eqx.combine(*parts)) == jax.tree.structure(eqx.apply_updates(model, gradient))
    assert jax.tree.structure(eqx.inference_mode(model)) == jax.tree.structure(model)


def test_a_converted_function_takes_models_of_all_styles() -> None:
    def call(model: Any, x: Any) -> Any:
        return model.part(x, mutable="batch_stats")[0] if isinstance(model.part, eqx.Applied) else model(x)

    for inner, make in MADE.items():
        model = InTree(make())
        converted = eqx.filter_closure_convert(call, model, X)
        assert (converted(model, X) == call(model, X)).all(), inner
        assert jax.tree.structure(converted) == jax.tree.structure(eqx.filter_closure_convert(call, model, X))
    other = InTree(eqx.Applied(nn.Dense(3), model.part.variables))
    with pytest.raises(LiftArgumentError, match="it was converted for"):
        converted(other, X)


@pytest.mark.parametrize("parent", [{}, {"parent": None}], ids=["of the running module", "of none"])
def test_a_module_made_in_the_function_that_is_adopted_needs_no_parent(parent: dict[str, Any]) -> None:
    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            def make(key: Any) -> Any:
                return InTree(eqx.Applied.init(nn.Dense(2, **parent), key, x))

            return eqx.adopt(self.scope.push("tree"), make)(x)

    if parent:
        assert Outer().init_with_output(KEY, X)[0].shape == (2, 2)
    else:
        with pytest.raises(liftcore.statics.Undescribed, match=r"write `Dense\(…, parent=None\)`"):
            Outer().init(KEY, X)


# --- what a bridge keeps ----------------------------------------------------------------------------------------------

ADOPTED = {
    "object": lambda scope: bridge.adopt(scope, Thing),
    "function of an object": lambda scope: functools.partial(bridge.object_in_scope(Thing), scope),
    "kinds": lambda scope: pax.adopt(scope, lambda key: Kinds()),
    "module with kinds": lambda scope: pax.adopt(scope, Kinds()),
    "object with a module with kinds": lambda scope: bridge.adopt(scope, lambda rngs: InThing(Kinds())),
    "module with kinds with an object": lambda scope: pax.adopt(scope, lambda key: InKinds(Thing())),
    "to_linen": lambda scope: bridge.to_linen(Thing).clone(parent=scope),
}
INSIDE = {
    "none": lambda fn: fn,
    "jit": liftcore.jit,
    "remat": liftcore.remat,
    "vjp": lambda fn: lambda *args: liftcore.vjp(fn)(*args)[0],
    "loop": lambda fn: functools.partial(
        lambda loop, scope, x: loop(scope, 0, 1, x),
        liftcore.fori_loop(lambda scope, i, x: fn(scope, x), variable_carry=True),
    ),
}


@pytest.mark.parametrize("name", ADOPTED)
@pytest.mark.parametrize("lift", INSIDE)
def test_init_of_an_adopted_value_is_creation_and_a_call(lift: str, name: str) -> None:
    def model(scope: Any, x: Any) -> Any:
        inner = scope.push("part")
        return INSIDE[lift](lambda scope, x: ADOPTED[name](scope)(x))(inner, ADOPTED[name](inner)(x))

    y, variables = liftcore.init(model)(KEY, X)
    again, changed = liftcore.apply(model, mutable=True)(variables, X)
    counts = [next(leaf for leaf in jax.tree.leaves(one) if leaf.ndim == 0) for one in (variables, changed)]
    assert (counts, (y == again).all()) == ([2, 4], True)


FIRST = [scoped, Plain(), bridge.object_in_scope(Thing), bridge.to_linen(Thing), lambda s, x: pax.adopt(s, Kinds())(x)]


@pytest.mark.parametrize("fn", FIRST)
def test_all_bridges_keep_what_a_first_call_writes(fn: Any) -> None:
    model = bridge.ToNNX(fn, rngs=nnx.Rngs(0))
    model(X)
    counts = [
        pax.Layer(fn, KEY, X).n,
        next(leaf for leaf in jax.tree.leaves(eqx.Applied.init(fn, KEY, X).variables) if leaf.ndim == 0),
        bridge.ToNNX(fn, X, rngs=nnx.Rngs(0)).n.get_value(),
        model.n.get_value(),
    ]
    assert counts == [1, 1, 1, 1]


# --- owners of names --------------------------------------------------------------------------------------------------

SIZED = {
    "eqx": lambda scope, n: eqx.adopt(scope, lambda key: {"w": jnp.ones((3, n)), "b": {"c": jnp.ones(n)}}),
    "pax": lambda scope, n: pax.adopt(scope, lambda key: _kinds(n)),
    "module": lambda scope, n: pax.adopt(scope, _kinds(n)),
    "nnx": lambda scope, n: bridge.adopt(scope, lambda rngs: nnx.Dict(w=nnx.Param(jnp.ones((3, n))), b=_dict(n))),
}


def _kinds(n: int) -> Any:
    made = Empty()
    made.register_parameter("w", jnp.ones((3, n)))
    made.register_parameter("b", {"c": jnp.ones(n)})
    return made


def _dict(n: int) -> Any:
    return nnx.Dict(c=nnx.Param(jnp.ones(n)))


@pytest.mark.parametrize("style", SIZED)
def test_adopting_compares_shapes(style: str) -> None:
    def model(scope: Any, n: int) -> None:
        SIZED[style](scope.push("part"), n)

    _, variables = liftcore.init(model)(KEY, 2)
    liftcore.apply(model)(variables, 2)
    with pytest.raises(ScopeParamShapeError, match=r'param "(w|c)" at /part.*shape \(.*2,?\).* makes shape \(.*4,?\)'):
        liftcore.apply(model)(variables, 4)


@pytest.mark.parametrize("style", SIZED)
@pytest.mark.parametrize("other", ["param", "push", "adopt"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_name_has_one_owner(style: str, other: str, is_first: bool) -> None:
    others = {
        "param": lambda scope: scope.param("w", lambda key: jnp.ones(3)),
        "push": lambda scope: scope.push("b"),
        "adopt": lambda scope: eqx.adopt(scope, lambda key: {"w": jnp.ones(3)}),
    }

    def model(scope: Any) -> None:
        steps = [others[other], lambda scope: SIZED[style](scope, 3)]
        for step in steps if is_first else reversed(steps):
            step(scope)

    with pytest.raises(NameInUseError, match=r'"(w|b)" at /'):
        liftcore.init(model)(KEY)


@pytest.mark.parametrize("style", SIZED)
def test_an_equal_owner_shares_its_variables(style: str) -> None:
    def model(scope: Any) -> None:
        for _ in range(2):
            SIZED[style](scope, 3)
        liftcore.remat(lambda scope: SIZED[style](scope, 3) and None)(scope)

    assert jax.tree.map(jnp.shape, liftcore.init(model)(KEY)[1]) == {"params": {"w": (3, 3), "b": {"c": (3,)}}}


TAKES: dict[str, Any] = {
    "eqx": lambda scope: eqx.adopt(scope, lambda key: {"w": jnp.ones(3)}),
    "pax": lambda scope: pax.adopt(scope, lambda key: _kinds(3)),
    "nnx": lambda scope: bridge.adopt(scope, lambda rngs: nnx.Dict(w=nnx.Param(jnp.ones(3)))),
    "param": lambda scope: scope.param("w", lambda key: jnp.ones(3)),
    "push": lambda scope: scope.push("w"),
}
BODIES: dict[str, Any] = {
    "jit": lambda fn: liftcore.jit(fn),
    "vmap": lambda fn: liftcore.vmap(fn, axis_size=2, variable_axes={"params": None}, split_rngs=False),
    "cond": lambda fn: lambda scope: liftcore.cond(fn, lambda scope: None)(scope, True),
    "loop": lambda fn: (
        lambda scope: liftcore.fori_loop(lambda scope, *_: fn(scope), split_rngs=False)(scope, 0, 2, None)
    ),
}


@pytest.mark.parametrize("is_inside_first", [False, True])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("adopted", ["eqx", "pax", "nnx"])
@pytest.mark.parametrize("other", TAKES)
def test_a_name_has_one_owner_in_all_bodies(other: str, adopted: str, body: str, is_inside_first: bool) -> None:
    def model(scope: Any, outside: Any, inside: Any) -> None:
        steps = [outside, BODIES[body](lambda scope: (inside(scope), None)[1])]
        for step in reversed(steps) if is_inside_first else steps:
            step(scope)

    for pair in (TAKES[other], TAKES[adopted]), (TAKES[adopted], TAKES[other]):
        if other == adopted:
            liftcore.init(model)(KEY, *pair)
            continue
        with pytest.raises(NameInUseError, match='"w" at /'):
            liftcore.init(model)(KEY, *pair)


@pytest.mark.parametrize("is_inside_first", [False, True])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(("outside", "inside"), list(itertools.product(["eqx", "pax", "nnx"], repeat=2)))
def test_a_name_below_has_one_owner_in_all_bodies(outside: str, inside: str, body: str, is_inside_first: bool) -> None:
    def take(name: str, scope: Any) -> None:
        TAKES[name](scope.push("below", reuse=True))

    def model(scope: Any) -> None:
        steps = [functools.partial(take, outside), BODIES[body](functools.partial(take, inside))]
        for step in reversed(steps) if is_inside_first else steps:
            step(scope)

    if outside == inside:
        liftcore.init(model)(KEY)
        return
    with pytest.raises(NameInUseError, match=r'"w" at /.*below'):
        liftcore.init(model)(KEY)


@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize(("first", "second"), list(itertools.product(["eqx", "nnx", "param", "push"], repeat=2)))
def test_branches_may_give_a_name_to_different_owners(first: str, second: str, below: bool) -> None:
    def take(name: str, scope: Any) -> None:
        TAKES[name](scope.push("below", reuse=True) if below else scope)

    def model(scope: Any, *after: str) -> None:
        liftcore.cond(*[functools.partial(take, name) for name in (first, second)])(scope, True)
        for name in after:
            take(name, scope)

    variables = liftcore.init(model)(KEY)[1]
    assert ("w" in str(variables)) == ({first, second} != {"push"})
    owners = {first, second} & {"eqx", "pax", "nnx"}
    for name in {"eqx", "pax", "nnx"} - owners if owners else ():
        with pytest.raises(NameInUseError, match='"w" at /'):
            liftcore.init(model)(KEY, name)


@pytest.mark.parametrize("adopted", ["eqx", "pax", "nnx"])
@pytest.mark.parametrize("other", TAKES)
def test_an_owner_keeps_its_names_in_later_calls_of_a_child(other: str, adopted: str) -> None:
    def model(scope: Any, *takes: str) -> None:
        child = scope.child(lambda scope, name: (TAKES[name](scope), None)[1], "child")
        for name in takes:
            child(name)

    liftcore.init(model)(KEY, adopted, adopted)
    if other != adopted:
        with pytest.raises(NameInUseError, match='"w" at /child'):
            liftcore.init(model)(KEY, adopted, other)


# --- wrong bridges ----------------------------------------------------------------------------------------------------


class Field(nn.Module):
    part: Any

    def __call__(self, x: Any) -> Any:
        return x


class Setup(nn.Module):
    make: Any

    def setup(self) -> None:
        self.part = [self.make()]

    def __call__(self, x: Any) -> Any:
        return x


LINES = {
    "tree": "eqx.adopt(",
    "kinds": "pax.adopt(",
    "object": "nnx.bridge.",
    "linen": "module.clone(parent=scope)",
    "function": "module(scope, x)",
}
GIVEN = {
    "tree": Tree,
    "kinds": Kinds,
    "object": Thing,
    "linen": Plain,
    "function": lambda: bridge.object_in_scope(Thing),
}
BRIDGES = {
    "eqx.adopt": lambda given: liftcore.init(lambda s: eqx.adopt(s, given))(KEY),
    "eqx.adopt of a maker": lambda given: liftcore.init(lambda s: eqx.adopt(s, lambda key: given))(KEY),
    "pax.adopt": lambda given: liftcore.init(lambda s: pax.adopt(s, given) and None)(KEY),
    "pax.adopt of a maker": lambda given: liftcore.init(lambda s: pax.adopt(s, lambda key: given) and None)(KEY),
    "nnx.bridge.adopt": lambda given: liftcore.init(lambda s: bridge.adopt(s, given) and None)(KEY),
    "nnx.bridge.adopt of a maker": lambda given: liftcore.init(lambda s: bridge.adopt(s, lambda _: given) and None)(
        KEY
    ),
    "nnx.bridge.object_in_scope": bridge.object_in_scope,
    "nnx.bridge.ToLinen": lambda given: bridge.ToLinen(given).init(KEY, X),
    "nnx.bridge.ToNNX": bridge.ToNNX,
    "eqx.Applied": lambda given: eqx.Applied(given, {}),
    "eqx.Applied.init": lambda given: eqx.Applied.init(given, KEY, X),
    "pax.Layer": lambda given: pax.Layer(given, KEY, X),
    "a field of a Linen-style module": lambda given: Field((given,)).init(KEY, X),
    "setup of a Linen-style module": lambda given: Setup(lambda: given).init(KEY, X),
}
FITS = {
    "eqx.adopt of a maker": {"tree"},
    "pax.adopt": {"kinds"},
    "pax.adopt of a maker": {"kinds"},
    "nnx.bridge.adopt of a maker": {"object", "tree", "kinds"},
    "nnx.bridge.ToNNX": {"linen", "function"},
    "eqx.Applied": {"linen", "function"},
    "eqx.Applied.init": {"linen", "function"},
    "pax.Layer": {"linen", "function"},
    "a field of a Linen-style module": {"linen", "tree", "function"},
    "setup of a Linen-style module": {"linen", "tree", "function"},
}
REST = {"ToNNX": "x, rngs=nnx.Rngs(0)", "Applied": "{}", "Applied.init": "key, x", "Layer": "key, x"}


def run_line(fix: str, module: Any) -> None:
    """Run the last line that a fix says."""
    line = re.findall(r"`([^`]*\([^`]*)`", fix)[-1]
    name = line.partition("(")[0]
    known = {"module": module, "x": X, "key": KEY, "eqx": eqx, "pax": pax, "nnx": nnx, "Layer": pax.Layer}
    known |= {"ToNNX": bridge.ToNNX, "Applied": eqx.Applied}
    line = line.replace("…", REST.get(name, ""))
    if name in REST:
        assert eval(line, known) is not None
    else:
        liftcore.init(lambda scope: eval(line, known | {"scope": scope}) is None)(KEY)


@pytest.mark.parametrize("name", BRIDGES)
@pytest.mark.parametrize("given", GIVEN)
def test_a_wrong_bridge_names_the_right_one(given: str, name: str) -> None:
    if given in FITS.get(name, set()):
        BRIDGES[name](GIVEN[given]())
        return
    with pytest.raises(LiftArgumentError) as caught:
        BRIDGES[name](GIVEN[given]())
    assert LINES[given] in caught.value.fix
    if "Linen-style" not in name:
        run_line(caught.value.fix, GIVEN[given]())


@pytest.mark.parametrize("name", [name for name in BRIDGES if "Linen-style" not in name and "maker" not in name])
def test_a_linen_class_is_no_module(name: str) -> None:
    with pytest.raises(WrongStyleError, match=r"module = Plain\(…\)"):
        BRIDGES[name](Plain)


@pytest.mark.parametrize("name", ["eqx.adopt of a maker", "pax.adopt of a maker", "nnx.bridge.adopt of a maker"])
@pytest.mark.parametrize("made", [Tree, Kinds, Thing, Plain])
def test_a_maker_that_returns_a_class_is_an_error(made: Any, name: str) -> None:
    with pytest.raises(WrongStyleError, match=rf"the class {made.__name__}.*module = {made.__name__}\(…\)") as caught:
        BRIDGES[name](made)
    run_line(caught.value.fix, made())


@pytest.mark.parametrize("name", ["pax.adopt", "nnx.bridge.adopt", "nnx.bridge.ToLinen"])
def test_a_function_of_a_scope_in_place_of_a_maker_is_told_so(name: str) -> None:
    with pytest.raises(TypeError, match="scoped") as caught:
        BRIDGES[name](scoped)
    assert "call `scoped(scope, x)`" in caught.value.__notes__[0]


def test_a_maker_of_no_module_is_an_error() -> None:
    with pytest.raises(WrongStyleError, match="expected a module with kinds, but the function made 3"):
        liftcore.init(lambda s: pax.adopt(s, lambda key: 3))(KEY)


def test_a_lift_cannot_return_an_adopted_value() -> None:
    for adopt in (lambda s: bridge.adopt(s, Thing), lambda s: pax.adopt(s, Kinds())):
        with pytest.raises(LiftArgumentError, match="returned an Adopted"):
            liftcore.init(liftcore.jit(adopt))(KEY)


def test_an_ended_scope_says_so_before_it_compares_names() -> None:
    kept: list[Any] = []
    liftcore.init(lambda scope: kept.append(scope) or scoped(scope, X))(KEY)
    for use in (
        lambda: kept[0].param("w", None),
        lambda: kept[0].variable("params", "w"),
        lambda: kept[0].push("w"),
        lambda: SIZED["eqx"](kept[0], 3),
    ):
        with pytest.raises(InvalidScopeError):
            use()


# --- functions of scopes that call objects ----------------------------------------------------------------------------


def test_a_function_of_an_object_has_only_the_attributes_of_the_object() -> None:
    fn = bridge.object_in_scope(lambda rngs: nnx.Dict(a=Thing(), b=nnx.List([Thing()])))
    assert [hasattr(fn, name) for name in ("init", "apply", "lazy_init", "a", "b", "c")] == [False] * 3 + [True] * 2 + [
        False
    ]
    assert liftcore.init(fn.b[0])(KEY, X)[0].shape == (2, 3)
    found = []
    liftcore.init(lambda s: found.extend(hasattr(bridge.adopt(s, Thing), name) for name in ("w", "apply", "eval")))(KEY)
    assert found == [True, False, True]


# --- copies and shared parts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", ["tree", "kinds", "applied"])
def test_an_object_keeps_the_changes_of_its_parts_and_copies_them(inner: str) -> None:
    part = MADE[inner]()
    model = nnx.List([part, part])
    options = {"mutable": "batch_stats"} if inner == "applied" else {}
    nnx.jit(lambda model, x: jax.tree.leaves(model[0](x, **options))[0])(model, X)
    if inner == "kinds":
        assert model[0].n == 1
    copied = nnx.clone(model)
    assert copied[0] is not copied[1]


def test_a_wrapped_module_is_shared_by_reference() -> None:
    part = bridge.ToNNX(Plain(), rngs=nnx.Rngs(0))
    copied = nnx.clone(nnx.List([part, part]))
    copied[0](X)
    copied[1](X)
    assert copied[0] is copied[1]
    assert (copied[0].n.get_value(), hasattr(part, "n")) == (2, False)


@pytest.mark.parametrize("inner", ["kinds", "object"])
@pytest.mark.parametrize("outer", [InTree, InKinds])
def test_a_filtered_function_changes_a_copy(inner: str, outer: Any) -> None:
    model = outer(MADE[inner]())
    changed = eqx.filter_jit(lambda model, x: (model(x), model)[1])(model, X)
    assert [float(jnp.asarray(one.part.n)) for one in (model, changed)] == [0, 1]


def test_two_places_of_a_module_with_kinds_are_an_error_and_of_other_parts_two_parts() -> None:
    for inner in MADE:
        part = MADE[inner]()
        if inner == "kinds":
            with pytest.raises(pax.errors.SharedModuleError):
                InKinds([part, part]).copy()
        else:
            first, second = InKinds([part, part]).copy().part
            assert first is not second


def test_a_layer_needs_only_types_and_keeps_what_its_first_call_writes() -> None:
    layer = pax.Layer(scoped, KEY, jax.ShapeDtypeStruct((2, 3), jnp.float32))
    assert layer.n == 1
    layer(X)
    layer.eval()
    assert layer.n == 2
