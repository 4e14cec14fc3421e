"""Converts variables between `flax.linen` and this library, and between stacked and separate layers.

Both libraries give submodules the same names, except those that `nn.remat` and `nn.jit` make: flax calls them
`CheckpointDense_0` and `JitDense_0`; here they are `Dense_0`, so that adding one of these transformations changes no
name. The model is run once, with shapes only, to find out which submodules these are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from liftcore.errors import Expected, LiftArgumentError
from liftcore.filters import leaves_of
from liftcore.meta import replace_boxed, unbox
from liftcore.serialization import from_state_dict, msgpack_restore, to_state_dict
from liftcore.typing import Path, Variables

from .lifecycle.context import InterceptorContext, intercept_methods
from .lifecycle.fields import Base, recipe_of
from .stacks.stacking import stack_layers, unstack_layers

__all__ = ["from_flax", "stack_layers", "to_flax", "unstack_layers"]

Names = dict[Path, dict[str, str]]
"""Type: for each path of a module here, the names in flax of the submodules below it that have another name there."""


def from_flax(
    module: Any,
    variables: Variables | bytes | bytearray | memoryview,
    *args: Any,
    method: Callable[..., Any] | str | None = None,
    **kwargs: Any,
) -> Variables:
    """Rename the variables of a `flax.linen` model to the names that they have here; no value is changed.

    Example:
        >>> import jax, linen_like as nn
        >>> model = nn.Sequential([nn.remat(nn.Dense)(2)])
        >>> x = jax.numpy.ones(3)
        >>> variables = model.init(jax.random.key(0), x)
        >>> back = from_flax(model, to_flax(model, variables, x), x)
        >>> bool((back["params"]["layers_0"]["kernel"] == variables["params"]["layers_0"]["kernel"]).all())
        True

    Args:
        module: the model, written with this library.
        variables: the result of flax's `init`, or a checkpoint: a tree, the bytes of `flax.serialization.to_bytes`, or
            what `liftcore.checkpoints.load_orbax` returns.
        *args: the arguments of `init`; arrays may be `jax.ShapeDtypeStruct`.
        method: the method to run: a name, a function of the module or a bound method; by default `__call__`.
        **kwargs: keyword arguments of `init`.

    Returns:
        The variables. In the collections that the model makes, the boxes are those of the model, whether the variables
        had boxes or not.

    Raises:
        LiftArgumentError: if the names or shapes in a collection differ from those that the model makes.
        SerializationError: if the bytes are not a checkpoint.
    """
    tree = msgpack_restore(variables) if isinstance(variables, bytes | bytearray | memoryview) else variables
    names, made = _names(module, method, args, kwargs)
    _check_collections(module, tree, made)
    found = {name: _renamed(below, (), _backwards(names)) for name, below in tree.items()}
    return {name: _as_made(module, name, below, made[name]) if name in made else below for name, below in found.items()}


def to_flax(
    module: Any, variables: Variables, *args: Any, method: Callable[..., Any] | str | None = None, **kwargs: Any
) -> Variables:
    """Rename variables to the names that they have in `flax.linen`: the inverse of `from_flax`.

    Example:
        >>> import jax, linen_like as nn
        >>> class Model(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         x = nn.remat(nn.Dense)(2)(x)
        ...         return nn.Dense(2)(x)
        >>> x = jax.numpy.ones(3)
        >>> variables = Model().init(jax.random.key(0), x)
        >>> list(variables["params"]), list(to_flax(Model(), variables, x)["params"])
        (['Dense_0', 'Dense_1'], ['CheckpointDense_0', 'Dense_0'])

    Args:
        module: the model, written with this library.
        variables: the variables that its `init` returned.
        *args: the arguments of `init`; arrays may be `jax.ShapeDtypeStruct`.
        method: the method to run: a name, a function of the module or a bound method; by default `__call__`.
        **kwargs: keyword arguments of `init`.

    Returns:
        The variables.

    Raises:
        LiftArgumentError: as for `from_flax`.
    """
    names, made = _names(module, method, args, kwargs)
    _check_collections(module, variables, made)
    for name in made.keys() & variables.keys():
        _as_made(module, name, variables[name], made[name])
    return {name: _renamed(below, (), names) for name, below in variables.items()}


def _names(module: Any, method: Any, args: Any, kwargs: Any) -> tuple[Names, Variables]:
    """Return the names that differ, and the types of the variables that `init` makes."""
    seen: dict[Path, dict[str, Any]] = {}

    def note(next_fun: Callable[..., Any], args: Any, kwargs: Any, known: InterceptorContext) -> Any:
        result = next_fun(*args, **kwargs)
        if known.module.scope is not None:
            for place, child in (known.module._state.children or {}).items():
                *above, name = place.split("/")
                seen.setdefault((*known.module.path, *above), {})[name] = type(child)
        return result

    with intercept_methods(note):
        made = module.lazy_init(jax.random.key(0), *args, method=method, **kwargs)
    return {path: _in_flax(children) for path, children in seen.items()}, made


def _in_flax(children: Mapping[str, type[Base]]) -> dict[str, str]:
    """Return the names of submodules in flax, which counts each class separately."""
    numbers: Counter[str] = Counter()
    names = {}
    for name, cls in children.items():
        prefix, _, number = name.rpartition("_")
        if prefix == cls._name_prefix and number.isdecimal():
            there = _class_name(cls)
            names[name] = f"{there}_{numbers[there]}"
            numbers[there] += 1
    return {name: there for name, there in names.items() if name != there}


def _class_name(cls: type[Base]) -> str:
    """Return the name of a class in flax, where lifted classes have other names."""
    if recipe_of(cls) is None:
        return cls.__name__
    lifted: Any = cls.__bases__[0]
    lift = cls.__name__.removesuffix(lifted.__name__)
    return f"{'Checkpoint' if lift == 'Remat' else lift}{_class_name(lifted)}"


def _backwards(names: Names) -> Names:
    """Return the inverse, for paths of flax."""

    def there(path: Path) -> Path:
        return tuple(names.get(path[:at], {}).get(name, name) for at, name in enumerate(path))

    return {there(path): {name: own for own, name in below.items()} for path, below in names.items()}


def _renamed(tree: Any, path: Path, names: Names) -> Any:
    if not isinstance(tree, Mapping):
        return tree
    below = names.get(path, {})
    return {below.get(name, name): _renamed(value, (*path, name), names) for name, value in tree.items()}


def _check_collections(module: Any, variables: Any, made: Variables) -> None:
    """Check that these are variables, with a collection that the model makes."""
    where = f"variables of {type(module).__name__}"
    if not isinstance(variables, Mapping):
        given = f"a {type(variables).__name__}"
        fix = "Read the bytes of a file: `from_flax(model, Path(path).read_bytes(), x)`."
        if hasattr(variables, "params"):
            fix = 'Pass the parameters of a training state: `{"params": state.params}`, with the other collections.'
        raise LiftArgumentError(where, Expected("nested dicts or bytes", given, words=given), fix, option="variables")
    if variables.keys().isdisjoint(made) or not all(isinstance(below, Mapping) for below in variables.values()):
        what = Expected(f"collections, as `init` makes them ({sorted(made)})", given=sorted(variables))
        fix = 'Pass `{"params": params}`, with the other collections, and leave out everything else.'
        raise LiftArgumentError(where, what, fix, option="variables")


def _as_made(module: Any, collection: str, given: Variables, made: Variables) -> Variables:
    """Return a collection with the containers and boxes that the model makes, after checking names and shapes."""
    bare = unbox(made)
    expected = to_state_dict(bare)
    # In a state dict, a box of this library or of flax is a dict with `value`.
    state = _without_boxes(to_state_dict(given), expected)
    _check(module, collection, dict(leaves_of(state)), dict(leaves_of(expected)))
    return replace_boxed(made, from_state_dict(bare, state))


def _without_boxes(state: Any, expected: Any) -> Any:
    if not isinstance(state, Mapping):
        return state
    names = expected if isinstance(expected, Mapping) else {}
    if set(state) == {"value"} and "value" not in names:
        return _without_boxes(state["value"], expected)
    return {name: _without_boxes(below, names.get(name)) for name, below in state.items()}


def _check(module: Any, collection: str, given: Mapping[Path, Any], expected: Mapping[Path, Any]) -> None:
    """Check that a collection has the names and shapes that the model makes."""

    def problem(path: Path, what: str, **facts: Any) -> LiftArgumentError:
        variable = "/".join((collection, *path))
        where = f'"{variable}" of {type(module).__name__}'
        fix = "Check that the variables come from the same model, with the same options."
        return LiftArgumentError(where, what, fix, variable=variable, collection=collection, **facts)

    for path in sorted(given.keys() ^ expected.keys()):
        lacks = "the model makes it, but the variables lack it."
        raise problem(path, lacks if path in expected else "the model does not make it.")
    for path, value in given.items():
        found, shape = np.shape(value), getattr(expected[path], "shape", None)
        if shape is not None and found != shape:
            what = f"it has shape {found} in the variables, but {shape} in the model."
            raise problem(path, what, expected=shape, given=found)
