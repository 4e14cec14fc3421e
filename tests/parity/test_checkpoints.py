"""Files of flax are read, and flax reads what is in ours."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from liftcore.checkpoints import load_file, save_file
from tests.checkpoints.test_files import TREE, assert_equal

peer = pytest.importorskip("flax.serialization")


def test_files_go_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "model.msgpack"
    path.write_bytes(peer.to_bytes(TREE))
    assert_equal(load_file(path, TREE, checksums=False), TREE)
    save_file(path, TREE)
    assert_equal(peer.msgpack_restore(path.read_bytes())["state"], TREE)


def test_names_are_those_of_flax(tmp_path: Path) -> None:
    tree = {"layers": [np.ones(2), (np.zeros(3), 4)], "key": jax.random.key_data(jax.random.key(0))}
    save_file(tmp_path / "a", tree)
    assert_equal(
        jax.tree.map(np.asarray, load_file(tmp_path / "a")),
        jax.tree.map(np.asarray, peer.to_state_dict(tree)),
    )
