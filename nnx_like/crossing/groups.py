"""Prefixes and groups: which variables a transformation treats alike.

A group is a collection of the scope that the values of objects cross in. It is named after what its variables have in
common, such as `axis 0`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from liftcore.errors import LiftArgumentError, UnmatchedFilterError

from ..filters import to_predicate
from ..graph.definition import path_text
from ..graph.walk import is_object

__all__ = ["ByFilter", "Choose", "Groups", "alike", "is_spec", "pairs_of"]


class ByFilter:
    """What the variables of an object have, filter by filter: an axis, a sharding, a spec.

    It stands where one axis or one sharding for all of the object could stand. The first filter that matches counts.

    Args:
        rules: a mapping from filters to what the variables have, or pairs of these.
    """

    def __init__(self, rules: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        self.rules = tuple(rules.items() if isinstance(rules, Mapping) else rules)

    @property
    def filters(self) -> tuple[Any, ...]:
        """The filters, in order."""
        return tuple([one for one, _ in self.rules])

    @property
    def specs(self) -> tuple[Any, ...]:
        """What the variables of each filter have, in order."""
        return tuple([spec for _, spec in self.rules])

    def items(self) -> Iterable[tuple[Any, Any]]:
        """The filters, each with what its variables have."""
        return self.rules

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.rules == other.rules

    def __hash__(self) -> int:
        return hash((type(self), self.rules))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({{{', '.join(f'{one!r}: {spec!r}' for one, spec in self.rules)}}})"


class Choose:
    """The group of each variable by filters: a prefix of a walk.

    Args:
        rules: predicates, each with the name of a group.
        many: whether it may stand for a pytree of several objects; paths begin at each of them.
    """

    __slots__ = ("many", "rules")

    def __init__(self, rules: tuple[tuple[Callable[..., bool], str], ...], many: bool = False) -> None:
        self.rules, self.many = rules, many

    def __call__(self, path: tuple[Any, ...], value: Any) -> str:
        """The group of a variable.

        Raises:
            UnmatchedFilterError: where no filter matches it.
        """
        for predicate, name in self.rules:
            if predicate(path, value):
                return name
        raise UnmatchedFilterError(
            f"the {type(value).__name__} at {path_text(path)}",
            f"no filter takes it (filters: {', '.join(repr(one) for one, _ in self.rules)}).",
            "Add one for the rest, `...`.",
        )

    def __eq__(self, other: object) -> bool:
        return type(other) is Choose and self.many == other.many and self.rules == other.rules

    def __hash__(self) -> int:
        return hash(self.rules)


def is_spec(prefix: Any) -> bool:
    """Whether a part of a prefix speaks of all below it."""
    leaf = (ByFilter, jax.sharding.PartitionSpec, jax.sharding.Sharding)
    return prefix is None or isinstance(prefix, leaf) or is_object(prefix)


class Groups:
    """The groups of a transformation.

    Args:
        where: what errors call the transformation, such as `vmap(block)`.
        label: what the names of groups begin with.

    Attributes:
        specs: what the variables of each group have in common.
    """

    def __init__(self, where: str, label: str) -> None:
        self.where, self.label = where, label
        self.specs: dict[str, Any] = {}

    def name(self, spec: Any) -> str:
        """The group of variables that have something in common."""
        name = f"{self.label} {spec}"
        while name in self.specs and not alike(self.specs[name], spec):  # unlike things may look alike
            name += "'"
        self.specs.setdefault(name, spec)
        return name

    def encode(self, prefix: Any) -> Any:
        """The prefix with names of groups in it, and `Choose`, as a walk takes it.

        Args:
            prefix: a pytree prefix of axes, shardings and the like, and of `ByFilter`.

        Raises:
            LiftArgumentError: where an object is in it.
        """
        return jax.tree.map(self._group, prefix, is_leaf=is_spec)

    def _group(self, spec: Any) -> Any:
        if is_object(spec):
            raise LiftArgumentError(
                self.where,
                f"a {type(spec).__name__} is where an {self.label} belongs; objects are no prefixes of others.",
                f"Give one {self.label} for all of an object, or one for each filter, as `StateAxes` does.",
            )
        if isinstance(spec, ByFilter):
            return Choose(tuple([(to_predicate(one), self.name(each)) for one, each in spec.rules]))
        return self.name(spec)

    def plain(self, prefix: Any, instead: Any = None) -> Any:
        """The prefix as JAX takes it: what is said filter by filter says nothing of arrays."""
        return jax.tree.map(lambda spec: instead if isinstance(spec, ByFilter) else spec, prefix, is_leaf=is_spec)


def alike(first: Any, second: Any) -> bool:
    """Whether two specs are the same."""
    return type(first) is type(second) and bool(first == second)


def _is_group(prefix: Any) -> bool:
    return type(prefix) is str or type(prefix) is Choose


def pairs_of(groups: Groups, prefix: Any, tree: Any, what: str) -> tuple[list[tuple[Any, Any]], Any]:
    """The parts of a pytree with the group of each, and how to put the parts together again.

    Args:
        groups: says where in errors.
        prefix: what `Groups.encode` gave.
        tree: what it is a prefix of.
        what: what errors call the prefix, such as `in_axes`.

    Raises:
        LiftArgumentError: where it is no prefix.
    """
    if _is_group(prefix):
        return [(prefix, tree)], None
    parts, structure = jax.tree.flatten(prefix, is_leaf=_is_group)
    try:
        return list(zip(parts, structure.flatten_up_to(tree), strict=True)), structure
    except ValueError as error:
        raise LiftArgumentError(
            groups.where,
            f"`{what}` does not fit what it is for: {error}.",
            f"Give `{what}` as a prefix of that pytree.",
        ) from None
