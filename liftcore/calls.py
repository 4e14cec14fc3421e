"""Calls of users' functions: their errors show the users' lines, and a wrong call says what the function takes.

A function that users call, and that calls functions of theirs, is a `boundary`. Inside it, `call_user` makes the call.
Where JAX or a `try` with other errors makes it, `note_call` adds the same note to a wrong call.
"""

from __future__ import annotations

import functools
import inspect
import string
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax

from ._compat import users_part
from .errors import LiftArgumentError, LiftError, name_of, shown

_F = TypeVar("_F", bound=Callable[..., Any])


def boundary(fn: _F) -> _F:
    """Decorate a function that users call, and that calls functions of theirs: its errors show the users' lines only.

    Example:
        >>> boundary(lambda fn, x: fn(fn(x)))(lambda x: x + 1, 40)
        42

    Args:
        fn: the function. Where it has a `try` already, write `hide_frames` there instead, which saves a call.
    """

    @functools.wraps(fn)
    def entered(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    return entered  # type: ignore[return-value]


def hide_frames(error: BaseException) -> None:
    """Remove the frames of this library and of JAX from the traceback of an error that is about to leave the library.

    Write `except Exception as error: hide_frames(error); raise`. A bare `raise` takes the traceback that the error has
    by then, so the frame that it is in is hidden too. If the library raised the error, and it is not one that says what
    to do, the last frame of the library stays. `jax.config.update("jax_traceback_filtering", "off")` shows everything.

    Args:
        error: the error; its causes are treated alike.
    """
    shows = jax.config.jax_traceback_filtering  # type: ignore[attr-defined]
    seen: set[int] = set()
    one: BaseException | None = None if shows == "off" else error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        one.__traceback__ = users_part(one.__traceback__, keeps_last=not isinstance(one, LiftError))
        one = (one.__cause__ or one.__context__) if shows != "remove_frames" else None  # there, JAX keeps all frames


def call_user(where: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function of a user. If it does not take these arguments, Python's error gets a note; see `note_call`.

    Example:
        >>> call_user("double at /", lambda x: 2 * x, 21)
        42

    Args:
        where: the place that the note names.
        fn: the function.
        *args: its positional arguments.
        **kwargs: its keyword arguments.
    """
    try:
        return fn(*args, **kwargs)
    except TypeError as error:
        note_call(error, where, fn, args, kwargs)
        raise


def bind_user(where: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
    """Bind arguments to the parameters of a function of a user; a wrong call gets a note, as in `call_user`.

    Example:
        >>> bind_user("power at /", lambda x, n=2: x**n, 3).args
        (3,)

    Args:
        where: the place that the note names.
        fn: the function.
        *args: its positional arguments.
        **kwargs: its keyword arguments.

    Raises:
        TypeError: if the function does not take them.
    """
    try:
        return inspect.signature(fn).bind(*args, **kwargs)
    except TypeError as error:
        _add_call(error, where, fn, args, kwargs)
        raise


def check_positional(where: str, names: Collection[str]) -> None:
    """Check that no argument of a function was passed by name only, where all are needed by position.

    Example:
        >>> check_positional("vmap(fn)", [])

    Args:
        where: the place that the error names.
        names: the names of such arguments.

    Raises:
        LiftArgumentError: if there are any.
    """
    if names:
        named = sorted(names)
        what = f"the arguments {named} can be passed only by name, but all are needed by position."
        fix = f"Make them positional in the signature; or bind them first, `functools.partial(fn, {named[0]}=…)`."
        raise LiftArgumentError(where, what, fix, option=named[0], given=named)


def note_call(error: TypeError, where: str, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Add to Python's error about a wrong call how a function of a user was called, and what it takes.

    Call this in the `except` around the call. If the function began to run, nothing is added: the error is its own.

    Example:
        >>> def double(x):
        ...     return 2 * x
        >>> try:
        ...     double(3, 4)
        ... except TypeError as error:
        ...     note_call(error, "double at /", double, (3, 4), {})
        ...     print(error.__notes__[0])
        double at /: the call is `double(3, 4)`, but `double` takes `(x)`. Call it with what it takes, or write ...

    Args:
        error: Python's error.
        where: the place that the note names.
        fn: the function.
        args: the positional arguments that it was called with.
        kwargs: the keyword arguments.
    """
    if error.__traceback__ is None or error.__traceback__.tb_next is None:
        _add_call(error, where, fn, args, kwargs)


def _add_call(error: TypeError, where: str, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    signature = refused(fn, args, kwargs)
    if signature is None:  # It takes them, so JAX has hidden that it began to run.
        return
    name, given = name_of(fn), ", ".join([*map(shown, args), *(f"{key}={shown(one)}" for key, one in kwargs.items())])
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    places = [one.name for one in plain[:1] if one.name == "self"]
    places += string.ascii_lowercase[: len(args) - len(places)]
    names = ", ".join([*places, *(["*"] if kwargs else []), *kwargs])
    line = f"def {name}({names}): …" if name.isidentifier() else f"{f'lambda {names}'.strip()}: …"
    what = f"the call is `{name}({given})`, but `{name}` takes `{inspect.Signature(plain)}`."
    error.add_note(f"{where}: {what} Call it with what it takes, or write `{line}`.")


def refused(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.Signature | None:
    """Return the signature of a function if it does not take these arguments; None if it does, or has no signature.

    Example:
        >>> refused(lambda x: 2 * x, (3, 4), {}), refused(lambda x: 2 * x, (3,), {})
        (<Signature (x)>, None)

    Args:
        fn: the function.
        args: the positional arguments.
        kwargs: the keyword arguments.
    """
    signature = None
    try:  # not of what it wraps: a decorator may supply arguments of its function
        signature = inspect.signature(fn, follow_wrapped=False)
        signature.bind(*args, **kwargs)
    except (TypeError, ValueError):
        return signature
    return None


def check_keywords(cls: Any, given: Iterable[str]) -> None:
    """Check that the constructor of a class has parameters for keyword arguments, and suggest the closest one.

    Example:
        >>> class Layer:
        ...     def __init__(self, size, use_bias=True): ...
        >>> check_keywords(Layer, ["use_bais"])
        Traceback (most recent call last):
        TypeError: Layer.__init__() got an unexpected keyword argument 'use_bais' (available: size, use_bias). Write ...

    Args:
        cls: the class. If its `__init__` is not a plain function, or takes any keyword, nothing is checked.
        given: the names of the arguments.

    Raises:
        TypeError: if there is no parameter for one of them.
    """
    code = getattr(getattr(cls.__init__, "same_parameters", cls.__init__), "__code__", None)
    if code is None or code.co_flags & inspect.CO_VARKEYWORDS:
        return
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    for name in given:
        if name not in names:
            available = f"(available: {', '.join(names)})" if names else "(it takes none)"
            what = f"{cls.__name__}.__init__() got an unexpected keyword argument {name!r} {available}."
            from .elsewhere import instead_of_option  # imported here: needed only for an error message

            raise TypeError(f"{what} {instead_of_option(name, names, cls.__name__)}".rstrip())


def raise_interrupt(error: BaseException) -> None:
    """Raise the interrupt that an error of JAX stands for, if it does.

    JAX turns what is raised while it compares the static data of pytrees into a ValueError, even a KeyboardInterrupt.

    Example:
        >>> error = ValueError("static data cannot be compared")
        >>> error.__cause__ = SystemExit("the time is over")
        >>> raise_interrupt(error)
        Traceback (most recent call last):
        SystemExit: the time is over

    Args:
        error: the error that was raised.
    """
    if isinstance(error, ValueError) and not isinstance(error.__cause__, Exception | None):
        raise error.__cause__ from None
