"""`capture`: returns the values that modules store during a call, together with the result."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from liftcore.calls import boundary
from liftcore.errors import Expected, LiftArgumentError

from ..errors import StructureError
from ..objects.containers import Dict, List
from ..objects.module import CAPTURES, Module, iter_modules
from ..statelib.functions import from_flat_state
from ..statelib.nested import pairs_of
from ..statelib.state import State
from ..variablelib.kinds import Perturbation
from ..variablelib.variable import Variable

__all__ = ["capture"]

Kind = type[Variable[Any]]


def capture(
    fn: Callable[..., Any] | Kind, *var_types: Kind, init: Any = None, method_outputs: Kind | None = None
) -> Any:
    """Make a function also return the values that modules store by `sow` and `perturb` while it runs.

    Afterwards the modules have no additional attributes. Transformations inside handle stored values like others, so a
    value that is stored under `vmap` gains the mapped axis.

    Example:
        >>> import nnx_like as nnx
        >>> class Double(nnx.Module):
        ...     def __call__(self, x):
        ...         self.sow(nnx.Intermediate, "seen", x)
        ...         return 2 * x
        >>> y, seen = nnx.capture(Double(), nnx.Intermediate)(3)
        >>> y, seen.seen.get_value()
        (6, (3,))

        The derivative with respect to intermediate values of a model:

        >>> class Square(nnx.Module):
        ...     def __call__(self, x):
        ...         return self.perturb("inner", 2 * x) ** 2
        >>> square = Square()
        >>> _, zeros = nnx.capture(square, nnx.Perturbation)(1.0)
        >>> def loss(square, zeros, x):
        ...     return nnx.capture(square, init=zeros)(x)
        >>> float(nnx.grad(loss, argnums=1)(square, zeros, 1.0).inner.get_value())
        4.0

    Args:
        fn: a module, a method of a module, or a function whose first argument is the module. If it is a type of
            variables, the result is a decorator for functions.
        *var_types: the types of variables that are captured. Others that are stored are dropped.
        init: a state of perturbations, for example a captured one, which `perturb` adds.
        method_outputs: a type of variables that the results of all public methods are stored as, under their names.

    Returns:
        A function that returns `(result, state, …)` with a state for each type; without types, only the result. A
        variable that matches several types, such as a `Perturbation`, which is also an `Intermediate`, is in the state
        of the first one.

    Raises:
        StructureError: when called, if `init` has a value for a module that does not exist.
        LiftArgumentError: when called, if `init` is not a state.
    """
    if isinstance(fn, type) and issubclass(fn, Variable):
        kinds = (fn, *var_types)
        return lambda inner: capture(inner, *kinds, init=init, method_outputs=method_outputs)
    if method_outputs is not None and method_outputs not in var_types:
        var_types = (*var_types, method_outputs)
    bound: Any = fn if isinstance(fn, Module) else getattr(fn, "__self__", None)
    of_module = isinstance(bound, Module)

    @functools.wraps(fn if not isinstance(fn, Module) else type(fn).__call__)
    @boundary
    def captured(*args: Any, **kwargs: Any) -> Any:
        root = bound if of_module else args[0] if args else None
        with _capturing(root, var_types, init), _recording(root, method_outputs):
            result = fn(*args, **kwargs)
            states = _collected(root, var_types)
        return (result, *states) if states else result

    return captured


@contextlib.contextmanager
def _capturing(root: Any, kinds: tuple[Kind, ...], init: Any) -> Iterator[None]:
    """Give modules an attribute to store into, within the block. It passes through transformations with them."""
    if init is not None and not isinstance(init, Mapping):
        fix = "Pass the state alone: `_, state = nnx.capture(model, nnx.Perturbation)(x)`."
        raise LiftArgumentError("capture", Expected("a state of perturbations", given=init), fix, option="init")
    given = _by_module(init)
    modules = dict(iter_modules(root))
    for path in given:
        if path not in modules:
            what = f"it has values for {path}, but there is no module at this path."
            fix = "Pass a state that was captured from the same model."
            raise StructureError(f"capture(init={type(init).__name__})", what, fix, option="init")
    before = [(module, vars(module).get(CAPTURES)) for module in modules.values()]
    try:
        for path, module in modules.items():
            values: dict[Kind, dict[str, Any]] = {kind: {} for kind in kinds}
            for kind, name, value in given.get(path, ()):
                values.setdefault(kind, {})[name] = value
            setattr(module, CAPTURES, tuple([kind(held) for kind, held in values.items()]))
        yield
    finally:
        for _, module in list(iter_modules(root)):
            vars(module).pop(CAPTURES, None)
        for module, captures in before:
            vars(module).pop(CAPTURES, None)
            if captures is not None:
                vars(module)[CAPTURES] = captures


def _by_module(state: Any) -> dict[tuple[Any, ...], list[tuple[Kind, str, Any]]]:
    """Return the variables of a state by the path of their module: `(type, name, value)`."""
    found: dict[tuple[Any, ...], list[tuple[Kind, str, Any]]] = {}
    for path, leaf in pairs_of({} if state is None else state):
        kind, value = (type(leaf), leaf.get_value()) if isinstance(leaf, Variable) else (Perturbation, leaf)
        found.setdefault(path[:-1], []).append((kind, path[-1], value))
    return found


def _collected(root: Any, kinds: tuple[Kind, ...]) -> list[State]:
    """Return a state for each type. A variable that matches several types goes to the first, as with filters."""
    groups: list[list[tuple[tuple[Any, ...], Any]]] = [[] for _ in kinds]
    for path, module in iter_modules(root):
        for captured in vars(module).get(CAPTURES, ()):
            kind = type(captured)
            if kind in kinds:
                group = next(pairs for pairs, each in zip(groups, kinds, strict=True) if issubclass(kind, each))
                group.extend(((*path, name), kind(value)) for name, value in captured.get_value().items())
    return [from_flat_state(sorted(pairs, key=lambda pair: tuple(map(str, pair[0])))) for pairs in groups]


# --- results of methods


@contextlib.contextmanager
def _recording(root: Any, kind: Kind | None) -> Iterator[None]:
    """Replace the classes of modules by subclasses whose methods store their results, within the block.

    The class is part of a compiled function's key, so nothing that was compiled outside is reused inside.
    """
    modules = [] if kind is None else [module for _, module in iter_modules(root)]
    classes = [type(module) for module in modules]
    try:
        for module, cls in zip(modules, classes, strict=True):
            object.__setattr__(module, "__class__", _recorder(cls, kind))
        yield
    finally:
        for module, cls in zip(modules, classes, strict=True):
            object.__setattr__(module, "__class__", cls)


def _recorder(cls: Any, kind: Any) -> Any:
    known = vars(cls).get("_recorders")
    if known is None:
        known = cls._recorders = {}
    if kind not in known:
        methods = {name: _recorded(name, method, kind) for name, method in _methods(cls)}
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "_recorders": {}}
        known[kind] = type(cls)(cls.__name__, (cls,), {**names, **methods})
    return known[kind]


def _methods(cls: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Return the public methods of a class, and `__call__`, without those that all modules or containers have."""
    for name in dir(cls):
        method = inspect.getattr_static(cls, name)
        is_own = not any(hasattr(base, name) for base in (Module, List, Dict)) or name == "__call__"
        if is_own and isinstance(method, types.FunctionType) and (name == "__call__" or not name.startswith("_")):
            yield name, method


def _recorded(name: str, method: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
    @functools.wraps(method)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        if CAPTURES in vars(self):
            self.sow(kind, name, result)
        return result

    return recorded
