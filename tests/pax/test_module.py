"""Modules that are pytrees whose attributes have kinds."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pax_like as pax
from liftcore.errors import JaxTransformError, LiftArgumentError
from pax_like import PaxKind
from pax_like.errors import KindError, SharedModuleError


class Counter(pax.Module):
    """A state and a parameter."""

    def __init__(self, start: int = 0) -> None:
        self.register_state("count", jnp.array(start))
        self.register_parameter("bias", jnp.array(0.5))

    def step(self, by: Any = 1) -> Any:
        self.count = self.count + by
        return self.count * self.bias


class Pair(pax.Module):
    """Modules alone, in a list and in a dict; an array of each kind; a static attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.alone = Counter(1)
        self.several = [Counter(2), Counter(3)]
        self.named = {"b": Counter(4), "a": Counter(5)}
        self.register_subtree("weights", {"w": jnp.ones(2), "more": [jnp.zeros(1)]}, PaxKind.PARAMETER)
        self.name = "pair"


def leaves(tree: Any) -> list[float]:
    return [float(jnp.sum(leaf)) for leaf in jax.tree.leaves(tree)]


# -- a pytree ----------------------------------------------------------------------------------------------------------


def test_registered_attributes_are_leaves_and_all_others_are_the_definition() -> None:
    module = Pair()
    assert module.pytree_attributes == ("alone", "several", "named", "weights")
    assert leaves(module) == [1, 0.5, 2, 0.5, 3, 0.5, 5, 0.5, 4, 0.5, 0, 2]
    other = Pair()
    assert jax.tree.structure(module) == jax.tree.structure(other)
    assert hash(jax.tree.structure(module)) == hash(jax.tree.structure(other))
    other.name = "other"
    assert jax.tree.structure(module) != jax.tree.structure(other)


def test_paths_are_names_of_attributes() -> None:
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(Pair())]
    assert paths[:3] == [".alone.count", ".alone.bias", ".several[0].count"]


def test_name_to_kind_is_ordered_and_read_only_and_replaced() -> None:
    module = Pair()
    before = module.name_to_kind
    assert next(iter(before.items())) == ("alone", PaxKind.MODULE)
    with pytest.raises(TypeError):
        before["alone"] = PaxKind.STATE  # type: ignore[index]
    module.register_state("more", jnp.ones(()))
    assert "more" not in before
    assert list(module.name_to_kind) == [*before, "more"]


def test_values_of_kinds() -> None:
    assert [(kind.name, kind.value) for kind in PaxKind] == [
        ("STATE", 1),
        ("PARAMETER", 2),
        ("MODULE", 3),
        ("OTHERS", -1),
    ]


COPIES = {
    "map": lambda module: jax.tree.map(lambda leaf: leaf, module),
    "unflatten": lambda module: jax.tree.unflatten(*reversed(jax.tree.flatten(module))),
    "methods": lambda module: type(module).tree_unflatten(*reversed(module.tree_flatten())),
    "jit": lambda module: jax.jit(lambda module: module)(module),
    "copy": lambda module: module.copy(),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "vmap": lambda module: jax.tree.map(
        lambda leaf: leaf[0], jax.vmap(lambda module: module)(jax.tree.map(lambda leaf: leaf[None], module))
    ),
    "train": lambda module: module.eval().train(),
    "unfreeze": lambda module: module.freeze().unfreeze(),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("make", [Counter, Pair])
def test_copies_keep_kinds_and_do_not_show_in_the_original(how: str, make: Any) -> None:
    module = make()
    made = COPIES[how](module)
    assert type(made) is make
    assert dict(made.name_to_kind) == dict(module.name_to_kind)
    assert jax.tree.structure(made) == jax.tree.structure(module)
    assert leaves(made) == leaves(module)
    made.register_parameter("new", jnp.ones(()))
    made.static = 3
    assert "new" not in module.name_to_kind
    assert not hasattr(module, "static")
    assert not hasattr(module, "new")


def test_a_counter_counts() -> None:
    counter = Counter()
    assert float(counter.step()) == 0.5
    assert float(counter.step()) == 1
    assert [leaf.dtype for leaf in jax.tree.leaves(counter)] == [jnp.int32, jnp.float32]


def test_static_values_are_compared_by_type_and_sign() -> None:
    traces = []

    @jax.jit
    def run(module: Any) -> Any:
        traces.append(module.scale)
        return module.bias * module.scale

    for scale in (1, 1.0, True, 0.0, -0.0, 1):
        module = Counter()
        module.scale = scale
        assert float(run(module)) == 0.5 * scale
    assert list(map(repr, traces)) == ["1", "1.0", "True", "0.0", "-0.0"]


def test_subclasses_are_pytrees_by_being_defined() -> None:
    class Named(Counter):
        def __init__(self) -> None:
            super().__init__(7)
            self.title = "named"

    assert leaves(Named()) == [7, 0.5]
    assert jax.tree.map(lambda leaf: leaf, Named()).title == "named"


# -- kinds -------------------------------------------------------------------------------------------------------------


def test_a_module_without_an_initializer_takes_no_arguments() -> None:
    class Empty(pax.Module):
        size: int = 3

    assert Empty().size == 3
    for args, named in (((4,), {}), ((), {"size": 4}), ((), {"sise": 4})):
        with pytest.raises(TypeError, match=r"Empty\(\) takes no arguments"):
            Empty(*args, **named)


def test_an_assigned_module_keeps_the_kind_of_its_name() -> None:
    module = Counter()
    module.bias = Counter(3)
    assert module.name_to_kind["bias"] is PaxKind.PARAMETER
    assert leaves(module.parameters()) == [3, 0.5]


def test_an_empty_attribute_becomes_a_module_when_one_is_assigned() -> None:
    module = Counter()
    module.below = None
    assert "below" not in module.name_to_kind
    module.below = Counter(9)
    assert module.name_to_kind["below"] is PaxKind.MODULE
    module.below = None
    assert module.name_to_kind["below"] is PaxKind.MODULE
    assert leaves(module) == [0, 0.5]


def test_a_list_that_is_registered_empty_may_be_filled() -> None:
    module = Counter()
    module.register_modules("layers", [])
    module.layers.append(Counter(8))
    assert leaves(module) == [0, 0.5, 8, 0.5]


def test_a_deleted_attribute_has_no_kind() -> None:
    module = Counter()
    del module.count
    assert dict(module.name_to_kind) == {"bias": PaxKind.PARAMETER}
    module.register_parameter("count", jnp.ones(()))
    assert leaves(module) == [0.5, 1]


def test_train_and_eval_are_copies_of_all_modules() -> None:
    module = Pair()
    away = module.eval()
    assert module.is_training
    assert module.several[1].is_training
    assert not away.is_training
    assert not away.several[1].is_training
    assert not away.named["a"].is_training
    assert jax.tree.structure(away) != jax.tree.structure(module)
    assert jax.tree.structure(away.train()) == jax.tree.structure(module)


def test_frozen_parameters_are_states() -> None:
    module = Pair()
    frozen = module.freeze()
    assert leaves(frozen.parameters()) == []
    assert frozen.name_to_kind["weights"] is PaxKind.STATE
    assert module.name_to_kind["weights"] is PaxKind.PARAMETER
    assert leaves(frozen.unfreeze().parameters()) == leaves(module.parameters()) == [0.5, 0.5, 0.5, 0.5, 0.5, 0, 2]
    module.alone = module.alone.freeze()
    assert leaves(module.parameters()) == [0.5, 0.5, 0.5, 0.5, 0, 2]


def test_update_takes_what_is_there() -> None:
    module = Pair()
    doubled = jax.tree.map(lambda leaf: 2 * leaf, module.parameters())
    changed = module.update(doubled)
    assert leaves(changed) == [1, 1, 2, 1, 3, 1, 5, 1, 4, 1, 0, 4]
    assert leaves(module) == leaves(Pair())
    with pytest.raises(LiftArgumentError, match=r"Pair.update: expected a module of the same structure"):
        module.update(Counter())


def test_summary_and_repr() -> None:
    assert Pair().summary().splitlines()[:4] == [
        "Pair: 8 numbers in parameters, 5 in states",
        "alone               MODULE     Counter",
        "alone.count         STATE      int32[]",
        "alone.bias          PARAMETER  float32[]",
    ]
    assert repr(Counter()) == "Counter(count=int32[], bias=float32[], is_training=True)"


# -- misuse ------------------------------------------------------------------------------------------------------------


def changed_kind(module: Any) -> None:
    module.register_parameter("count", jnp.zeros(()))


def changed_by_freezing(module: Any) -> None:
    module.freeze().register_state("bias", jnp.zeros(()))


def no_module(module: Any) -> None:
    module.register_module("below", jnp.zeros(()))


def no_modules(module: Any) -> None:
    module.layers = [Counter(), jnp.tanh]


def no_array(module: Any) -> None:
    module.register_state("mode", "train")


def no_array_assigned(module: Any) -> None:
    module.count = jnp.tanh


def array_in_others(module: Any) -> None:
    module.register_subtree("w", [jnp.ones(2)], PaxKind.OTHERS)


def name_of_a_method(module: Any) -> None:
    module.register_state("parameters", jnp.zeros(()))


def no_kind(module: Any) -> None:
    module.register_subtree("w", jnp.zeros(()), "params")


@pytest.mark.parametrize(
    ("misuse", "said"),
    [
        (changed_kind, r"count of Counter: it was registered as STATE, and cannot become PARAMETER: a kind never"),
        (changed_by_freezing, r"bias of Counter: it was registered as PARAMETER, and cannot become STATE"),
        (no_module, r"below of Counter: expected modules in an attribute of kind MODULE, given a float32\[\] array"),
        (no_modules, r"layers of Counter: expected modules .* given the function tanh"),
        (no_array, r"mode of Counter: expected arrays in an attribute of kind STATE, given 'train'"),
        (
            no_array_assigned,
            r"count of Counter: expected arrays in an attribute of kind STATE, given the function tanh",
        ),
        (array_in_others, r"w of Counter: expected no arrays in an attribute of kind OTHERS, given a float32\[2\]"),
        (name_of_a_method, r'"parameters" of Counter: every module uses this name itself'),
        (no_kind, r"w of Counter: expected a kind, given 'params'\. Write one of"),
    ],
)
def test_misuse_of_kinds_is_an_error_that_changes_nothing(misuse: Any, said: str) -> None:
    module = Counter()
    with pytest.raises(KindError, match=said):
        misuse(module)
    assert dict(module.name_to_kind) == dict(Counter().name_to_kind)
    assert leaves(module) == leaves(Counter())


@pytest.mark.parametrize("array", [jnp.ones(2), np.ones(2), [{"w": jnp.ones(2)}]], ids=["jax", "numpy", "nested"])
def test_an_array_without_kind_is_an_error_when_the_module_is_flattened(array: Any) -> None:
    module = Counter()
    module.w = array
    with pytest.raises(KindError, match=r'w of Counter: it holds a float\d\d\[2\] array.*register_parameter\("w", …\)'):
        jax.tree.leaves(module)
    module.register_parameter("w", module.w)
    assert leaves(module) == [0, 0.5, 2]


def test_modules_that_are_put_into_a_list_later_are_an_error() -> None:
    module = Counter()
    module.layers = []
    module.layers.append(Counter())
    with pytest.raises(KindError, match=r'layers of Counter: it holds a module, Counter.*register_modules\("layers"'):
        jax.tree.leaves(module)


def test_an_attribute_without_key_is_an_error() -> None:
    module = Counter()
    module.opaque = [random.Random(0)]
    message = r"opaque of Counter: .* may change in place and cannot be compared"
    with pytest.raises(LiftArgumentError, match=message):
        jax.tree.leaves(module)


def test_a_module_that_stands_twice_is_an_error() -> None:
    module = Pair()
    module.named["a"] = module.several[1]
    with pytest.raises(SharedModuleError, match=r"named\['a'\] of Pair: it is the same Counter as several\[1\]"):
        jax.tree.leaves(module)
    module.named["a"] = module.several[1].copy()
    assert len(jax.tree.leaves(module)) == 12


def test_one_array_may_stand_twice() -> None:
    zeros = jnp.zeros(2)
    module = Counter()
    module.register_parameter("a", zeros)
    module.register_state("b", zeros)
    module.a = module.a + 1
    assert leaves(module) == [0, 0.5, 2, 0]


TRANSFORMATIONS = {
    "jit": lambda fn: jax.jit(fn)(),
    "grad": lambda fn: jax.grad(lambda x: fn() * 1.0 + x)(1.0),
    "vmap": lambda fn: jax.vmap(lambda x: fn())(jnp.ones(2)),
    "scan": lambda fn: jax.lax.scan(lambda c, x: (c, fn()), 0, jnp.ones(2)),
    "eval_shape": jax.eval_shape,
    "inner": lambda fn: jax.jit(lambda: jax.vmap(lambda x: fn())(jnp.ones(2)))(),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_a_change_inside_a_transformation_that_did_not_make_the_module_is_an_error(name: str) -> None:
    module = Pair()
    before = leaves(module)

    def change() -> Any:
        return module.several[0].step()

    def register() -> Any:
        module.register_state("new", jnp.ones(()))
        return 1.0

    def delete() -> Any:
        del module.alone
        return 1.0

    for misuse in (change, register, delete):
        with pytest.raises(
            JaxTransformError, match=r"inside a JAX transformation, but the module was created outside.*pax"
        ):
            TRANSFORMATIONS[name](misuse)
    assert leaves(module) == before


def test_a_module_may_be_made_and_changed_inside() -> None:
    def run(x: Any) -> Any:
        module = Counter()
        module.step(x)
        return module, module.step(x)

    module, value = jax.jit(run)(3)
    assert (int(module.count), float(value)) == (6, 3)
    module.step()
    assert int(module.count) == 7
