"""A model of 70 billion parameters, compiled for hundreds of simulated devices: memory, communication, time.

Nothing is computed and no array of the model is made: the step of training is traced, lowered and compiled from shapes
with shardings. Each cell of the table is a process of its own, since a process simulates one number of devices.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.sharding import AxisType

from ..collectives import KINDS, collectives
from ..fresh import last_line
from ..models import sharded
from ..row import Row
from ..settings import Settings

__all__ = ["STAGES", "compiled_step", "scale"]

DEVICES, LAYERS = (64, 256, 512), (20, 40)
STAGES = ("trace", "lower", "compile")


def scale(settings: Settings) -> Iterator[Row]:
    """Measure all sides for growing numbers of devices and of layers, on Auto and on Explicit axes."""
    size = sharded.SEVENTY_BILLION
    cells = [(devices, size.layers) for devices in DEVICES] + [(DEVICES[0], layers) for layers in LAYERS]
    for axes in AxisType.Auto, AxisType.Explicit:
        for devices, layers in cells:
            billions = size._replace(layers=layers).parameters / 1e9
            where = f"{devices} devices, {layers} layers, {billions:.0f} billion parameters, {axes.name} axes"
            found = {side: _in_process(side, devices, layers, axes) for side in sharded.SIDES}
            yield from _rows(where, found)


def _rows(where: str, found: Mapping[str, Mapping[str, float]]) -> Iterator[Row]:
    def row(what: str, name: str, unit: str, **options: Any) -> Row:
        return Row("scale", f"{what}, {where}", unit, {side: one[name] for side, one in found.items()}, **options)

    yield row("bytes of the state on a device", "state", "GB")
    yield row("bytes beside the state on a device", "beside", "GB")
    for kind in KINDS:
        if any(one[kind] for one in found.values()):
            yield row(f"{kind}, received by a device", kind, "GB")
    for stage in STAGES:
        yield row(f"time to {stage}", stage, "s")


def compiled_step(side: str, size: sharded.Size, devices: int, axes: AxisType, **options: Any) -> dict[str, float]:
    """Compile a step of training of one side; return gigabytes by name and kind, and the seconds of each stage.

    Args:
        side: one of `sharded.SIDES`.
        size: the sizes of the model.
        devices: the number of devices, which must be there.
        axes: the type of the axes of the mesh.
        **options: of the compiler.
    """
    shape = (devices // size.model, size.model)
    mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(axes, axes), devices=jax.devices()[:devices])
    with jax.set_mesh(mesh):
        step = sharded.stepped(side, size, mesh)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, step.state)
        begin = time.perf_counter()
        traced = jax.jit(step.fn, donate_argnums=0, out_shardings=(shardings, None)).trace(step.state, step.tokens)
        times = [time.perf_counter()]
        lowered = traced.lower()
        times.append(time.perf_counter())
        compiled = lowered.compile(options or None)
        times.append(time.perf_counter())
    memory: Any = compiled.memory_analysis()
    moved = collectives(compiled.as_text() or "")
    stages = {name: end - start for name, start, end in zip(STAGES, [begin, *times], times, strict=False)}
    sizes = {"state": memory.argument_size_in_bytes, "beside": memory.temp_size_in_bytes}
    sizes |= {kind: moved[kind] for kind in KINDS}
    return stages | {name: size / 1e9 for name, size in sizes.items()}


def _in_process(side: str, devices: int, layers: int, axes: AxisType) -> dict[str, float]:
    """Do the same in a process that simulates the devices."""
    cell = side, devices, layers, axes.name
    found: dict[str, float] = json.loads(last_line(f"from {__name__} import _print_cell; _print_cell{cell}"))
    return found


def _print_cell(side: str, devices: int, layers: int, axes: str) -> None:
    """Print one cell as JSON."""
    jax.config.update("jax_num_cpu_devices", devices)
    size = sharded.SEVENTY_BILLION._replace(layers=layers)
    print(json.dumps(compiled_step(side, size, devices, AxisType[axes])))
