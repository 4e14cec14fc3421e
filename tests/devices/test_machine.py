"""What a test takes of the machine: it is skipped where there is less, never on the CPU of CI."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import machine


def test_there_are_as_many_devices_as_the_flags_say() -> None:
    machine.need_cpu("its devices are simulated")
    said = re.findall(r"--xla_force_host_platform_device_count=(\d+)", os.environ["XLA_FLAGS"])
    assert jax.device_count() == int(said[-1])  # the last one counts; without another one of the user's, it is 8
    assert said[0] == "8"


LACKS: dict[str, tuple[Callable[[], Any], str]] = {
    "devices": (lambda: machine.devices(99), r"needs 99 devices, and there are \d+"),
    "mesh": (lambda: machine.make_mesh((11, 9), "a", "b"), "needs 99 devices"),
    "cpu": (lambda: machine.need_cpu("it is slow"), "runs on the CPU: it is slow"),
}


@pytest.mark.parametrize("name", LACKS)
@pytest.mark.parametrize("required", [False, True])
def test_what_is_not_there_skips_a_test_and_fails_where_it_is_required(
    name: str, required: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setenv("LIFTCORE_REQUIRE_DEVICES", str(int(required)))
    take, reason = LACKS[name]
    with pytest.raises(pytest.fail.Exception if required else pytest.skip.Exception, match=reason):
        take()


def test_floats_are_compared_exactly_on_the_cpu_and_up_to_rounding_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = np.float32([1, 100]), np.float32([1 + 1e-5, 100])
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    with pytest.raises(AssertionError):
        machine.assert_equal(one, other)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    machine.assert_equal(one, other)
    machine.assert_equal(jnp.bfloat16(1), jnp.bfloat16(1.01))
    for pair in ((one, one + 1), (np.int32([1]), np.int32([2])), (np.float32([np.nan]), np.float32([0]))):
        with pytest.raises(AssertionError):
            machine.assert_equal(*pair)
    assert machine.tolerance(jnp.float8_e4m3fn, 1e-5) > machine.tolerance(jnp.float32, 1e-5) > 1e-5
    assert machine.tolerance(jnp.int32) == 0


SEVERAL = re.compile(
    r"jax\.make_mesh\(\s*\((?!1,\)|1, 1\)|.*devices=devices\()"  # a mesh of more than one device
    r"|\bdevices\(\)(\[(?!0\]|:1\])|\)\.reshape)"  # other devices than the first
)
OF_THEIR_OWN = {"machine.py", "worker.py", "memory_worker.py"}
"""What gives devices out, and programs that run with as many as they take."""


def test_no_other_file_takes_several_devices_by_itself() -> None:
    files = [path for path in Path(machine.__file__).parent.rglob("*.py") if path.name not in OF_THEIR_OWN]
    assert len(files) > 300
    assert [path.name for path in files if SEVERAL.search(path.read_text(encoding="utf-8"))] == []
