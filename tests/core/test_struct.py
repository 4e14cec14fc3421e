"""Dataclasses that are pytrees."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from liftcore import struct


@struct.dataclass
class State:
    step: Any
    params: Any = None
    name: str = struct.field(pytree_node=False, default="train")


class Node(struct.PyTreeNode):
    x: Any
    label: str = struct.field(pytree_node=False, default="")


def test_fields_are_children_unless_static():
    leaves, treedef = jax.tree.flatten(State(1, {"w": 2}, name="a"))
    assert leaves == [1, 2]
    assert treedef != jax.tree.structure(State(1, {"w": 2}, name="b"))
    assert jax.tree.unflatten(treedef, [3, 4]) == State(3, {"w": 4}, name="a")


def test_key_paths_are_attributes():
    paths, _ = jax.tree_util.tree_flatten_with_path(State(1, [2]))
    assert [jax.tree_util.keystr(path) for path, _ in paths] == [".step", ".params[0]"]


@pytest.mark.parametrize("made", [State(1), Node(1)])
def test_they_are_frozen_and_replace_copies(made):
    name = dataclasses.fields(made)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, name, 2)
    assert getattr(made.replace(**{name: 2}), name) == 2
    assert getattr(made, name) == 1


def test_a_static_field_is_compiled_in():
    traces = []

    @jax.jit
    def step(state):
        traces.append(state.name)
        return state.replace(step=state.step + 1)

    assert step(State(jnp.zeros(()), name="a")).step == 1
    step(State(jnp.ones(()), name="a"))
    step(State(jnp.ones(()), name="b"))
    assert traces == ["a", "b"]


def test_options_of_dataclasses_are_passed_on():
    @struct.dataclass(kw_only=True, order=True)
    class Options:
        a: int
        b: int = 1

    class Keywords(struct.PyTreeNode, kw_only=True):
        a: int

    @struct.dataclass(frozen=False)
    class Loose:
        a: int

    with pytest.raises(TypeError, match="positional"):
        Options(1)  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        Keywords(1)  # type: ignore[misc]
    assert Options(a=1) < Options(a=2)
    loose = Loose(1)
    loose.a = 2
    assert jax.tree.leaves(loose) == [2]


def test_slots_are_passed_on():
    @struct.dataclass(slots=True)
    class Slotted:
        a: int

    assert jax.tree.map(lambda x: x + 1, Slotted(1)) == Slotted(2)


def test_field_keeps_metadata_and_defaults():
    made = struct.field(pytree_node=False, default_factory=list, metadata={"doc": "x"})
    assert dict(made.metadata) == {"doc": "x", "pytree_node": False}
    assert made.default_factory is list


def test_fields_that_are_not_arguments_are_made_anew():
    @struct.dataclass
    class Derived:
        a: Any
        double: Any = struct.field(init=False, default=None)

        def __post_init__(self):
            object.__setattr__(self, "double", 2 * self.a)

    mapped = jax.tree.map(lambda x: x + 1, Derived(1))
    assert (mapped.a, mapped.double) == (2, 4)


def test_subclasses_inherit_fields():
    class Child(Node):
        y: Any = 0

    @struct.dataclass
    class Bigger(State):
        extra: Any = 5

    assert jax.tree.leaves(Child(1, y=2)) == [1, 2]
    assert jax.tree.leaves(Bigger(1)) == [1, 5]


def test_only_the_decorated_class_is_a_struct():
    class Undecorated(State):
        pass

    assert struct.is_struct(State)
    assert struct.is_struct(Node)
    assert not struct.is_struct(Undecorated)
    assert not struct.is_struct(int)
    assert struct.child_names(State) == ["step", "params"]


def test_decorating_twice_changes_nothing():
    assert struct.dataclass(Node) is Node
    assert struct.dataclass(State) is State


def test_an_own_replace_is_kept():
    @struct.dataclass
    class Own:
        a: int

        def replace(self, a):
            return Own(a * 10)

    assert Own(1).replace(2) == Own(20)
