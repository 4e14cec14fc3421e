"""`jit` over objects."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import jax

import liftcore
from liftcore.calls import boundary, call_user
from liftcore.errors import LiftArgumentError, shown
from liftcore.pytrees import is_array_like

from ..crossing.groups import ByFilter, Donation, Groups, alike, is_spec
from ..crossing.inside import Inside
from ..crossing.outside import Outside, still
from ..graph.walk import is_object
from .base import MISSING, also_decorator, check_brings_none, checked, named, numbered, title

__all__ = ["CompiledFunction", "JitFunction", "LoweredFunction", "StateSharding", "jit"]


class StateSharding(ByFilter):
    """The shardings of an object's variables, chosen by filter. Use it in place of a single sharding or spec.

    Example:
        >>> import jax
        >>> import nnx_like as nnx
        >>> from jax.sharding import PartitionSpec as P
        >>> nnx.StateSharding({nnx.Param: P("model"), ...: None}).shardings
        (P('model',), None)

    Args:
        filter_sharding: a mapping from filters to shardings, or pairs of a filter and a sharding, or a state with a
            sharding at the path of each variable. The first filter that matches a variable applies.
    """

    def __init__(self, filter_sharding: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        super().__init__(filter_sharding)

    @property
    def shardings(self) -> tuple[Any, ...]:
        """The sharding for each filter, in order."""
        return self.specs


@also_decorator
def jit(
    fun: Callable[..., Any] = MISSING,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Iterable[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    device: Any = None,
    backend: str | None = None,
    inline: bool = False,
) -> Any:
    """`jax.jit` for functions of objects.

    If the function changes an object, or its structure, the caller's object changes. Calls with objects of equal
    structure share one compiled program. A call with a new structure is compiled again, and `liftcore.retraces` reports
    why.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> class Counter(nnx.Module):
        ...     def __init__(self):
        ...         self.count = nnx.Variable(jnp.zeros((), int))
        ...     @nnx.jit
        ...     def __call__(self, x):
        ...         self.count += 1
        ...         return x * self.count
        >>> counter = Counter()
        >>> print(counter(2), counter(2), counter.count.get_value())
        2 4 2

    Args:
        fun: the function; without it the result is a decorator. Methods may be decorated.
        in_shardings: the sharding of each argument; a pytree prefix of the tuple of arguments that are not static. For
            an object, give one sharding for all its variables, or a `StateSharding`. With None, JAX decides.
        out_shardings: the same for the result.
        static_argnums: the numbers of arguments that are compile-time constants, such as flags. They can be any Python
            values, and are compared by type and value.
        static_argnames: the same, by name.
        donate_argnums: the numbers of arguments whose memory the results may reuse. For an object, the memory of all
            its variables may be reused; afterwards they hold new arrays.
        donate_argnames: the same, by name.
        keep_unused: whether the compiled function also receives arguments that it does not use.
        device: the device to run on; by default the device of the arguments.
        backend: the platform to run on, such as `"cpu"`; by default the platform of the arguments.
        inline: whether the body is inlined into the surrounding program.

    Returns:
        A `JitFunction`. Call it like `fun`.

    Raises:
        LiftArgumentError: if `fun` is a bound method, or shardings do not fit the arguments.
        TraceContextError: when called, if the function returns or changes an object that is not an argument.
    """
    options: dict[str, Any] = {"keep_unused": keep_unused, "device": device, "backend": backend, "inline": inline}
    where = title("jit", fun)
    return JitFunction(
        fun,
        in_shardings,
        out_shardings,
        numbered(f"{where}, static arguments", fun, static_argnums, static_argnames),
        numbered(f"{where}, donated arguments", fun, donate_argnums, donate_argnames),
        options,
    )


def _words(kept: str, spec: Any) -> str:
    """Return the words that errors put after "is" for a variable with a sharding; `kept` is for one without."""
    if type(spec) is Donation:
        return str(spec)
    return kept if spec is None else f"sharded as {spec}"


class JitFunction:
    """A function of objects under `jit`.

    Args:
        fun: the function.
        in_shardings: see `jit`.
        out_shardings: see `jit`.
        static: the numbers and the names of static arguments.
        donated: the numbers and the names of donated arguments.
        options: passed to `liftcore.jit`.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        in_shardings: Any,
        out_shardings: Any,
        static: tuple[set[int], set[str]],
        donated: tuple[set[int], set[str]],
        options: Mapping[str, Any],
    ) -> None:
        functools.update_wrapper(self, fun)
        self._fun, self._static, self._donated, self._options = fun, static, donated, options
        kept = "not donated" if any(donated) else "given no sharding"
        self._groups = Groups(checked("jit", fun), "sharding", functools.partial(_words, kept))
        check_brings_none("jit(", self._groups.where, fun)
        Groups(self._groups.where, "sharding").encode(in_shardings)  # raises errors in them early
        self._in_shardings = tuple(in_shardings) if isinstance(in_shardings, list) else in_shardings
        self._out_shardings = out_shardings
        self._out_prefix = self._groups.encode(out_shardings)
        self._forms: dict[Any, _Form] = {}

    def __eq__(self, other: object) -> bool:  # so that transformations treat it as static, like any function
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> str:
        """Pickle the function by its name, like a plain function."""
        return str(self.__qualname__)  # type: ignore[attr-defined]

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind the function to an object, like a method."""
        return self if instance is None else types.MethodType(self, instance)

    @boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        form, outside = self._crossed(args, kwargs)
        if form.placed:
            outside.place(_concrete(form.placed))
        try:
            return outside.call(form.lifted, *outside.args, mutable=form.donated)
        except TypeError:
            self._check_traceable(args, kwargs)
            raise

    def _check_traceable(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise an error that names the argument that JAX cannot trace, if there is one."""
        numbers, names = self._static
        dynamic = [(number, arg) for number, arg in enumerate(args) if number not in numbers]
        for name, arg in [*dynamic, *((name, arg) for name, arg in kwargs.items() if name not in names)]:
            for path, leaf in jax.tree_util.tree_leaves_with_path(arg, is_leaf=is_object):
                if not is_object(leaf) and not is_array_like(leaf):
                    where, option = self._groups.where, f"static_argn{'ums' if isinstance(name, int) else 'ames'}"
                    place, given = f"{name!r}{jax.tree_util.keystr(path)}", shown(leaf)
                    what = f"argument {place} is {given}, which JAX cannot trace."
                    fix = f"Make it static: `{option}={name!r}`."
                    raise LiftArgumentError(where, what, fix, option=option, given=given) from None

    @boundary
    def lower(self, *args: Any, **kwargs: Any) -> LoweredFunction:
        """Lower the function for some arguments, without running it: `lower(…).compile()`, as in `jax.jit`.

        Args:
            args: the arguments of a call; arrays, in variables too, may be `jax.ShapeDtypeStruct`.
            kwargs: the keyword arguments, in the same form.
        """
        form, outside = self._crossed(args, kwargs)
        with outside.scope(form.donated) as scope:
            return LoweredFunction(self, form.lifted.lower(scope, *outside.args))

    def _crossed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Form, Outside]:
        """Return the lifted function for a call, and the crossing of its arguments."""
        numbers, names = self._static
        if numbers:
            args = tuple([self._still(arg, number) if number in numbers else arg for number, arg in enumerate(args)])
        if names:
            kwargs = {name: self._still(arg, name) if name in names else arg for name, arg in kwargs.items()}
        form = self._forms.get((len(args), *kwargs))
        if form is None:
            form = self._forms[len(args), *kwargs] = _Form(self, len(args), list(kwargs))
        given, packs = (*args, *kwargs.values()), not form.donated and not form.placed
        return form, Outside(self._groups, given, form.prefix, "in_shardings", name=form.place, packs=packs)

    def _still(self, value: Any, name: Any) -> Any:
        return still(value, f"{self._groups.where}, the static argument {name}")


class _Form:
    """A function under `jit`, for one number of positional arguments and some keyword arguments.

    The body gets the scope and then each argument by position; keyword arguments come last.

    Attributes:
        lifted: called as `lifted(scope, *arguments)`.
        prefix: the groups of the arguments.
        place: names a part of an argument in errors.
        donated: a filter for the groups of donated variables, which must be mutable.
        placed: for each group, the shardings of other variables, which the result must also have.
    """

    def __init__(self, jitted: JitFunction, count: int, names: list[str]) -> None:
        self.place = (*[f"[{number}]" for number in range(count)], *names)
        groups, out_shardings, fun = jitted._groups, jitted._out_shardings, jitted._fun
        shardings = (*_shardings(jitted, count), *[None] * len(names))
        numbers, known = jitted._donated
        gone = [number for number, key in enumerate([*range(count), *names]) if key in numbers or key in known]
        self.prefix = tuple(
            [
                groups.encode(jax.tree.map(Donation, sharding, is_leaf=is_spec) if number in gone else sharding)
                for number, sharding in enumerate(shardings)
            ]
        )
        self.donated = [name for name, spec in groups.specs.items() if type(spec) is Donation] or False
        self.placed = {
            name: spec for name, spec in groups.specs.items() if spec is not None and type(spec) is not Donation
        }

        @named(fun)
        def body(scope: liftcore.Scope, *arguments: Any) -> Any:
            inside = Inside(scope, groups)
            arguments = inside.decode(arguments)
            result = call_user(
                groups.where, fun, *arguments[:count], **dict(zip(names, arguments[count:], strict=True))
            )
            return inside.encode(result, jitted._out_prefix, "out_shardings", self._stays)

        body.__signature__ = _signature(fun, count, names)  # type: ignore[attr-defined]
        self._specs = specs = {
            name: spec.sharding if type(spec) is Donation else spec for name, spec in groups.specs.items()
        }
        placed = {name: spec for name, spec in specs.items() if spec is not None}
        self.lifted = liftcore.jit(
            body,
            in_shardings=None if jitted._in_shardings is None else groups.plain(shardings),
            out_shardings=(groups.plain(out_shardings), specs, None) if placed else None,
            donate_argnums=[number + 1 for number in gone],  # number 0 is the scope
            donate_variables=self.donated,
            variable_shardings=placed,
            **jitted._options,
        )

    def _stays(self, known: str, group: str) -> bool:
        """Return whether a returned variable keeps the sharding that it came in with."""
        return self._specs[group] is None or alike(self._specs[known], self._specs[group])


def _signature(fun: Callable[..., Any], count: int, names: Collection[str]) -> inspect.Signature:
    """Return the signature of a body, with the function's argument names, which `liftcore.retraces` reports."""
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    single = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = [one.name for one in parameters if one.kind in single][:count]
    rest = next((one.name for one in parameters if one.kind is inspect.Parameter.VAR_POSITIONAL), "argument")
    known += [f"{rest}_{number}" for number in range(count - len(known))]
    each: dict[str, None] = {"_scope": None}
    for number, name in enumerate([*known, *names]):
        each[name if name.isidentifier() and name not in each else f"argument_{number}"] = None
    return inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in each])


def _concrete(specs: Mapping[str, Any]) -> dict[str, jax.sharding.Sharding]:
    """Convert shardings to shardings on devices: a spec becomes one on the current mesh, if JAX gives it."""
    found = {name: spec for name, spec in specs.items() if isinstance(spec, jax.sharding.Sharding)}
    partitions = {name: spec for name, spec in specs.items() if isinstance(spec, jax.sharding.PartitionSpec)}
    if partitions and not jax.sharding.get_abstract_mesh().empty:
        try:
            mesh = jax.sharding.get_mesh()
        except (AttributeError, ValueError):  # in older versions of JAX, and inside a trace
            return found
        found.update({name: jax.sharding.NamedSharding(mesh, spec) for name, spec in partitions.items()})
    return found


def _shardings(jitted: JitFunction, count: int) -> tuple[Any, ...]:
    """Return the sharding of each argument that is not static."""
    given, numbers = jitted._in_shardings, jitted._static[0]
    if type(given) is not tuple:
        return (given,) * count
    dynamic = [number for number in range(count) if number not in numbers]
    if len(dynamic) != len(given):
        where = jitted._groups.where
        what = f"the number of `in_shardings` is {len(given)}, but {len(dynamic)} arguments are not static."
        fix = "Give one sharding for each argument."
        raise LiftArgumentError(where, what, fix, option="in_shardings", expected=len(dynamic), given=len(given))
    found = dict(zip(dynamic, given, strict=True))
    return tuple([found.get(number) for number in range(count)])


class LoweredFunction:
    """A lowered call of a function under `jit`.

    Attributes:
        stage: the `jax.stages.Lowered` of JAX.
    """

    def __init__(self, jitted: JitFunction, lowered: liftcore.LoweredJit) -> None:
        self._jitted, self._lowered = jitted, lowered
        self.stage = lowered.stage

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """Return the program as a string.

        Args:
            dialect: the dialect, such as `"stablehlo"`; by default JAX chooses one.
            debug_info: whether to include locations in the source code.
        """
        return self._lowered.as_text(dialect, debug_info=debug_info)

    def cost_analysis(self) -> Any:
        """Return the estimated cost, such as the number of operations; None if the backend gives none."""
        return self._lowered.cost_analysis()

    def compile(self, compiler_options: Mapping[str, Any] | None = None) -> CompiledFunction:
        """Compile the program.

        Args:
            compiler_options: options of XLA, by name.
        """
        return CompiledFunction(self._jitted, self._lowered.compile(compiler_options))


class CompiledFunction:
    """A compiled call of a function under `jit`. Call it like the function, with arguments of the same types.

    Attributes:
        stage: the `jax.stages.Compiled` of JAX.

    Raises:
        LiftArgumentError: when called, if types, static arguments or the structure of objects differ from the lowered
            call.
    """

    def __init__(self, jitted: JitFunction, compiled: liftcore.CompiledJit) -> None:
        self._jitted, self._compiled = jitted, compiled
        self.stage = compiled.stage

    @boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled program."""
        form, outside = self._jitted._crossed(args, kwargs)
        return outside.call(self._compiled, *outside.args, mutable=form.donated)

    def as_text(self) -> str:
        """Return the compiled program as a string."""
        return self._compiled.as_text()

    def cost_analysis(self) -> Any:
        """Return the estimated cost, such as the number of operations; None if the backend gives none."""
        return self._compiled.cost_analysis()

    def memory_analysis(self) -> Any:
        """Return the memory that the program needs, in bytes; None if the backend gives none."""
        return self._compiled.memory_analysis()
