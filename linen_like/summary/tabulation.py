"""Summaries: a row for each call of a module's methods in one `init`, as data and as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from liftcore import diagnostics
from liftcore.calls import boundary
from liftcore.diagnostics import cost_text, lines_of
from liftcore.pytrees import Size
from liftcore.typing import Filter, RNGs

from ..lifecycle.binding import check_instance
from ..lifecycle.entry import NO_INTERMEDIATES, resolve_method
from ..lifecycle.fields import Base
from .recording import Row, record, rows_of

__all__ = ["Summary", "Table", "module_paths", "summarize", "tabulate"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_UNNAMED = ("__call__", "<lambda>")


@dataclasses.dataclass(frozen=True)
class Summary:
    """The calls of one `init`. `str` shows them as a plain table, a notebook as an HTML table.

    Attributes:
        name: the name of the module's class.
        rows: the calls, in the order in which they began.
        totals: the size of each collection.
        costs: those of `flops` and `vjp_flops` that were requested.
    """

    name: str
    rows: tuple[Row, ...]
    totals: Mapping[str, Size]
    costs: tuple[str, ...] = ()

    @property
    def total(self) -> Size:
        """The size of all collections together."""
        return Size.sum(self.totals.values())

    def __str__(self) -> str:
        return str(_table(self))

    def _repr_html_(self) -> str:
        return _table(self)._repr_html_()


Table = Summary
"""The name that `flax.linen.summary` has for a summary."""


def tabulate(
    module: Base,
    rngs: RNGs,
    depth: int | None = None,
    show_repeated: bool = False,
    mutable: Filter = NO_INTERMEDIATES,
    console_kwargs: Mapping[str, Any] | None = None,
    table_kwargs: Mapping[str, Any] = _NOTHING,
    column_kwargs: Mapping[str, Any] = _NOTHING,
    compute_flops: bool = False,
    compute_vjp_flops: bool = False,
    **kwargs: Any,
) -> Callable[..., str]:
    """Make a table of the calls in one `init`, with the arguments, results, variables and costs of each.

    Nothing is computed. For a module inside a lift, `inputs` and `outputs` are the values there, such as those of one
    element or iteration; its variables are shown as they are stored, and `lifts` shows the axes along which they are
    lifted.

    Example:
        >>> import jax, linen_like as nn
        >>> tabulated = tabulate(nn.Dense(2), jax.random.key(0), console_kwargs={"force_terminal": False})
        >>> "40 B" in tabulated(jax.ShapeDtypeStruct((5, 4), "float32"))
        True

    Args:
        module: an unbound module.
        rngs: a key, for the stream `params`, or a mapping from names to keys.
        depth: the depth of modules that have rows; calls below count for the rows above them. By default all have rows.
        show_repeated: whether to show each call, instead of only the first one of each module.
        mutable: a filter of the collections to make.
        console_kwargs: options of `rich.console.Console`; by default `{"force_terminal": True, "force_jupyter":
            False}`.
        table_kwargs: options of `rich.table.Table`.
        column_kwargs: options of `rich.table.Table.add_column`. The plain table, without `rich`, ignores all three.
        compute_flops: whether to count the floating-point operations of each call: of the whole model in the first row,
            and of one call in rows inside a lift. Each call is traced alone, which takes time. A loop counts with all
            its iterations; a loop of unknown length, such as a `while_loop`, counts as one iteration, and the number
            has a `+`. A call that cannot be run alone has a `?`.
        compute_vjp_flops: whether to count the operations of its pullback, including the call itself.
        **kwargs: `method`, see `Module.init`, and keyword arguments of the method.

    Returns:
        `tabulated(*args, **kwargs)`, with the arguments of the method; arrays may be `jax.ShapeDtypeStruct`.
    """

    @boundary
    def tabulated(*args: Any, **more: Any) -> str:
        given = {**more, **kwargs}
        method = given.pop("method", None)
        options = (depth, show_repeated, mutable, compute_flops, compute_vjp_flops, method)
        table = _table(summarize(module, rngs, *options)(*args, **given))
        return table.draw(console_kwargs or {}, table_kwargs, column_kwargs)

    return tabulated


def summarize(
    module: Base,
    rngs: RNGs,
    depth: int | None = None,
    show_repeated: bool = False,
    mutable: Filter = NO_INTERMEDIATES,
    compute_flops: bool = False,
    compute_vjp_flops: bool = False,
    method: Callable[..., Any] | str | None = None,
) -> Callable[..., Summary]:
    """Return the rows of `tabulate` as data.

    Example:
        >>> import jax, linen_like as nn
        >>> model = nn.Sequential([nn.Dense(4), nn.relu, nn.Dense(2)])
        >>> summary = summarize(model, jax.random.key(0))(jax.ShapeDtypeStruct((16, 9), "float32"))
        >>> [("/".join(row.path), row.outputs.shape, row.sizes["params"].count) for row in summary.rows]
        [('', (16, 2), 0), ('layers_0', (16, 4), 40), ('layers_2', (16, 2), 10)]

    Args:
        module: an unbound module.
        rngs: a key, for the stream `params`, or a mapping from names to keys.
        depth: the depth of modules that have rows; calls below count for the rows above them. By default all have rows.
        show_repeated: whether to show each call, instead of only the first one of each module.
        mutable: a filter of the collections to make.
        compute_flops: whether to count the floating-point operations of each call: of the whole model in the first row,
            and of one call in rows inside a lift. Each call is traced alone, which takes time. A loop counts with all
            its iterations; a loop of unknown length, such as a `while_loop`, counts as one iteration, and the number
            has a `+`. A call that cannot be run alone has a `?`.
        compute_vjp_flops: whether to count the operations of its pullback, including the call itself.
        method: the method to run: a name, a function of the module or a bound method; by default `__call__`.

    Returns:
        `summarized(*args, **kwargs)`, with the arguments of the method; arrays may be `jax.ShapeDtypeStruct`.
    """
    check_instance(module, "tabulate", "a summary of a module", "nn.{}(MyModule(…), key)(…)")
    fn = resolve_method(module, method)
    wanted = {"flops": compute_flops, "vjp_flops": compute_vjp_flops}
    costs = tuple(name for name, wants in wanted.items() if wants)

    @boundary
    def summarized(*args: Any, **kwargs: Any) -> Summary:
        notes = record(module, fn, rngs, mutable, args, kwargs)
        rows: list[Row] = []
        for call, row in rows_of(notes, depth, show_repeated):
            # The first row is the model: if its own class is lifted, it counts with the lift.
            alone = notes.whole if not rows and row.lifts else call
            rows.append(dataclasses.replace(row, **alone.costs(rngs, mutable, costs) if alone.bare and costs else {}))
        names = sorted(notes.variables, key=lambda name: (name != "params", name))
        totals = {name: Size.of(notes.variables[name]) for name in names}
        return Summary(type(module).__name__, tuple(rows), totals, costs)

    return summarized


@boundary
def module_paths(
    module: Base,
    rngs: RNGs,
    *args: Any,
    show_repeated: bool = False,
    mutable: Filter = NO_INTERMEDIATES,
    method: Callable[..., Any] | str | None = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """Return unbound copies of the modules that one `init` calls, by their paths; nothing is computed.

    Example:
        >>> import jax, linen_like as nn
        >>> class Twice(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         return nn.Dense(2, name="last")(nn.Dense(4)(x))
        >>> module_paths(Twice(), jax.random.key(0), jax.numpy.ones((5, 3)))
        {'': Twice(), 'Dense_0': Dense(features=4), 'last': Dense(features=2)}

    Args:
        module: an unbound module.
        rngs: a key, for the stream `params`, or a mapping from names to keys.
        *args: arguments of the method; arrays may be `jax.ShapeDtypeStruct`.
        show_repeated: whether to return the copy at the last call of a module that is called again, not at the first.
        mutable: a filter of the collections to make.
        method: the method to run: a name, a function of the module or a bound method; by default `__call__`.
        **kwargs: keyword arguments of the method.

    Returns:
        `{"encoder/dense": module}`, in the order of their first calls. For an instance of a lifted class, the copy has
        the class that was lifted.
    """
    summary = summarize(module, rngs, show_repeated=show_repeated, mutable=mutable, method=method)(*args, **kwargs)
    return {"/".join(row.path): row.module for row in summary.rows}


# --- the texts of the table -------------------------------------------------------------------------------------------


def _table(summary: Summary) -> diagnostics.Table:
    """Return the table of a summary."""
    lifts = ["lifts"] if any(row.lifts for row in summary.rows) else []
    columns = ["path", "module", "inputs", "outputs", *summary.costs, *lifts]

    def texts(row: Row) -> tuple[list[str], dict[str, Any], Mapping[str, Size]]:
        cells = [_cell(row, column) for column in columns]
        return cells, {name: lines_of(named) for name, named in row.variables.items()}, row.sizes

    params, at_least = summary.totals.get("params", Size()), any(row.at_least for row in summary.rows)
    return diagnostics.Table.of(summary.name, columns, map(texts, summary.rows), summary.totals, params, at_least)


def _cell(row: Row, column: str) -> str:
    if column == "path":
        return "/".join(row.path)
    if column == "module":
        method = "" if row.method in _UNNAMED else f" ({row.method})"
        return f"{type(row.module).__name__}{method}"
    if column == "lifts":
        return "\n".join(line for name, rules in row.lifts.items() for line in (name, *(f"  {rule}" for rule in rules)))
    if column in ("inputs", "outputs"):
        return "\n".join(lines_of(getattr(row, column), Base))
    return cost_text(getattr(row, column), row.at_least)
