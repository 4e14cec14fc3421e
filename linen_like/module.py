"""`Module`: a dataclass that describes a part of a model, and defines its variables where they are used.

The code is split into files by idea: `fields` (the dataclass), `binding` (unbound to bound, clones), `calling` (around
each method), `entry` (`init`, `apply`). This file is the class that users see.

What lifting relies on is listed in `fields.Base`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import liftcore
from liftcore import Scope, Variable
from liftcore.calls import boundary
from liftcore.errors import JaxTransformError, LiftArgumentError
from liftcore.typing import Filter, RNGs, Variables

from . import rebuilding, summary
from .errors import (
    CallUnbindOnUnboundModuleError,
    DefineVariableError,
    ModuleAttributeError,
)
from .lifecycle import binding, calling, entry, fields
from .lifecycle.binding import NEW, UNSPECIFIED, bound_scope, share_scope
from .lifecycle.calling import compact, compact_name_scope, nowrap
from .lifecycle.context import (
    CaptureFilter,
    InterceptorContext,
    context,
    disable_named_call,
    enable_named_call,
    intercept_methods,
    override_named_call,
)
from .lifecycle.entry import NO_INTERMEDIATES, apply, cached_method, init, init_with_output

__all__ = [
    "InterceptorContext",
    "Module",
    "apply",
    "compact",
    "compact_name_scope",
    "disable_named_call",
    "enable_named_call",
    "init",
    "init_with_output",
    "intercept_methods",
    "merge_param",
    "nowrap",
    "override_named_call",
    "share_scope",
]

T = TypeVar("T")


class Module(fields.Base):
    """Base class of all modules: layers, models, and anything else that holds variables.

    A subclass is a dataclass: its annotated attributes are the arguments of its constructor. Submodules and variables
    are defined either in `setup`, as attributes, or in a method marked `nn.compact`, where they are used.

    Example:
        >>> import jax, linen_like as nn
        >>> class Scale(nn.Module):
        ...     start: float = 1.0
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         return x * self.param("scale", jax.nn.initializers.constant(self.start), x.shape[-1:])
        >>> class Twice(nn.Module):
        ...     def setup(self):
        ...         self.first, self.second = Scale(), Scale(2.0)
        ...     def __call__(self, x):
        ...         return self.second(self.first(x))
        >>> x = jax.numpy.ones((5, 3))
        >>> variables = Twice().init(jax.random.key(0), x)
        >>> jax.tree.map(lambda value: value.shape, variables)
        {'params': {'first': {'scale': (3,)}, 'second': {'scale': (3,)}}}
        >>> Twice().apply(variables, x).shape
        (5, 3)

    Attributes:
        parent: the module that this is a submodule of, or the scope that it is bound to. By default the module whose
            method is running; None means no parent.
        name: its name in the parent. By default the attribute that holds it, or the class's name and a number.
    """

    parent: Module | Scope | None = dataclasses.field(default=UNSPECIFIED, repr=False, kw_only=True)  # type: ignore[assignment]
    name: str | None = dataclasses.field(default=None, kw_only=True)

    _state = NEW

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Compute the output of the module. A subclass defines it."""

    def __init_subclass__(cls, kw_only: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        fields.check_annotations(cls)
        has_init = "__init__" in cls.__dict__  # the dataclass adds one, unless the class has its own
        fields.make_dataclass(cls, kw_only)
        calling.wrap_methods(cls)
        cls._has_setup = cls.setup is not Module.setup
        has_other = cls.__post_init__ is not Module.__post_init__ or cls.__new__ is not Module.__new__
        cls._has_constructor = cls._has_constructor or has_init or has_other

    __post_init__ = binding.attach  # type: ignore[misc]

    def setup(self) -> None:
        """Define submodules and variables as attributes. It runs at the first use. Override this in a subclass.

        Lists, tuples and dicts of modules are named after the attribute and their keys, such as `layers_0`.
        """

    # -- values and attributes ---------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if self._state.open or name.startswith("__"):
            object.__setattr__(self, name, value)
        else:
            binding.set_attribute(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name == "__jax_array__":  # JAX looks it up before it rejects a value that is not an array
            raise JaxTransformError(
                binding.place(self),
                "the module was passed to JAX as an array: as an argument of a raw transformation, or of a function.",
                "Use the lifted transformation, which takes modules: `nn.jit`, `nn.vmap`, `nn.grad`, `nn.cond`, "
                "`nn.checkpoint` and so on; or pass variables: `jax.jit(model.apply)(variables, x)`.",
                given=type(self).__name__,
            )
        # Python looks up special methods that are optional; this must not run `setup`.
        if not (name.startswith("__") and name.endswith("__")):
            if self.scope is not None and not self._state.ready and not self.scope.is_claimed:
                with binding.entered(self) as module:
                    return getattr(module, name)
            binding.ensure_setup(self)
            if name in self.__dict__:
                return self.__dict__[name]
            calling.check_descriptor(self, name)
        raise _no_attribute(self, name)

    def __dir__(self) -> list[str]:
        binding.ensure_setup(self)
        return list(object.__dir__(self))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that copies and pickles keep: an unbound module, without the variables of a bound one."""
        kept = {name: value for name, value in self.__dict__.items() if name not in ("scope", "_state", "_parent")}
        if self.scope is None:
            return kept
        return {name: value for name, value in kept.items() if name in self.__dataclass_fields__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _parent=None, _state=binding.State())

    # -- places ------------------------------------------------------------------------------------------------------

    @property
    def path(self) -> tuple[str, ...]:
        """The names from the root of the model to this module."""
        return bound_scope(self, "path").path

    def __scopes__(self) -> tuple[Sequence[Scope], Callable[[Sequence[Scope]], Any]]:
        """See `liftcore.Scoped`."""
        return rebuilding.split_module(self)

    def clone(
        self,
        *,
        parent: Module | Scope | None = None,
        _deep_clone: bool = False,
        _reset_names: bool = False,
        **updates: Any,
    ) -> Self:
        """Return a module with the same fields, unbound unless a parent is given.

        Args:
            parent: the parent of the clone: a module, or a scope that the clone is bound to.
            _deep_clone: whether modules in the fields are cloned too; otherwise they are shared.
            _reset_names: whether the clones of modules in the fields lose their names.
            **updates: fields to change, including `name`.
        """
        if _deep_clone:
            return binding.deep_clone(self, parent, _reset_names, updates, {})
        return binding.constructor(self)(parent=parent, **{**binding.constructor_arguments(self), **updates})

    def copy(self, *, parent: Any = UNSPECIFIED, name: str | None = None, **updates: Any) -> Self:
        """Clone this module and all modules in its fields, as a submodule of the running module.

        Args:
            parent: the parent of the copy.
            name: its name; by default an automatic one.
            **updates: fields to change.
        """
        return self.clone(parent=parent, name=name, _deep_clone=True, **updates)

    def bind(self, variables: Variables, *args: Any, rngs: RNGs | None = None, mutable: Filter = False) -> Self:
        """Return a clone that holds variables, for interactive inspection. To compute, use `apply`.

        Args:
            variables: the variables that `init` returned.
            *args: ignored.
            rngs: a key, for the stream `params`, or a mapping such as `{"dropout": key}`.
            mutable: a filter of the collections that may be written; written values are in `variables` of the clone.
        """
        binding.check_instance(self, "bind")
        return self.clone(parent=liftcore.bind(variables, rngs, mutable), _deep_clone=True)

    def unbind(self) -> tuple[Self, Variables]:
        """Return this module unbound, and its variables, to use a part of a bound model on its own.

        Raises:
            CallUnbindOnUnboundModuleError: if the module is unbound.
        """
        binding.check_instance(self, "unbind")
        if self.scope is None:
            raise CallUnbindOnUnboundModuleError(
                f"unbind of {binding.place(self)}",
                "the module holds no variables to give back.",
                "Call it on a bound module: `model.bind(variables).encoder.unbind()`.",
            )
        return self.clone(_deep_clone=True, _reset_names=True, name=None), self.variables

    # -- entry -------------------------------------------------------------------------------------------------------

    @cached_method
    def init(
        self,
        rngs: RNGs,
        *args: Any,
        method: Callable[..., Any] | str | None = None,
        mutable: Filter = NO_INTERMEDIATES,
        capture_intermediates: bool | CaptureFilter = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Run a method, and return the variables that it makes.

        Args:
            rngs: a key, for the stream `params`, or a mapping from names to keys.
            *args: arguments of the method.
            method: the method to run: a name, a function of the module or a bound method; by default `__call__`.
            mutable: a filter of the collections to make.
            capture_intermediates: whether to keep the output of every `__call__`; or a function `(module, method_name)
                -> bool` that selects the methods. This adds "intermediates" to `mutable`.
            **kwargs: keyword arguments of the method.

        Returns:
            `{collection: {module: {name: value}}}`.
        """
        binding.check_instance(self, "init")
        fn = entry.resolve_method(self, method)
        return liftcore.init(*entry.on_scope(fn, self, mutable, capture_intermediates))(rngs, *args, **kwargs)[1]

    @cached_method
    def init_with_output(
        self,
        rngs: RNGs,
        *args: Any,
        method: Callable[..., Any] | str | None = None,
        mutable: Filter = NO_INTERMEDIATES,
        capture_intermediates: bool | CaptureFilter = False,
        **kwargs: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """Return the output of the method and the variables; see `init`."""
        binding.check_instance(self, "init_with_output")
        fn = entry.resolve_method(self, method)
        return liftcore.init(*entry.on_scope(fn, self, mutable, capture_intermediates))(rngs, *args, **kwargs)

    @boundary
    def lazy_init(
        self,
        rngs: RNGs,
        *args: Any,
        method: Callable[..., Any] | str | None = None,
        mutable: Filter = NO_INTERMEDIATES,
        **kwargs: Any,
    ) -> Variables:
        """Make the variables as `init` does, and compute nothing else: arguments may be `jax.ShapeDtypeStruct`.

        Args:
            rngs: one key, or a mapping from names to keys.
            *args: the arguments of the method; a shape is enough unless an initial value depends on the argument.
            method: the method to run, or its name; by default `__call__`.
            mutable: a filter of the collections to return; by default all but `intermediates`.
            **kwargs: keyword arguments of the method.

        Raises:
            LazyInitError: if an initial value depends on an argument that is only a shape.
        """
        binding.check_instance(self, "lazy_init")
        fn = entry.resolve_method(self, method)
        return liftcore.lazy_init(*entry.on_scope(fn, self, mutable))(rngs, *args, **kwargs)

    @cached_method
    def apply(
        self,
        variables: Variables,
        *args: Any,
        rngs: RNGs | None = None,
        method: Callable[..., Any] | str | None = None,
        mutable: Filter = False,
        capture_intermediates: bool | CaptureFilter = False,
        **kwargs: Any,
    ) -> Any:
        """Run a method with given variables.

        Args:
            variables: the variables that `init` returned; they are never changed.
            *args: arguments of the method.
            rngs: a key, for the stream `params`, or a mapping such as `{"dropout": key}`.
            method: the method to run: a name, a function of the module or a bound method; by default `__call__`.
            mutable: a filter of the collections that may be written.
            capture_intermediates: whether to keep the output of every `__call__`; or a function `(module, method_name)
                -> bool` that selects the methods. This adds "intermediates" to `mutable`.
            **kwargs: keyword arguments of the method.

        Returns:
            The output; if `mutable` is given, a pair of the output and the variables of the mutable collections.
        """
        binding.check_instance(self, "apply")
        fn = entry.resolve_method(self, method)
        applied = liftcore.apply(*entry.on_scope(fn, self, mutable, capture_intermediates))
        return applied(variables, *args, rngs=rngs, **kwargs)

    # -- seeing ------------------------------------------------------------------------------------------------------

    @boundary
    def tabulate(
        self,
        rngs: RNGs,
        *args: Any,
        depth: int | None = None,
        show_repeated: bool = False,
        mutable: Filter = NO_INTERMEDIATES,
        console_kwargs: Mapping[str, Any] | None = None,
        table_kwargs: Mapping[str, Any] = MappingProxyType({}),
        column_kwargs: Mapping[str, Any] = MappingProxyType({}),
        compute_flops: bool = False,
        compute_vjp_flops: bool = False,
        **kwargs: Any,
    ) -> str:
        """Return the table that `nn.tabulate` makes. Pass the method's arguments after `rngs`."""
        binding.check_instance(self, "tabulate")
        options = (depth, show_repeated, mutable, console_kwargs, table_kwargs, column_kwargs)
        return summary.tabulate(self, rngs, *options, compute_flops, compute_vjp_flops)(*args, **kwargs)

    @boundary
    def module_paths(
        self, rngs: RNGs, *args: Any, show_repeated: bool = False, mutable: Filter = NO_INTERMEDIATES, **kwargs: Any
    ) -> dict[str, Module]:
        """Return unbound copies of the modules that `init` calls, by their paths; see `nn.module_paths`."""
        binding.check_instance(self, "module_paths")
        return summary.module_paths(self, rngs, *args, show_repeated=show_repeated, mutable=mutable, **kwargs)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Return what IPython shows."""
        return summary.mimebundle(self)

    # -- variables ---------------------------------------------------------------------------------------------------

    def param(self, name: str, init_fn: Callable[..., T], *init_args: Any, unbox: bool = True, **init_kwargs: Any) -> T:
        """Return a parameter: `init` makes it by `init_fn(key, *init_args, **init_kwargs)`, `apply` reads it.

        Args:
            name: its name in this module.
            init_fn: the initializer.
            *init_args: further arguments of the initializer; the first is usually the shape.
            unbox: whether to return the value inside boxed metadata; see `liftcore.meta`.
            **init_kwargs: further keyword arguments of the initializer.

        Raises:
            DefineVariableError: if it is called outside `setup` and compact methods.
        """
        scope = self.scope
        state = self._state
        if scope is None or not (state.in_compact or state.in_setup):
            raise self._may_not_define("param", name)
        return scope.param(name, init_fn, *init_args, unbox=unbox, **init_kwargs)

    def variable(
        self,
        col: str,
        name: str,
        init_fn: Callable[..., Any] | None = None,
        *init_args: Any,
        unbox: bool = True,
        **init_kwargs: Any,
    ) -> Variable:
        """Return a variable, made by `init_fn(*init_args, **init_kwargs)`. Read and write it with `.value`.

        Args:
            col: the collection, such as `batch_stats`.
            name: its name in this module.
            init_fn: makes the initial value; without it the variable must exist.
            *init_args: the arguments of `init_fn`.
            unbox: whether `.value` is the value inside boxed metadata; see `liftcore.meta`.
            **init_kwargs: the keyword arguments of `init_fn`.

        Raises:
            DefineVariableError: if it is called outside `setup` and compact methods.
        """
        scope = self.scope
        state = self._state
        if scope is None or not (state.in_compact or state.in_setup):
            raise self._may_not_define("variable", name)
        return scope.variable(col, name, init_fn, *init_args, unbox=unbox, **init_kwargs)

    def _may_not_define(self, kind: str, name: str) -> Exception:
        bound_scope(self, f'{kind} "{name}"')
        return DefineVariableError(
            f'{kind} "{name}" of {binding.place(self)}',
            "it was defined outside `setup` and outside a compact method.",
            f'Define it in `setup`, `self.{name} = self.{kind}("{name}", …)`, or put `@nn.compact` on the method.',
            given=name,
        )

    @property
    def variables(self) -> Variables:
        """The variables of this module and of the modules below it."""
        return bound_scope(self, "variables").variables()

    def has_variable(self, col: str, name: str) -> bool:
        """Return whether a variable exists in this module.

        Args:
            col: the name of its collection.
            name: its name.
        """
        return bound_scope(self, f'has_variable("{col}", "{name}")').has_variable(col, name)

    def get_variable(self, col: str, name: str, default: Any = None) -> Any:
        """Return the value of a variable of this module, or `default`.

        Args:
            col: the name of its collection.
            name: its name.
            default: returned if there is no such variable.
        """
        return bound_scope(self, f'get_variable("{col}", "{name}")').get_variable(col, name, default)

    def put_variable(self, col: str, name: str, value: Any) -> None:
        """Write a variable of this module.

        Args:
            col: the name of its collection.
            name: its name.
            value: the new value, a pytree.
        """
        bound_scope(self, f'put_variable("{col}", "{name}")').put_variable(col, name, value)

    def sow(
        self,
        col: str,
        name: str,
        value: Any,
        reduce_fn: Callable[[Any, Any], Any] = lambda values, value: (*values, value),
        init_fn: Callable[[], Any] = tuple,
    ) -> bool:
        """Keep a value for the caller of `apply`, if the collection is mutable.

        Args:
            col: the collection, such as `intermediates`.
            name: the name to keep it under.
            value: a pytree of arrays.
            reduce_fn: adds a value to the values so far; by default it appends to a tuple.
            init_fn: makes the value that the first one is added to.

        Returns:
            Whether the value was kept.
        """
        return bound_scope(self, f'sow("{col}", "{name}")').sow(col, name, value, init_fn, reduce_fn)

    def perturb(self, name: str, value: T, collection: str = "perturbations") -> T:
        """Return the value plus a zero variable of its shape, whose gradient is the gradient of the value.

        `init` makes the variable; see `liftcore.Scope.perturb`.

        Args:
            name: the name of the variable in this module.
            value: a pytree of arrays, such as activations.
            collection: the collection.

        Raises:
            ScopeVariableNotFoundError: if `apply` is given the collection without this variable.
            ScopeCollectionNotFound: if it is given empty.
            UnliftedCollectionError: if it is called inside a lift that does not take `collection`.
        """
        return bound_scope(self, f'perturb("{name}")').perturb(name, value, collection)

    def make_rng(self, name: str = "params") -> Any:
        """Return the next key of an RNG stream; see `liftcore.Scope.make_rng`."""
        return bound_scope(self, f'make_rng("{name}")').make_rng(name)

    def has_rng(self, name: str) -> bool:
        """Return whether an RNG stream of that name was given.

        Args:
            name: the name of the stream.
        """
        return bound_scope(self, f'has_rng("{name}")').has_rng(name)

    def is_initializing(self) -> bool:
        """Return whether `init` is running, not `apply`."""
        return bound_scope(self, "is_initializing").is_initializing()

    def is_mutable_collection(self, col: str) -> bool:
        """Return whether variables of a collection may be written.

        Args:
            col: the name of the collection.
        """
        return bound_scope(self, f'is_mutable_collection("{col}")').is_mutable_collection(col)


fields.make_dataclass(Module)
setattr(Module, "parent", binding.Parent())  # noqa: B010 - a type checker sees the field


def merge_param(name: str, a: T | None, b: T | None) -> T:
    """Return the one of two values that is not None: an option from the constructor or from the call.

    Example:
        >>> merge_param("train", None, True)
        True

    Args:
        name: the name of the option, for errors.
        a: one of the values.
        b: the other one.

    Raises:
        LiftArgumentError: if both are None, or neither is.
    """
    if (a is None) == (b is None):
        running = context.modules[-1]
        given = "neither to the constructor nor" if a is None else "to the constructor and"
        where = f'"{name}"' if running is None else f'"{name}" of {binding.place(running)}'
        what = f"it was given {given} at the call."
        fix = f"Give it in one place: `{name}=…` to the constructor, or at the call."
        raise LiftArgumentError(where, what, fix, option=name)
    return a if a is not None else b  # type: ignore[return-value]


def _no_attribute(module: Module, name: str) -> ModuleAttributeError:
    binding.check_constructed(module)
    where = f'attribute "{name}" of {binding.place(module)}'
    if name == "__call__":
        fix = 'Define `def __call__(self, …)`, or name the method to run: `method="…"`.'
        return ModuleAttributeError(where, "the class defines no `__call__`.", fix, option="method", expected=name)
    known: Mapping[str, Any] = {**vars(type(module)), **module.__dict__}
    shown = sorted(key for key in known if not key.startswith("_"))
    from liftcore.elsewhere import METHODS  # imported here: needed only for an error message

    if module.scope is None:
        fix = "If `setup` sets it, use it within `init` or `apply`, or on `module.bind(variables)`."
        fix = f"{METHODS[name]} {fix}" if name in METHODS else fix
    else:
        fix = METHODS.get(name, f"Set it in `setup`: `self.{name} = …`.")
    what = f"it does not exist (available: {', '.join(shown)})."
    return ModuleAttributeError(where, what, fix, available=tuple(shown))
