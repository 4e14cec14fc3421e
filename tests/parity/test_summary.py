"""Rows of `tabulate` against those of `flax.linen`: paths, modules, methods, types, sizes and costs."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like
from linen_like.summary import module_paths, summarize, tabulate
from tests.parity.module_styles import STYLES

linen = pytest.importorskip("flax.linen")
summary = pytest.importorskip("flax.linen.summary")

KEYS = {name: jax.random.key(number) for number, name in enumerate(("params", "dropout", "noise"))}
X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)


def models(nn: Any) -> dict[str, Any]:
    """The same models of either library."""
    stacked: Any = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}

    class Block(nn.Module):  # type: ignore[misc]
        @nn.compact
        def __call__(self, x: Any, _: Any = None) -> Any:
            x = nn.Dense(3, name="dense")(x)
            return nn.LayerNorm()(x), None

    class Mixed(nn.Module):  # type: ignore[misc]
        def setup(self) -> None:
            self.norm = nn.BatchNorm(use_running_average=False)
            self.layers = [nn.Dense(4), nn.Dense(3)]

        def __call__(self, x: Any, flag: bool = False) -> Any:
            for layer in self.layers:
                x = self.norm(layer(x)) if layer is self.layers[1] else layer(x)
            return self.tail(self.norm(x))

        @nn.compact
        def tail(self, x: Any) -> Any:
            return {"y": nn.Dropout(0.5, deterministic=False)(nn.Conv(2, (3,))(x)), "n": 1}

    class Lifted(nn.Module):  # type: ignore[misc]
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x, _ = nn.scan(Block, length=2, **stacked)(name="scan")(x, None)
            x, _ = nn.remat(Block)(name="remat")(x)
            x, _ = nn.jit(Block)(name="jit")(x)
            x = nn.vmap(nn.Dense, **stacked)(3, name="vmap")(x)
            return nn.Embed(4, 2)(jnp.argmax(x, axis=-1))

    class Nested(nn.Module):  # type: ignore[misc]
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return Lifted(name="lifted")(Mixed(name="mixed")(x)["y"] @ jnp.ones((2, 3)))

    return {"mixed": Mixed(), "lifted": Lifted(), "nested": Nested(), "dense": nn.Dense(2)}


def their_rows(model: Any, *args: Any, depth: Any = None, show_repeated: bool = False, costs: bool = False) -> Any:
    table = summary._get_module_table(model, depth, show_repeated, costs, costs)(KEYS, *args)
    told = table.collections

    def shown(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.render(), tree, is_leaf=lambda leaf: hasattr(leaf, "render"))

    return [
        (
            row.path,
            type(row.module_copy).__name__,
            row.method,
            jax.tree.leaves(shown(row.inputs)),
            {name: tuple(size) for name, size in row.size_and_bytes(sorted(told)).items()},
            (row.flops, row.vjp_flops),
        )
        for row in table
        if type(row.module_copy).__name__ != "CompactNameScope"  # a module that flax puts in between, not the user's
    ]


def our_rows(model: Any, *args: Any, depth: Any = None, show_repeated: bool = False, costs: bool = False) -> Any:
    found = summarize(model, KEYS, depth, show_repeated, compute_flops=costs, compute_vjp_flops=costs)(*args)

    def shown(leaf: Any) -> str:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return f"[dim]{leaf.dtype}[/dim][{','.join(map(str, leaf.shape))}]"
        return repr(leaf)

    return [
        (
            row.path,
            type(row.module).__name__,
            row.method,
            [shown(leaf) for leaf in jax.tree.leaves(row.inputs, is_leaf=lambda leaf: leaf is None)],
            {name: (size.count, size.bytes) for name, size in sorted(row.sizes.items())},
            (row.flops, row.vjp_flops) if costs else (-1, -1),
        )
        for row in found.rows
    ]


@pytest.mark.parametrize("name", models(linen_like))
@pytest.mark.parametrize("depth", [None, 0, 1, 2])
def test_rows_are_those_of_linen(name: str, depth: int | None) -> None:
    ours, theirs = models(linen_like)[name], models(linen)[name]
    assert our_rows(ours, X, depth=depth) == their_rows(theirs, X, depth=depth)


@pytest.mark.parametrize("name", ["mixed", "lifted", "dense"])
def test_costs_are_those_of_linen(name: str) -> None:
    ours, theirs = models(linen_like)[name], models(linen)[name]
    mine, other = our_rows(ours, X, costs=True), their_rows(theirs, X, costs=True)
    assert [row[:-1] for row in mine] == [row[:-1] for row in other]
    # Flax counts one iteration of a scan, and the integer operations of draws and of the bounds of indices.
    differing = {"mixed": {"", "Dropout_0"}, "lifted": {"", "Embed_0"}}.get(name, set())
    assert {"/".join(row[0]) for row, their_row in zip(mine, other, strict=True) if row != their_row} == differing


def test_repeated_rows_are_those_of_linen() -> None:
    ours, theirs = models(linen_like)["mixed"], models(linen)["mixed"]
    assert our_rows(ours, X, show_repeated=True) == their_rows(theirs, X, show_repeated=True)


@pytest.mark.parametrize("name", STYLES)
def test_rows_of_each_style_are_those_of_linen(name: str) -> None:
    build = STYLES[name]
    assert our_rows(build(linen_like), X) == their_rows(build(linen), X)


@pytest.mark.parametrize("name", models(linen_like))
def test_module_paths_are_those_of_linen(name: str) -> None:
    ours, theirs = module_paths(models(linen_like)[name], KEYS, X), models(linen)[name].module_paths(KEYS, X)
    assert list(ours) == list(theirs)
    assert [type(module).__name__ for module in ours.values()] == [type(module).__name__ for module in theirs.values()]
    assert [module.name for module in ours.values()] == [module.name for module in theirs.values()]
    assert all(module.scope is None for module in ours.values())


def test_text_is_that_of_linen() -> None:
    pytest.importorskip("rich")
    options: Any = {"console_kwargs": {"width": 120}, "compute_flops": True, "compute_vjp_flops": True}
    ours = tabulate(linen_like.Dense(2), KEYS, **options)(X)
    theirs = linen.tabulate(linen.Dense(2), KEYS, **options)(X)
    assert without_colours(ours) == without_colours(theirs)


def without_colours(text: str) -> list[str]:
    return [line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()]
