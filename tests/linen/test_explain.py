"""What the lifts in a module do, and why one was traced again."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
import linen_like as nn
from liftcore.errors import NotSharedWarning
from liftcore.filters import All, PathContains
from linen_like.errors import InvalidInstanceModuleError

KEY = jax.random.key(0)
X = jnp.ones((2, 3))


class Block(nn.Module):
    features: int = 3
    rate: float = 0.5

    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> Any:
        x = nn.Dense(self.features, name="dense")(x)
        x = nn.Dropout(self.rate, deterministic=False)(x)
        self.sow("intermediates", "x", x)
        return x, None


class Model(nn.Module):
    def setup(self) -> None:
        options: dict[str, Any] = {
            "variable_broadcast": All("params", PathContains("bias")),
            "variable_axes": {"params": 0},
            "split_rngs": {"dropout": True, "params": True},
        }
        self.layers = nn.scan(nn.remat(Block), length=2, **options)()
        self.head = nn.jit(nn.Dense)(2)

    def __call__(self, x: Any) -> Any:
        x, _ = self.layers(x, None)
        return self.head(x)

    def encode(self, x: Any) -> Any:
        return self.layers(x, None)[0]


def rows(lift: Any) -> dict[str, Any]:
    return {"/".join(row.path): row for row in lift.variables}


# -- explain -----------------------------------------------------------------------------------------------------------


def test_an_init_is_explained() -> None:
    explained = nn.explain(Model(), KEY)(X)
    assert explained.name == "Model.__call__"
    scan, head = explained.lifts
    (remat,) = scan.lifts
    assert [lift.name for lift in (scan, remat, head)] == ["scan(Block)", "remat(Block)", "jit(Dense)"]
    assert [lift.where for lift in (scan, remat, head)] == ["/layers", "/layers/scan(Block)", "/head"]
    kernel, bias = (rows(scan)[f"params/layers/dense/{name}"] for name in ("kernel", "bias"))
    assert (kernel.treatment, kernel.type, kernel.fate) == ("axis 0", "float32[2,3,3]", "created, hoisted, read")
    assert (bias.treatment, bias.type) == ("broadcast, one value for all iterations", "float32[3]")
    assert rows(head)["params/head/kernel"].created
    made = jax.tree.leaves_with_path(Model().init(KEY, X))
    assert {"/".join(key.key for key in path) for path, _ in made} == {*rows(scan), *rows(head)}


def test_an_apply_is_explained() -> None:
    variables = Model().init(KEY, X)
    explained = nn.explain(Model(), {"dropout": KEY}, variables, mutable=["intermediates"])(X)
    scan, head = explained.lifts
    assert rows(scan)["params/layers/dense/kernel"].fate == "read"
    assert rows(scan)["intermediates/layers/x"].treatment == "sown, stacked on a new axis 0"
    (dropout,) = (row for row in scan.streams if row.name == "dropout")
    assert (dropout.treatment, dropout.drawn) == ("split between iterations", 1)
    assert [row.fate for row in head.variables] == ["read", "read"]
    with pytest.raises(nn.errors.LiftError, match="no RNG stream"):
        nn.explain(Model(), variables=variables)(X)


def test_a_method_and_shapes() -> None:
    shape = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    for method in ("encode", Model.encode):
        explained = nn.explain(Model(), KEY, method=method)(shape)
        assert explained.name == "Model.encode"
        assert [lift.name for lift in explained.lifts] == ["scan(Block)"]


def test_the_module_stays_unbound() -> None:
    model = Model()
    nn.explain(model, KEY)(X)
    assert model.scope is None
    assert jax.tree.all(jax.tree.map(jnp.array_equal, model.init(KEY, X), Model().init(KEY, X)))


def test_a_module_explains_itself_from_inside() -> None:
    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            elements = nn.vmap(nn.Dense, {"params": None}, {"params": False})
            seen.append(liftcore.explain(lambda scope: elements(2, parent=scope)(x))(self.scope))
            return nn.Dense(2)(x)

    seen: list[Any] = []
    variables = Outer().init(KEY, X)
    assert list(variables["params"]) == ["Dense_0"]
    assert [lift.name for lift in seen[0].lifts] == ["vmap(Dense)"]


# -- retraces ----------------------------------------------------------------------------------------------------------


class Tower(nn.Module):
    sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for size in self.sizes:
            x = nn.jit(Width)(size)(x)
        return x


class Width(nn.Module):
    size: int
    act: Any = nn.relu

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return self.act(nn.Dense(self.size)(x))


def test_a_field_that_differs_is_named() -> None:
    with liftcore.retraces() as found:
        Tower((3, 3, 4)).init(KEY, X)
    first, second = found
    assert (first.path, first.closest) == ("/Width_0/jit(Width)", None)
    assert (second.path, second.closest) == ("/Width_2/jit(Width)", "/Width_0/jit(Width)")
    (difference,) = second.differences
    assert "size" in difference.what
    assert (difference.before, difference.now) == ("3", "4")


def test_a_field_that_cannot_be_compared_is_told() -> None:
    class Table(nn.Module):
        table: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return x + self.table

    with liftcore.retraces() as found:
        with pytest.warns(NotSharedWarning, match=r"^Table\.table is a float32"):
            nn.jit(Table)(jnp.ones(3)).apply({}, X)
        nn.jit(Table)(jnp.zeros(3)).apply({}, X)
    assert [one.what for one in found.records[1].differences] == ["not comparable by its contents"]


def test_an_applied_module_tells_its_fields() -> None:
    variables = Width(3).init(KEY, X)
    with liftcore.retraces() as found:
        for act in (nn.relu, nn.relu, nn.tanh):
            jax.jit(Width(3, act).apply)(variables, X)
    assert {record.path for record in found} == {"Width.__call__ at /"}
    assert [one.what for one in found.records[-1].differences] == ["closure module.act"]


def test_a_limit_on_a_method() -> None:
    class Limited(nn.Module):
        @liftcore.assert_max_traces(1)
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(2)(x)

    run = nn.jit(Limited)()
    variables = run.init(KEY, X)
    run.init(KEY, X)
    with pytest.raises(liftcore.errors.TooManyTracesError, match=r"its Python ran 2 times, at most 1 is allowed"):
        run.apply(variables, X)


@pytest.mark.parametrize("module", [nn.Dense, 3, None])
def test_what_is_no_module_is_an_error(module: Any) -> None:
    with pytest.raises(InvalidInstanceModuleError, match=r"an explanation of a module: .*`nn.explain\(MyModule"):
        nn.explain(module)
