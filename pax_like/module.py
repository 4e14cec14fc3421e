"""`Module`: a mutable pytree whose attributes have kinds."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Self

import jax

from liftcore import Rest
from liftcore.calls import check_keywords
from liftcore.owners import is_owner
from liftcore.pytrees import checks_itself

from . import structure, views
from .structure import Definition, PaxKind, Structure, Structured, hold

__all__ = ["Module"]

_NEW = Rest((Structure(), {"is_training": True}))
"""The definition of a module without attributes."""


class Module(Structured):
    """A pytree whose attributes have kinds. You may change it where it was created; transformations change copies.

    Parameters, states and modules are the children; all other attributes are a part of the tree definition. If you
    assign a module, or a list or dict of modules, the attribute gets the kind MODULE. A kind never changes. Each
    subclass is registered as a pytree; it need not call `super().__init__()`.

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
        is_training: whether the module is in training mode; a part of the tree definition.

    Raises:
        JaxTransformError: if a module is changed inside a JAX transformation in which it was not created.
        KindError: if an attribute would change its kind, or would hold a value that does not fit its kind; when a
            module is flattened, if an attribute that holds arrays has no kind.
        SharedModuleError: when a module is flattened, if it holds another module in two places.
    """

    is_training: bool

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _register(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Create a module without attributes."""
        if (args or kwargs) and cls.__init__ is object.__init__:
            raise TypeError(f"{cls.__name__}() takes no arguments")
        check_keywords(cls, kwargs)
        made = super().__new__(cls)
        structure.unflatten(made, _NEW, ())
        return made

    # -- kinds -------------------------------------------------------------------------------------------------------

    @property
    def name_to_kind(self) -> Mapping[str, PaxKind]:
        """The kinds of the attributes by name, in the order of registration.

        The mapping does not change; later registrations create a new one. A frozen parameter is shown as a state.
        """
        held = self._structure
        return MappingProxyType({name: held.shown(kind) for name, kind in held.kinds})

    @property
    def pytree_attributes(self) -> tuple[str, ...]:
        """The names of the attributes that are children: parameters, states and modules."""
        return self._structure.children

    def register_parameter(self, name: str, value: Any) -> None:
        """Set an attribute of kind PARAMETER.

        Args:
            name: the name of the attribute.
            value: an array, or a pytree of arrays.

        Raises:
            KindError: if the attribute has another kind, or the value holds anything but arrays.
        """
        self.register_subtree(name, value, PaxKind.PARAMETER)

    def register_state(self, name: str, value: Any) -> None:
        """Set an attribute of kind STATE.

        Args:
            name: the name of the attribute.
            value: an array, or a pytree of arrays.

        Raises:
            KindError: if the attribute has another kind, or the value holds anything but arrays.
        """
        self.register_subtree(name, value, PaxKind.STATE)

    def register_module(self, name: str, value: Module) -> None:
        """Set an attribute of kind MODULE to a module. An assignment does the same.

        Args:
            name: the name of the attribute.
            value: the module.

        Raises:
            KindError: if the attribute has another kind, or the value is not a module.
        """
        if not is_owner(value):
            raise structure.unfit(self, name, PaxKind.MODULE, value)
        self.register_subtree(name, value, PaxKind.MODULE)

    def register_modules(self, name: str, value: Any) -> None:
        """Set an attribute of kind MODULE to a pytree of modules. An assignment does the same, if there is a module.

        Args:
            name: the name of the attribute.
            value: a pytree of modules, such as a list or a dict; it may be empty, to be filled later.

        Raises:
            KindError: if the attribute has another kind, or the value holds anything but modules.
        """
        self.register_subtree(name, value, PaxKind.MODULE)

    def register_subtree(self, name: str, value: Any, kind: PaxKind) -> None:
        """Set an attribute of a given kind.

        Args:
            name: the name of the attribute.
            value: a pytree. If it holds a module and `kind` is not `PaxKind.MODULE`, all arrays of the module have that
                kind.
            kind: the kind.

        Raises:
            KindError: if the attribute has another kind, or the value does not fit the kind.
        """
        structure.check_changeable(self, name)
        structure.check_kind(self, name, kind)
        structure.check_value(self, name, value, kind)
        hold(self, self._structure.registered(name, kind), {name: value})

    def __setattr__(self, name: str, value: Any) -> None:
        kind = self._structure.kind(name)
        if kind is None and any(map(structure.holds_arrays, structure.leaves_and_modules(value, is_owner))):
            kind = PaxKind.MODULE
        if kind is not None:
            self.register_subtree(name, value, kind)
        else:
            structure.check_changeable(self, name)
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        structure.check_changeable(self, name)
        super().__delattr__(name)
        hold(self, self._structure.without(name), {})

    # -- copies ------------------------------------------------------------------------------------------------------

    def copy(self) -> Self:
        """Return a copy with the same arrays, which you may change in the current trace."""
        return jax.tree.map(lambda leaf: leaf, self)

    def train(self) -> Self:
        """Return a copy in training mode, including all modules in it."""
        return self._with_all({"is_training": True})

    def eval(self) -> Self:
        """Return a copy in evaluation mode, including all modules in it."""
        return self._with_all({"is_training": False})

    def freeze(self) -> Self:
        """Return a copy whose parameters, including those of all modules in it, are not differentiated.

        `name_to_kind` shows them as states. Lifts still keep them in "params", so the axes of a lift need no change.
        """
        return self._with_all({}, is_frozen=True)

    def unfreeze(self) -> Self:
        """Return a copy in which frozen parameters are parameters again."""
        return self._with_all({}, is_frozen=False)

    def parameters(self) -> Self:
        """Return a copy with only the parameters that are not frozen, and None in place of all other arrays.

        Example:
            >>> import jax, pax_like as pax
            >>> layer = pax.Linear(2, 1, key=jax.random.key(0))
            >>> updated = layer.update(jax.tree.map(jax.numpy.zeros_like, layer.parameters()))
            >>> updated.kernel.tolist()
            [[0.0], [0.0]]
        """
        return views.select(self, lambda leaf: leaf.is_trainable)

    def update(self, other: Self) -> Self:
        """Return a copy with the arrays of another module.

        Args:
            other: a module of the same structure, such as changed `parameters()`. Where it has None, the copy keeps the
                array of this module.

        Raises:
            LiftArgumentError: if the structures differ.
        """
        return views.updated(self, other)

    def summary(self) -> str:
        """Return a text with one line for each attribute: its kind, and the types of its arrays.

        Example:
            >>> import jax, pax_like as pax
            >>> print(pax.Linear(2, 3, key=jax.random.key(0)).summary())
            Linear: 9 numbers in parameters, 0 in states
            bias    PARAMETER  float32[3]
            kernel  PARAMETER  float32[2,3]
        """
        return views.summary(self)

    def _with_all(self, attributes: Mapping[str, Any], *, is_frozen: bool | None = None) -> Self:
        """Return a copy in which all modules have these attributes, and are frozen or not."""
        made = self.copy()
        for one in structure.modules_in(made):
            held = one._structure
            hold(one, held if is_frozen is None else dataclasses.replace(held, is_frozen=is_frozen), attributes)
        return made

    # -- as a pytree -------------------------------------------------------------------------------------------------

    def tree_flatten(self) -> tuple[list[Any], Definition]:
        """Return the children, and everything else as a part of the tree definition.

        Raises:
            KindError: if an attribute holds arrays or modules, but has no kind.
            SharedModuleError: if a module is in two places.
        """
        return structure.flatten(self)

    @classmethod
    def tree_unflatten(cls, definition: Definition, children: Iterable[Any]) -> Self:
        """Return a module with other children, which you may change in the current trace.

        Args:
            definition: the second result of `tree_flatten`.
            children: a value for each of `pytree_attributes`.
        """
        made = object.__new__(cls)
        structure.unflatten(made, definition, children)
        return made

    def __collections__(self) -> list[str | None]:
        return views.collections(self)

    def __getstate__(self) -> tuple[Structure, dict[str, Any]]:
        return self._structure, self.__dict__.copy()

    def __setstate__(self, state: tuple[Structure, dict[str, Any]]) -> None:
        hold(self, *state)

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        return views.text(self)


def _register(cls: Any) -> None:
    def with_keys(module: Module) -> tuple[list[tuple[Any, Any]], Any]:
        children, definition = module.tree_flatten()
        keys = map(jax.tree_util.GetAttrKey, module.pytree_attributes)
        return list(zip(keys, children, strict=True)), definition

    checks_itself(cls, structure.children_of)
    jax.tree_util.register_pytree_with_keys(cls, with_keys, cls.tree_unflatten, cls.tree_flatten)
