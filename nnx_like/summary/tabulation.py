"""`tabulate`: one row for each object that a method calls, as data and as a table."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from liftcore.calls import boundary
from liftcore.diagnostics import Table, cost_text, costs, lines_of
from liftcore.pytrees import Size

from ..objects.printing import kind_name, sizes_by_kind, value_text
from ..objects.pytree import Pytree
from ..objects.traversal import children_of, iter_graph
from ..rnglib.streams import RngStream
from ..variablelib.variable import Variable
from .recording import RecordedCall, record

__all__ = ["CallInfo", "filter_rng_streams", "tabulate"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class CallInfo:
    """A row: the first call of an object.

    Attributes:
        call_order: its number among the calls.
        object_id: the `id` of the object.
        type: its class.
        path: the names that lead to it, followed by the name of the method if that is not `__call__`.
        inputs_repr: its arguments, one a line.
        outputs: the result, with arrays as `jax.ShapeDtypeStruct`.
        flops: the cost of the call; None if it was not requested, or the call cannot be traced separately.
        vjp_flops: the cost of the call and its pullback.
        at_least: whether a cost includes a loop of unknown length, which counts as one iteration.
    """

    call_order: int
    object_id: int
    type: type
    path: tuple[Any, ...]
    inputs_repr: str
    outputs: Any
    flops: int | None = None
    vjp_flops: int | None = None
    at_least: bool = False


def filter_rng_streams(row: CallInfo) -> bool:
    """Return whether a row belongs to something other than an RNG stream.

    Args:
        row: the row.
    """
    return not issubclass(row.type, RngStream)


@boundary
def tabulate(
    obj: Any,
    *input_args: Any,
    depth: int | None = None,
    method: str = "__call__",
    row_filter: Callable[[CallInfo], bool] = filter_rng_streams,
    table_kwargs: Mapping[str, Any] = _NOTHING,
    column_kwargs: Mapping[str, Any] = _NOTHING,
    console_kwargs: Mapping[str, Any] = _NOTHING,
    compute_flops: bool = False,
    compute_vjp_flops: bool = False,
    **input_kwargs: Any,
) -> str:
    """Return a table of the objects that a method calls: inputs, outputs, and variables with their sizes.

    The method is traced with a copy of the object, so nothing is computed and nothing changes. Each object has one row,
    for its first call. A row shows the object's own variables, but its sizes include all objects in it. Objects inside
    a transformation are shown as they run there: under `vmap`, with the shapes of one element.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import nnx_like as nnx
        >>> class Scale(nnx.Module):
        ...     def __init__(self):
        ...         self.factor = nnx.Param(jnp.ones(3))
        ...     def __call__(self, x):
        ...         return self.factor * x
        >>> table = nnx.tabulate(Scale(), jax.ShapeDtypeStruct((5, 3), "float32"), console_kwargs={"no_color": True})
        >>> "factor: float32[3]" in table, "Total Parameters: 3 (12 B)" in table
        (True, True)

    Args:
        obj: the object.
        *input_args: arguments of the method; arrays may be `jax.ShapeDtypeStruct`.
        depth: the maximum depth of paths to show; by default all.
        method: the name of the method.
        row_filter: called with each row; returns whether to show it.
        table_kwargs: options for `rich.table.Table`.
        column_kwargs: options for `rich.table.Table.add_column`.
        console_kwargs: options for `rich.console.Console`; by default `{"force_terminal": True}`. If `rich` is not
            installed, these three arguments have no effect.
        compute_flops: whether to count the floating-point operations of each call. Each call is traced separately,
            which takes time. A loop counts with all its iterations; a loop of unknown length, such as a `while_loop`,
            counts as one iteration, and the number has a `+`. A call that cannot be traced separately shows a `?`.
        compute_vjp_flops: whether to count the operations of each call together with its pullback.
        **input_kwargs: keyword arguments of the method.

    Returns:
        The table as a string.

    Raises:
        StructureError: if the object has no such method.
    """
    wanted = [name for name, wants in {"flops": compute_flops, "vjp_flops": compute_vjp_flops}.items() if wants]
    nodes: dict[tuple[Any, ...], Any] = {path: node for path, node in iter_graph(obj) if isinstance(node, Pytree)}
    nodes[()] = obj
    calls = record(obj, method, input_args, input_kwargs, bool(wanted))
    rows = [
        _row(number, nodes[call.path], call, wanted)
        for number, call in enumerate(calls)
        if call.path in nodes and (depth is None or len(call.path) <= depth)
    ]
    shown = [(row, nodes[path]) for row, path in rows if row_filter(row)]
    return _table(obj, shown, wanted).draw(console_kwargs, table_kwargs, column_kwargs)


def _row(number: int, node: Any, call: RecordedCall, wanted: list[str]) -> tuple[CallInfo, tuple[Any, ...]]:
    apart, counts = call.apart, dict[str, Any]()
    if apart is not None:
        fn = functools.partial(_called, call.method)
        counts = costs(lambda values: apart.run(values, fn), apart.types, wanted)
    path = call.path if call.method == "__call__" else (*call.path, call.method)
    inputs = call.args if len(call.args) == 1 and not call.kwargs else (call.args, call.kwargs)
    text = "\n".join(line for part in inputs for line in lines_of(part, Pytree))
    return CallInfo(number, id(node), type(node), path, text, call.outputs, **counts), call.path


def _called(method: str, node: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(node, method)(*args, **kwargs)


def _table(obj: Any, rows: list[tuple[CallInfo, Any]], wanted: list[str]) -> Table:
    totals, columns = sizes_by_kind([obj]), ["path", "type", "inputs", "outputs", *wanted]

    def texts(row: CallInfo, node: Any) -> tuple[list[str], dict[str, list[str]], dict[str, Size]]:
        outputs = "\n".join(lines_of(row.outputs, Pytree))
        counts = [cost_text(getattr(row, name), row.at_least) for name in wanted]
        cells = ["/".join(map(str, row.path)), row.type.__name__, row.inputs_repr, outputs, *counts]
        return cells, _own(node), sizes_by_kind([node])

    shown, at_least = [texts(row, node) for row, node in rows], any(row.at_least for row, _ in rows)
    return Table.of(type(obj).__name__, columns, shown, totals, Size.sum(totals.values()), at_least)


def _own(node: Any) -> dict[str, list[str]]:
    """Return the variables of an object that are in no other object, by kind."""
    found: dict[str, list[str]] = {}
    for path, variable in sorted(_variables((), node), key=lambda pair: tuple(map(str, pair[0]))):
        name = "/".join(map(str, path))
        found.setdefault(kind_name(variable), []).append(f"{name}: {value_text(variable.get_raw_value())}")
    return found


def _variables(path: tuple[Any, ...], node: Any) -> Iterator[tuple[tuple[Any, ...], Variable[Any]]]:
    for name, child in children_of(node) or ():
        if isinstance(child, Variable):
            yield (*path, name), child
        elif not isinstance(child, Pytree):
            yield from _variables((*path, name), child)
