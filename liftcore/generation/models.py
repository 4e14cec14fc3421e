"""The model of `generate`: a module, or a function of a scope, that maps tokens to logits."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import jax

from ..entry import apply
from ..errors import Expected, LiftArgumentError, name_of, shown
from ..rest import Rest
from ..statics import Undescribed

__all__ = ["Model"]


class Model(NamedTuple):
    """A model as a hashable value, which keeps no function and no other object alive that is equal only to itself.

    Attributes:
        held: the module or the function: itself, in a `Rest`, or in a weak reference.
        fixed: a `Rest` of the arguments that a `functools.partial` fixes; None if there are none.
    """

    held: Hashable
    fixed: Rest | None

    @classmethod
    def of(cls, where: str, module: Any) -> Model:
        """Check a model, and make it hashable.

        Args:
            where: the name of the function, for errors.
            module: the first argument of `generate`; it may be a `functools.partial` with keyword arguments.

        Raises:
            LiftArgumentError: if the model has other arguments without defaults, or is called in another way, as
                modules that hold arrays are.
            TypeError: if the model has no hash, and cannot be compared by value.
        """
        _check_arguments(where, module)
        if type(module) is not functools.partial:
            return cls(_held(module), None)
        try:  # its hash is by identity, so equal ones would differ
            return cls(_held(module.func), Rest((module.args, module.keywords)))
        except Undescribed:
            return cls(_held(module), None)

    @property
    def owner(self) -> Any:
        """The function or object without which no call can have this model; None if an equal one may come later."""
        return self.held() if isinstance(self.held, weakref.ref) else None

    def __call__(self, variables: Mapping[str, Any], tokens: Any) -> tuple[Any, Any]:
        """Return the outputs of the model, and the variables that it wrote.

        Args:
            variables: the variables of the model.
            tokens: integers of shape `(batch, length)`.
        """
        model: Any = self.held
        if isinstance(model, Rest):
            model = model.value
        elif isinstance(model, weakref.ref):
            model = model()
        if self.fixed is not None:
            args, keywords = self.fixed.value
            model = functools.partial(model, *args, **keywords)
        module, options = _parts(model)
        applied = getattr(module, "apply", None)
        if applied is None:
            output: tuple[Any, Any] = apply(model, mutable=["cache"])(variables, tokens)
        else:
            output = applied(variables, tokens, mutable=["cache"], **options)
        return output


def _held(module: Any) -> Hashable:
    """Return a hashable value for a module or a function.

    Raises:
        TypeError: if it has no hash, and cannot be compared by value.
    """
    try:
        hash(module)
    except TypeError as error:  # the error names the field without a hash
        try:
            return Rest(module)
        except Undescribed:
            raise error from None
    kind: Any = type(module)
    held: Hashable = weakref.ref(module) if kind.__eq__ is object.__eq__ and kind.__weakrefoffset__ else module
    return held


def _parts(model: Any) -> tuple[Any, dict[str, Any]]:
    """Return the module, and the arguments that a `functools.partial` fixes."""
    options: dict[str, Any] = {}
    while isinstance(model, functools.partial):
        options = {**model.keywords, **options}
        model = model.func
    return model, options


def _no_model(where: str, module: Any) -> LiftArgumentError:
    """Return the error for an object that is not called with variables, or with a scope, and tokens."""
    try:
        called = f", called as {name_of(module)}{inspect.signature(module)}"
    except (TypeError, ValueError):
        called = ""
    return LiftArgumentError(
        where,
        Expected(
            "a module with `apply(variables, tokens, mutable=…)`, or a function of a scope and of tokens",
            given=module,
            words=f"{shown(module)}{called}",
        ),
        "Wrap a model of another kind in an object with `def apply(self, variables, tokens, mutable)`. It returns the "
        'logits and `{"cache": …}`, and creates the cache if `variables` has none; see docs/generation.md.',
    )


def _check_arguments(where: str, model: Any) -> None:
    """Check that a model can be called with only tokens."""
    module, options = _parts(model)
    if not hasattr(module, "apply") and any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(module)):
        raise _no_model(where, module)  # a function of a scope has its arrays in the scope
    called = type(module).__call__ if hasattr(module, "apply") else module
    try:
        signature = inspect.signature(called)
        known = signature.bind_partial(None, None, **options).arguments  # the module or the scope, and tokens
        if hasattr(module, "apply"):
            inspect.signature(module.apply).bind(None, None, mutable=[], **options)
    except (ValueError, AttributeError):
        return  # there is no signature, or the call raises the error
    except TypeError:
        raise _no_model(where, module) from None
    if hasattr(module, "apply") and getattr(model, "args", None):
        what = f"a `functools.partial` of {name_of(module)} has positional arguments, but tokens must be the first."
        fix = "Pass them by name: `functools.partial(model, train=False)`."
        raise LiftArgumentError(where, what, fix, expected="tokens")
    absent = [one for one in signature.parameters.values() if one.name not in known and one.default is one.empty]
    missing = [one.name for one in absent if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    if missing:
        fixed = ", ".join(f"{name}=…" for name in missing)
        listed = " and ".join(f"`{name}`" for name in missing)
        several = len(missing) > 1
        lacks, it, default = (
            ("have no defaults", "them", "defaults") if several else ("has no default", "it", "a default")
        )
        raise LiftArgumentError(
            where,
            f"the model is called with only tokens, but {listed} of {name_of(module)} {lacks}.",
            f"Give {it} {default}, or fix {it}: `generate(functools.partial(model, {fixed}), variables, …)`.",
            option=missing[0],
        )
