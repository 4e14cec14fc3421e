from __future__ import annotations

import numpy as np

from benchmarks.items.generation import ways


def test_all_ways_to_read_a_prompt_give_the_same() -> None:
    (run, *given), *others = ways(5).values()
    expected = run(*given)
    for run, *given in others:
        np.testing.assert_allclose(run(*given), expected, rtol=1e-4, atol=1e-5)
