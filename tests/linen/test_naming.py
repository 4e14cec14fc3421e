from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like as nn
from linen_like.errors import NameInUseError
from linen_like.lifecycle.fields import map_instances

X = jnp.ones((2, 3))


def tree_of(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return jax.tree.map(jnp.shape, model.init(jax.random.key(0), *(args or (X,)), **kwargs)["params"])


class Loop(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        for size in (4, 3):
            x = nn.Dense(size, use_bias=False)(x)
        return nn.LayerNorm(use_bias=False)(x)


def test_compact_submodules_are_numbered_by_class() -> None:
    assert tree_of(Loop()) == {
        "Dense_0": {"kernel": (3, 4)},
        "Dense_1": {"kernel": (4, 3)},
        "LayerNorm_0": {"scale": (3,)},
    }


def test_every_call_begins_with_free_names() -> None:
    class Twice(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            loop = Loop()
            return loop(loop(x))

    assert tree_of(Twice()) == {"Loop_0": tree_of(Loop())}


def test_setup_submodules_are_named_by_attribute_and_key() -> None:
    class Model(nn.Module):
        def setup(self) -> None:
            self.one = nn.Dense(2)
            self.many = [nn.Dense(2), {"a": nn.Dense(2), 1: nn.Dense(2)}]

        def __call__(self, x: Any) -> Any:
            for layer in (self.one, self.many[0], self.many[1]["a"], self.many[1][1]):
                layer(x)

    assert set(tree_of(Model())) == {"one", "many_0", "many_1_a", "many_1_1"}


def test_explicit_name_wins_over_the_attribute() -> None:
    class Model(nn.Module):
        def setup(self) -> None:
            self.one = nn.Dense(2, name="chosen")

        def __call__(self, x: Any) -> Any:
            return self.one(x)

    assert set(tree_of(Model())) == {"chosen"}


class Keeping(nn.Module):
    """Keeps the names of modules that it is given."""

    inner: Any
    preserve_adopted_names = True

    def __call__(self, x: Any) -> Any:
        return self.inner(x)


@pytest.mark.parametrize("lift", [lambda cls: cls, nn.jit, nn.remat, lambda cls: nn.jit(nn.remat(cls))])
def test_adopted_names_are_kept_where_the_class_says_so(lift: Any) -> None:
    cls = lift(Keeping)
    assert set(tree_of(cls(nn.Dense(2, name="chosen")))) == {"chosen"}
    assert set(tree_of(cls(nn.Dense(2)))) == {"inner"}
    assert tree_of(cls(cls(nn.Dense(2, name="chosen"), name="outer"))).keys() == {"outer"}
    assert tree_of(cls(cls(nn.Dense(2, name="chosen"), name="outer")))["outer"].keys() == {"chosen"}


def test_automatic_prefix_is_a_class_attribute() -> None:
    class Other(nn.Dense):
        _name_prefix = "Dense"

    class Sub(Other):
        pass

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return Sub(2)(Other(2)(nn.Dense(2)(x)))

    assert set(tree_of(Model())) == {"Dense_0", "Dense_1", "Sub_0"}


def test_module_shared_by_two_parents_is_named_by_the_first() -> None:
    class Uses(nn.Module):
        dense: Any

        def __call__(self, x: Any) -> Any:
            return self.dense(x)

    dense = nn.Dense(3)
    assert tree_of(nn.Sequential([Uses(dense), Uses(dense)])) == {
        "layers_0": {"dense": {"kernel": (3, 3), "bias": (3,)}}
    }
    assert set(tree_of(nn.Sequential([Uses(dense), dense]))) == {"layers_1"}


def test_path_says_where_a_module_is() -> None:
    paths = []

    class Leaf(nn.Module):
        @nn.compact
        def __call__(self) -> None:
            paths.append((self.name, self.path))

    class Model(nn.Module):
        def setup(self) -> None:
            self.leaf = Leaf()

        def __call__(self) -> None:
            self.leaf()

    nn.Sequential([Model()]).apply({})
    assert paths == [("leaf", ("layers_0", "leaf"))]


def clash(*kinds: str) -> nn.Module:
    class Clash(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> None:
            for kind in kinds:
                if kind == "module":
                    nn.Dense(2, name="w")(x)
                elif kind == "param":
                    self.param("w", nn.initializers.ones, (2,))
                else:
                    self.variable(kind, "w", lambda: 1.0)

    return Clash()


@pytest.mark.parametrize(
    "kinds", [("module", "module"), ("param", "param"), ("module", "param"), ("param", "module"), ("state", "module")]
)
def test_name_taken_twice_is_an_error(kinds: tuple[str, str]) -> None:
    with pytest.raises(NameInUseError, match=r'"w" at /: .* or give one of them another name, such as "w_2"'):
        clash(*kinds).init(jax.random.key(0), X)


def test_collections_have_names_of_their_own() -> None:
    assert set(clash("param", "state").init(jax.random.key(0), X)) == {"params", "state"}


def test_setup_and_compact_names_clash_in_the_same_call() -> None:
    class Model(nn.Module):
        def setup(self) -> None:
            self.Dense_0 = nn.Dense(3)

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(self.Dense_0(x))

    with pytest.raises(NameInUseError, match='"Dense_0" at /'):
        Model().init(jax.random.key(0), X)


def test_map_instances_visits_containers_and_pytrees() -> None:
    one, two = nn.Dense(1), nn.Dense(2)
    tree = {"a": [one, 3], "b": (two, None), "c": nn.FrozenDict({"d": one}), "e": jax.tree_util.Partial(len, two)}
    seen: list[Any] = []
    mapped = map_instances(tree, nn.Module, lambda module: seen.append(module) or module.features)  # type: ignore[func-returns-value]
    assert seen == [one, two, one, two]
    assert mapped["a"] == [1, 3]
    assert mapped["b"] == (2, None)
    assert mapped["c"] == nn.FrozenDict({"d": 1})
    assert mapped["e"].args == (2,)


def test_map_instances_passes_on_what_holds_none() -> None:
    tree = {"a": [1, 2], "b": (X, "text", len)}
    assert map_instances(tree, nn.Module, lambda module: 0) is tree
