"""Names that were replaced: they still work, and say what to write instead."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
from liftcore import statics
from liftcore.pipeline import Body, trace, with_created, without_created

KEY = jax.random.key(0)


@pytest.mark.parametrize("package", [liftcore, liftcore.pipeline], ids=lambda package: package.__name__)
def test_a_former_name_of_a_package_is_the_present_one_with_a_warning(package: ModuleType) -> None:
    for _ in range(2):
        with pytest.warns(DeprecationWarning, match=rf"Write `{package.__name__}\.Body`") as warned:
            assert package.Use is Body
        assert warned[0].filename == __file__
    assert "Use" not in dir(package)


def test_surroundings_are_the_key_of_the_settings_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"Write `statics\.settings_key\(\)`"):
        assert statics.surroundings() == statics.settings_key()


def doubled(scope: Any, x: Any) -> Any:
    return 2 * x * scope.param("w", jax.random.normal, ())


def _checkpointed(body: Any, variable_groups: Any, rng_groups: Any, x: Any) -> Any:
    """`jax.checkpoint` as one wrote it when a body had a `use`."""
    with pytest.warns(DeprecationWarning, match="Write `body` in its place"):
        use = body.use
    assert [outer.path for outer in use.outers] == [()]
    assert use.where == body.where == "checkpointed(doubled) at /"
    with pytest.warns(DeprecationWarning, match=r"Write `body\.path_text`"):
        assert body.place == body.path_text == "/"
    with pytest.warns(DeprecationWarning, match="Write `body.tagging"):
        marked = body.marked()
    operands = variable_groups, rng_groups, x
    with pytest.warns(DeprecationWarning, match="Write `trace"):
        split = trace(lambda *operands: without_created(*marked(*operands)), *operands, use=use)
    created = split.prologue(*operands)
    return with_created(created, *jax.checkpoint(split.remainder)(created, *operands))


def test_bools_that_choose_initial_values_work_with_a_warning() -> None:
    split = trace(lambda x: ([x + 1, x + 2, x + 3], ()), 1.0)
    prologue = liftcore.Prologue(split, [1.0])
    for choose in (prologue.make, prologue.evaluate):
        prologue.values.clear()
        with pytest.warns(DeprecationWarning, match=r"Write `\{0, 2\}`") as warned:
            choose([True, False, True])
        assert warned[0].filename == __file__
        assert prologue.tree() == [2.0, None, 4.0]


def test_a_lift_that_asks_for_the_use_of_a_body_works_with_a_warning() -> None:
    everything: Any = ([True], [True, liftcore.Captured(all=True)], [True])
    lift = liftcore.transformation(_checkpointed, *everything, name="checkpointed")
    y, variables = liftcore.init(lift(doubled))(KEY, 3.0)
    expected, plain = liftcore.init(doubled)(KEY, 3.0)
    assert jnp.array_equal(y, expected)
    assert variables == plain
