"""Two processes, joined over loopback, give what one gives, and neither holds more than its part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.devices.model import mesh_of, run
from tests.devices.pairs import run_pair
from tests.machine import devices


@pytest.mark.rest
def test_two_processes_equal_one(tmp_path: Path) -> None:
    file = tmp_path / "found.npz"
    run_pair("tests.devices.worker", str(file), devices=2)
    expected = run(mesh_of(devices(4)))
    with np.load(file) as found:
        assert sorted(found) == sorted(expected)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.rest
def test_no_process_holds_more_than_its_part_of_a_large_tree(tmp_path: Path) -> None:
    """A tree of 2 GB, of which each has half; the peaks are those beyond a run with a tree of 2 MB."""

    def peaks(what: str, megabytes: int) -> list[int]:
        folder = tmp_path / str(megabytes)
        said = run_pair("tests.devices.memory_worker", what, str(folder), str(megabytes), devices=4, seconds=500)
        return [int(one.split()[-1]) for one in said]

    for what in ("make", "restore"):
        empty, large = peaks(what, 2), peaks(what, 2000)
        beyond = [mine - base for mine, base in zip(large, empty, strict=True)]
        assert max(beyond) < 1.3e9, (what, beyond)
        assert min(beyond) > 0.9e9, (what, beyond)  # half of the tree was there
