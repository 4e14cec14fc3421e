"""`Module`: a pytree whose attributes have kinds, and may be changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Self

import jax

from liftcore import Rest

from . import checks, structure, views
from .kinds import PaxKind
from .structure import Definition, Structure, Structured, hold

__all__ = ["Module"]

_NEW = Rest((Structure(), {"is_training": True}))
"""The definition of a module without attributes."""


class Module(Structured):
    """A pytree whose attributes have kinds. It may be changed where it was made; transformations change copies.

    Attributes that are parameters, states and modules are the children; all others are a part of the tree definition.
    What is assigned a module, or lists and dicts of modules, is found to be one. A kind never changes. Each subclass is
    a pytree by being defined, and needs no call of `super().__init__()`.

    Example:
        >>> import jax, pax_like as pax
        >>> import jax.numpy as jnp
        >>> class Counter(pax.Module):
        ...     def __init__(self, step):
        ...         self.step = step
        ...         self.register_state("count", jnp.array(0))
        ...         self.register_parameter("bias", jnp.array(0.5))
        ...     def __call__(self):
        ...         self.count = self.count + self.step
        ...         return self.count + self.bias
        >>> counter = Counter(2)
        >>> counter(), counter.count
        (Array(2.5, dtype=float32, weak_type=True), Array(2, dtype=int32, weak_type=True))
        >>> changed, result = jax.jit(pax.module_and_value(counter.__call__))()
        >>> int(counter.count), int(changed.count)
        (2, 4)

    Attributes:
        is_training: whether the module is in training; a part of the tree definition.

    Raises:
        JaxTransformError: where a module is changed inside a JAX transformation that did not make it.
        KindError: where an attribute would change its kind, or holds what its kind cannot hold; and when a module is
            flattened, where an attribute that holds arrays has no kind.
        SharedModuleError: when a module is flattened in which another one stands twice.
    """

    is_training: bool

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _register(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Makes a module without attributes."""
        made = super().__new__(cls)
        structure.unflatten(made, _NEW, ())
        return made

    # -- kinds -------------------------------------------------------------------------------------------------------

    @property
    def name_to_kind(self) -> Mapping[str, PaxKind]:
        """The kinds of the attributes, by name, in the order in which they were registered.

        It is replaced, never changed in place. A parameter that is frozen shows as a state.
        """
        held = self._structure
        return MappingProxyType({name: held.shown(kind) for name, kind in held.kinds})

    @property
    def pytree_attributes(self) -> tuple[str, ...]:
        """The names of the attributes that are children: parameters, states and modules."""
        return self._structure.children

    def register_parameter(self, name: str, value: Any) -> None:
        """Sets an attribute that is a parameter.

        Args:
            name: its name.
            value: an array, or a pytree of arrays.

        Raises:
            KindError: where the name has another kind, or the value holds something else.
        """
        self.register_subtree(name, value, PaxKind.PARAMETER)

    def register_state(self, name: str, value: Any) -> None:
        """Sets an attribute that is a state.

        Args:
            name: its name.
            value: an array, or a pytree of arrays.

        Raises:
            KindError: where the name has another kind, or the value holds something else.
        """
        self.register_subtree(name, value, PaxKind.STATE)

    def register_module(self, name: str, value: Module) -> None:
        """Sets an attribute that is a module. To assign it does the same.

        Args:
            name: its name.
            value: the module.

        Raises:
            KindError: where the name has another kind, or the value is no module.
        """
        checks.check_one_module(self, name, value)
        self.register_subtree(name, value, PaxKind.MODULE)

    def register_modules(self, name: str, value: Any) -> None:
        """Sets an attribute that holds modules. To assign it does the same, where it holds one.

        Args:
            name: its name.
            value: a pytree of modules: a list, a dict, also an empty one that is filled later.

        Raises:
            KindError: where the name has another kind, or the value holds something else.
        """
        self.register_subtree(name, value, PaxKind.MODULE)

    def register_subtree(self, name: str, value: Any, kind: PaxKind) -> None:
        """Sets an attribute of a kind.

        Args:
            name: its name.
            value: a pytree. Where a module is in it, under another kind than `PaxKind.MODULE`, all of its arrays are of
                that kind.
            kind: the kind.

        Raises:
            KindError: where the name has another kind, or the value holds what the kind cannot hold.
        """
        checks.check_changeable(self, name)
        checks.check_kind(self, name, kind)
        checks.check_value(self, name, value, kind)
        hold(self, self._structure.registered(name, kind), {name: value})

    def __setattr__(self, name: str, value: Any) -> None:
        kind = self._structure.kind(name)
        if kind is None and any(map(structure.is_module, structure.leaves_and_modules(value))):
            kind = PaxKind.MODULE
        if kind is not None:
            self.register_subtree(name, value, kind)
        else:
            checks.check_changeable(self, name)
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        checks.check_changeable(self, name)
        super().__delattr__(name)
        hold(self, self._structure.without(name), {})

    # -- copies ------------------------------------------------------------------------------------------------------

    def copy(self) -> Self:
        """A copy with the same arrays, which may be changed here."""
        return jax.tree.map(lambda leaf: leaf, self)

    def train(self) -> Self:
        """A copy in training, with all modules in it."""
        return self._with_all({"is_training": True})

    def eval(self) -> Self:
        """A copy that is not in training, with all modules in it."""
        return self._with_all({"is_training": False})

    def freeze(self) -> Self:
        """A copy whose parameters, with those of all modules in it, are not differentiated with respect to.

        They show as states in `name_to_kind`. Lifts keep them in "params" as before, so that axes need no change.
        """
        return self._with_all({}, is_frozen=True)

    def unfreeze(self) -> Self:
        """A copy in which what `freeze` froze is a parameter again."""
        return self._with_all({}, is_frozen=False)

    def parameters(self) -> Self:
        """A copy with the parameters, less those that are frozen, and None in the place of all other arrays.

        Example:
            >>> import jax, pax_like as pax
            >>> layer = pax.Linear(2, 1, key=jax.random.key(0))
            >>> updated = layer.update(jax.tree.map(jax.numpy.zeros_like, layer.parameters()))
            >>> updated.kernel.tolist()
            [[0.0], [0.0]]
        """
        return views.select(self, lambda leaf: leaf.is_trainable)

    def update(self, other: Self) -> Self:
        """A copy that takes the arrays of another module where that has them.

        Args:
            other: a module of the same structure, such as changed `parameters`; None stands for what is kept.

        Raises:
            LiftArgumentError: where the structure is another one.
        """
        return views.updated(self, other)

    def summary(self) -> str:
        """A text with each attribute on a line: its kind, and the types of its arrays.

        Example:
            >>> import jax, pax_like as pax
            >>> print(pax.Linear(2, 3, key=jax.random.key(0)).summary())
            Linear: 9 numbers in parameters, 0 in states
            bias    PARAMETER  float32[3]
            kernel  PARAMETER  float32[2,3]
        """
        return views.summary(self)

    def _with_all(self, attributes: Mapping[str, Any], *, is_frozen: bool | None = None) -> Self:
        """A copy in which all modules have these attributes, and are frozen or not."""
        made = self.copy()
        for one in structure.modules_in(made):
            held = one._structure
            hold(one, held if is_frozen is None else dataclasses.replace(held, is_frozen=is_frozen), attributes)
        return made

    # -- as a pytree -------------------------------------------------------------------------------------------------

    def tree_flatten(self) -> tuple[list[Any], Definition]:
        """The children, and all else as a part of the tree definition.

        Raises:
            KindError: where an attribute holds arrays, or modules, and has no kind.
            SharedModuleError: where a module stands twice.
        """
        return structure.flatten(self)

    @classmethod
    def tree_unflatten(cls, definition: Definition, children: Iterable[Any]) -> Self:
        """A module with other children, which may be changed here.

        Args:
            definition: what `tree_flatten` gave beside the children.
            children: one for each of `pytree_attributes`.
        """
        made = object.__new__(cls)
        structure.unflatten(made, definition, children)
        return made

    def __getstate__(self) -> tuple[Structure, dict[str, Any]]:
        return self._structure, self.__dict__.copy()

    def __setstate__(self, state: tuple[Structure, dict[str, Any]]) -> None:
        hold(self, *state)

    def __repr__(self) -> str:
        return views.text(self)


def _register(cls: Any) -> None:
    def with_keys(module: Module) -> tuple[list[tuple[Any, Any]], Any]:
        children, definition = module.tree_flatten()
        keys = map(jax.tree_util.GetAttrKey, module.pytree_attributes)
        return list(zip(keys, children, strict=True)), definition

    jax.tree_util.register_pytree_with_keys(cls, with_keys, cls.tree_unflatten, cls.tree_flatten)
