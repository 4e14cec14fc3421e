"""`Module`: the base class of layers and models, with `sow`, `perturb`, `train` and `eval`; and views of modules."""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from liftcore.errors import Expected

from ..errors import StructureError
from ..filterlib import to_predicate
from ..variablelib.kinds import Perturbation, variable_type_from_name
from ..variablelib.variable import Variable
from .pytree import Pytree
from .traversal import check_unshared, iter_children, iter_graph, recursive_map

__all__ = ["CAPTURES", "Module", "iter_module_children", "iter_modules", "view", "view_info", "with_attributes"]


CAPTURES = "__captures__"
"""The attribute of a module inside `capture`: a variable for each captured type, which holds values by name."""


def _append(values: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    return (*values, value)


class Module(Pytree):
    """The base class of layers and models: an object (see `Pytree`) that holds variables and other modules.

    Example:
        >>> import jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> class Scale(nnx.Module):
        ...     def __init__(self, size):
        ...         self.factor = nnx.Param(jnp.ones(size))
        ...     def __call__(self, x):
        ...         return self.factor * x
        >>> Scale(2)(jnp.array([2.0, 3.0]))
        Array([2., 3.], dtype=float32)
    """

    def sow(
        self,
        variable_type: type[Variable[Any]] | str,
        name: str,
        value: Any,
        reduce_fn: Callable[[Any, Any], Any] = _append,
        init_fn: Callable[[], Any] = tuple,
        capture_noop: bool | None = None,
    ) -> bool:
        """Store an intermediate value, such as an activation, in a variable of this module or of `capture`.

        Example:
            >>> import nnx_like as nnx
            >>> class Double(nnx.Module):
            ...     def __call__(self, x):
            ...         self.sow(nnx.Intermediate, "seen", x)
            ...         return 2 * x
            >>> double = Double()
            >>> double(double(1))
            4
            >>> double.seen.get_value()
            (1, 2)

        Args:
            variable_type: the type of the variable, or its name.
            name: the name of the attribute.
            value: the value.
            reduce_fn: called as `reduce_fn(stored, value)`; by default it appends to a tuple.
            init_fn: makes the initial stored value; by default an empty tuple.
            capture_noop: whether to store values inside `capture` only.

        Returns:
            Whether the value was stored. Inside `capture`, only values of the captured types are stored.

        Raises:
            StructureError: if the attribute exists and is not such a variable.
        """
        kind = _variable_type(variable_type)
        captures = vars(self).get(CAPTURES)
        if captures is not None:
            captured = _of_kind(captures, kind)
            if captured is not None:
                found = captured.get_value()
                captured.set_value({**found, name: reduce_fn(found[name] if name in found else init_fn(), value)})
            return captured is not None
        if capture_noop:
            return False
        if not hasattr(self, name):
            setattr(self, name, kind(reduce_fn(init_fn(), value)))
            return True
        variable = self._variable(kind, name)
        variable.set_value(reduce_fn(variable.get_value(), value))
        return True

    def perturb(
        self,
        name: str,
        value: Any,
        variable_type: type[Variable[Any]] | str = Perturbation,
        capture_noop: bool | None = None,
    ) -> Any:
        """Add a zero variable to a value, so that the gradient of the variable is the gradient of the value.

        Example:
            >>> import nnx_like as nnx
            >>> class Square(nnx.Module):
            ...     def __call__(self, x):
            ...         return self.perturb("x", x) ** 2
            >>> square = Square()
            >>> float(square(3.0)), float(square.x.get_value())
            (9.0, 0.0)

        Args:
            name: the name of the attribute.
            value: the value, an array or a pytree of arrays.
            variable_type: the type of the variable, or its name.
            capture_noop: whether to return the value itself outside of `capture`.

        Returns:
            The sum of the value and the variable's value. Inside a `capture` that neither captures such variables nor
            was given one, the value itself.

        Raises:
            StructureError: if the attribute exists and is not such a variable.
        """
        kind = _variable_type(variable_type)
        captures = vars(self).get(CAPTURES)
        if captures is not None:
            captured = _of_kind(captures, kind)
            if captured is None:
                return value
            if name not in captured.get_value():
                captured.set_value({**captured.get_value(), name: _zeros(value)})
            return jax.tree.map(jnp.add, value, captured.get_value()[name])
        if capture_noop:
            return value
        if not hasattr(self, name):
            setattr(self, name, kind(_zeros(value)))
        return jax.tree.map(jnp.add, value, self._variable(kind, name).get_value())

    def _variable(self, kind: type[Variable[Any]], name: str) -> Variable[Any]:
        held = getattr(self, name)
        if type(held) is not kind:
            where = f"{type(self).__name__}.{name}"
            given = type(held).__name__
            what = Expected(f"a variable of type {kind.__name__}", given, words=f"an attribute of type {given}")
            raise StructureError(where, what, "Choose another name.")
        return held

    def set_attributes(
        self, *filters: Any, raise_if_not_found: bool = True, graph: bool | None = None, **attributes: Any
    ) -> None:
        """Set attributes in this module and all its submodules. A module that lacks an attribute is skipped.

        Example:
            >>> import nnx_like as nnx
            >>> model = nnx.Dict(a=nnx.Dict(rate=0.1), b=nnx.Dict(rate=0.2))
            >>> model.set_attributes(nnx.PathContains("a"), rate=0.5)
            >>> model.a.rate, model.b.rate
            (0.5, 0.2)

        Args:
            *filters: filters for the modules; a module is included if any filter matches it. By default all are.
            raise_if_not_found: whether it is an error if no module has one of the attributes.
            graph: True, like None, means the only mode there is: modules may be shared. False forbids it.
            **attributes: the values by name.

        Raises:
            AliasError: if `graph` is False, and a variable is shared.
            StructureError: if no module has one of the attributes.
        """
        if graph is False:
            check_unshared("set_attributes", {"self": self})
        missing = set(attributes)
        matches = to_predicate(list(filters) if filters else ...)
        for path, module in iter_modules(self):
            if matches(path, module):
                _assign(attributes, missing, module)
        if missing and raise_if_not_found:
            raise _no_attributes(f"{type(self).__name__}.set_attributes", missing)

    def train(self, **attributes: Any) -> None:
        """Set all modules to training: `deterministic=False` and `use_running_average=False`.

        Args:
            **attributes: more attributes to set, as in `set_attributes`.
        """
        self.set_attributes(deterministic=False, use_running_average=False, **attributes, raise_if_not_found=False)

    def eval(self, **attributes: Any) -> None:
        """Set all modules to evaluation: `deterministic=True` and `use_running_average=True`.

        Args:
            **attributes: more attributes to set, as in `set_attributes`.
        """
        self.set_attributes(deterministic=True, use_running_average=True, **attributes, raise_if_not_found=False)

    def iter_modules(self) -> Iterator[tuple[tuple[Any, ...], Module]]:
        """Iterate over this module and all modules in it; see `nnx_like.iter_modules`."""
        return iter_modules(self)

    def iter_children(self) -> Iterator[tuple[Any, Module]]:
        """Iterate over the direct submodules; see `nnx_like.iter_module_children`."""
        return iter_module_children(self)


def _of_kind(captures: Iterable[Variable[Any]], kind: type[Variable[Any]]) -> Variable[Any] | None:
    return next((one for one in captures if type(one) is kind), None)


def _zeros(value: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, value)


def _variable_type(kind: type[Variable[Any]] | str) -> type[Variable[Any]]:
    return variable_type_from_name(kind, allow_register=True) if isinstance(kind, str) else kind


def iter_modules(module: Any, /) -> Iterator[tuple[tuple[Any, ...], Module]]:
    """Iterate over a value and all modules in it; the innermost come first, and each comes once.

    Example:
        >>> import nnx_like as nnx
        >>> [path for path, _ in nnx.iter_modules(nnx.Dict(a=nnx.Dict(b=nnx.List())))]
        [('a', 'b'), ('a',), ()]

    Args:
        module: a module, or lists, tuples and dicts of modules.

    Yields:
        The path and the module.
    """
    for path, node in iter_graph(module):
        if isinstance(node, Module):
            yield path, node


def iter_module_children(node: Any, /) -> Iterator[tuple[Any, Module]]:
    """Iterate over the direct submodules of a value.

    Example:
        >>> import nnx_like as nnx
        >>> [name for name, _ in nnx.iter_module_children(nnx.Dict(a=nnx.Dict(), w=nnx.Param(1)))]
        ['a']

    Args:
        node: a module, or a list, tuple or dict of modules.

    Yields:
        The name and the module.
    """
    for name, child in iter_children(node):
        if isinstance(child, Module):
            yield name, child


# --- views: copies with other static attributes that share the variables ----------------------------------------------

Node = TypeVar("Node")


def with_attributes(node: Node, /, *, only: Any = ..., raise_if_not_found: bool = True, **attributes: Any) -> Node:
    """Copy objects and set attributes of the copy, which shares variables and arrays; see `Module.set_attributes`.

    Example:
        >>> import nnx_like as nnx
        >>> model = nnx.Dict(drop=nnx.Dict(rate=0.1), w=nnx.Param(1.0))
        >>> other = nnx.with_attributes(model, rate=0.5)
        >>> other.drop.rate, model.drop.rate, other.w is model.w
        (0.5, 0.1, True)

    Args:
        node: an object, or lists, tuples and dicts of objects.
        only: a filter of the modules that get the attributes.
        raise_if_not_found: whether it is an error if no module has one of the attributes.
        **attributes: names and values. They are set in each module that has an attribute of that name.

    Returns:
        New objects, which share the variables of the old ones.

    Raises:
        StructureError: if no module has one of the attributes.
    """
    missing = set(attributes)
    made: Node = _changed(node, only, functools.partial(_assign, attributes, missing))
    if missing and raise_if_not_found:
        raise _no_attributes("with_attributes", missing)
    return made


def _assign(attributes: Mapping[str, Any], missing: set[str], module: Any) -> None:
    """Set the attributes that a module has already; they are no longer missing."""
    for name in [name for name in attributes if hasattr(module, name)]:
        setattr(module, name, attributes[name])
        missing.discard(name)


def _no_attributes(where: str, missing: set[str]) -> StructureError:
    what = f"no module that the filters match has the attributes {sorted(missing)}."
    fix = "Leave them out, or pass `raise_if_not_found=False`."
    return StructureError(where, what, fix, option="raise_if_not_found")


def view(node: Node, /, *, only: Any = ..., raise_if_not_found: bool = True, **kwargs: Any) -> Node:
    """Copy objects in another mode; the copy shares the variables. Calls `set_view` on each of its modules.

    To support this in a module of your own, define a method `set_view`. It gets the keyword arguments that match its
    parameters. Give each parameter the default None, which means no change.

    Example:
        >>> import nnx_like as nnx
        >>> class Noise(nnx.Module):
        ...     def __init__(self):
        ...         self.deterministic = False
        ...     def set_view(self, deterministic: bool | None = None):
        ...         if deterministic is not None:
        ...             self.deterministic = deterministic
        >>> model = nnx.Dict(noise=Noise())
        >>> nnx.view(model, deterministic=True).noise.deterministic, model.noise.deterministic
        (True, False)

    Args:
        node: an object, or lists, tuples and dicts of objects.
        only: a filter for the modules that change.
        raise_if_not_found: whether it is an error if no module takes one of the arguments.
        **kwargs: the arguments of `set_view`.

    Returns:
        New objects, which share the variables of the old ones.

    Raises:
        StructureError: if no module takes one of the arguments.
    """
    used: set[str] = set()

    def ask(module: Any) -> None:
        if hasattr(module, "set_view"):
            given = _given(module.set_view, kwargs)
            module.set_view(**given)
            used.update(given)

    made: Node = _changed(node, only, ask)
    if raise_if_not_found and not used.issuperset(kwargs):
        what = f"no `set_view` of a matching module takes {sorted(set(kwargs) - used)}."
        fix = "See `view_info` for the arguments that they take, or pass `raise_if_not_found=False`."
        raise StructureError("view", what, fix, option=min(set(kwargs) - used))
    return made


def _changed(node: Any, only: Any, change: Callable[[Any], None]) -> Any:
    """Return new objects, and change those that a filter matches."""
    matches = to_predicate(only)

    def renew(path: tuple[Any, ...], part: Any) -> Any:
        if isinstance(part, Pytree) and matches(path, part):
            change(part)
        return part

    return recursive_map(renew, node)


def _given(fn: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments that match parameters of a function."""
    parameters = inspect.signature(fn).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return kwargs
    return {name: value for name, value in kwargs.items() if name in parameters}


def view_info(node: Any, /, *, only: Any = ...) -> str:
    """Describe the arguments of `view` that the modules of a model support.

    Example:
        >>> import nnx_like as nnx
        >>> class Noise(nnx.Module):
        ...     def set_view(self, deterministic: bool | None = None):
        ...         '''Sets the mode.
        ...
        ...         Args:
        ...             deterministic: whether to add no noise.
        ...         '''
        >>> print(nnx.view_info(nnx.Dict(noise=Noise())))
        Noise:
          deterministic: bool | None = None
            whether to add no noise.

    Args:
        node: a module, or lists, tuples and dicts of modules.
        only: a filter for the modules to report.

    Returns:
        The parameters of `set_view` with their documentation, for each class of modules that has this method.
    """
    matches = to_predicate(only)
    kinds = {type(module) for path, module in iter_modules(node) if matches(path, module)}
    told = [kind for kind in kinds if hasattr(kind, "set_view")]
    return "\n".join(line for kind in sorted(told, key=lambda kind: kind.__qualname__) for line in _told(kind))


def _told(kind: Any) -> Iterator[str]:
    yield f"{kind.__qualname__}:"
    texts = _described(inspect.getdoc(kind.set_view) or "")
    for name, parameter in list(inspect.signature(kind.set_view).parameters.items())[1:]:
        if parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            yield f"  {_shown(parameter)}"
            yield from (f"    {line}" for line in texts.get(name, ()))


def _shown(parameter: inspect.Parameter) -> str:
    text, kind = str(parameter), parameter.annotation
    return text.replace(f": {kind!r}", f": {kind}") if isinstance(kind, str) else text


def _described(doc: str) -> dict[str, list[str]]:
    """Return the lines for each parameter in the section "Args:" of a docstring."""
    _, _, section = doc.partition("Args:\n")
    section = re.split(r"^\S", section, maxsplit=1, flags=re.MULTILINE)[0]
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in textwrap.dedent(section).rstrip().splitlines():
        start = re.match(r"(\w+)[^:]*: *(.*)", line)
        if start:
            lines = found[start[1]] = [start[2]]
        elif line.strip():
            lines.append(line.strip())
    return found
