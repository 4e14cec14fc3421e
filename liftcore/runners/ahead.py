"""A lifted `jit` stage by stage, as `jax.stages` has them: called, lowered, compiled ahead of time."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ..errors import LiftArgumentError
from ..pipeline.packing import Lifter, keeping_lifter
from ..pipeline.use import Use
from ..typing import PyTree
from .arguments import name_arguments
from .compiled import Compiled, Kept, NewTrace
from .donation import Donated

__all__ = ["CompiledJit", "Jitted", "LoweredJit", "Step"]

Step: TypeAlias = Callable[[Compiled, Use, Donated, PyTree], tuple[Any, tuple[Any, ...]]]
"""What is done with a compiled function: from its operands to the result and the output groups of the lift."""


def _never(scopes: PyTree) -> None:
    """Nothing is known of any call."""


class Jitted:
    """A function under a lifted `jit`: called as `jitted(scopes, *args, **kwargs)`.

    Args:
        fn: the function of scopes.
        lift: from what is done with what was compiled to a lift of functions.
        direct: from the scopes of a call to what was compiled, as a function of named arguments, where the stages of
            the lift have nothing to do; else, and where nothing was compiled yet, to None.
    """

    __qualname__: str

    def __init__(
        self,
        fn: Callable[..., Any],
        lift: Callable[[Step], Lifter],
        direct: Callable[[PyTree], Callable[[dict[str, Any]], Any] | None] = _never,
    ) -> None:
        lifted = lift(Compiled.__call__)(fn)
        functools.update_wrapper(self, lifted)
        keeping_lifter(self, lifted)
        self._fn, self._lift, self._lifted, self._direct = fn, lift, lifted, direct

    def __call__(self, scopes: PyTree, *args: Any, **kwargs: Any) -> Any:
        """What the function returns.

        Args:
            scopes: one scope, or a pytree of them.
            *args: the arguments, static ones included.
            **kwargs: keyword arguments.
        """
        run = self._direct(scopes)
        if run is not None:
            # Where there is no trace yet, or JAX cannot take an argument, the lift says more.
            with contextlib.suppress(NewTrace, TypeError):
                return run(name_arguments(args, kwargs))
        return self._lifted(scopes, *args, **kwargs)

    def lower(self, scopes: PyTree, *args: Any, **kwargs: Any) -> LoweredJit:
        """Traces and lowers the function for the types of these arguments, and runs nothing.

        No scope changes. The program includes the initial values of what the function creates.

        Example:
            >>> import jax, liftcore
            >>> def double(scope, x):
            ...     return 2 * x * scope.get_variable("params", "w")
            >>> scope = liftcore.bind({"params": {"w": 3.0}})
            >>> lowered = liftcore.jit(double).lower(scope, jax.numpy.ones(4))
            >>> "stablehlo.multiply" in lowered.as_text(), lowered.compile()(scope, jax.numpy.ones(4))
            (True, Array([6., 6., 6., 6.], dtype=float32))

        Args:
            scopes: a scope or a pytree of scopes, which may be bound.
            *args: the arguments of a call; arrays may be `jax.ShapeDtypeStruct`.
            **kwargs: keyword arguments of a call.
        """
        found, kept, room, stage = self._lift(Compiled.lower)(self._fn)(scopes, *args, **kwargs)

        def finish(run: Callable[..., Any]) -> CompiledJit:
            return CompiledJit(run, self._lift(functools.partial(_run, run, found, kept, room))(self._fn))

        return LoweredJit(stage, finish)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<lifted jit of {self._fn!r}>"

    def __static_fields__(self) -> dict[str, Any]:
        return {"lifted": self._lifted}

    def __reduce__(self) -> Any:
        found: Any = sys.modules.get(self.__module__)
        for name in self.__qualname__.split("."):
            found = getattr(found, name, None)
        return self.__qualname__ if found is self else (Jitted, (self._fn, self._lift))


class LoweredJit:
    """One call of a lifted `jit`, lowered.

    Attributes:
        stage: JAX's own, a `jax.stages.Lowered`.
    """

    def __init__(self, stage: Any, finish: Callable[[Any], CompiledJit]) -> None:
        self.stage, self._finish = stage, finish

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """The program as text; see `jax.stages.Lowered.as_text`.

        Args:
            dialect: such as "stablehlo" or "hlo"; by default the one of JAX.
            debug_info: whether the text names the source of each operation.
        """
        return str(self.stage.as_text(dialect, debug_info=debug_info))

    def cost_analysis(self) -> Any:
        """What the program is estimated to cost, as far as the backend tells; see `jax.stages.Lowered`."""
        return self.stage.cost_analysis()

    def compile(self, compiler_options: Mapping[str, Any] | None = None) -> CompiledJit:
        """Compiles the program.

        Args:
            compiler_options: options of XLA, by name.
        """
        return self._finish(self.stage.compile(None if compiler_options is None else dict(compiler_options)))


class CompiledJit:
    """One call of a lifted `jit`, compiled: called as `compiled(scopes, *args, **kwargs)`.

    It takes arguments of the types that it was lowered for, the same static ones included, and scopes with variables
    of the same names and types, wherever these lie in a model. Keys, names and new values are those of the call.

    Attributes:
        stage: JAX's own, a `jax.stages.Compiled`.

    Raises:
        LiftArgumentError: where it was compiled for other types, static arguments or scopes.
    """

    def __init__(self, stage: Any, lifted: Callable[..., Any]) -> None:
        self.stage, self._lifted = stage, lifted

    def __call__(self, scopes: PyTree, *args: Any, **kwargs: Any) -> Any:
        """What the function returns.

        Args:
            scopes: one scope, or a pytree of them.
            *args: the arguments, static ones included.
            **kwargs: keyword arguments.
        """
        return self._lifted(scopes, *args, **kwargs)

    def as_text(self) -> str:
        """The program as text, as the compiler left it."""
        return str(self.stage.as_text())

    def cost_analysis(self) -> Any:
        """What the program is estimated to cost, as far as the backend tells; see `jax.stages.Compiled`."""
        return self.stage.cost_analysis()

    def memory_analysis(self) -> Any:
        """How many bytes it takes, as far as the backend tells; see `jax.stages.Compiled`."""
        return self.stage.memory_analysis()


def _run(
    stage: Any, lowered: Compiled, kept: Kept, room: int, found: Compiled, use: Use, gone: Donated, operands: PyTree
) -> tuple[Any, tuple[Any, ...]]:
    """Runs what was compiled ahead of time; `found` is what this call would have compiled."""
    fix = "Lower it again, for what it is called with: `jitted.lower(scope, …).compile()`."
    if found.program != lowered.program:
        raise LiftArgumentError(use.where, "it was compiled for other scopes, or for other static arguments.", fix)
    data = lowered.fold_in_data(kept, use, room)
    try:
        created, output = stage(data, gone, operands)
    except TypeError as error:
        raise LiftArgumentError(use.where, "it was compiled for values of other types, or other names.", fix) from error
    return lowered.output(use, created, output)
