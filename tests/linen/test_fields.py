from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import cloudpickle
import jax
import jax.numpy as jnp
import pytest

import linen_like as nn
from liftcore import static_key
from liftcore.statics import Undescribed
from linen_like.errors import ReservedModuleAttributeError, UnhashableModuleError


class Model(nn.Module):
    size: int
    layers: Any = ()
    scale: float = 1.0
    kind: ClassVar[str] = "model"

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.scale * nn.Dense(self.size)(x)


def test_fields_are_constructor_arguments() -> None:
    model = Model(3, scale=2.0, name="m")
    assert (model.size, model.layers, model.scale, model.name, model.parent) == (3, (), 2.0, "m", None)
    assert [field.name for field in dataclasses.fields(model)] == ["size", "layers", "scale", "parent", "name"]


def test_wrong_arguments_are_python_errors() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'size'"):
        Model()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'sizes'"):
        Model(1, sizes=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional arguments but 5 were given"):
        Model(1, (), 1.0, "name")  # type: ignore[misc]


def test_parent_and_name_stay_keyword_only_in_subclasses() -> None:
    class Sub(Model):
        extra: int = 0

    assert Sub(1, (), 2.0, 7).extra == 7
    assert Sub(1, name="n").name == "n"


def test_kw_only_class() -> None:
    class Options(nn.Module, kw_only=True):
        first: int = 0
        second: str

    class More(Options):
        third: int

    assert (More(3, second="b").third, More(3, second="b").second) == (3, "b")
    with pytest.raises(TypeError):
        Options(1, "b")  # type: ignore[misc]


def test_default_factory_makes_a_value_for_each_instance() -> None:
    class Table(nn.Module):
        rows: list[int] = dataclasses.field(default_factory=list)

    assert Table().rows is not Table().rows


def test_mutable_default_is_refused_as_in_any_dataclass() -> None:
    with pytest.raises(ValueError, match="mutable default"):

        class Table(nn.Module):
            rows: list[int] = []  # noqa: RUF012


@pytest.mark.parametrize(("field", "kind"), [("parent", "int"), ("scope", "Any"), ("name", "int")])
def test_reserved_field_is_an_error(field: str, kind: str) -> None:
    with pytest.raises(
        ReservedModuleAttributeError,
        match=rf'"{field}" of class Bad: every module uses|class Bad: it .* "{field}".*rename the field',
    ):
        type("Bad", (nn.Module,), {"__annotations__": {field: kind}})


def test_name_may_be_declared_with_its_own_type_and_a_default() -> None:
    class Named(nn.Module):
        size: int
        name: str | None = "chosen"

    assert Named(3).name == "chosen"
    assert Named(3, name="other").name == "other"


# --- values -----------------------------------------------------------------------------------------------------------


def test_modules_are_equal_by_class_and_fields() -> None:
    class Sub(Model):
        pass

    assert Model(1) == Model(1)
    assert Model(1, name="a") != Model(1)
    assert Model(1) != Model(2)
    assert Model(1) != Sub(1)
    assert Model(1, (Model(2),)) == Model(1, (Model(2),))
    assert hash(Model(1, (Model(2),))) == hash(Model(1, (Model(2),)))
    assert len({Model(1), Model(1), Model(2)}) == 2


def test_hash_of_unhashable_field_names_it() -> None:
    with pytest.raises(UnhashableModuleError, match=r'hash of Model: field "layers" cannot be hashed \(list\)'):
        hash(Model(1, []))


def test_hash_of_bound_module_is_an_error() -> None:
    with pytest.raises(UnhashableModuleError, match=r"hash of Model at /: .*unbind\(\)"):
        hash(Model(1).bind({}))


def test_bound_modules_in_different_places_differ() -> None:
    one, other = Model(1).bind({}), Model(1).bind({})
    assert one == one
    assert one != other


def test_the_key_of_a_module_is_its_class_and_fields() -> None:
    one, other = (Model(1, (nn.Dense(2), nn.relu), name="a") for _ in range(2))
    assert static_key(one) == static_key(other)
    assert hash(static_key(one)) == hash(static_key(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [(Model(1), Model(True)), (Model(1), Model(2)), (Model(0.0), Model(-0.0)), (Model(1), nn.Dense(1))],  # type: ignore[arg-type]
)
def test_keys_of_different_modules_differ(one: nn.Module, other: nn.Module) -> None:
    assert static_key(one) != static_key(other)


def test_a_module_with_an_array_in_a_field_has_no_key() -> None:
    with pytest.raises(Undescribed, match=r"Array.* at \.layers\[0\]"):
        static_key(Model(1, (jnp.ones(2),)))
    static_key(Model(1, {"a": [1, 2.0]}))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_and_pickles_are_equal(copied: Callable[[Any], Any]) -> None:
    model = Model(3, (Model(2),), name="m")
    again = copied(model)
    assert again == model
    x = jnp.ones((2, 3))
    assert jax.tree.all(
        jax.tree.map(lambda a, b: (a == b).all(), *(m.init(jax.random.key(0), x) for m in (model, again)))
    )


REQUIRED: dict[str, dict[str, Any]] = {
    "BatchApply": {"f": math.sin},
    "Bidirectional": {"forward_rnn": nn.RNN(nn.LSTMCell(3)), "backward_rnn": nn.RNN(nn.GRUCell(3))},
    "Conv": {"features": 3, "kernel_size": (3,)},
    "ConvLSTMCell": {"features": 3, "kernel_size": (3, 3)},
    "ConvLocal": {"features": 3, "kernel_size": (3,)},
    "ConvTranspose": {"features": 3, "kernel_size": (3,)},
    "Dropout": {"rate": 0.5},
    "Einsum": {"shape": (3, 4), "einsum_str": "ab,bc->ac"},
    "Embed": {"num_embeddings": 5, "features": 3},
    "LoRA": {"base": nn.Dense(3), "rank": 2},
    "LoRADense": {"features": 3, "rank": 2},
    "MultiHeadAttention": {"num_heads": 2},
    "MultiHeadDotProductAttention": {"num_heads": 2},
    "RNN": {"cell": nn.OptimizedLSTMCell(3)},
    "SelfAttention": {"num_heads": 2},
    "Sequential": {"layers": [nn.Dense(3), nn.LayerNorm()]},
    "SpectralNorm": {"layer_instance": nn.Dense(3)},
    "Stack": {"block": nn.Dense(3), "length": 2},
    "WeightNorm": {"layer_instance": nn.Dense(3)},
    **{name: {"features": 3} for name in ("Dense", "DenseGeneral")},
    **{name: {"features": 3} for name in ("GRUCell", "LSTMCell", "MGUCell", "OptimizedLSTMCell", "SimpleCell")},
}
"""Of each layer the fields that have no default."""

LAYERS = [
    name for name in nn.__all__ if isinstance(getattr(nn, name), type) and issubclass(getattr(nn, name), nn.Module)
]


@pytest.mark.parametrize("name", sorted(set(LAYERS) - {"Module"}))
def test_every_layer_with_default_fields_pickles(name: str) -> None:
    layer = getattr(nn, name)(**REQUIRED.get(name, {}))
    again = pickle.loads(pickle.dumps(layer))
    assert again == layer


def test_every_default_of_a_layer_is_equal_after_a_pickle() -> None:
    """Also of fields that some layer sets when it is made."""
    for name in LAYERS:
        for field in dataclasses.fields(getattr(nn, name)):
            if field.default is not dataclasses.MISSING and field.init:
                assert pickle.loads(pickle.dumps(field.default)) == field.default, f"{name}.{field.name}"


def test_pickle_of_bound_module_is_unbound() -> None:
    model = Model(3, (Model(2),))
    bound = model.bind(model.init(jax.random.key(0), jnp.ones((2, 3))))
    again = pickle.loads(pickle.dumps(bound))
    assert again.scope is None
    assert [layer.scope for layer in again.layers] == [None]


def test_local_class_can_be_cloudpickled() -> None:
    class Local(nn.Module):
        size: int

        def setup(self) -> None:
            self.dense = nn.Dense(self.size)

        def __call__(self, x: Any) -> Any:
            return self.dense(x)

    again = cloudpickle.loads(cloudpickle.dumps(Local(2)))
    assert jax.tree.map(jnp.shape, again.init(jax.random.key(0), jnp.ones(3))) == {
        "params": {"dense": {"kernel": (3, 2), "bias": (2,)}}
    }


def test_repr_shows_what_differs_from_the_defaults() -> None:
    assert repr(nn.Dense(3)) == "Dense(features=3)"
    assert repr(nn.Dense(3, use_bias=False, kernel_init=nn.initializers.zeros, name="a")) == (
        "Dense(features=3, use_bias=False, kernel_init=zeros, name='a')"
    )
    assert repr(nn.Sequential([nn.Dense(1), nn.relu])).startswith("Sequential(layers=[Dense(features=1), ")


def test_repr_of_bound_module_shows_its_submodules() -> None:
    class Net(nn.Module):
        def setup(self) -> None:
            self.head = nn.Dense(2)

        @nn.compact
        def __call__(self, x: Any) -> Any:
            nn.Dense(3)(self.head(x))
            return repr(self)

    text, _ = Net().init_with_output(jax.random.key(0), jnp.ones(3))
    assert text == (
        "Net(\n    + head: Dense(features=2, name='head'),\n    + Dense_0: Dense(features=3, name='Dense_0'),\n)"
    )


def test_repr_runs_no_setup_and_survives_half_made_modules() -> None:
    class Net(nn.Module):
        size: int

        def __post_init__(self) -> None:
            assert repr(self) == "Net(size=3)"
            super().__post_init__()

        def setup(self) -> None:
            raise AssertionError

    assert repr(Net(3).bind({})) == "Net(size=3)"


def test_parent_and_name_are_the_last_fields_of_every_class() -> None:
    class First(nn.Module):
        a: int
        b: int = 2

    class Second(First):
        c: int = 3

    assert [field.name for field in dataclasses.fields(First)] == ["a", "b", "parent", "name"]
    assert [field.name for field in dataclasses.fields(Second)] == ["a", "b", "c", "parent", "name"]


def test_a_constructor_that_wraps_the_real_one_may_ask_what_there_is() -> None:
    class Config(nn.Module):
        size: int

    def wrapped(self: Any, *args: Any, original: Any = Config.__init__, **kwargs: Any) -> None:
        assert not hasattr(self, "kept")
        self.kept = args
        original(self, *args, **kwargs)

    Config.__init__ = wrapped  # type: ignore[method-assign]
    assert (Config(3).size, Config(3).kept) == (3, (3,))


def test_what_a_subclass_of_a_layer_adds_is_no_option_of_the_layer() -> None:
    class Tuned(nn.Dense):
        inputs: str = "tokens"
        axis: int = 0

    layer, x = Tuned(3), jnp.ones((2, 4))
    assert nn.LoRA(layer, rank=1).init_with_output(jax.random.key(0), x)[0].shape == (2, 3)
