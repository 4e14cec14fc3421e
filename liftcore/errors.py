"""Errors that users may catch. Each one says where it happened, what is wrong, and how to fix it.

    LiftError
    ├── scopes:    InvalidScopeError, NameInUseError, JaxTransformError, ThreadError
    ├── variables: ScopeCollectionNotFound, ScopeVariableNotFoundError, ScopeParamNotFoundError,
    │              ScopeParamShapeError, ModifyScopeVariableError, UnliftedCollectionError (which is a
    │              ScopeCollectionNotFound and a ModifyScopeVariableError)
    ├── streams: InvalidRngError, UnliftedStreamError
    ├── entry:     ApplyScopeInvalidVariablesTypeError, ApplyScopeInvalidVariablesStructureError, LazyInitError
    ├── filters:   InvalidFilterError, UnmatchedFilterError
    ├── lifts:     AxisSizeError, CarryTypeError, LoopInvarianceError, LiftArgumentError
    ├── bridges:   WrongStyleError
    ├── checks:    TooManyTracesError
    ├── edits:     CursorFindError
    └── bytes:     SerializationError, CheckpointInUseError

Names that `flax.errors` has too mean the same there. `NotSharedWarning` says that compiled functions are not kept.

Each style has its own `Words` for what an error is about. The functions at the end are checks that many parts need.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from ._compat import callers
from .texts import detached


def shown(value: Any) -> str:
    """Return a value as errors show it: briefly, and in JAX's terms.

    Example:
        >>> shown(jax.numpy.ones((2, 3))), shown(jax.random.key(0)), shown(print), shown(int), shown(0.5)
        ('a float32[2,3] array', 'a PRNG key', 'the function print', 'the class int', '0.5')

    Args:
        value: any value.
    """
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and isinstance(shape, tuple):
        if str(dtype).startswith("key<"):
            return f"PRNG keys of shape {shape}" if shape else "a PRNG key"
        return f"a {dtype}[{','.join(map(str, shape))}] array"
    if isinstance(value, jax.numpy.dtype):
        return value.name
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"the function {value.__qualname__.rpartition('<locals>.')[2]}"
    text = repr(value)
    nested = type(value) in (tuple, list) and "[...]" not in text and "(...)" not in text  # it does not hold itself
    if nested and any(type(one) in (tuple, list) or hasattr(one, "dtype") for one in value):
        items = ", ".join(map(shown, value))
        text = f"[{items}]" if type(value) is list else f"({items}{',' if len(value) == 1 else ''})"
    is_short = len(text) <= (80 if isinstance(value, tuple | list) else 40) and "\n" not in text
    return text if is_short else f"a {type(value).__name__}"


def name_of(fn: Any) -> str:
    """Return the name of a function, as paths and profiles show it.

    Example:
        >>> name_of(functools.partial(print, sep=""))
        'print'

    Args:
        fn: any callable.
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))


class Words(NamedTuple):
    """What errors call things; the defaults are for functions of scopes. A style replaces some of them: see `wording`.

    Attributes:
        scope: what declares variables and draws keys in the code of a model.
        first: the first argument of a lifted function, with a comma; empty if users pass none.
        broadcast: the axis of an output of a loop that all iterations share.
        function: returns how a function of liftcore is called, from its name.
        option: returns the name of an option, from those of the lift and the option; empty if the style has none.
        aside: returns a clause about options or arguments of the core, or nothing if it does not apply.
        place: returns where a lift is, from its name and the path of the scope around it.
        path: returns the path of a variable, from one such as `params/dense/kernel`. Another path is not quoted.
        setting: returns code that sets an option for variables, from liftcore's, the option, a value and the paths.
        sharing: returns advice to share one of some variables, from a sentence with `{}` for code, code, and the paths.
    """

    scope: str = "scope"
    first: str = "scope, "
    broadcast: str = "`broadcast`"
    function: Callable[[str], str] = lambda name: _WRITTEN.get(name, f"liftcore.{name}")
    option: Callable[[str, str], str] = lambda lift, name: name
    aside: Callable[[str], str] = str
    place: Callable[[str, str], str] = "{} at {}".format
    path: Callable[[str], str] = str
    setting: Callable[[str, str, str, Sequence[str]], str] = lambda code, option, value, paths: code
    sharing: Callable[[str, str, Sequence[str]], str] = lambda sentence, code, paths: sentence.format(code)

    def variable(self, path: str) -> str:
        """Return the path of a variable as texts name it, in quotes if it is liftcore's.

        Args:
            path: the path, such as `params/dense/kernel`.
        """
        named = self.path(path)
        return f'"{path}"' if named == path else named

    def variables(self, paths: Sequence[str]) -> str:
        """Return the paths of variables as texts list them.

        Args:
            paths: the paths.
        """
        named = [self.path(path) for path in paths]
        return str(named) if named == list(paths) else ", ".join(named)


def words() -> Words:
    """Return the words of the innermost style whose code is running; without one, those for functions of scopes.

    The running calls say which it is. A function that liftcore itself calls takes scopes, even in a method of a module.
    """
    plain, within, running = Words(), "liftcore", _worded(_styles)
    for package in callers() if running != plain else ():
        if package == within:
            continue
        if package == "liftcore":  # it called a function of a user, or of a style that is not running
            return plain
        found = _worded([style for style in _styles if style.__module__.partition(".")[0] == package])
        if found != plain:
            return found
        within = package
    return running


def _worded(styles: Iterable[Callable[[Words], Words]]) -> Words:
    return functools.reduce(lambda found, style: style(found), styles, Words())


def wording(style: Callable[[Words], Words]) -> Callable[[Words], Words]:
    """Register what a style of modules calls things, so that errors have the words of its users. Use it as a decorator.

    Example:
        >>> running = []
        >>> @wording
        ... def of_blocks(words, running=running):
        ...     return words._replace(scope="block") if running else words
        >>> running.append("a block"); words().scope; running.clear(); words().scope
        'block'
        'scope'

    Args:
        style: called for each error, in the thread that creates it, if its package is running; returns the words that
            it is called with, with those of the style, or as they are if no code of the style is running.
    """
    _styles.append(style)
    return style


_WRITTEN: dict[str, str] = {"apply": "liftcore.apply(fn)", "with_partitioning": "with_partitioning"}
_styles: list[Callable[[Words], Words]] = []
_rewording: list[Callable[[LiftError], None]] = []


def rewords(reword: Callable[[LiftError], None]) -> Callable[[LiftError], None]:
    """Deprecated: register a function that changes the texts of new errors. Write `wording`, which changes their words.

    Args:
        reword: called with each new error, in the thread that creates it. It may change the attributes of the error.
    """
    warnings.warn("rewords leaves in 0.4. Write `liftcore.errors.wording`.", DeprecationWarning, stacklevel=2)
    _rewording.append(reword)
    return reword


class Expected(NamedTuple):
    """What was expected, and what was given instead: an error makes a sentence of them, and has them as facts.

    Example:
        >>> print(LiftError("my_layer", Expected("a positive number", given=-1), "Pass `size=4`.", option="size"))
        my_layer: expected a positive number as `size`, given -1. Pass `size=4`.

    Attributes:
        expected: what was expected, in words.
        given: the value that was given.
        words: what the text says in place of the value, if the value alone does not tell what is wrong.
    """

    expected: str
    given: Any
    words: str = ""


class LiftError(Exception):
    """Base of all errors that liftcore raises when it is used incorrectly.

    Its text is for readers, and its attributes have the same facts for tools; those that do not apply are None. Copies
    and pickles keep them, and none keeps an array, a scope or another object alive.

    Args:
        where: the path, with the names of lifts, such as `param "kernel" at /vmap(mlp)/Dense_0`.
        what: what is wrong: a sentence, or what was expected.
        fix: what to write instead.
        **facts: some of the attributes below.

    Attributes:
        variable: the path of the variable, such as `params/Dense_0/kernel`; of several, the first.
        collection: the collection that the error is about.
        stream: the name of the RNG stream.
        option: the argument of a function or a transformation that has a wrong value, or that would help.
        given: what was given: plain data as they are, an array as its `jax.ShapeDtypeStruct`, the rest in words.
        expected: what was expected, as a value or in words.
        available: the names that exist.
    """

    variable: str | None = None
    collection: str | None = None
    stream: str | None = None
    option: str | None = None
    given: Any = None
    expected: Any = None
    available: tuple[str, ...] | None = None

    def __init__(self, where: str, what: str | Expected, fix: str, **facts: Any) -> None:
        facts = {name: fact for name, fact in facts.items() if fact is not None}
        facts |= {"expected": what.expected, "given": what.given} if isinstance(what, Expected) else {}
        facts |= {"available": (*map(str, facts["available"]),)} if "available" in facts else {}
        assert facts.keys() <= LiftError.__annotations__.keys(), "an error has no other facts"
        vars(self).update({name: detached(fact, shown) for name, fact in facts.items()})
        self.variable = self.variable and words().path(self.variable)
        lift = where.rpartition(" in ")[2].partition("(")[0]
        self.option = self.option and (words().option(lift, self.option) or None)
        if isinstance(what, Expected):
            said = re.findall(r'"[^"]*"|/\S*|\w+', where)  # a text or a path is one word
            is_said = facts.get("option") in said or f"`{self.option}`" in what.expected
            named = f" as `{self.option}`" if self.option and not is_said else ""
            what = f"expected {what.expected}{named}, given {what.words or shown(what.given)}."
        self.where, self.what, self.fix = where, what, fix
        for reword in _rewording:
            reword(self)
        super().__init__(self.where, self.what, self.fix)

    def reword(self, where: str | None = None, what: str | None = None, fix: str | None = None) -> None:
        """Change parts of the text; the facts stay.

        Args:
            where: the new place, if it changes.
            what: the new sentence about what is wrong, if it changes.
            fix: the new fix, if it changes.
        """
        self.where, self.what, self.fix = where or self.where, what or self.what, fix or self.fix
        self.args = self.where, self.what, self.fix

    def __str__(self) -> str:
        return f"{self.where}: {self.what} {self.fix}"

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that apply, by the names of the attributes."""
        return {name: fact for name in LiftError.__annotations__ if (fact := getattr(self, name)) is not None}


class InvalidScopeError(LiftError, ValueError):
    """A scope was used after the lift, `init` or `apply` that created it had ended."""


class NameInUseError(LiftError, ValueError):
    """Two children or variables of one scope have the same name."""


class JaxTransformError(LiftError, ValueError):
    """A scope, or a module that may change, was used under a raw JAX transformation."""


class ThreadError(LiftError, ValueError):
    """A bound scope or module was changed in one thread while another thread used it."""


class ScopeCollectionNotFound(LiftError, ValueError):
    """A variable was read, but its whole collection is missing."""


class ScopeVariableNotFoundError(LiftError, ValueError):
    """A variable was read that is not in its collection, and that must not be created."""


class ScopeParamNotFoundError(LiftError, ValueError):
    """A parameter was read that is not in `params`, and that must not be created."""


class ScopeParamShapeError(LiftError, ValueError):
    """A stored parameter has a different shape from the one that its initializer makes."""


class ModifyScopeVariableError(LiftError, ValueError):
    """A variable of an immutable collection was written."""


class UnliftedCollectionError(ScopeCollectionNotFound, ModifyScopeVariableError):
    """A variable was used inside a lift that does not pass it in or out."""


class InvalidRngError(LiftError, ValueError):
    """A key was drawn from an RNG stream that was not passed in, or a value in `rngs` is not a key."""


class UnliftedStreamError(InvalidRngError):
    """A key was drawn inside a lift from an RNG stream that the lift does not pass in."""


UnliftedSequenceError = UnliftedStreamError  # its former name


class ApplyScopeInvalidVariablesTypeError(LiftError, TypeError):
    """`apply` or `bind` received something other than a mapping from collection names to mappings."""


class ApplyScopeInvalidVariablesStructureError(LiftError, ValueError):
    """`apply` or `bind` received variables that are nested one level too deep."""


class LazyInitError(LiftError, ValueError):
    """An initial value depends on an argument that `lazy_init` received only as a shape."""


class InvalidFilterError(LiftError, TypeError):
    """A value that is not a filter was used as one."""


class UnmatchedFilterError(LiftError, ValueError):
    """A variable matched none of the filters given to `split`."""


class AxisSizeError(LiftError, ValueError):
    """The sizes of the mapped or scanned axes disagree, or no argument has an axis to infer the size from."""

    has_variables = functools.cached_property(lambda self: self.variable is not None)
    """Whether variables have such an axis too; it can be set."""


class CarryTypeError(LiftError, TypeError):
    """The body of a loop returned a carry with a different structure, shape or dtype."""


class LoopInvarianceError(LiftError, ValueError):
    """A value shared by all iterations or elements differs between them."""


class LiftArgumentError(LiftError, ValueError):
    """An argument of a transformation, a lifted function or a layer has a value that cannot be used."""


class WrongStyleError(LiftArgumentError, TypeError):
    """A bridge between styles got a module of a style that it does not take; the message names the bridge that does."""


class CursorFindError(LiftError, LookupError):
    """A cursor found no value at a place, or `find` found none or more than one."""


class TooManyTracesError(LiftError, AssertionError):
    """A function was traced more often than `assert_max_traces` allows."""


class SerializationError(LiftError, ValueError):
    """Bytes or a state could not be read, or do not fit the target."""


class CheckpointInUseError(LiftError, RuntimeError):
    """A checkpoint cannot be written, because another process or object is writing there."""


class NotSharedWarning(UserWarning):
    """A lifted `jit` compiles again on every call, because an object that it depends on may change unnoticed."""


def no_function(where: str, given: Any) -> LiftArgumentError:
    """Return the error for a value that was passed as a function but cannot be called.

    Example:
        >>> print(no_function("vmap", 3))
        vmap: expected a function, given 3. Give the function itself, which is called later.

    Args:
        where: the place that the error names.
        given: the value.
    """
    return LiftArgumentError(where, Expected("a function", given), "Give the function itself, which is called later.")


def check_function(where: str, given: Any) -> None:
    """Check that a value can be called.

    Args:
        where: the place that the error names.
        given: the value.

    Raises:
        LiftArgumentError: if it cannot be called.
    """
    if not callable(given):
        raise no_function(where, given)


def common_size(
    where: str, axes: Iterable[tuple[str, Sequence[int], int]], given: int | None = None, fix: str = "", **facts: Any
) -> int | None:
    """Return the size that the mapped axes of several arrays share; None without an array and a given size.

    Example:
        >>> common_size("my_lift", [("x", (2, 3), 0), ("y", (4, 2), -1)])
        2

    Args:
        where: the place that the error names.
        axes: for each array its name, its shape, and the axis that is mapped.
        given: the size that the caller gave, if any.
        fix: the fix of the error, if it is not the one for the arguments of a call.
        **facts: attributes of the error.

    Raises:
        AxisSizeError: if an array lacks its axis, or the sizes disagree.
    """
    sizes = [] if given is None else [("the size given", given)]
    for name, shape, axis in axes:
        if not -len(shape) <= axis < len(shape):
            what = f"{name} has shape {shape} and no axis {axis} to map over."
            fix = fix or "Give None as its axis to use the same value everywhere."
            raise AxisSizeError(where, what, fix, **({"given": tuple(shape)} | facts))
        sizes.append((name, shape[axis]))
    if len({size for _, size in sizes}) > 1:
        what = f"the sizes of the mapped axes disagree ({', '.join(f'{name}: {size}' for name, size in sizes)})."
        fix = fix or "Make them equal, or give None as the axis of a value that is the same for all."
        raise AxisSizeError(where, what, fix, **({"given": dict(sizes)} | facts))
    return sizes[0][1] if sizes else None
