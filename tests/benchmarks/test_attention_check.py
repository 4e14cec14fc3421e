from __future__ import annotations

import jax.numpy as jnp
import pytest

from benchmarks.attention_check import CASES, check


@pytest.mark.parametrize("name", ["padding, causal, grouped", "scan of remat", "exported", "second derivative"])
def test_both_are_as_exact_on_any_device(name: str) -> None:
    result = check(CASES[name], jnp.bfloat16, length=8)
    assert result.is_good(CASES[name], on_gpu=result.is_taken), result
    assert 0 < result.plain[0] < 0.1


def test_an_error_is_found() -> None:
    result = check(CASES["plain"], jnp.bfloat16, length=8)._replace(auto=(float("inf"), 0.0))
    assert not result.is_good(CASES["plain"], on_gpu=result.is_taken)
