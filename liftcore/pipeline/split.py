"""A body in two parts: a prologue, which makes its initial values, and a remainder, which takes them.

A transformation that makes one equation of its body, such as `jax.checkpoint`, takes all that the body takes; a loop
around it could not see that an initial value made in it depends on a key alone. So the prologue runs outside, and only
the remainder under the transformation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..typing import PyTree
from .hoist import Prologue, Traced, trace
from .layout import Changes
from .packing import Crossing
from .pure import Pure

__all__ = ["Split", "split", "with_created", "without_created"]


def split(
    pure: Pure,
    body: Callable[..., Any],
    *operands: PyTree,
    axes: Sequence[tuple[Any, int]] = (),
) -> Split:
    """Traces a body once, and splits it.

    Args:
        pure: the function of scopes.
        body: called as `body(pure, *operands)`; returns the result and the output groups.
        *operands: pytrees of arrays, or of what stands for their types.
        axes: the names and sizes of the mapped axes that the body may ask for.
    """
    hoisted = pure.hoisted()
    traced = trace(lambda *operands: without_created(*body(hoisted, *operands)), *operands, axes=axes)
    return Split(pure.crossing, traced.with_effects())


class Split:
    """A body in two parts.

    Args:
        crossing: the use of the lift that it belongs to.
        traced: the body, as `(created, (result, values))`; what effects gave may be a last part of `created`.
    """

    def __init__(self, crossing: Crossing, traced: Traced) -> None:
        self._crossing, self.traced = crossing, traced

    @property
    def values(self) -> list[PyTree]:
        """The types of the last values of variables, one pytree for each output group."""
        values: list[PyTree] = self.traced.outputs[1]
        return values

    def prologue(self, *operands: PyTree, form: Callable[[int, Any], Any] | None = None) -> list[PyTree]:
        """The initial values as the scopes outside will hold them, each made after those that it reads.

        Args:
            *operands: what the body is called with; None for one that no initial value reads.
            form: see `Crossing.make`.

        Returns:
            One pytree for each output group, and what effects gave.
        """
        return self._made(Prologue(self.traced, self.traced.leaves(operands)), None, form)

    def batched(
        self, batch: Callable[..., Any], operands: Sequence[PyTree], in_axes: Sequence[Any], group_axes: Sequence[Any]
    ) -> list[PyTree]:
        """The same for all elements of a batch.

        Args:
            batch: see `Prologue`.
            operands: what the body is called with, for all elements.
            in_axes: for each of the leaves of the operands the axis along which elements differ, or None.
            group_axes: for each part of `created` the axis along which its values are stacked, or None.
        """
        axes = [group_axes[part] for part in self.traced.parts]
        return self._made(Prologue(self.traced, self.traced.leaves(operands), in_axes, batch), axes, None)

    def remainder(self, created: Sequence[PyTree], *operands: PyTree) -> tuple[PyTree, list[PyTree]]:
        """Runs the rest of the body on initial values.

        Returns:
            The result, and the last values of variables: one pytree for each output group.
        """
        result, values = self.traced.rest(None, created, *operands)[1]
        return result, values

    def join(
        self, created: Sequence[PyTree], result: PyTree, values: Sequence[PyTree]
    ) -> tuple[PyTree, tuple[Any, ...]]:
        """What a transformation returns: the result and the output groups."""
        return with_created(created[: len(values)], result, values)

    def _made(
        self, prologue: Prologue, axes: Sequence[Any] | None, form: Callable[[int, Any], Any] | None
    ) -> list[PyTree]:
        self._crossing.make(prologue, None, axes, form)
        created: list[PyTree] = prologue.tree()
        self._crossing.made(created[: len(self.values)])
        return created


def without_created(result: Any, groups: Sequence[Any]) -> tuple[list[Any], tuple[Any, list[Any]]]:
    """Splits the outputs of a body into its initial values and the rest."""
    created = [group.created if isinstance(group, Changes) else () for group in groups]
    return created, (result, [group.values if isinstance(group, Changes) else group for group in groups])


def with_created(created: Sequence[Any], result: Any, values: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """The inverse of `without_created`."""
    groups = (Changes(value, made) if made != () else value for value, made in zip(values, created, strict=True))
    return result, tuple(groups)
