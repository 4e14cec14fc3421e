from .kinds import (
    BatchStat,
    Cache,
    Intermediate,
    LoRAParam,
    Param,
    Perturbation,
    RngCount,
    RngKey,
    RngState,
    VariableState,
    register_variable_name,
    variable_name_from_type,
    variable_type_from_name,
)
from .metadata import VariableMetadata, with_metadata, with_partitioning
from .variable import Variable

__all__ = [
    "BatchStat",
    "Cache",
    "Intermediate",
    "LoRAParam",
    "Param",
    "Perturbation",
    "RngCount",
    "RngKey",
    "RngState",
    "Variable",
    "VariableMetadata",
    "VariableState",
    "register_variable_name",
    "variable_name_from_type",
    "variable_type_from_name",
    "with_metadata",
    "with_partitioning",
]
