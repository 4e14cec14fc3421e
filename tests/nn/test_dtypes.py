from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from liftcore.errors import LiftArgumentError
from liftcore.nn import canonicalize_dtype, promote_dtype


@pytest.mark.parametrize(
    ("args", "options", "expected"),
    [
        ((np.int8(1),), {}, jnp.float32),
        ((np.int8(1),), {"inexact": False}, jnp.int8),
        ((np.ones(1, jnp.bfloat16), None, 1.0), {}, jnp.bfloat16),
        ((np.ones(1, np.float16), np.ones(1, jnp.bfloat16)), {}, jnp.float32),
        ((np.ones(1, np.complex64),), {}, jnp.complex64),
        ((np.ones(1, np.float32),), {"dtype": jnp.float16}, jnp.float16),
    ],
)
def test_dtype_is_the_given_one_or_what_the_arrays_promote_to(args: Any, options: Any, expected: Any) -> None:
    assert canonicalize_dtype(*args, **options) == expected
    found = promote_dtype(*args, **options)
    assert [x if x is None else x.dtype for x in found] == [x if x is None else expected for x in args]


def test_integer_dtype_is_refused_where_the_layer_needs_fractions() -> None:
    with pytest.raises(
        LiftArgumentError, match=r"dtype: expected a floating or complex dtype.*, given int32. Pass `dtype="
    ):
        promote_dtype(np.ones(1), dtype=jnp.int32)
    assert canonicalize_dtype(dtype=jnp.int32, inexact=False) == jnp.int32
