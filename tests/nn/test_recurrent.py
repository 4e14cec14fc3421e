from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from liftcore.errors import LiftArgumentError
from liftcore.nn import Sequences, flip_sequences

X = jnp.arange(24).reshape(2, 3, 4)  # two sequences of three steps, or three steps of two


@pytest.mark.parametrize("lengths", [None, [3, 1], [0, 2]])
def test_padding_stays_behind_a_flipped_sequence(lengths: Any) -> None:
    expected = np.array(X)
    for row, length in zip(expected, lengths or (3, 3), strict=True):
        row[:length] = row[:length][::-1]
    given = None if lengths is None else jnp.array(lengths)
    padded = np.arange(3)[:, None] >= (np.array(lengths or (3, 3)))[:, None, None]
    found = np.asarray(flip_sequences(X, given, 1, time_major=False))
    np.testing.assert_array_equal(np.where(padded, 0, found), np.where(padded, 0, expected))
    turned = flip_sequences(X.swapaxes(0, 1), given, 1, time_major=True)
    np.testing.assert_array_equal(turned.swapaxes(0, 1), found)


def test_the_last_state_is_that_of_the_last_step_and_the_first_one_where_there_is_none() -> None:
    sequences = Sequences.of("rnn", X.shape, 1, False, jnp.array([2, 0]))
    history, first = X.swapaxes(0, 1), -jnp.ones((2, 4), int)
    np.testing.assert_array_equal(sequences.last(first, history), np.stack([X[0, 1], first[1]]))


@pytest.mark.parametrize("lengths", [[1, 2, 3], [1.0, 2.0], [4, 1], [-1, 1]])
def test_lengths_that_do_not_fit_are_refused(lengths: Any) -> None:
    with pytest.raises(LiftArgumentError, match=r"rnn: .*seq_lengths"):
        Sequences.of("rnn", X.shape, 1, False, lengths)
    with pytest.raises(LiftArgumentError, match="with 3 batch axes and one of time"):
        flip_sequences(X, None, 3, time_major=False)
