"""The model of `generate`: a module, or a function of a scope, which is called with tokens."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from ..entry import apply
from ..errors import LiftArgumentError, name_of
from ..pipeline.checks import missing_arguments
from ..rest import Rest
from ..statics import Undescribed

__all__ = ["Model"]


class Model(NamedTuple):
    """A model, as something that a program is compiled for.

    Attributes:
        static: hashable: the model, or a `Rest` that holds it.
    """

    static: Hashable

    @classmethod
    def of(cls, where: str, module: Any) -> Model:
        """Checks a model.

        Args:
            where: the name of the function, for errors.
            module: what `generate` was given; perhaps in a `functools.partial`, with more arguments by name.

        Raises:
            LiftArgumentError: if the model has other arguments without defaults.
            TypeError: if the model has no hash, and cannot be compared by value.
        """
        _check_arguments(where, module)
        is_partial = isinstance(module, functools.partial)  # which has a hash of its own, however alike two are
        try:
            hash(module)
        except TypeError as error:  # it names the field without a hash
            unhashable = error
        else:
            if not is_partial:
                return cls(module)
        try:
            return cls(Rest(module))
        except Undescribed:
            if is_partial:
                return cls(module)
            raise unhashable from None

    def __call__(self, variables: Mapping[str, Any], tokens: Any) -> tuple[Any, Any]:
        """The outputs of the model, and what it wrote.

        Args:
            variables: its variables.
            tokens: `(batch, length)`.
        """
        model: Any = self.static.value if isinstance(self.static, Rest) else self.static
        module, options = _parts(model)
        applied = getattr(module, "apply", None)
        if applied is None:
            output: tuple[Any, Any] = apply(model, mutable=["cache"])(variables, tokens)
        else:
            output = applied(variables, tokens, mutable=["cache"], **options)
        return output


def _parts(model: Any) -> tuple[Any, dict[str, Any]]:
    """A module, and the arguments that a `functools.partial` fixes."""
    options: dict[str, Any] = {}
    while isinstance(model, functools.partial):
        options = {**model.keywords, **options}
        model = model.func
    return model, options


def _check_arguments(where: str, model: Any) -> None:
    """Checks that a model can be called with tokens alone."""
    module, options = _parts(model)
    called = type(module).__call__ if hasattr(module, "apply") else module
    try:
        signature = inspect.signature(called)
        known = signature.bind_partial(None, None, **options).arguments  # the module or the scope, and tokens
    except (TypeError, ValueError, AttributeError):
        return  # the call says what is wrong
    if hasattr(module, "apply") and getattr(model, "args", None):
        what = f"a `functools.partial` of {name_of(module)} has positional arguments, and tokens are the first one."
        raise LiftArgumentError(where, what, "Give them by name: `functools.partial(model, train=False)`.")
    missing = missing_arguments(signature, known)
    if missing:
        fixed = ", ".join(f"{name}=…" for name in missing)
        listed = " and ".join(f"`{name}`" for name in missing)
        several = len(missing) > 1
        lacks, it, default = (
            ("have no defaults", "them", "defaults") if several else ("has no default", "it", "a default")
        )
        raise LiftArgumentError(
            where,
            f"the model is called with tokens alone, but {listed} of {name_of(module)} {lacks}.",
            f"Give {it} {default}, or fix {it}: `generate(functools.partial(model, {fixed}), variables, …)`.",
        )
