import subprocess
import sys

import jax
import pytest

from liftcore import doctor


def test_the_report_has_what_a_bug_report_needs() -> None:
    facts = dict(doctor.report())
    assert facts["jax"] == jax.__version__
    assert facts["devices"].startswith("8 x")
    assert {"python", "liftcore", "jaxlib", "backend", "optional", "environment"} <= set(facts)


def test_further_packages_are_told_of_only_if_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "1.2" if name in ("optax", "libtpu") else None)
    facts = dict(doctor.report())
    assert facts["optional"] == "optax 1.2, libtpu 1.2"
    assert "equinox" in facts["missing"]
    assert "tqdm" not in facts["missing"]


def test_a_failed_self_test_is_in_the_exit_status(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert doctor.main() == 0
    monkeypatch.setattr(doctor.nn, "dense", lambda scope, x, features: x)
    assert doctor.main() == 1
    assert "FAILED" in capsys.readouterr().out


@pytest.mark.rest
def test_it_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "liftcore.doctor"], capture_output=True, text=True, check=True)
    assert "self-test    passed" in done.stdout
