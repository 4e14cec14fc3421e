from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from liftcore.errors import LiftArgumentError
from liftcore.nn import check_mask, normalize_axes, split_mask


@pytest.mark.parametrize(("axes", "expected"), [(-1, (2,)), ((2, 0), (0, 2)), ([-3, 0, 1], (0, 1)), ((), ())])
def test_axes_are_counted_from_the_front_once_each(axes: Any, expected: Any) -> None:
    assert normalize_axes("here", "axis", axes, 3) == expected


@pytest.mark.parametrize(
    ("axes", "ndim", "legal"), [(3, 3, "from -3 to 2"), ((0, -2), 1, "from -1 to 0"), (0, 0, "none")]
)
def test_axis_that_the_inputs_lack_is_refused(axes: Any, ndim: int, legal: str) -> None:
    with pytest.raises(LiftArgumentError, match=rf"here: axis is .*valid axes: {legal}"):
        normalize_axes("here", "axis", axes, ndim)


@pytest.mark.parametrize("shape", [(2, 3), (1, 3), (3,), (), (2, 1)])
def test_mask_may_be_whatever_broadcasts(shape: Any) -> None:
    check_mask("here", np.ones(shape), (2, 3))


@pytest.mark.parametrize("shape", [(2,), (4, 2, 3), (2, 6)])
def test_mask_that_does_not_broadcast_is_refused(shape: Any) -> None:
    with pytest.raises(
        LiftArgumentError, match=rf"mask has shape {re.escape(str(shape))}, .* Pass a mask of shape \(2, 3\)"
    ):
        check_mask("here", np.ones(shape), (2, 3))


@pytest.mark.parametrize(("shape", "expected"), [((2, 6), (2, 3, 2)), ((6,), (3, 2)), ((2, 1), (2, 1, 1)), ((), ())])
def test_mask_of_features_becomes_one_of_groups(shape: Any, expected: Any) -> None:
    assert np.shape(split_mask(np.ones(shape), 3, 2)) == expected
    assert split_mask(None, 3, 2) is None
