"""Lifting: turns transformations, of liftcore or new ones, into those of Module classes, methods and functions."""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar, get_origin

import liftcore
from liftcore import Captured
from liftcore.caches import bounded
from liftcore.calls import boundary, hide_frames
from liftcore.errors import AxisSizeError, Expected, LiftArgumentError, check_function, name_of, shown
from liftcore.statics import kept_with, static_key
from liftcore.typing import Filter

from .errors import TransformTargetError
from .lifecycle.advice import add_to_fix
from .lifecycle.binding import entered
from .lifecycle.calling import nowrap
from .lifecycle.context import as_in_a_method
from .lifecycle.fields import Recipe, recipe_of
from .module import Module
from .rebuilding.on_scopes import ClassLift, functions_of_a_module, on_scopes

__all__ = [
    "Methods",
    "flags",
    "lift_functions",
    "lift_with",
    "mark_lifted",
    "refuse",
    "transformation",
]

Function = TypeVar("Function", bound=Callable[..., Any])
Lift = Callable[..., Callable[..., Any]]
"""The type of a transformation with its options: from one function of scopes, or several, to the lifted function."""

Methods = str | Iterable[str] | Mapping[str, Mapping[str, Any]] | None


def lift_with(
    lift: Lift,
    *targets: Any,
    methods: Methods = None,
    name: str | None = None,
    prefix: str = "",
) -> Any:
    """Apply any lift of functions of scopes to a Module class, a method or a function of a module.

    The lifted transformations of this package are made with it. Use it for lifts of your own, for combined lifts, and
    for lifts that are written with `liftcore.pack`. `nn.transformation` is the short way to a new one.

    Example:
        >>> import functools, jax, liftcore, linen_like as nn
        >>> columns = functools.partial(liftcore.vmap, in_axes=1, variable_axes={"params": None}, split_rngs=False)
        >>> def of_columns(target, methods=None):
        ...     return nn.lift_with(columns, target, methods=methods, name="of_columns")
        >>> model = of_columns(nn.Dense)(2)
        >>> y, variables = model.init_with_output(jax.random.key(0), jax.numpy.ones((3, 5)))
        >>> y.shape, variables["params"]["kernel"].shape
        ((5, 2), (3, 2))

    Args:
        lift: called as `lift(fn)`, with one function of scopes for each target; returns a function that is called with
            a list of scopes, the first of which is the module's, and the arguments. Pass options with
            `functools.partial`: lifts with equal options make the same class, and calls of `liftcore.jit` share traces.
        *targets: a Module class, an alias of a generic one such as `Layer[int]`, a `functools.partial` of either, or
            functions whose first argument is a module.
        methods: the methods of a class to lift, by default `__call__`; or a mapping from method names to options that
            override those of a partial.
        name: the name of the lift, in the names of lifted classes and in errors; by default the lift's own name.
        prefix: the start of automatic names of submodules of a lifted class, before the name of the class.

    Returns:
        A Module class with the same fields, or a function with the arguments of the lifted function and a module in
        place of the scopes.

    Raises:
        TransformTargetError: if the target is neither a Module class nor a function.
        LiftArgumentError: if `methods` names a method that does not exist.
    """
    liftcore.pipeline.check_lift("nn.lift_with", lift)
    name = name or name_of(lift)
    target: Any = targets[0] if len(targets) == 1 else None
    if _makes_modules(target):
        return _class(name, _methods(name, lift, methods), target, prefix)
    # The lift of an alias is an alias of the lift, and the lift of a partial is a partial.
    again = functools.partial(lift_with, lift, methods=methods, name=name, prefix=prefix)
    if _makes_modules(get_origin(target)):
        return again(target.__origin__)[target.__args__]
    if isinstance(target, functools.partial) and _makes_modules(get_origin(target.func) or target.func):
        return functools.partial(again(target.func), *target.args, **target.keywords)
    for given in targets or (None,):
        _check_target(name, given)
    if methods is not None:
        what = "it selects methods of a class, but the target is a function."
        raise LiftArgumentError(f"{name}, methods", what, "Leave it out.", option="methods", given="a function")
    return lift_functions(lift, *targets, name=name)


def _makes_modules(target: Any) -> bool:
    return isinstance(target, type) and issubclass(target, Module)


def _check_target(name: str, given: Any) -> None:
    if isinstance(given, Module | type) or not callable(given):
        cls = type(given).__name__ if isinstance(given, Module) else "MyModule"
        text = f"an instance of {cls}" if isinstance(given, Module) else shown(given)
        what = Expected("a Module class or a function of a module", text, words=text)
        raise TransformTargetError(name, what, f"Lift the class: `{name}({cls}, …)(…)`.")


def lift_functions(lift: Lift, *functions: Callable[..., Any], name: str, compared: bool = False) -> Callable[..., Any]:
    """Lift functions of a module; `lift_with` uses it for functions.

    Args:
        lift: called with this number of functions of scopes.
        *functions: called with a module as the first argument.
        name: the name of the lift, for errors.
        compared: whether calls of equal modules are equal, as they must be if the lift itself is `liftcore.jit`.

    Returns:
        A function of a module, or of a pytree of modules, and of the arguments of the lifted function.
    """
    run = _run(lift, functions_of_a_module(name, functions), name, compared)

    @functools.wraps(functions[0])
    @boundary
    def function(module: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(module, Module) and module.scope is not None and not module.scope.is_claimed:
            with entered(module) as module:
                return run(module, args, kwargs)
        return run(module, args, kwargs)

    return mark_lifted(function)


def _run(lift: Lift, functions: Sequence[Callable[..., Any]], name: str, compared: bool = False) -> Callable[..., Any]:
    """Return a function that passes a module, arguments, and the lifts of the module's class through the lift."""
    lifted = lift(*functions)  # this checks the options, where they are given
    # Each call lifts new functions, so the caches that eager loops keep for a function would never hit.
    lift_call = liftcore.lifter_of(lifted, functions[0]) or lift
    compared = compared or getattr(lift, "func", lift) is liftcore.jit

    def run(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], lifts: Iterable[Any] = ()) -> Any:
        with as_in_a_method():
            inputs = on_scopes(name, module, functions, args, kwargs, lifts, compared)
            return lift_call(*inputs.calls)(inputs.scopes, *inputs.args, **inputs.kwargs)

    return run


def _class(name: str, methods: tuple[tuple[str, Keyed], ...], target: type[Module], prefix: str) -> Any:
    function = next((fn for _, keyed in methods for fn in _functions(keyed.lift)), None)
    known = _known_class if function is None else kept_with(function, _class_cache)
    try:
        with _LOCK:
            return known(name, methods, target, prefix)
    except TypeError:  # an option has no key
        return _lifted_class(name, methods, target, prefix)


@dataclasses.dataclass(frozen=True, eq=False)
class Keyed:
    """A lift that is compared and hashed by its function and by the values, types and order of its options."""

    lift: Lift

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyed) and static_key(self.lift) == static_key(other.lift)

    def __hash__(self) -> int:
        return hash(static_key(self.lift))


def _methods(name: str, lift: Lift, methods: Methods) -> tuple[tuple[str, Keyed], ...]:
    """Return the methods to lift, each with its lift."""
    if methods is None or isinstance(methods, str):
        methods = (methods or "__call__",)
    if not isinstance(methods, Mapping):
        methods = {method: {} for method in methods}
    options = lift.keywords if isinstance(lift, functools.partial) else {}
    for method, changes in methods.items():
        unknown = sorted(set(changes) - set(options))
        if unknown:
            where = f'{name}, methods["{method}"]'
            what = f"{unknown} is not an option (available: {sorted(options)})."
            fix = "Pass options by their names."
            raise LiftArgumentError(where, what, fix, option=unknown[0], available=tuple(sorted(options)))
    return tuple((method, Keyed(_with(lift, changes))) for method, changes in methods.items())


def _with(lift: Lift, changes: Mapping[str, Any]) -> Lift:
    """Return a lift with some options changed; it can be pickled."""
    if not isinstance(lift, functools.partial):
        return lift
    options = {**lift.keywords, **changes, **{name: flags(changes[name]) for name in {"split_rngs"} & set(changes)}}
    plain = {name: dict(value) if isinstance(value, MappingProxyType) else value for name, value in options.items()}
    return functools.partial(lift.func, *lift.args, **plain)


def flags(split_rngs: Any) -> Any:
    """Convert 0 and 1 in the argument `split_rngs` to bools, as Linen allows them."""
    if not isinstance(split_rngs, Mapping):
        return split_rngs
    return {name: bool(flag) if type(flag) is int and flag in (0, 1) else flag for name, flag in split_rngs.items()}


def _lifted_class(name: str, methods: Sequence[tuple[str, Keyed]], cls: type[Module], prefix: str) -> Any:
    """Make a subclass whose methods run on clones inside the lift."""
    lifted = [method for method, _ in methods]
    known = sorted(key for key, value in vars(cls).items() if getattr(value, "is_module_method", False))
    missing = [method for method in lifted if not callable(getattr(cls, method, None))]
    if missing:
        where = f"{name}, methods={lifted}"
        what = f"{cls.__name__} has no method {missing} (available: {known})."
        fix = f"Choose one of these: `methods={known[:1]}`."
        raise LiftArgumentError(where, what, fix, option="methods", given=missing[0], available=tuple(known))
    class_name = f"{prefix or name.rpartition('.')[2].capitalize()}{cls.__name__}"
    namespace: dict[str, Any] = {
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "__qualname__": class_name,
        "_name_prefix": f"{prefix}{cls._name_prefix}",
        "_recipe": Recipe(name, methods, cls, prefix),
        "_methods_advice": _to_lift_all(lifted, [method for method in known if method not in (*lifted, "setup")]),
        "__reduce__": _reduced,
        "__copy__": _copied,
        "__deepcopy__": _copied,
    }
    class_lift = ClassLift([keyed.lift for _, keyed in methods])
    for method, keyed in methods:
        namespace[method] = _lifted_method(keyed.lift, getattr(cls, method), class_lift, name)
    made: Any = types.new_class(class_name, (cls,), exec_body=lambda body: body.update(namespace))
    if hasattr(cls, "__parameters__"):  # generic, as the class is
        made.__parameters__ = cls.__parameters__
    return made


def _to_lift_all(lifted: Sequence[str], others: Sequence[str]) -> str:
    """Return the advice to lift other methods too; nothing if there are none."""
    if not others:
        return ""
    methods = ", ".join(f'"{method}"' for method in (*lifted, *others))
    return f" A method that is not lifted has variables of other shapes; to lift it too, write `methods=[{methods}]`."


@nowrap
def _reduced(module: Module) -> Any:
    """Return what a pickle keeps of an instance: how to make its class, which no Python module has, and its fields."""
    return _without_fields, (_recipe(type(module)),), module.__getstate__()


def _recipe(cls: Any) -> Any:
    """Return how to make a lifted class again; for any other class, the class."""
    recipe = recipe_of(cls)
    return cls if recipe is None else recipe._replace(cls=_recipe(recipe.cls))


def _without_fields(recipe: Any) -> Any:
    """Make an instance without fields, of the class that a recipe makes."""
    cls = _class_of(recipe)
    return cls.__new__(cls)


def _class_of(recipe: Any) -> Any:
    if isinstance(recipe, type):
        return recipe
    name, methods, base, prefix = recipe
    return _class(name, methods, _class_of(base), prefix)


@nowrap
def _copied(module: Module, memo: dict[int, Any] | None = None) -> Module:
    """Copy a module; the copy has exactly the same class, even if the cache would not find it."""
    again = module.__new__(type(module))
    state = module.__getstate__()
    again.__setstate__(state if memo is None else copy.deepcopy(state, memo))
    return again


def _class_cache() -> Any:
    """Return a cache of lifted classes by their options, so that code compiled for their instances is found again."""
    return bounded(256)(_lifted_class)


_known_class = _class_cache()
"""The cache of classes without a function in their options; others are kept with it, which may be new in each call."""


def _functions(value: Any) -> Iterator[types.FunctionType]:
    """Yield the functions in a lift or an option: what is given to a partial, but not what it calls."""
    if isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, functools.partial):
        yield from _functions((value.args, value.keywords))
    elif isinstance(value, Mapping):
        yield from _functions((*value.keys(), *value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _functions(one)


_LOCK = threading.RLock()
"""Held during a lookup, so that threads that ask at once get the same class. Making a class may lift others."""


def _lifted_method(lift: Lift, fn: Callable[..., Any], class_lift: ClassLift, name: str) -> Callable[..., Any]:
    """Return a method that runs `fn` inside the lift, or directly if its module is already inside."""

    @functools.wraps(fn)  # copies `is_module_method`: the wrapping of a method belongs to `fn`, on the module inside
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        lifted, class_lift = vars(method)["lifted"]  # not in the closure: see `lifecycle.calling`
        if class_lift in self._state.lifts:  # the module inside also has the lifted class
            return method.__wrapped__(self, *args, **kwargs)
        try:
            return lifted(self, args, kwargs, (class_lift,))
        except Exception as error:
            if isinstance(error, AxisSizeError) and error.variable is not None:
                add_to_fix(error, self._methods_advice)
            hide_frames(error)
            raise

    vars(method)["lifted"] = _run(lift, [fn], name), class_lift
    return method


def mark_lifted(fn: Function) -> Function:
    """Mark a lifted function, which may be made from a method: unlike the method, it runs `setup` inside the lift."""
    fn.__dict__.update(is_lifted=True, is_module_method=False)
    return fn


# --- new transformations ----------------------------------------------------------------------------------------------


def transformation(
    transform: Callable[..., Any],
    in_variable_filters: Sequence[Filter],
    out_variable_filters: Sequence[Filter | Captured],
    rng_filters: Sequence[Filter],
    name: str | None = None,
    *,
    prefix: str = "",
    **options: Any,
) -> Callable[..., Any]:
    """Make a new lifted transformation; `liftcore.transformation` for module classes, methods and functions.

    Example:
        >>> import jax, linen_like as nn
        >>> def without_gradient(body, variables, rngs, *args):
        ...     return body(jax.lax.stop_gradient(variables), rngs, *args)
        >>> out = [True, nn.Captured(all=True)]
        >>> frozen = nn.transformation(without_gradient, [True], out, [True], name="frozen")
        >>> model, x = nn.Sequential([frozen(nn.Dense)(3), nn.Dense(1)]), jax.numpy.ones((2, 4))
        >>> variables = model.init(jax.random.key(0), x)
        >>> grads = jax.grad(lambda variables: model.apply(variables, x).sum())(variables)["params"]
        >>> bool(grads["layers_0"]["kernel"].any()), bool(grads["layers_1"]["kernel"].any())
        (False, True)

    Args:
        transform: called as `transform(body, variable_groups, rng_groups, *args, **kwargs)`, where `body` is the method
            or function as a pure function of the groups, and the arguments are those of the call without the module;
            returns the result and the output groups. See `liftcore.transformation`.
        in_variable_filters: the filters of the input groups; variables that no filter matches are not lifted.
        out_variable_filters: the filters of the output groups. With `Captured()` as the last one, sown values that no
            other filter matches form a last group.
        rng_filters: the filters of the groups of RNG streams.
        name: the name of the transformation, in paths, in the names of lifted classes and in errors; by default the
            name of `transform`.
        prefix: the start of automatic names of submodules of a lifted class, before the name of the class; by default
            empty, so that the names are those of the class.
        **options: `advice`, `prepare` and `shown` of `liftcore.transformation`.

    Returns:
        `lifted(target, *, methods=None)`, where the target is a Module class, a `functools.partial` of one, or a
        function whose first argument is a module. Use it like `nn.vmap`, also as a decorator of a method.
        Transformations made with equal arguments make the same class from a class.

    Raises:
        LiftArgumentError: if `transform` is not callable.
    """
    check_function("nn.transformation", transform)
    name = name or name_of(transform)
    groups = tuple(in_variable_filters), tuple(out_variable_filters), tuple(rng_filters)
    lift = functools.partial(_lift, transform, groups, name, tuple(options.items()))
    return functools.partial(lift_with, lift, name=name, prefix=prefix)


def _lift(transform: Any, groups: tuple[Any, Any, Any], name: str, options: Any, fn: Any) -> Callable[..., Any]:
    return liftcore.transformation(transform, *groups, name, **dict(options))(fn)


# --- options of Linen -------------------------------------------------------------------------------------------------


def refuse(name: str, **options: Any) -> None:
    """Raise an error if an option of Linen is used that is not supported."""
    for option, value in options.items():
        if value:
            what = f"{option}={value!r} is not supported; see the arguments of `nn.{name}`."
            raise LiftArgumentError(f"nn.{name}", what, "Leave it out.", option=option, given=repr(value))
