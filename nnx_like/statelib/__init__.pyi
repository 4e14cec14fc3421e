from .functions import (
    GraphState,
    create_path_filters,
    diff,
    filter_state,
    from_flat_state,
    map_state,
    merge_state,
    replace_by_pure_dict,
    restore_int_paths,
    split_state,
    to_flat_state,
    to_pure_dict,
)
from .nested import as_pure
from .state import FlatState, State, state_over

__all__ = [
    "FlatState",
    "GraphState",
    "State",
    "as_pure",
    "create_path_filters",
    "diff",
    "filter_state",
    "from_flat_state",
    "map_state",
    "merge_state",
    "replace_by_pure_dict",
    "restore_int_paths",
    "split_state",
    "state_over",
    "to_flat_state",
    "to_pure_dict",
]
