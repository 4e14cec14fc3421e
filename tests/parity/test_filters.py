"""Filters that ask about paths match what those of `flax.nnx` match."""

from __future__ import annotations

import itertools

import pytest

from liftcore.filters import PathContains

nnx = pytest.importorskip("flax.nnx")

PATHS = list(itertools.product(["params", "cache"], ["lora", "lora_1", "dense"], ["kernel", "lora_a"]))


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("key", ["lora", "ora", "params", "kernel", "e", "x"])
def test_paths_contain_what_they_contain_there(key: str, exact: bool) -> None:
    ours, theirs = PathContains(key, exact), nnx.PathContains(key, exact)
    assert [ours(path, 1) for path in PATHS] == [theirs(path, 1) for path in PATHS]
