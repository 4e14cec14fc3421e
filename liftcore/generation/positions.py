"""The outputs of a model at one position of each example, without those of the other positions.

After its last attention, a model treats all positions alike: it normalizes features, and multiplies them with the
embeddings of the vocabulary. So these equations run for one position alone. They are found from the outputs backwards,
up to the first equation that mixes positions, or that is not known here.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex

from .._compat import in_context_of, inner_jaxpr
from ..nn.sharding import place, sharding_entries
from ..pipeline.equations import cut, evaluate, opened, steps_of, variables_of
from ..tracing import jaxpr_of
from ..typing import Array, ArrayLike

__all__ = ["at_positions"]

_Axes = tuple[int, int]
"""The axis of the examples and that of the positions."""

_ALL = "all"
_Wanted = _Axes | str | None
"""The axes of an output if one position is needed, `_ALL` if all are, None if the output is not needed."""


def at_positions(fn: Callable[..., Any], positions: ArrayLike, length: int, *operands: Any) -> tuple[Any, Any]:
    """Return `fn(*operands)`, a pair of logits and other results, with the logits of one position of each example.

    Args:
        fn: returns logits of shape `(batch, length, vocabulary)`, and a pytree.
        positions: the position in each example, `(batch,)`.
        length: the number of positions in the logits.
        *operands: pytrees of arrays.

    Returns:
        The logits, `(batch, 1, vocabulary)`, and the pytree. The logits are None if they cannot be computed without
        those of the other positions, or are not such an array.
    """
    closed, shapes = jaxpr_of(fn, *operands)
    jaxpr, inputs = opened(closed), [*closed.consts, *jax.tree.leaves(operands)]
    logits, others = shapes
    # Other lengths are those of a model that returns the logits of its last inputs alone, which may be padding.
    is_array = getattr(logits, "ndim", 0) == 3 and logits.shape[:2] == (*np.shape(positions), length)
    rest: list[_Wanted] = [_ALL] * len(jax.tree.leaves(others))
    part = _Part(jaxpr, [(0, 1), *rest]) if is_array else None
    if part is None or not part.multiplies:
        part = _Part(jaxpr, [*[None] * (len(jaxpr.outvars) - len(rest)), *rest])
    results = part.run(positions, list(map(_picked, inputs, itertools.repeat(positions), part.inputs)))
    found = results[0] if part.multiplies else None
    return found, jax.tree.unflatten(jax.tree.structure(others), results[len(results) - len(rest) :])


class _Part:
    """The equations of a jaxpr that run for one position of each example, and those that run for all.

    Args:
        jaxpr: the jaxpr.
        wanted: what is needed of each output.

    Attributes:
        axes: the axes of the variables of which one position is needed.
        whole: the variables of which all positions are needed.
    """

    def __init__(self, jaxpr: jex.Jaxpr, wanted: Sequence[_Wanted]) -> None:
        self.jaxpr, self.wanted = jaxpr, wanted
        outputs = [(var, axes) for var, axes in zip(jaxpr.outvars, wanted, strict=True) if not _is_literal(var)]
        self.axes: dict[Any, _Axes] = {var: axes for var, axes in outputs if isinstance(axes, tuple)}
        differ = {var for var, axes in outputs if isinstance(axes, tuple) and self.axes[var] != axes}
        self.whole = differ | {var for var, axes in outputs if axes == _ALL}
        self._narrowed: list[_Narrowed] = []
        self._kept: list[Any] = []
        for eqn in reversed(jaxpr.eqns):
            self._divide(eqn)

    def _divide(self, eqn: Any) -> None:
        """Put an equation into one of the lists, unless no output needs it."""
        is_whole = not self.whole.isdisjoint(eqn.outvars) or bool(eqn.effects)
        if not is_whole and self.axes.keys().isdisjoint(eqn.outvars):
            return
        found = None if is_whole else _Narrowed.of(eqn, [self.axes.get(var) for var in eqn.outvars])
        pairs = [] if found is None else zip(eqn.invars, found.inputs, strict=True)
        reads = [(var, axes) for var, axes in pairs if not _is_literal(var)]
        narrow = {(var, axes) for var, axes in reads if axes is not None}
        narrow |= {(var, self.axes[var]) for var, _ in narrow if var in self.axes}
        differ = len(narrow) > len(dict(narrow))  # a variable is needed with different axes
        if found is None or differ:
            self._kept.append(eqn)
            self.whole.update(variables_of(eqn.invars))
            return
        self._narrowed.append(found)
        self.axes.update(narrow)
        self.whole.update([var for var, axes in reads if axes is None])

    @property
    def inputs(self) -> list[_Axes | None]:
        """For each input, its axes if only one position of it is needed; else None."""
        return [None if var in self.whole else self.axes.get(var) for var in self.jaxpr.invars]

    @property
    def multiplies(self) -> bool:
        """Whether there is a product of matrices among the equations that run for one position."""
        return any(one.multiplies for one in self._narrowed)

    def run(self, positions: ArrayLike, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs.

        Args:
            positions: the position in each example.
            inputs: the inputs, with all positions, or with one where `inputs` has axes.
        """
        invars = self.jaxpr.invars
        whole = dict(zip(invars, inputs, strict=True))
        picked: dict[tuple[Any, _Axes | None], Any] = {
            (var, axes): whole[var] for var, axes in zip(invars, self.inputs, strict=True) if axes is not None
        }
        steps = steps_of(self.jaxpr.replace(eqns=self._kept[::-1]))  # type: ignore[no-untyped-call]
        computed = [var for eqn in self._kept for var in eqn.outvars if var in self.whole or var in self.axes]
        read_whole = [var for var, axes in zip(invars, self.inputs, strict=True) if axes is None]
        results = evaluate(cut(self.jaxpr, read_whole, steps, computed), *[whole[var] for var in read_whole])
        whole.update(zip(computed, results, strict=True))

        def read(atom: Any, axes: _Wanted) -> Any:
            if _is_literal(atom):
                return _picked(atom.val, positions, axes if isinstance(axes, tuple) else None)
            if not isinstance(axes, tuple):
                return whole.get(atom)  # None if it is not needed
            if (atom, axes) not in picked:
                picked[atom, axes] = _picked(whole[atom], positions, axes)
            return picked[atom, axes]

        for step in reversed(self._narrowed):
            results = step.run(positions, list(map(read, step.eqn.invars, step.inputs)))
            found = zip(step.eqn.outvars, results, strict=True)
            picked.update([((var, self.axes.get(var)), value) for var, value in found])
        return [read(atom, axes) for atom, axes in zip(self.jaxpr.outvars, self.wanted, strict=True)]


@dataclasses.dataclass(frozen=True)
class _Narrowed:
    """An equation that runs for one position of each example.

    Attributes:
        eqn: the equation.
        inputs: for each input, its axes; None if it has no positions.
        params: the parameters for one position.
        part: the equations inside, of a `jit` and the like.
        consts: the constants of the part, which are its first inputs.
    """

    eqn: Any
    inputs: Sequence[_Axes | None]
    params: Mapping[str, Any]
    part: _Part | None = None
    consts: Sequence[Any] = ()

    @classmethod
    def of(cls, eqn: Any, outputs: Sequence[_Axes | None]) -> _Narrowed | None:
        """Return an equation for one position; None if it needs others, or is not known here.

        Args:
            eqn: the equation.
            outputs: for each output, its axes; None if it is not needed.
        """
        inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
        if eqn.primitive.name in _CALLS and inner is not None:
            consts = list(getattr(inner, "consts", ()))
            part = _Part(opened(inner) if consts else inner_jaxpr(inner), outputs)
            return cls(eqn, part.inputs[len(consts) :], {}, part, consts)
        rule = _elementwise if eqn.primitive.name in _ELEMENTWISE_NAMES else _RULES.get(eqn.primitive.name)
        [axes] = outputs if len(outputs) == 1 else [None]
        if rule is None or axes is None or _is_split(eqn.outvars[0], axes):
            return None
        found = rule(eqn, axes)
        return None if found is None else cls(eqn, *found)

    @property
    def multiplies(self) -> bool:
        """Whether it is, or contains, a product of matrices."""
        return self.eqn.primitive.name == "dot_general" if self.part is None else self.part.multiplies

    def run(self, positions: ArrayLike, values: list[Any]) -> list[Any]:
        """Return its results."""
        with in_context_of(self.eqn):
            if self.part is None:
                return [self.eqn.primitive.bind(*values, **{**self.eqn.params, **self.params})]
            consts = map(_picked, self.consts, itertools.repeat(positions), self.part.inputs)
            return self.part.run(positions, [*consts, *values])


def _is_literal(atom: Any) -> bool:
    return isinstance(atom, jex.Literal)


def _is_split(var: Any, axes: _Axes) -> bool:
    """Whether the positions of a variable are divided among devices by its type."""
    spec = getattr(getattr(var.aval, "sharding", None), "spec", ())
    return len(spec) > axes[1] and spec[axes[1]] is not None


def _picked(value: Array, positions: ArrayLike, axes: _Axes | None) -> Array:
    """Return one position of each example; its axis stays. Without axes, return the value."""
    if axes is None:
        return value
    examples, axis = axes
    axis -= examples < axis
    pick: Callable[..., Array] = jax.vmap(
        lambda row, at: lax.dynamic_index_in_dim(row, at, axis), (examples, 0), examples
    )
    return pick(value, place(jnp.asarray(positions), [sharding_entries(value)[examples]], value))


# --- rules: for the axes of the result, those of each input, and parameters that change -------------------------------

_Found = tuple[list[_Axes | None], dict[str, Any]] | None
_CALLS = frozenset({"checkpoint", "closed_call", "core_call", "jit", "pjit", "remat2"})
"""Equations that run those inside. The derivative of a function with a rule of its own is another one."""

_ELEMENTWISE_NAMES = frozenset(
    {
        "abs", "add", "add_any", "and", "cbrt", "ceil", "clamp", "convert_element_type", "copy", "cos", "div", "eq",
        "erf", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p",
        "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pow", "reduce_precision", "rem", "round",
        "rsqrt", "select_n", "sign", "sin", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor",
    }
)  # fmt: skip


def _elementwise(eqn: Any, axes: _Axes) -> _Found:
    shape = eqn.outvars[0].aval.shape
    inputs: list[_Axes | None] = []
    for atom in eqn.invars:
        theirs = atom.aval.shape
        if len(theirs) < len(shape) or theirs[axes[1]] == 1 < shape[axes[1]]:  # it is broadcast
            inputs.append(None)
        elif theirs[axes[0]] == shape[axes[0]]:
            inputs.append(axes)
        else:
            return None
    return inputs, {}


def _broadcast(eqn: Any, axes: _Axes) -> _Found:
    shape, dimensions = eqn.params["shape"], list(eqn.params["broadcast_dimensions"])
    theirs, params = eqn.invars[0].aval.shape, {"shape": _with_one(shape, axes)}
    if axes[1] not in dimensions or theirs[dimensions.index(axes[1])] == 1 < shape[axes[1]]:
        return [None] * len(eqn.invars), params
    if axes[0] not in dimensions or theirs[dimensions.index(axes[0])] != shape[axes[0]]:
        return None
    return [(dimensions.index(axes[0]), dimensions.index(axes[1]))], params


def _reshape(eqn: Any, axes: _Axes) -> _Found:
    sizes, theirs = eqn.params["new_sizes"], eqn.invars[0].aval.shape
    if axes != (0, 1) or theirs[:2] != sizes[:2] or eqn.params["dimensions"] is not None:
        return None
    return [axes], {"new_sizes": _with_one(sizes, axes)}


def _transpose(eqn: Any, axes: _Axes) -> _Found:
    order = eqn.params["permutation"]
    return [(order[axes[0]], order[axes[1]])], {}


def _reduce(eqn: Any, axes: _Axes) -> _Found:
    removed = eqn.params["dimensions" if eqn.primitive.name == "squeeze" else "axes"]
    kept = [axis for axis in range(len(eqn.invars[0].aval.shape)) if axis not in removed]
    return [(kept[axes[0]], kept[axes[1]])], {}


def _concatenate(eqn: Any, axes: _Axes) -> _Found:
    return None if eqn.params["dimension"] in axes else ([axes] * len(eqn.invars), {})


def _slice(eqn: Any, axes: _Axes) -> _Found:
    params, shape = eqn.params, eqn.invars[0].aval.shape
    if any(eqn.outvars[0].aval.shape[axis] != shape[axis] for axis in axes):
        return None
    return [axes], {"limit_indices": _with_one(params["limit_indices"], axes)}


def _product(eqn: Any, axes: _Axes) -> _Found:
    contracted, batches = eqn.params["dimension_numbers"]
    free = [
        [axis for axis in range(len(atom.aval.shape)) if axis not in (*contracted[side], *batches[side])]
        for side, atom in enumerate(eqn.invars)
    ]
    # The axes of the result are those of the batch, then the free ones of the left operand, then of the right one.
    begin = len(batches[0])
    middle = begin + len(free[0])
    side = int(axes[1] >= middle)
    of_result = [*range(begin), *range(*((middle, middle + len(free[1])) if side else (begin, middle)))]
    of_operand = [*batches[side], *free[side]]
    if axes[1] < begin or axes[0] not in of_result:
        return None
    found = of_operand[of_result.index(axes[0])], of_operand[of_result.index(axes[1])]
    return [None, found] if side else [found, None], {}


def _with_one(shape: Sequence[int], axes: _Axes) -> tuple[int, ...]:
    """Return a shape with one position."""
    return tuple([1 if axis == axes[1] else size for axis, size in enumerate(shape)])


_RULES: Mapping[str, Callable[[Any, _Axes], _Found]] = {
    "argmax": _reduce,
    "argmin": _reduce,
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "dot_general": _product,
    "reduce_max": _reduce,
    "reduce_min": _reduce,
    "reduce_prod": _reduce,
    "reduce_sum": _reduce,
    "reshape": _reshape,
    "slice": _slice,
    "squeeze": _reduce,
    "transpose": _transpose,
}
