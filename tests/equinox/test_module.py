"""`Module` against Equinox: how modules are made, frozen, taken apart, called and compared."""

from __future__ import annotations

import abc
import copy
import dataclasses
import inspect
import pickle
import random
import warnings
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equinox_like
import liftcore
from equinox_like import Module
from liftcore import Scope
from liftcore.errors import LiftArgumentError

oracle = pytest.importorskip("equinox")

X = jnp.arange(3.0)
T = TypeVar("T")


def paths(tree: Any) -> Any:
    """The leaves of a pytree by their paths."""
    found = jax.tree.leaves_with_path(tree, is_leaf=lambda leaf: leaf is None)
    return [
        (jax.tree_util.keystr(path), np.asarray(leaf).tolist() if hasattr(leaf, "shape") else leaf)
        for path, leaf in found
    ]


def plain(eqx: Any) -> Any:
    class Linear(eqx.Module):
        w: Any
        b: Any = None
        size: int = eqx.field(static=True, default=3)

        def __call__(self, x: Any) -> Any:
            return self.w * x + self.size

    return [Linear(X), Linear(X, b=1.0, size=4), Linear(w=X)(X), jax.tree.map(lambda leaf: leaf + 1, Linear(X, 2))]


def own_initializer(eqx: Any) -> Any:
    class Linear(eqx.Module):
        w: Any
        act: Callable[..., Any]
        bias: Any = 0.5
        names: Any = dataclasses.field(default_factory=list)

        def __init__(self, size: int) -> None:
            self.w = jnp.ones(size)
            self.act = jnp.tanh

    return [Linear(2), Linear(2).names, Linear(2).bias]


def inherited(eqx: Any) -> Any:
    class Base(eqx.Module):
        a: Any
        b: Any = 2.0

        def both(self) -> Any:
            return self.a + self.b

    class Middle(Base):
        c: Any = 3.0

        def both(self) -> Any:
            return super().both() + self.c

    class Own(Middle):
        d: Any

        def __init__(self, d: Any) -> None:
            super().__init__(1.0)
            self.d = d

    class Last(Own):
        def both(self) -> Any:
            return -super().both()

    return [Middle(1.0), Middle(1.0).both(), Own(4.0), Own(4.0).both(), Last(5.0), Last(5.0).both()]


def converted(eqx: Any) -> Any:
    class Linear(eqx.Module):
        w: Any = eqx.field(converter=jnp.asarray)
        names: Any = eqx.field(converter=tuple, static=True, default=("a",))

    class Own(eqx.Module):
        w: Any = eqx.field(converter=jnp.asarray)

        def __init__(self, w: Any) -> None:
            self.w = w

    return [Linear([1.0, 2.0]), Linear(1.0, ["x", "y"]).names, Own([3.0])]


def checked(eqx: Any) -> Any:
    seen = []

    class Base(eqx.Module):
        a: Any

        def __check_init__(self) -> None:
            seen.append(("Base", self.a))

    class Child(Base):
        def __check_init__(self) -> None:
            seen.append(("Child", self.a))

    Child(1)
    return sorted(seen)


def check_raises(eqx: Any) -> Any:
    class Positive(eqx.Module):
        a: Any

        def __check_init__(self) -> None:
            if self.a < 0:
                raise ValueError("negative")

    return Positive(-1)


def post_init(eqx: Any) -> Any:
    class Linear(eqx.Module):
        size: int = eqx.field(static=True)
        w: Any = eqx.field(init=False)

        def __post_init__(self) -> None:
            self.w = jnp.ones(self.size)

    return Linear(3)


def bound_methods(eqx: Any) -> Any:
    class Linear(eqx.Module):
        w: Any

        def __call__(self, x: Any) -> Any:
            return self.w * x

        def twice(self, x: Any) -> Any:
            return self(self(x))

        @classmethod
        def make(cls) -> Any:
            return cls(2 * X)

        @staticmethod
        def of(x: Any) -> Any:
            return x + 1

        @property
        def size(self) -> int:
            return int(self.w.shape[0])

    model = Linear.make()
    return [
        jax.tree.leaves(model.twice),
        jax.tree.map(lambda leaf: leaf + 1, model.twice)(X),
        model.of(1),
        model.size,
        eqx.filter_jit(model.twice)(X),
        eqx.filter_vmap(model.__call__.__self__.__class__.of)(X),
        model.twice(X),
        eqx.filter_grad(lambda method, x: method(x).sum())(model.twice, X).__self__.w,
        Linear.twice(model, X),
    ]


def jitted_methods(eqx: Any) -> Any:
    class Linear(eqx.Module):
        w: Any
        act: Any = jnp.tanh

        @eqx.filter_jit
        def __call__(self, x: Any) -> Any:
            return self.act(self.w * x)

        @eqx.filter_grad
        def gradient(self, x: Any) -> Any:
            return self(x).sum()

    return [Linear(X)(X), Linear(X).gradient(X)]


def generic(eqx: Any) -> Any:
    class Box(eqx.Module, Generic[T]):
        value: T

    return [Box[int](3), Box(4)]


def abstract(eqx: Any) -> Any:
    class Base(eqx.Module):
        @abc.abstractmethod
        def __call__(self) -> Any: ...

    return Base()


def missing(eqx: Any) -> Any:
    class Linear(eqx.Module):
        w: Any
        b: Any

        def __init__(self) -> None:
            self.w = 1

    return Linear()


def undeclared(eqx: Any) -> Any:
    class Linear(eqx.Module):
        def __init__(self) -> None:
            self.w = 1

    return Linear()


def changed(eqx: Any) -> Any:
    class Linear(eqx.Module):
        w: Any

    Linear(1).w = 2


def compared(eqx: Any) -> Any:
    class Linear(eqx.Module):
        w: Any
        size: int = eqx.field(static=True, default=3)

    one, same, other, larger = Linear(X), Linear(X), Linear(X + 1), Linear(X, 4)
    numbers = [hash(Linear(1.0)) == hash(Linear(1.0)), Linear(1.0) == Linear(1.0), Linear(1.0) == Linear(2.0)]
    return [bool(one == same), bool(one == other), bool(one == larger), one == 3, *numbers]


def changed_by_copy(eqx: Any) -> Any:
    class Linear(eqx.Module):
        w: Any
        act: Any = jnp.tanh

    class MLP(eqx.Module):
        layers: list[Any]
        name: str = eqx.field(static=True, default="mlp")

    model = MLP([Linear(X), Linear(2 * X)])
    new = eqx.tree_at(lambda model: model.layers[1].w, model, jnp.zeros(2))
    arrays, others = eqx.partition(model, eqx.is_array)
    return [new, new.name, arrays, others, eqx.combine(arrays, others), dataclasses.replace(model, name="other").name]


def ensemble(eqx: Any) -> Any:
    class Linear(eqx.Module):
        w: Any
        act: Any
        size: int = eqx.field(static=True)

        def __init__(self, key: Any) -> None:
            self.w, self.act, self.size = jax.random.normal(key, (3,)), jnp.tanh, 3

        def __call__(self, x: Any) -> Any:
            return self.act(self.w @ x)

    model = eqx.filter_vmap(Linear)(jax.random.split(jax.random.key(0), 4))
    return [model.w, model.size, eqx.filter_vmap(lambda model, x: model(x), in_axes=(eqx.if_array(0), None))(model, X)]


SCENARIOS = (
    plain,
    own_initializer,
    inherited,
    converted,
    checked,
    check_raises,
    post_init,
    bound_methods,
    jitted_methods,
    generic,
    abstract,
    missing,
    undeclared,
    changed,
    compared,
    changed_by_copy,
    ensemble,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_it_is_as_in_equinox(scenario: Callable[[Any], Any]) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = paths(scenario(oracle))
    except Exception as error:
        kinds = [kind for kind in (AttributeError, ValueError, TypeError) if isinstance(error, kind)]
        with pytest.raises(tuple(kinds)):
            scenario(equinox_like)
        return
    found = paths(scenario(equinox_like))
    assert [path for path, _ in found] == [path for path, _ in wanted]
    for (path, one), (_, other) in zip(found, wanted, strict=True):
        if isinstance(one, float | list):
            np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=path)
        else:
            assert (type(one), one) == (type(other), other), path


# -- ours --------------------------------------------------------------------------------------------------------------


class Linear(Module):
    """A module of the tests."""

    w: Any
    act: Any = jnp.tanh
    mode: Any = equinox_like.field(static=True, default="train")

    def __call__(self, x: Any) -> Any:
        """Computes."""
        return self.act(self.w * x)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_and_pickles_are_equal_and_frozen(copied: Callable[[Any], Any]) -> None:
    model = Linear(X, None)
    jax.tree.leaves(model)
    other = copied(model)
    assert bool(other == model)
    assert jax.tree.structure(other) == jax.tree.structure(model)
    with pytest.raises(AttributeError, match=r"w of Linear: a module is frozen.*eqx\.tree_at"):
        other.w = 1
    with pytest.raises(AttributeError, match="w of Linear: a module is frozen"):
        del other.w


def test_static_fields_are_told_apart_by_type_and_sign() -> None:
    runs: list[Any] = []
    run = equinox_like.filter_jit(lambda model: (runs.append(model.mode), model.w)[1])
    for mode in (1, True, 1.0, 0.0, -0.0, 1, "a", [1], [1], [2], (1,)):
        run(Linear(X, mode=mode))
    assert list(map(repr, runs)) == ["1", "True", "1.0", "0.0", "-0.0", "'a'", "[1]", "[2]", "(1,)"]


def test_a_static_field_that_changes_in_place_is_seen() -> None:
    modes = [1]
    model = Linear(X, mode=modes)
    before = jax.tree.structure(model)
    modes.append(2)
    assert jax.tree.structure(model) != before


@pytest.mark.parametrize("array", [X, np.ones(2), {"a": X}, jax.random.key(0)])
def test_an_array_in_a_static_field_is_compared_by_contents_with_a_warning(array: Any) -> None:
    with pytest.warns(UserWarning, match=r"mode of Linear: a static field holds an array.*Leave out `static="):
        one, two, other = Linear(X, mode=array), Linear(X, mode=jax.tree.map(copy.copy, array)), Linear(X, mode=X + 1)
    assert jax.tree.structure(one) == jax.tree.structure(two) != jax.tree.structure(other)
    mapped = jax.tree.map(lambda leaf: leaf, one)
    assert equinox_like.tree_equal(mapped.mode, array)


def test_a_traced_array_in_a_static_field_is_an_error() -> None:
    with pytest.raises(LiftArgumentError, match=r"mode of Linear: a static field .*is traced.*Leave out `static="):
        jax.jit(lambda x: Linear(X, mode=x).w)(X)


def test_a_static_field_without_a_key_is_an_error() -> None:
    with pytest.raises(
        LiftArgumentError,
        match=r"mode of Linear: .*Random.* cannot be compared.*frozen dataclass.*leave out `static=True`",
    ):
        jax.tree.leaves(Linear(X, mode=random.Random(0)))


class Scaled(Module):
    """Two methods, one of them special."""

    w: Any

    def __call__(self, x: Any) -> Any:
        return self.w * x

    def twice(self, x: Any) -> Any:
        return 2 * self(x)


@pytest.mark.parametrize("name", ["__call__", "twice"])
def test_a_method_is_a_function_for_transformations_of_jax(name: str) -> None:
    module = Scaled(X)
    method = getattr(module, name)
    wanted = method(X)
    for transformed in (jax.checkpoint(method), jax.jit(method)):
        np.testing.assert_array_equal(transformed(X), wanted)
    np.testing.assert_array_equal(jax.lax.cond(True, method, lambda x: x, X), wanted)

    def loss(module: Any) -> Any:
        return jax.checkpoint(getattr(module, name))(X).sum()

    np.testing.assert_array_equal(jax.grad(loss)(module).w, X if name == "__call__" else 2 * X)


def test_methods_are_equal_if_they_are_the_same_of_the_same_object() -> None:
    module = Scaled(X)
    assert module.twice == module.twice
    assert len({module.twice, module.twice, module.__call__, Scaled(X).twice}) == 3
    assert module.twice != Scaled(X).twice
    assert module.twice != "twice"


def test_a_method_finds_its_trace_again() -> None:
    runs = []

    class Counted(Module):
        w: Any

        @equinox_like.filter_jit
        def __call__(self, x: Any) -> Any:
            runs.append(x)
            return self.w * x

        def plain(self, x: Any) -> Any:
            runs.append(x)
            return self.w * x

    for w in range(3):
        Counted(jnp.float32(w))(X)
    assert len(runs) == 1
    for w in range(3):
        equinox_like.filter_jit(Counted(jnp.float32(w)).plain)(X)
    assert len(runs) == 2


def test_a_module_keeps_statistics_in_a_scope_that_it_is_given() -> None:
    """Layers that a mapped constructor made, run by a scan, equal a loop over them."""

    class Norm(Module):
        w: Any

        def __init__(self, key: Any) -> None:
            self.w = jax.random.normal(key, (3,))

        def __call__(self, scope: Scope, x: Any) -> Any:
            mean = scope.variable("stats", "mean", lambda: jnp.zeros(3))
            mean.value = 0.9 * mean.value + 0.1 * x
            return jnp.tanh(self.w * x - mean.value)

    keys = jax.random.split(jax.random.key(1), 4)
    layers = equinox_like.filter_vmap(Norm)(keys)

    def model(scope: Scope, layers: Any, x: Any) -> Any:
        def step(scope: Scope, x: Any, layer: Any) -> Any:
            return equinox_like.filter_checkpoint(lambda layer, scope, x: layer(scope, x))(layer, scope, x), None

        return liftcore.scan(step, variable_axes={"stats": 0})(scope.push("layers"), x, layers)[0]

    def by_loop(stats: list[Any], x: Any) -> Any:
        for number, key in enumerate(keys):
            stats[number] = 0.9 * stats[number] + 0.1 * x
            x = jnp.tanh(Norm(key).w * x - stats[number])
        return x

    stats = [jnp.zeros(3)] * 4
    y, variables = liftcore.init(model)({}, layers, X)
    np.testing.assert_allclose(y, by_loop(stats, X), rtol=1e-5)
    for number in range(3):
        x = X + number
        y, variables = liftcore.apply(model, mutable="stats")(variables, layers, x)
        np.testing.assert_allclose(y, by_loop(stats, x), rtol=1e-5)
        np.testing.assert_allclose(variables["stats"]["layers"]["mean"], jnp.stack(stats), rtol=1e-5)


# -- what dataclasses, generic classes and `inspect` know of a module --------------------------------------------------


class Generically(Module, Generic[T]):
    """A generic class."""

    x: Any = 0

    def method(self, y: int) -> str:
        """Tells nothing."""
        return str(y)

    def __call__(self, b: int) -> int:
        return b


def test_a_generic_module_knows_its_class() -> None:
    made = Generically[int](X)
    assert made.__orig_class__ == Generically[int]  # type: ignore[attr-defined]
    assert jax.tree.structure(made) == jax.tree.structure(Generically(X))
    assert copy.copy(made) == made
    assert isinstance(equinox_like.Partial[int](max, 1), equinox_like.Partial)
    assert equinox_like.Partial[int](max, 1)(2) == 2


@pytest.mark.parametrize("method", [Generically().method, jax.tree.map(lambda leaf: leaf, Generically().method)])
def test_a_method_is_described_by_its_function(method: Any) -> None:
    assert (method.__doc__, method.__name__) == ("Tells nothing.", "method")
    assert method.__annotations__ == Generically.method.__annotations__
    assert str(inspect.signature(method)) == "(y: 'int') -> 'str'"
    assert method.__wrapped__(3) == "3"


@pytest.mark.parametrize(
    "transformation",
    ["filter_jit", "filter_grad", "filter_value_and_grad", "filter_vmap", "filter_pmap", "filter_checkpoint"],
)
def test_a_transformed_function_is_described_by_its_function_inside_a_jit_too(transformation: str) -> None:
    seen: list[Any] = []

    def fun(x: int) -> str:
        """Tells nothing."""
        return str(x)

    def look(fn: Any) -> None:
        seen.append((fn.__doc__, fn.__name__, fn.__annotations__, fn.__qualname__, str(inspect.signature(fn))))

    transformed = getattr(equinox_like, transformation)(fun)
    look(transformed)
    equinox_like.filter_jit(look)(transformed)
    assert seen == [("Tells nothing.", "fun", fun.__annotations__, fun.__qualname__, "(x: 'int') -> 'str'")] * 2


def test_the_signature_of_a_class_is_that_of_a_dataclass() -> None:
    @dataclasses.dataclass
    class Data:
        a: int
        b: str = dataclasses.field(default="b", kw_only=True)

        def __call__(self, c: int) -> int:
            return c

    class Both(Module):
        a: int
        b: str = dataclasses.field(default="b", kw_only=True)

        def __call__(self, c: int) -> int:
            return c

    for one, other in ((Data, Both), (Data(1), Both(1))):
        assert inspect.signature(one) == inspect.signature(other)


def test_init_takes_what_the_converters_take() -> None:
    def from_bool(x: bool, y: int = 1) -> str:
        return str(x)

    class Converted(Module):
        a: str = equinox_like.field(converter=from_bool)
        b: str = equinox_like.field(converter=lambda x: x)
        c: str = equinox_like.field(converter=str)
        d: str = equinox_like.field(default="d")
        e: str = equinox_like.field(converter=str, init=False, default="e")

    class Own(Module):
        a: str = equinox_like.field(converter=from_bool)

        def __init__(self, a: float) -> None:
            self.a = str(a)

    class Below(Converted):
        pass

    expected = {"a": "bool", "b": Any, "c": Any, "d": "str", "return": None}
    assert Converted.__init__.__annotations__ == Below.__init__.__annotations__ == expected
    assert Own.__init__.__annotations__ == {"a": "float", "return": "None"}


@pytest.mark.parametrize("name", ["static", "converter"])
def test_metadata_is_kept_and_holds_no_options(name: str) -> None:
    metadata = {"unit": "m"}
    for static, expected in ((False, {"unit": "m"}), (True, {"unit": "m", "static": True})):
        declared = equinox_like.field(metadata=metadata, static=static)
        assert (dict(declared.metadata), metadata) == (expected, {"unit": "m"})
    with pytest.raises(LiftArgumentError, match=rf"`{name}` is an option of its own.*`field\({name}="):
        equinox_like.field(metadata={name: True})


def test_init_beside_post_init_is_warned_about() -> None:
    with pytest.warns(
        UserWarning, match=r"Own has an `__init__` of its own, so nothing calls `__post_init__`.*__check"
    ):

        class Own(Module):
            def __init__(self) -> None:
                pass

            def __post_init__(self) -> None:
                raise AssertionError

    with pytest.warns(UserWarning, match="Below has an `__init__`"):

        class Below(Own):
            pass

    Below()


def test_a_docstring_of_init_is_inherited() -> None:
    class Above(Module):
        pass

    Above.__init__.__doc__ = "Makes one."

    class Below(Above):
        x: int

    assert Below.__init__.__doc__ == "Makes one."


def test_a_module_with_slots_keeps_its_fields() -> None:
    class Slotted(Module):
        __slots__ = ("x",)
        x: Any

        def __init__(self) -> None:
            self.x = X

    np.testing.assert_array_equal(jax.tree.map(lambda leaf: leaf + 1, Slotted()).x, X + 1)


@pytest.mark.parametrize("wrap", [jax.jit, jax.vmap, jax.grad, jax.checkpoint])
def test_a_wrapped_module_in_a_field_is_warned_about(wrap: Any) -> None:
    with pytest.warns(UserWarning, match=r"x of Generically: the function wraps a float32.*filter_vmap"):
        Generically(wrap(Scaled(X)))
    Generically(wrap(jnp.tanh))
    Generically(equinox_like.filter_vmap(Scaled(X)))


@pytest.mark.parametrize("replace", [{"replace": "n"}, {"replace_fn": str.upper}])
def test_a_static_field_that_tree_at_selects_is_named_with_what_serves(replace: Any) -> None:
    model = {"layers": [Linear(X, mode="train")]}
    with pytest.raises(LiftArgumentError, match=r"selected mode of Linear, a static field.*replace\(module, mode=…\)"):
        equinox_like.tree_at(lambda model: model["layers"][0].mode, model, **replace)
    changed = equinox_like.tree_at(
        lambda model: model["layers"][0], model, replace_fn=lambda module: dataclasses.replace(module, mode="eval")
    )
    assert changed["layers"][0].mode == "eval"
