"""A lifted `jit` in stages, like `jax.stages`: called, lowered, or compiled ahead of time."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ..cycles import check_finite
from ..errors import LiftArgumentError, boundary
from ..pipeline.body import Body
from ..pipeline.packing import Lifter, keeping_lifter
from ..typing import PyTree
from .arguments import name_arguments
from .compiled import Compiled, Kept, NewTrace
from .donation import Donated

__all__ = ["CompiledJit", "Jitted", "LoweredJit", "Step"]

Step: TypeAlias = Callable[[Compiled, Body, Donated, PyTree], tuple[Any, tuple[Any, ...]]]
"""One call of a compiled function: from its operands to the result and the output groups of the lift."""


def _never(scopes: PyTree) -> None:
    """The default of `direct` of `Jitted`: no call takes the direct way."""


class Jitted:
    """A function under a lifted `jit`, called as `jitted(scopes, *args, **kwargs)`.

    Args:
        fn: the function of scopes.
        lift: makes a lift of functions from a `Step`.
        direct: returns the compiled function for the scopes of a call, as a function of named arguments, if the stages
            of the lift have nothing to do; None otherwise, and if nothing was compiled yet.
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

    @boundary
    def __call__(self, scopes: PyTree, *args: Any, **kwargs: Any) -> Any:
        """Call the function.

        Args:
            scopes: a scope or a pytree of scopes.
            *args: the arguments, static ones included.
            **kwargs: keyword arguments.
        """
        run = self._direct(scopes)
        if run is not None:
            # Without a trace, or if JAX cannot take an argument, the lift gives the better error.
            try:
                return run(name_arguments(args, kwargs))
            except (NewTrace, TypeError):
                pass
            except (RecursionError, SystemError):  # not checked before, which takes a fifth of such a call
                check_finite((args, kwargs))
                raise
        return self._lifted(scopes, *args, **kwargs)

    @boundary
    def lower(self, scopes: PyTree, *args: Any, **kwargs: Any) -> LoweredJit:
        """Trace and lower the function for the types of these arguments, without running it.

        No scope changes. The program includes the computation of initial values.

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

    def __reduce__(self) -> str:
        return self.__qualname__  # it is pickled and copied by its name, as a function is


class LoweredJit:
    """One lowered call of a lifted `jit`.

    Attributes:
        stage: the corresponding object of JAX, a `jax.stages.Lowered`.
    """

    def __init__(self, stage: Any, finish: Callable[[Any], CompiledJit]) -> None:
        self.stage, self._finish = stage, finish

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """Return the program as text; see `jax.stages.Lowered.as_text`.

        Args:
            dialect: a dialect such as "stablehlo" or "hlo"; by default, the default of JAX.
            debug_info: whether the text names the source of each operation.
        """
        return str(self.stage.as_text(dialect, debug_info=debug_info))

    def cost_analysis(self) -> Any:
        """Return the estimated cost of the program, if the backend provides it; see `jax.stages.Lowered`."""
        return self.stage.cost_analysis()

    def compile(self, compiler_options: Mapping[str, Any] | None = None) -> CompiledJit:
        """Compile the program.

        Args:
            compiler_options: options of XLA, by name.
        """
        return self._finish(self.stage.compile(None if compiler_options is None else dict(compiler_options)))


class CompiledJit:
    """One compiled call of a lifted `jit`, called as `compiled(scopes, *args, **kwargs)`.

    It takes arguments of the types that it was lowered for, with equal static arguments. The scopes may be anywhere in
    a model, but their variables must have the same names and types. Keys, names and new values are those of the call.

    Attributes:
        stage: the corresponding object of JAX, a `jax.stages.Compiled`.

    Raises:
        LiftArgumentError: if it was compiled for other types, static arguments or scopes.
    """

    def __init__(self, stage: Any, lifted: Callable[..., Any]) -> None:
        self.stage, self._lifted = stage, lifted

    @boundary
    def __call__(self, scopes: PyTree, *args: Any, **kwargs: Any) -> Any:
        """Call the function.

        Args:
            scopes: a scope or a pytree of scopes.
            *args: the arguments, static ones included.
            **kwargs: keyword arguments.
        """
        return self._lifted(scopes, *args, **kwargs)

    def as_text(self) -> str:
        """Return the optimized program as text."""
        return str(self.stage.as_text())

    def cost_analysis(self) -> Any:
        """Return the estimated cost of the program, if the backend provides it; see `jax.stages.Compiled`."""
        return self.stage.cost_analysis()

    def memory_analysis(self) -> Any:
        """Return the memory use of the program, if the backend provides it; see `jax.stages.Compiled`."""
        return self.stage.memory_analysis()


def _run(
    stage: Any, lowered: Compiled, kept: Kept, room: int, found: Compiled, body: Body, gone: Donated, operands: PyTree
) -> tuple[Any, tuple[Any, ...]]:
    """Run a program that was compiled ahead of time; `found` is the one that this call would compile."""
    fix = "Lower it again for this call: `jitted.lower(scope, …).compile()`."
    if found.program != lowered.program:
        raise LiftArgumentError(body.where, "it was compiled for other scopes or other static arguments.", fix)
    data = lowered.fold_in_data(kept, body, room)
    try:
        created, output = stage(data, gone, operands)
    except TypeError as error:
        raise LiftArgumentError(body.where, "it was compiled for values of other types or names.", fix) from error
    return lowered.output(body, created, output)
