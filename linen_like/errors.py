"""Errors about the use of modules. The errors of the core are available here, too.

    LiftError
    ├── classes:    ReservedModuleAttributeError, IncorrectPostInitOverrideError, DescriptorAttributeError,
    │               UnhashableModuleError
    ├── attributes: ModuleAttributeError, SetAttributeFrozenModuleError, SetAttributeInModuleSetupError
    ├── submodules: AssignSubModuleError, DefineVariableError
    ├── unbound:    UnboundModuleError
    │               ├── CallCompactUnboundModuleError, CallSetupUnboundModuleError
    │               └── CallUnbindOnUnboundModuleError, CallShareScopeOnUnboundModuleError
    ├── lifts:      TransformTargetError, TransformedMethodReturnValueError
    └── entry:      ApplyModuleInvalidMethodError, InvalidInstanceModuleError

Errors that have the same name in `flax.errors` have the same meaning.
"""

from __future__ import annotations

from liftcore.errors import (
    ApplyScopeInvalidVariablesStructureError,
    ApplyScopeInvalidVariablesTypeError,
    AxisSizeError,
    CarryTypeError,
    InvalidFilterError,
    InvalidRngError,
    InvalidScopeError,
    JaxTransformError,
    LazyInitError,
    LiftArgumentError,
    LiftError,
    LoopInvarianceError,
    ModifyScopeVariableError,
    NameInUseError,
    ScopeCollectionNotFound,
    ScopeParamNotFoundError,
    ScopeParamShapeError,
    ScopeVariableNotFoundError,
    ThreadError,
    UnliftedCollectionError,
    UnliftedStreamError,
)

__all__ = [
    "ApplyModuleInvalidMethodError",
    "ApplyScopeInvalidVariablesStructureError",
    "ApplyScopeInvalidVariablesTypeError",
    "AssignSubModuleError",
    "AxisSizeError",
    "CallCompactUnboundModuleError",
    "CallSetupUnboundModuleError",
    "CallShareScopeOnUnboundModuleError",
    "CallUnbindOnUnboundModuleError",
    "CarryTypeError",
    "DefineVariableError",
    "DescriptorAttributeError",
    "FlaxError",
    "IncorrectPostInitOverrideError",
    "InvalidFilterError",
    "InvalidInstanceModuleError",
    "InvalidRngError",
    "InvalidScopeError",
    "JaxTransformError",
    "LazyInitError",
    "LiftArgumentError",
    "LiftError",
    "LoopInvarianceError",
    "ModifyScopeVariableError",
    "ModuleAttributeError",
    "MultipleMethodsCompactError",
    "NameInUseError",
    "PartitioningUnspecifiedError",
    "ReservedModuleAttributeError",
    "ScopeCollectionNotFound",
    "ScopeParamNotFoundError",
    "ScopeParamShapeError",
    "ScopeVariableNotFoundError",
    "SetAttributeFrozenModuleError",
    "SetAttributeInModuleSetupError",
    "ThreadError",
    "TransformTargetError",
    "TransformedMethodReturnValueError",
    "UnboundModuleError",
    "UnhashableModuleError",
    "UnliftedCollectionError",
    "UnliftedStreamError",
]


FlaxError = LiftError
"""The base of all errors, under its name in `flax.errors`."""


class ReservedModuleAttributeError(LiftError, TypeError):
    """A Module class declares a field with a name that `Module` reserves."""


class IncorrectPostInitOverrideError(LiftError, TypeError, AttributeError):
    """`__init__` or `__post_init__` of a Module class does not call the one of `Module`.

    It is an `AttributeError`, so that `hasattr` on a module that is still being made returns False.
    """


class DescriptorAttributeError(LiftError, RuntimeError):
    """A property of a module raised an `AttributeError`, which Python would report as a missing property."""


class UnhashableModuleError(LiftError, TypeError):
    """`hash` was called on a bound module, or on a module with a field that cannot be hashed."""


class ModuleAttributeError(LiftError, AttributeError):
    """A module does not have the attribute, or has it only after `setup`."""


class SetAttributeFrozenModuleError(LiftError, TypeError):
    """An attribute of a bound module was set outside `setup`."""


class SetAttributeInModuleSetupError(LiftError, TypeError):
    """`setup` assigned to a field of the class."""


class AssignSubModuleError(LiftError, ValueError):
    """A submodule was created outside `setup`, in a method that is not compact."""


class DefineVariableError(LiftError, ValueError):
    """A parameter or variable was declared outside `setup`, in a method that is not compact."""


class UnboundModuleError(LiftError, ValueError):
    """A method that needs variables was called on an unbound module, which has none."""


class CallCompactUnboundModuleError(UnboundModuleError):
    """A compact method was called on an unbound module."""


class CallSetupUnboundModuleError(UnboundModuleError):
    """`setup` was called on an unbound module."""


class CallUnbindOnUnboundModuleError(UnboundModuleError):
    """`unbind` was called on an unbound module."""


class CallShareScopeOnUnboundModuleError(UnboundModuleError):
    """`share_scope` was called on an unbound module."""


class TransformTargetError(LiftArgumentError):
    """A transformation was applied to something other than a Module class or a function of a module."""


class TransformedMethodReturnValueError(LiftArgumentError):
    """A lifted function or method returned a module or a variable."""


class MultipleMethodsCompactError(LiftError, RuntimeError):
    """Never raised: a class may have several compact methods. It exists so that code that catches it still works."""


class PartitioningUnspecifiedError(LiftError, ValueError):
    """Never raised: an axis without a name counts as unnamed. It exists so that code that catches it still works."""


class ApplyModuleInvalidMethodError(LiftError, TypeError):
    """`method` is neither the name of a method nor a function of a module."""


class InvalidInstanceModuleError(LiftError, TypeError):
    """`init`, `apply` or a similar method was called on a Module class, not on an instance."""
