"""`EarlyStopping` in checkpoints; its numbers are compared with those of flax in `tests/parity`."""

from __future__ import annotations

import io
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from liftcore.checkpoints import load_file, save_file
from liftcore.training import EarlyStopping


@pytest.mark.parametrize(
    "metric", [3, True, np.int32(3), jnp.int32(3), jnp.asarray(3), 3.0, np.float32(3), jnp.bfloat16(3)]
)
def test_a_fresh_object_restores_any_metric(metric: Any) -> None:
    stopping, file = EarlyStopping().update(metric), io.BytesIO()
    save_file(file, stopping)
    file.seek(0)
    restored = load_file(file, EarlyStopping())
    assert restored.best_metric == metric
    assert restored.update(metric).patience_count == 1
