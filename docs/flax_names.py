"""Writes the table of flax's public names into `from-flax.md`: `python docs/flax_names.py`. It needs flax.

The script finds names that are the same in both libraries. For the others, this file says what to use instead. The
script fails if a name is missing here, or if flax has no such name.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

PAGE = Path(__file__).parent / "from-flax.md"
BEGIN, END = "<!-- made by flax_names.py: begin -->", "<!-- made by flax_names.py: end -->"

COUNTERPARTS = {
    "flax": ("liftcore", "linen_like"),
    "flax.core": ("liftcore",),
    "flax.linen": ("linen_like",),
    "flax.struct": ("liftcore.struct",),
    "flax.serialization": ("liftcore.serialization",),
    "flax.traverse_util": ("liftcore.traverse_util",),
    "flax.training": ("liftcore.training",),
    "flax.jax_utils": (),
    "flax.metrics": (),
}
"""For each part of flax, the packages here that may have its names."""

INSTEAD = {
    "flax": {
        "config": "not needed: there are no global options",
        "configurations": "not needed: there are no global options",
        "core": "`liftcore`, see below",
        "experimental": "left out",
        "ids": "left out",
        "io": "`pathlib`, or `etils.epath`, which orbax uses",
        "jax_utils": "JAX itself, see below",
        "linen": "`linen_like`, see below",
        "metrics": "see below",
        "nnx": "`nnx_like`, see [From NNX](from-nnx.md)",
        "testing": "left out",
        "traceback_util": "not needed: JAX filters tracebacks by itself, see `JAX_TRACEBACK_FILTERING`",
        "version": '`importlib.metadata.version("liftcore")`',
    },
    "flax.core": {
        "axes_scan": "`liftcore.scan`; its `broadcast` is `liftcore.broadcast`",
        "check_trace_level": "not needed: a scope that is used under a raw transformation raises an error",
        "current_trace": "not needed: a scope that is used under a raw transformation raises an error",
        "lift": "`liftcore`",
        "map_axis_meta": "`jax.tree.map(fn, tree, is_leaf=liftcore.meta.is_box)`, with a test of `is_box` in `fn`",
        "partial_eval": "`liftcore.lazy_init`, or `jax.eval_shape`",
        "scope": "`liftcore`; for `union_filters` and others, `union` and others in `liftcore.filters`",
        "spmd": "`linen_like.spmd`",
        "tracers": "not needed: a scope that is used under a raw transformation raises an error",
        "variables": "`liftcore.Variable`",
    },
    "flax.linen": {
        "set_logical_axis_rules": "`with nn.logical_axis_rules(rules):`",
    },
    "flax.serialization": {
        "is_serializable": "not needed: `to_state_dict` accepts every pytree that JAX knows",
    },
    "flax.training": {
        "checkpoints": (
            "`liftcore.checkpoints`; for sharded arrays and background saves, its `OrbaxCheckpoints`; for old folders, "
            "its `load_orbax`"
        ),
        "common_utils": (
            "`jax.device_put(batch, sharding)` for `shard`, `jax.random.split` for `shard_prng_key`, `jax.nn.one_hot`, "
            "`jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)` for `stack_forest`, `jax.device_get`"
        ),
        "lr_schedule": "`optax.warmup_cosine_decay_schedule` and `optax.join_schedules`",
        "orbax_utils": "`OrbaxCheckpoints` and `load_orbax` of `liftcore.checkpoints`, or `orbax.checkpoint` itself",
        "prefetch_iterator": "`grain`, or any loader that prefetches",
    },
    "flax.metrics": {
        "tensorboard": "`SummaryWriter` of `tensorboardX`, or `metric_writers` of `clu`",
    },
    "flax.jax_utils": {
        "pad_shard_unpad": "`jnp.pad` and `jax.device_put` with a sharding",
        "partial_eval_by_shape": "`liftcore.lazy_init`, or `jax.eval_shape`",
        "pmean": "`jax.lax.pmean`",
        "prefetch_to_device": "a loader that calls `jax.device_put` early; the call returns at once",
        "replicate": "`jax.device_put(tree, sharding)` with `jax.sharding.PartitionSpec()`",
        "scan_in_dim": "`liftcore.scan` or `jax.lax.scan`, after `jnp.moveaxis` to the front",
        "unreplicate": "not needed: read replicated arrays directly",
    },
}
"""For each part of flax, what to use in place of names that are not here."""


def shown(package: str, name: str) -> str:
    """A name as the table shows it. A file of `flax.training` is shown with the names that it defines."""
    if package != "flax.training":
        return f"`{name}`"
    held = vars(importlib.import_module(f"{package}.{name}"))
    inner = [one for one, value in held.items() if getattr(value, "__module__", "") == f"{package}.{name}"]
    return f"`{name}` ({', '.join(f'`{one}`' for one in sorted(inner) if not one.startswith('_'))})"


def public(package: str) -> list[str]:
    """The public names of a part of flax: its `__all__`, or its own names without an underscore, and its files."""
    module = importlib.import_module(package)
    files = {info.name for info in pkgutil.iter_modules(getattr(module, "__path__", []))}
    names = set(getattr(module, "__all__", ())) or {name for name, value in vars(module).items() if _own(value)}
    if package == "flax.linen":  # activation functions and initializers are JAX's
        names |= {name for name, value in vars(module).items() if not isinstance(value, types.ModuleType)}
    return sorted(name for name in names | files if not name.startswith("_"))


def _own(value: Any) -> bool:
    foreign = isinstance(value, types.ModuleType | TypeVar)
    return not foreign and str(getattr(value, "__module__", "")).partition(".")[0] == "flax"


def offered(package: str, name: str) -> str | None:
    """The module here that has the same name."""
    modules = COUNTERPARTS[package]
    return next((one for one in modules if name in getattr(importlib.import_module(one), "__all__", ())), None)


def filed(package: str, name: str) -> str | None:
    """The package here that has a file of the same name."""
    packages = (one for one in COUNTERPARTS[package] if hasattr(importlib.import_module(one), "__path__"))
    return next((one for one in packages if importlib.util.find_spec(f"{one}.{name}")), None)


def rows(package: str) -> Iterator[tuple[str, str]]:
    """Yields the rows for one part of flax: names, and where they are. Names with the same answer share a row."""
    said: dict[str, list[str]] = {}
    instead = dict(INSTEAD.get(package, {}))
    for name in public(package):
        module = offered(package, name) or (None if name in instead else filed(package, name))
        text = f"the same name in `{module}`" if module else instead.pop(name, None)
        if text is None:
            raise SystemExit(f"docs/flax_names.py: say in INSTEAD what to use for {package}.{name}")
        said.setdefault(text, []).append(shown(package, name))
    if instead:
        raise SystemExit(f"docs/flax_names.py: {package} has no {sorted(instead)}, or they are here")
    for text, names in sorted(said.items(), key=lambda item: (not item[0].startswith("the same name"), item[1])):
        yield ", ".join(names), text


def table() -> str:
    """The tables of all parts of flax."""
    parts = [BEGIN]
    for package in COUNTERPARTS:
        lines = [f"| {names} | {text} |" for names, text in rows(package)]
        parts.append("\n".join([f"### {package}", "", "| name | here |", "|---|---|", *lines]))
    return "\n\n".join([*parts, END])


def written() -> str:
    """The tables that are on the page."""
    text = PAGE.read_text(encoding="utf-8")
    return text[text.index(BEGIN) : text.index(END) + len(END)]


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text(encoding="utf-8").replace(written(), table()), encoding="utf-8")
