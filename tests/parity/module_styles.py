"""Models in many styles of writing modules, each made with one library or the other.

A style is a function of a library that returns a model; it may have keyword arguments for `apply` as `style.call`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

STYLES: dict[str, Callable[[Any], Any]] = {}
T = TypeVar("T")


def style(**call: Any) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Adds a style; `call` are keyword arguments for `apply`."""

    def add(build: Callable[[Any], Any]) -> Callable[[Any], Any]:
        build.call = call  # type: ignore[attr-defined]
        STYLES[build.__name__] = build
        return build

    return add


@style()
def compact_loop(nn: Any) -> Any:
    class MLP(nn.Module):
        features: Sequence[int]

        @nn.compact
        def __call__(self, x: Any) -> Any:
            for size in self.features:
                x = nn.tanh(nn.Dense(size)(x))
            return x

    return MLP([4, 3])


@style()
def setup_attributes(nn: Any) -> Any:
    class MLP(nn.Module):
        def setup(self) -> None:
            self.first = nn.Dense(4)
            self.second = nn.Dense(3)
            self.scale = self.param("scale", nn.initializers.normal(), (3,))

        def __call__(self, x: Any) -> Any:
            return self.second(nn.relu(self.first(x))) * self.scale

    return MLP()


@style()
def mixed_setup_and_compact(nn: Any) -> Any:
    class Mixed(nn.Module):
        def setup(self) -> None:
            self.inner = nn.Dense(4)

        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(4)(self.inner(x))
            x = self.helper(x)
            return nn.Dense(2)(x)

        @nn.compact
        def helper(self, x: Any) -> Any:
            return nn.Dense(5)(x) * self.param("h", nn.initializers.normal(), (5,))

    return Mixed()


@style()
def noncompact_helper_called_in_compact(nn: Any) -> Any:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return self.head(self.head(x))

        def head(self, x: Any) -> Any:
            return nn.Dense(3)(x)

    return Model()


@style()
def nowrap_helper_makes_submodules(nn: Any) -> Any:
    class Model(nn.Module):
        @nn.nowrap
        def make(self, size: int) -> Any:
            return nn.Dense(size)

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return self.make(2)(self.make(3)(x))

    return Model()


@style()
def inheritance_with_super(nn: Any) -> Any:
    class Base(nn.Module):
        size: int = 3

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(self.size)(x)

    class Middle(Base):
        bias: bool = True

        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(4, use_bias=self.bias)(x)
            x = super().__call__(x)
            return nn.Dense(2)(x)

    class Top(Middle):
        pass

    return Top(5, bias=False)


@style()
def inherited_setup(nn: Any) -> Any:
    class Base(nn.Module):
        def setup(self) -> None:
            self.body = nn.Dense(4)

        def __call__(self, x: Any) -> Any:
            return self.head(self.body(x))

    class Head(Base):
        def setup(self) -> None:
            super().setup()
            self.head = nn.Dense(2, use_bias=False)

    return Head()


@style()
def plain_mixin_and_generic(nn: Any) -> Any:
    class Tools:
        def twice(self, x: Any) -> Any:
            return 2 * x

    class Layer(nn.Module, Tools, Generic[T]):
        of: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return self.twice(nn.Dense(self.of)(x))

    return Layer[int](3)


@style()
def shared_in_compact(nn: Any) -> Any:
    class Shared(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            dense = nn.Dense(x.shape[-1])
            return dense(dense(dense(x)))

    return Shared()


@style()
def shared_setup_called_twice(nn: Any) -> Any:
    class Inner(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(x.shape[-1])(nn.Dense(4)(x))

    class Outer(nn.Module):
        def setup(self) -> None:
            self.inner = Inner()

        def __call__(self, x: Any) -> Any:
            return self.inner(self.inner(x))

    return Outer()


@style()
def passed_to_another_in_setup(nn: Any) -> Any:
    class Uses(nn.Module):
        dense: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(self.dense(x))

    class Outer(nn.Module):
        def setup(self) -> None:
            self.dense = nn.Dense(4)
            self.one = Uses(self.dense)
            self.two = Uses(self.dense)

        def __call__(self, x: Any) -> Any:
            return self.one(x) + self.two(x) + self.dense(x).sum()

    return Outer()


@style()
def passed_to_another_in_compact(nn: Any) -> Any:
    class Uses(nn.Module):
        dense: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(self.dense(x))

    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            dense = nn.Dense(4)
            return Uses(dense)(x) + Uses(dense, name="other")(x) + Uses(nn.Dense(2))(x)

    return Outer()


@style()
def attribute_given_to_the_constructor(nn: Any) -> Any:
    class Outer(nn.Module):
        inner: Any
        other: Any = None

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return self.inner(x) + nn.Dense(3)(x)

    return Outer(inner=nn.Dense(3), other=nn.Dense(5))


@style()
def named_attribute_is_named_by_the_field(nn: Any) -> Any:
    class Outer(nn.Module):
        inner: Any

        def __call__(self, x: Any) -> Any:
            return self.inner(x)

    return Outer(inner=nn.Dense(3, name="mine"))


@style()
def one_instance_given_twice(nn: Any) -> Any:
    class Wrap(nn.Module):
        inner: Any

        def __call__(self, x: Any) -> Any:
            return self.inner(x)

    class Outer(nn.Module):
        z: Any
        a: Any

        def __call__(self, x: Any) -> Any:
            return self.z(x) + self.a(x)

    dense = nn.Dense(3)
    return Outer(z=Wrap(dense), a=dense)


@style()
def attribute_used_as_template(nn: Any) -> Any:
    class Outer(nn.Module):
        make: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = self.make.clone(parent=self, name="again")(x)
            return self.make.copy()(self.make(x))

    return Outer(make=nn.Dense(3))


@style()
def class_given_as_attribute(nn: Any) -> Any:
    class Outer(nn.Module):
        layer: Any = nn.Dense

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return self.layer(3)(x)

    return Outer(functools.partial(nn.Dense, use_bias=False))


@style()
def lists_tuples_and_dicts(nn: Any) -> Any:
    class Pair(NamedTuple):
        left: Any
        right: Any

    class Outer(nn.Module):
        def setup(self) -> None:
            self.layers = [nn.Dense(3), (nn.Dense(4), nn.Dense(3))]
            self.blocks = {"b": nn.Dense(3), "a": {"c": nn.Dense(3)}, "n": None}
            self.pair = Pair(nn.Dense(3), [nn.Dense(3)])
            self.ordered = collections.OrderedDict(z=nn.Dense(3))

        def __call__(self, x: Any) -> Any:
            x = self.layers[0](x)
            for layer in self.layers[1]:
                x = layer(x)
            x = self.blocks["a"]["c"](self.blocks["b"](x))
            return self.ordered["z"](self.pair.right[0](self.pair.left(x)))

    return Outer()


@style()
def containers_given_to_the_constructor(nn: Any) -> Any:
    class Outer(nn.Module):
        layers: Any
        table: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return sum(self.table[key](x) for key in sorted(self.table))

    return Outer([nn.Dense(3), nn.tanh, nn.Dense(4)], {"b": nn.Dense(2), "a": nn.Dense(2)})


@style()
def many_in_a_list_one_of_them_twice(nn: Any) -> Any:
    class Outer(nn.Module):
        def setup(self) -> None:
            layers = [nn.Dense(3) for _ in range(11)]
            layers[10] = layers[2]
            self.layers = layers

        def __call__(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    return Outer()


@style()
def sequential(nn: Any) -> Any:
    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            dense = nn.Dense(3)
            return nn.Sequential([dense, nn.relu, nn.Dense(4), nn.Sequential([nn.Dense(3)]), dense])(x)

    return Outer()


@style()
def explicit_names(nn: Any) -> Any:
    class Outer(nn.Module):
        def setup(self) -> None:
            self.attribute = nn.Dense(3, name="explicit")
            self.other = nn.Dense(3)

        def __call__(self, x: Any) -> Any:
            return self.inside(self.other(self.attribute(x)))

        @nn.compact
        def inside(self, x: Any) -> Any:
            return nn.Dense(2)(nn.Dense(3, name="first")(nn.Dense(3)(x)))

    return Outer()


@style()
def nested_deeply(nn: Any) -> Any:
    class Nest(nn.Module):
        depth: int

        @nn.compact
        def __call__(self, x: Any) -> Any:
            if self.depth:
                x = Nest(self.depth - 1)(x)
            return nn.Dense(3)(x)

    return Nest(3)


@style()
def methods_share_setup(nn: Any) -> Any:
    class AutoEncoder(nn.Module):
        def setup(self) -> None:
            self.encoder, self.decoder = nn.Dense(2), nn.Dense(3)

        def __call__(self, x: Any) -> Any:
            return self.decode(self.encode(x))

        def encode(self, x: Any) -> Any:
            return self.encoder(x)

        def decode(self, z: Any) -> Any:
            return self.decoder(z)

    return AutoEncoder()


@style(method="encode")
def method_by_name(nn: Any) -> Any:
    return methods_share_setup(nn)


@style(method="encoder")
def method_is_a_submodule(nn: Any) -> Any:
    class Outer(nn.Module):
        encoder: Any

        def __call__(self, x: Any) -> Any:
            return -self.encoder(x)

    return Outer(nn.Dense(2))


@style(method=lambda model, x: model.decoder(model.encode(x)) + 1)
def method_by_function(nn: Any) -> Any:
    return methods_share_setup(nn)


@style(rngs=["dropout"])
def dropout(nn: Any) -> Any:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dropout(0.5, deterministic=False)(nn.Dense(8)(x))
            drop = nn.Dropout(0.5, deterministic=False, name="named")
            return drop(drop(x))

    return Model()


@style(rngs=["noise"])
def draws_in_setup_and_calls(nn: Any) -> Any:
    class Noise(nn.Module):
        def setup(self) -> None:
            self.first = jax.random.normal(self.make_rng("noise"), ())

        def __call__(self, x: Any) -> Any:
            other = jax.random.normal(self.make_rng("other"), x.shape) if self.has_rng("other") else 0
            return x + self.first + jax.random.normal(self.make_rng("noise"), x.shape) + other

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            noise = Noise()
            return noise(noise(x)) + jax.random.normal(self.make_rng("noise"), x.shape)

    return Model()


@style()
def falls_back_to_params(nn: Any) -> Any:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            if self.is_initializing():
                x = x + jax.random.normal(self.make_rng("noise"), x.shape) + jax.random.normal(self.make_rng(), x.shape)
            return nn.Dense(2)(x)

    return Model()


@style(mutable=["batch_stats", "state", "intermediates"])
def state_and_sow(nn: Any) -> Any:
    class Counter(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            count = self.variable("state", "count", lambda: jnp.zeros((), jnp.int32))
            mean = self.variable("batch_stats", "mean", jnp.zeros, x.shape[-1:])
            if not self.is_initializing():
                count.value += 1
                mean.value = 0.9 * mean.value + 0.1 * x.mean(0)
            self.sow("intermediates", "x", x)
            self.sow("intermediates", "total", x.sum(), reduce_fn=lambda a, b: a + b, init_fn=lambda: 0.0)
            return nn.Dense(3)(x) * count.value

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            counter = Counter()
            return counter(counter(x))

    return Model()


@style(mutable=["state"])
def state_in_setup(nn: Any) -> Any:
    class Model(nn.Module):
        def setup(self) -> None:
            self.count = self.variable("state", "count", jnp.zeros, ())
            self.dense = nn.Dense(3)

        def __call__(self, x: Any) -> Any:
            self.count.value += 1
            if self.is_mutable_collection("state") and self.has_variable("state", "count"):
                self.put_variable("state", "count", self.get_variable("state", "count") + 1)
            return self.dense(x) + self.count.value

    return Model()


@style(capture_intermediates=True)
def captured_calls(nn: Any) -> Any:
    return mixed_setup_and_compact(nn)


@style(capture_intermediates=lambda module, name: name != "helper")
def captured_by_filter(nn: Any) -> Any:
    return mixed_setup_and_compact(nn)


@style(capture_intermediates=lambda module, name: True, mutable=["intermediates"])
def captured_with_setup(nn: Any) -> Any:
    return methods_share_setup(nn)


@style()
def unattached_inside(nn: Any) -> Any:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            dense = nn.Dense(3, parent=None)
            params = self.param("dense", lambda key: dense.init(key, x[0])["params"])
            return jax.vmap(lambda row: dense.apply({"params": params}, row))(x)

    return Model()


@style()
def keyword_only_fields(nn: Any) -> Any:
    class Base(nn.Module, kw_only=True):
        size: int = 3
        bias: bool

    class Model(Base):
        extra: int

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(self.size + self.extra, use_bias=self.bias)(x)

    return Model(1, bias=False)


@style()
def fields_with_factories_and_derived(nn: Any) -> Any:
    class Model(nn.Module):
        sizes: Any = dataclasses.field(default_factory=lambda: [4, 3])
        total: int = dataclasses.field(init=False, default=0)

        def __post_init__(self) -> None:
            self.total = sum(self.sizes)
            super().__post_init__()

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(self.total)(x)

    return Model()


@style()
def property_of_setup(nn: Any) -> Any:
    class Model(nn.Module):
        def setup(self) -> None:
            self.dense = nn.Dense(3)

        @property
        def kernel(self) -> Any:
            return self.dense.variables["params"]["kernel"]

        def __call__(self, x: Any) -> Any:
            y = self.dense(x)
            return y + self.kernel.sum()

    return Model()


@style()
def tied_weights(nn: Any) -> Any:
    class Model(nn.Module):
        def setup(self) -> None:
            self.words = nn.Embed(7, 3)
            self.body = nn.Dense(3)

        def __call__(self, x: Any) -> Any:
            ids = jnp.arange(x.shape[0])
            return self.words.attend(self.body(self.words(ids) + x))

    return Model()


@style()
def created_in_a_function(nn: Any) -> Any:
    def head(x: Any, size: int) -> Any:
        return nn.Dense(size)(x)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return head(head(x, 4), 2)

    return Model()


@style()
def setup_list_by_append(nn: Any) -> Any:
    class Model(nn.Module):
        depth: int = 3

        def setup(self) -> None:
            layers = []
            for size in range(self.depth):
                layers.append(nn.Dense(size + 2))
            self.layers = layers
            self.run = lambda x: functools.reduce(lambda y, layer: layer(y), self.layers, x)

        def __call__(self, x: Any) -> Any:
            return self.run(x)

    return Model()


@style()
def callable_attribute_modules(nn: Any) -> Any:
    class Residual(nn.Module):
        inner: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return x + self.inner(x)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = Residual(nn.Dense(3))(x)
            x = Residual(Residual(nn.Dense(3)))(x)
            return Residual(lambda x: 2 * x)(x)

    return Model()


@style()
def unbound_submodules_made_outside(nn: Any) -> Any:
    class Block(nn.Module):
        inner: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(self.inner(x))

    return nn.Sequential([Block(Block(nn.Dense(4))), nn.relu, Block(nn.Dense(2))])


@style()
def same_name_in_other_collections(nn: Any) -> Any:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            w = self.param("w", nn.initializers.normal(), (3,))
            return x * w + self.variable("consts", "w", lambda: jnp.ones(3)).value

    return Model()


@style()
def cloned_with_updates(nn: Any) -> Any:
    class Model(nn.Module):
        dense: Any

        def setup(self) -> None:
            self.wide = self.dense.clone(features=5)
            self.narrow = self.dense.clone(features=2, name=None)

        def __call__(self, x: Any) -> Any:
            return self.narrow(self.wide(x))

    return Model(nn.Dense(3))


@style()
def clone_keeps_what_it_holds(nn: Any) -> Any:
    class Block(nn.Module):
        inner: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(3)(self.inner(x))

    class Model(nn.Module):
        block: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = self.block(x)
            return self.block.clone(parent=self, name="second")(x)

    return Model(Block(nn.Dense(3)))


@style()
def submodule_by_getattr(nn: Any) -> Any:
    class Model(nn.Module):
        def setup(self) -> None:
            for i in range(2):
                setattr(self, f"layer{i}", nn.Dense(3))

        def __call__(self, x: Any) -> Any:
            return getattr(self, "layer1")(getattr(self, "layer0")(x))  # noqa: B009

    return Model()


@style()
def child_variables_read_by_the_parent(nn: Any) -> Any:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            dense = nn.Dense(3)
            y = dense(x)
            return y + dense.variables["params"]["bias"] + sum(map(len, (dense.path, self.path)))

    return Model()


def _low_rank(nn: Any) -> Any:
    class LowRank(nn.Module):
        base: Any
        rank: int = 1

        def setup(self) -> None:
            nn.share_scope(self, self.base)

        @nn.compact
        def __call__(self, x: Any) -> Any:
            a = self.param("a", nn.initializers.normal(), (x.shape[-1], self.rank))
            b = self.param("b", nn.initializers.normal(), (self.rank, self.base.features))
            return self.base(x) + x @ a @ b

    return LowRank


@style()
def shared_scope_with_a_field(nn: Any) -> Any:
    low_rank = _low_rank(nn)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return low_rank(nn.Dense(2))(low_rank(nn.Dense(3))(x))

    return Model()


@style()
def shared_scope_with_a_sibling(nn: Any) -> Any:
    class Model(nn.Module):
        def setup(self) -> None:
            self.dense = nn.Dense(3)
            self.more = _low_rank(nn)(self.dense)

        def __call__(self, x: Any) -> Any:
            return self.more(self.dense(x))

    return Model()


@style()
def shared_scope_of_what_setup_makes(nn: Any) -> Any:
    class Inner(nn.Module):
        def setup(self) -> None:
            self.dense = nn.Dense(3)
            self.scale = self.param("scale", nn.initializers.normal(), (3,))

        def __call__(self, x: Any) -> Any:
            return self.dense(x) * self.scale

    class Model(nn.Module):
        def setup(self) -> None:
            self.inner, self.other = Inner(), nn.Dense(3)
            nn.share_scope(self, self.inner)

        def __call__(self, x: Any) -> Any:
            return self.inner(self.other(self.inner(x)))

    return Model()


@style(rngs=["dropout"])
def methods_with_name_scopes(nn: Any) -> Any:
    class Model(nn.Module):
        @nn.compact_name_scope
        def encode(self, x: Any) -> Any:
            return nn.Dropout(0.5, deterministic=False)(nn.Dense(4)(x))

        @nn.compact_name_scope
        def decode(self, h: Any) -> Any:
            return nn.Dense(3)(nn.Dense(3)(h))

        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(3)(x)
            x = self.decode(self.encode(self.decode(self.encode(x))))
            return nn.Dense(2, name="head")(x)

    return Model()


@style()
def property_with_a_setter(nn: Any) -> Any:
    class Model(nn.Module):
        def setup(self) -> None:
            self.layer = nn.Dense(3)

        @property
        def layer(self) -> Any:
            return self.held

        @layer.setter
        def layer(self, value: Any) -> None:
            self.held = value

        def __call__(self, x: Any) -> Any:
            return self.layer(x)

    return Model()
