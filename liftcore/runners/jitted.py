"""A function under a lifted `jit`, as a user has it: called, lowered, or compiled ahead of time, like `jax.stages`.

A call that reads at most one scope and changes nothing goes directly to its compiled function, without the stages of a
lift.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeAlias

import jax

from .._compat import trace_state
from ..caches import watched
from ..calls import boundary
from ..errors import LiftArgumentError, words
from ..pipeline.body import Body
from ..pipeline.packing import Lifter, keeping_lifter
from ..pytrees import check_acyclic
from ..scopes.scope import Scope
from ..typing import PyTree
from .arguments import Donated, name_arguments
from .jitting import Compiled, NewTrace

__all__ = ["CompiledJit", "Direct", "Jitted", "LoweredJit", "Runner"]

Runner: TypeAlias = Callable[[Compiled, Body, Donated, PyTree], tuple[Any, tuple[Any, ...]]]
"""One call of a compiled function: from its operands to the result and the output groups of the lift."""


def _never(scopes: PyTree) -> None:
    """The default of `direct` of `Jitted`: no call takes the direct way."""


class Jitted:
    """A function under a lifted `jit`, called as `jitted(scopes, *args, **kwargs)`.

    Args:
        fn: the function of scopes.
        lift: makes a lift of functions from a `Runner`.
        direct: returns the compiled function for the scopes of a call, as a function of named arguments, if the stages
            of the lift have nothing to do; None otherwise, and if nothing was compiled yet.
    """

    __qualname__: str

    def __init__(
        self,
        fn: Callable[..., Any],
        lift: Callable[[Runner], Lifter],
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
                check_acyclic((args, kwargs))
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
        lowered, effects, room, stage = self._lift(Compiled.lower)(self._fn)(scopes, *args, **kwargs)

        def finish(stage: Any) -> CompiledJit:
            def run(found: Compiled, body: Body, gone: Donated, operands: PyTree) -> Any:
                """Run the program; `found` is the one that this call would compile."""
                fix = f"Lower it again for this call: `jitted.lower({words().first}…).compile()`."
                if found.program != lowered.program:
                    raise LiftArgumentError(
                        body.where, "it was compiled for other scopes or other static arguments.", fix
                    )
                data = lowered.fold_in_data(effects, body, room)
                try:
                    created, output = stage(data, gone, operands)
                except TypeError as error:
                    raise LiftArgumentError(
                        body.where, "it was compiled for values of other types or names.", fix
                    ) from error
                return lowered.output(body, created, output)

            return CompiledJit(stage, self._lift(run)(self._fn))

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


_NOTHING: PyTree = ((),)
"""One group without scopes."""

_NO_STREAMS: PyTree = (({},),)
"""One group of streams of one scope without streams."""


class Direct:
    """The compiled functions for such calls.

    The key contains all that may differ between calls and affects the compiled function: the parts of the outer tree
    that a body can see, the names that are taken there, and the settings around the call.

    Args:
        around: returns a key of the settings around a call, or a plain `object()` if there is no key.
    """

    def __init__(self, around: Callable[[], Hashable]) -> None:
        self._around = around
        self._found: dict[Any, Compiled] = {}
        watched(self)

    def cache_clear(self) -> None:
        """Forget all of them."""
        self._found.clear()

    def note(self, body: Body, around: Hashable, found: Compiled) -> None:
        """Record the compiled function for a call of the lift of all variables, if it only reads at most one scope."""
        if type(around) is object:  # it equals no other key
            return
        if len(self._found) >= _MOST:
            self._found.clear()
        if not body.outers:
            self._found[body.layout.scopes, around] = found
        elif len(body.given) == 1 and body.layout.scopes == _ONE and _only_reads(body.given[0]):
            self._found[body.layout.surroundings[0], body.layout.names[0], around] = found

    def find(self, scopes: PyTree) -> Callable[[dict[str, Any]], Any] | None:
        """Return the compiled function for a call, as a function of named arguments; None if the stages are needed."""
        if not self._found:
            return None
        if type(scopes) is Scope:
            return self._over(scopes)
        if jax.tree.leaves(scopes):
            return None
        found = self._found.get((jax.tree.structure(scopes), self._around()))
        return None if found is None else lambda arguments: found.directly((_NOTHING, _NOTHING, arguments))[0]

    def _over(self, scope: Scope) -> Callable[[dict[str, Any]], Any] | None:
        if not _only_reads(scope):
            return None
        found = self._found.get((scope.tree.surroundings(Scope, scope.path), scope.names(), self._around()))
        variables = scope.collections_below()
        if found is None or not all(variables.values()):  # an empty collection is in no group
            return None
        groups: PyTree = ((variables,),)

        def run(arguments: dict[str, Any]) -> Any:
            result, record = found.directly((groups, _NO_STREAMS, arguments))
            for names in record.names:  # it created, wrote and drew nothing, so names are its only effect
                scope.take_names(names)
            return result

        return run


_MOST = 256
"""The number of compiled functions that are found directly; if there are more, they are found again by and by."""

_ONE = jax.tree.structure(0)
"""The structure of one scope, which is a leaf."""


def _only_reads(scope: Scope) -> bool:
    """Whether nothing can be written, created or drawn in the tree of a scope, and it has no observer."""
    tree = scope.tree
    return (
        not tree.writes
        and not tree.given
        and tree.outer is None
        and tree.watch is None
        and scope.is_valid
        and tree.trace == trace_state()
    )
