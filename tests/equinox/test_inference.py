"""`inference_mode`, beside that of Equinox."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import equinox_like as eqx
from liftcore.errors import LiftArgumentError


class Switch(eqx.Module):
    """A module with the field, and perhaps one below."""

    inference: Any = False
    below: Any = None


def trees() -> list[Any]:
    shared = Switch()
    return [
        Switch(),
        {"layers": [Switch(), jax.nn.relu, Switch(below=[Switch(True), 3])], "w": jnp.ones(2), "none": None},
        [shared, shared],
        Switch(jnp.array(False)),
        [1, None],
        eqx.filter_vmap(lambda _: Switch())(jnp.arange(3)),
    ]


@pytest.mark.parametrize("value", [True, False, None])
@pytest.mark.parametrize("number", range(6))
def test_every_field_is_set_and_nothing_else(number: int, value: Any) -> None:
    equinox = pytest.importorskip("equinox")
    tree = trees()[number]
    found = eqx.inference_mode(tree, value)
    assert eqx.tree_equal(found, equinox.nn.inference_mode(tree, value))
    assert eqx.tree_equal(tree, trees()[number])


def test_a_field_that_is_none_is_set() -> None:
    assert eqx.inference_mode(Switch(None)).inference is True


def test_the_older_name() -> None:
    assert eqx.tree_inference(Switch(), value=True).inference is True


class Static(eqx.Module):
    """The field is no child."""

    below: Any = False
    inference: bool = eqx.field(static=True, default=False)


class Plain:
    """No pytree."""

    inference = False


@pytest.mark.parametrize("tree", [Static(), Switch(below=Static()), [Plain()]])
def test_what_cannot_be_set_is_an_error(tree: Any) -> None:
    with pytest.raises(LiftArgumentError, match=r"`inference` of (Static|Plain) is not a leaf.*eqx.Module"):
        eqx.inference_mode(tree)


def test_a_real_layer_of_equinox() -> None:
    equinox = pytest.importorskip("equinox")
    dropout = equinox.nn.Dropout(0.5)
    assert eqx.inference_mode([dropout])[0].inference is True
