"""`config`: the flags of flax's configuration. Programs that set them run, or are told why not.

There are no global options here. A flag that selects what the library does anyway may be set; so may one that selects
only how, such as `flax_use_flaxlib`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .errors import LiftArgumentError

__all__ = ["Config", "config"]


class _Flag(NamedTuple):
    value: Any
    fixed: bool
    reason: str


_FLAGS: Mapping[str, _Flag] = {
    "flax_filter_frames": _Flag(True, False, "JAX filters tracebacks"),
    "flax_profile": _Flag(True, False, "names of modules are in profiles; see `disable_named_call`"),
    "flax_use_orbax_checkpointing": _Flag(True, False, "`liftcore.checkpoints` has both formats"),
    "flax_use_flaxlib": _Flag(False, False, "it selects how flax computes, not what"),
    "flax_pytree_module": _Flag(True, False, "it selects how flax computes, not what"),
    "flax_max_repr_depth": _Flag(None, False, "`repr` shows no values of variables"),
    "flax_preserve_adopted_names": _Flag(False, True, "a module has the name of the attribute that it is assigned to"),
    "flax_return_frozendict": _Flag(False, True, "variables are plain dicts; `freeze` returns a FrozenDict"),
    "flax_fix_rng_separator": _Flag(True, True, "without a separator, two paths can draw the same key"),
    "flax_always_shard_variable": _Flag(False, True, "names of mesh axes do not place arrays; `jit` does"),
    "flax_array_ref": _Flag(False, True, "every transformation changes variables by reference"),
    "flax_hijax_variable": _Flag(False, True, "every transformation changes variables by reference"),
    "nnx_graph_mode": _Flag(True, True, "there is one mode; write `graph=False` at single functions"),
    "nnx_graph_updates": _Flag(True, True, "there is one mode; write `graph_updates=False` at single functions"),
    "nnx_sow_capture_noop": _Flag(False, True, "write `capture_noop=True` at single calls of `sow` and `perturb`"),
}


class Config:
    """The flags of flax's configuration, as attributes that cannot change.

    Example:
        >>> from liftcore.configurations import config
        >>> config.flax_return_frozendict
        False
        >>> config.update("flax_fix_rng_separator", True)
    """

    def __getattr__(self, name: str) -> Any:
        if name not in _FLAGS:
            raise AttributeError(f"config has no flag {name!r} (flags: {', '.join(_FLAGS)})", name=name, obj=self)
        return _FLAGS[name].value

    def __setattr__(self, name: str, value: Any) -> None:
        self.update(name, value)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_FLAGS]

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={flag.value}' for name, flag in _FLAGS.items())})"

    def update(self, name: str, value: Any, /) -> None:
        """Accept a value that a flag has here.

        Args:
            name: the name of the flag.
            value: its value.

        Raises:
            LiftArgumentError: if there is no such flag, or it has another value here.
        """
        where = f"config.update({name!r}, {value!r})"
        if name not in _FLAGS:
            raise LiftArgumentError(
                where,
                f"there is no such flag (flags: {', '.join(_FLAGS)}).",
                "Correct the name.",
                given=name,
                available=_FLAGS,
            )
        flag = _FLAGS[name]
        if flag.fixed and value != flag.value:
            raise LiftArgumentError(
                where,
                f"it is {flag.value} here: {flag.reason}.",
                "Remove this line.",
                option=name,
                given=value,
                expected=flag.value,
            )

    @contextlib.contextmanager
    def temp_flip_flag(self, var_name: str, var_value: bool) -> Iterator[None]:
        """Return a `with` block that accepts a value that a flag has here.

        Args:
            var_name: the name of the flag; the prefix `flax_` may be left out.
            var_value: its value.

        Raises:
            LiftArgumentError: if there is no such flag, or it has another value here.
        """
        self.update(var_name if var_name in _FLAGS else f"flax_{var_name}", var_value)
        yield


config = Config()
"""The only instance."""
