"""Abstract attributes of modules, and classes that are either abstract or final."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeAlias, TypeVar

from liftcore.errors import LiftArgumentError

__all__ = ["AbstractClassVar", "AbstractVar", "check_strict", "missing", "own_abstract"]

T = TypeVar("T")

if TYPE_CHECKING:
    from typing import ClassVar as AbstractClassVar

    AbstractVar: TypeAlias = Annotated[T, "AbstractVar"]
else:

    class AbstractVar(Generic[T]):
        """An annotation for an attribute that each class that is not abstract must have: a field or a property.

        Example:
            >>> import equinox_like as eqx
            >>> class Layer(eqx.Module):
            ...     size: eqx.AbstractVar[int]
            ...     def volume(self):
            ...         return self.size**3
            >>> class Fixed(Layer):
            ...     size: int
            >>> Fixed(2).volume()
            8
            >>> Layer()
            Traceback (most recent call last):
            ...
            TypeError: Can't instantiate abstract class Layer ...
        """

    class AbstractClassVar(Generic[T]):
        """An annotation for a class attribute that each class that is not abstract must have.

        Example:
            >>> import equinox_like as eqx
            >>> class Layer(eqx.Module):
            ...     kind: eqx.AbstractClassVar[str]
            >>> class Dense(Layer):
            ...     kind = "dense"
            >>> Dense().kind
            'dense'
        """


_TEXT = re.compile(r"(\w+\s*\.\s*)*Abstract(Class)?Var\s*(\[|$)")


def own_abstract(cls: Any) -> set[str]:
    """Remove the abstract attributes from the annotations of a class, and return their names."""
    annotations = inspect.get_annotations(cls)
    found = {name for name, annotation in annotations.items() if _is_abstract(annotation)}
    if found:
        cls.__annotations__ = {name: one for name, one in annotations.items() if name not in found}
    return found


def _is_abstract(annotation: Any) -> bool:
    if isinstance(annotation, str):  # of a module with `from __future__ import annotations`
        return _TEXT.match(annotation) is not None
    return (typing.get_origin(annotation) or annotation) in (AbstractVar, AbstractClassVar)


def missing(cls: Any, names: Iterable[str]) -> set[str]:
    """Return the names that are neither fields nor attributes of a class."""
    return {name for name in names if name not in cls.__dataclass_fields__ and not hasattr(cls, name)}


def check_strict(cls: Any, bases: Iterable[Any], methods: Iterable[str]) -> None:
    """Check that a class inherits only from abstract modules, and overrides only their abstract methods.

    Args:
        cls: the class.
        bases: the modules among its bases.
        methods: the names of the methods that it defines.

    Raises:
        LiftArgumentError: if it does not.
    """
    for base in bases:
        if not inspect.isabstract(base):
            raise LiftArgumentError(
                f"{cls.__name__}, strict",
                f"its base {base.__name__} is not abstract, so it is final.",
                "Move what both classes share into an abstract class, or leave out `strict=True`.",
            )
        for name in methods:
            if hasattr(base, name) and name not in base.__abstractmethods__:
                raise LiftArgumentError(
                    f"{name} of {cls.__name__}, strict",
                    f"it overrides a method of {base.__name__} that is not abstract.",
                    "Give it another name, make that one abstract, or leave out `strict=True`.",
                )
