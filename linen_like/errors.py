"""Errors about how modules are used, beside those of the core, which this file names again.

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

Names that `flax.errors` also has mean the same there.
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
"""The base of all errors, as `flax.errors` calls it."""


class ReservedModuleAttributeError(LiftError, TypeError):
    """A Module class declares a field under a name that every module uses for itself."""


class IncorrectPostInitOverrideError(LiftError, TypeError, AttributeError):
    """A Module class has an `__init__` or `__post_init__` of its own that leaves out the one of `Module`.

    An `AttributeError`, so that `hasattr` of a module that is still being made says no.
    """


class DescriptorAttributeError(LiftError, RuntimeError):
    """A property of a module raised AttributeError, which Python would take for a missing property."""


class UnhashableModuleError(LiftError, TypeError):
    """A module was hashed that is bound to variables, or whose fields cannot be hashed."""


class ModuleAttributeError(LiftError, AttributeError):
    """A module has no attribute of that name, or has it only after `setup`."""


class SetAttributeFrozenModuleError(LiftError, TypeError):
    """An attribute of a bound module was set outside `setup`."""


class SetAttributeInModuleSetupError(LiftError, TypeError):
    """A field of a module was set again in its `setup`."""


class AssignSubModuleError(LiftError, ValueError):
    """A submodule was made outside `setup` and outside a compact method."""


class DefineVariableError(LiftError, ValueError):
    """A parameter or variable was defined outside `setup` and outside a compact method."""


class UnboundModuleError(LiftError, ValueError):
    """Something was asked of a module that only a bound one can answer: one that has variables."""


class CallCompactUnboundModuleError(UnboundModuleError):
    """A compact method was called on a module that has no variables."""


class CallSetupUnboundModuleError(UnboundModuleError):
    """`setup` was called on a module that has no variables."""


class CallUnbindOnUnboundModuleError(UnboundModuleError):
    """`unbind` was called on a module that has no variables."""


class CallShareScopeOnUnboundModuleError(UnboundModuleError):
    """`share_scope` was called on a module that has no variables."""


class TransformTargetError(LiftArgumentError):
    """Something was lifted that is neither a Module class nor a function of a module."""


class TransformedMethodReturnValueError(LiftArgumentError):
    """A lifted function or method returned a module or a variable, which do not leave a lift."""


class MultipleMethodsCompactError(LiftError, RuntimeError):
    """Never raised, and here for code that catches it: a class may have several compact methods."""


class PartitioningUnspecifiedError(LiftError, ValueError):
    """Never raised, and here for code that catches it: an axis that is given no name counts as unnamed."""


class ApplyModuleInvalidMethodError(LiftError, TypeError):
    """What was given as `method` cannot be called with a module as its first argument."""


class InvalidInstanceModuleError(LiftError, TypeError):
    """`init`, `apply` or the like was called on a Module class instead of an instance."""
