"""Plain options of layers in all styles: a flag that is no truth value, or an epsilon of 48, is an error."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
import linen_like as linen
import nnx_like as nnx
import pax_like as pax
from liftcore import nn
from liftcore.errors import LiftArgumentError

KEY, X = jax.random.key(0), jnp.ones((2, 4))
WRONG: dict[str, list[Any]] = {
    "bool": [8, -1, 0.5, 1.0, "no", (True,), [], np.ones(2, bool), jnp.float32, jnp.tanh, jnp.int32(3)],
    "epsilon": [48, 1, 1.0, -1e-6, True, float("nan"), "1e-6", (1e-6,), X, np.float32(2)],
    "momentum": [8, -0.1, "0.9", (0.9,), X],
    "rate": ["0.5", (0.5,), X, jnp.tanh],
}
RIGHT: dict[str, list[Any]] = {
    "bool": [True, False, np.True_, np.False_, 0, 1, jnp.bool_(True)],
    "epsilon": [0, 0.0, 1e-6, np.float32(1e-3), jnp.float32(1e-3), jnp.bfloat16(1e-3), 0.5],
    "momentum": [0, 1, 0.9, np.float64(0.5), jnp.float32(0.5)],
    "rate": [0, 0.5, 1, np.float32(0.5), jnp.float32(0.5), jnp.float16(0.5), jnp.bfloat16(0.5)],
}


def kind_of(name: str, annotation: Any) -> str | None:
    kinds = {"bool": "bool", "dropout_rate": "rate"}
    kind = kinds.get(name, name) if str(annotation).startswith("float") else str(annotation).partition(" | ")[0]
    return kind if kind in WRONG else None


# -- all layers --------------------------------------------------------------------------------------------------------

CELL = linen.LSTMCell(2)
NEEDED: dict[str, Any] = {
    "features": 4, "kernel_size": (3,), "num_heads": 2, "num_embeddings": 4, "shape": (4, 2), "cell": CELL,
    "forward_rnn": linen.RNN(CELL), "backward_rnn": linen.RNN(CELL), "layer_instance": linen.Dense(2), "rank": 2,
    "einsum_str": "ab,bc->ac", "layers": (), "rate": 0.5, "block": linen.Dense, "submodule": linen.Dense(2),
}  # fmt: skip


def linen_options() -> list[tuple[str, Callable[..., Any], str, str]]:
    rows = []
    for cls in {getattr(linen, name) for name in linen.__all__}:
        if not (isinstance(cls, type) and issubclass(cls, linen.Module)):
            continue
        fields = [field for field in dataclasses.fields(cls) if field.init]
        missing = {dataclasses.MISSING}
        needed = [
            one.name
            for one in fields
            if {one.default, one.default_factory} <= missing
            if one.name not in ("parent", "name")
        ]
        make = functools.partial(cls, **{name: NEEDED[name] for name in needed if name in NEEDED})
        for field in fields:
            kind = kind_of(field.name, field.type)
            if kind and set(needed) <= NEEDED.keys():
                rows.append((f"linen.{cls.__name__}.{field.name}", make, field.name, kind))
    return rows


RNGS = nnx.Rngs(0)
NNX: dict[str, Callable[..., Any]] = {
    "Linear": functools.partial(nnx.Linear, 4, 2, rngs=RNGS),
    "LinearGeneral": functools.partial(nnx.LinearGeneral, 4, 2, rngs=RNGS),
    "Conv": functools.partial(nnx.Conv, 4, 2, (3,), rngs=RNGS),
    "ConvTranspose": functools.partial(nnx.ConvTranspose, 4, 2, (3,), rngs=RNGS),
    "BatchNorm": functools.partial(nnx.BatchNorm, 4, rngs=RNGS),
    "LayerNorm": functools.partial(nnx.LayerNorm, 4, rngs=RNGS),
    "RMSNorm": functools.partial(nnx.RMSNorm, 4, rngs=RNGS),
    "GroupNorm": functools.partial(nnx.GroupNorm, 4, num_groups=2, rngs=RNGS),
    "InstanceNorm": functools.partial(nnx.InstanceNorm, 4, rngs=RNGS),
    "Dropout": functools.partial(nnx.Dropout, 0.5),
    "MultiHeadAttention": functools.partial(nnx.MultiHeadAttention, 2, 4, rngs=RNGS),
    "RNN": functools.partial(nnx.RNN, nnx.LSTMCell(4, 4, rngs=RNGS)),
    "LSTMCell": functools.partial(nnx.LSTMCell, 4, 4, rngs=RNGS),
}
NORMED: dict[str, Callable[..., Any]] = {"group_norm": functools.partial(nn.group_norm, num_groups=2)}
CORE: dict[str, Callable[..., Any]] = {
    "dense": lambda **options: liftcore.init(nn.dense)(KEY, X, 3, **options),
    "conv": lambda **options: liftcore.init(nn.conv)(KEY, X, 3, (2,), **options),
    "layer_norm": lambda **options: liftcore.init(nn.layer_norm)(KEY, X, **options),
    "rms_norm": lambda **options: liftcore.init(nn.rms_norm)(KEY, X, **options),
    "group_norm": lambda **options: liftcore.init(nn.group_norm)(KEY, X, num_groups=2, **options),
    "batch_norm": lambda **options: liftcore.init(nn.batch_norm)(KEY, X, **({"use_running_average": True} | options)),
    "dropout": lambda **options: liftcore.init(nn.dropout)(KEY, X, **({"rate": 0.5, "deterministic": True} | options)),
}


def others() -> list[tuple[str, Callable[..., Any], str, str]]:
    rows = []
    for style, table, source in (
        ("nnx", NNX, lambda name: inspect.signature(getattr(nnx, name).__init__)),
        ("nn", CORE, lambda name: inspect.signature(getattr(nn, name))),
    ):
        for name, make in table.items():
            for parameter in source(name).parameters.values():
                kind = kind_of(parameter.name, parameter.annotation)
                if kind and not (name == "Dropout" and kind == "rate"):
                    rows.append((f"{style}.{name}.{parameter.name}", make, parameter.name, kind))
    rows.append(("pax.LayerNorm.epsilon", lambda **options: pax.LayerNorm(4, **options)(X), "epsilon", "epsilon"))
    rows.append(("pax.Linear.use_bias", lambda **options: pax.Linear(4, 3, key=KEY, **options)(X), "use_bias", "bool"))
    return rows


ROWS = {name: rest for name, *rest in sorted(linen_options(), key=lambda row: row[0]) + others()}


def test_the_table_has_the_layers() -> None:
    assert len(ROWS) > 90
    for name in ("linen.Dense.use_bias", "linen.BatchNorm.momentum", "linen.WeightNorm.epsilon", "linen.RNN.reverse"):
        assert name in ROWS


@pytest.mark.parametrize("name", ROWS)
def test_a_value_of_another_kind_is_an_error_that_names_the_option(name: str) -> None:
    make, option, kind = ROWS[name]
    for value in WRONG[kind]:
        with pytest.raises(LiftArgumentError, match=rf"^{option} of \w+.*: expected a (bool|number)") as caught:
            make(**{option: value})
        assert f"{option}=" in caught.value.fix or "arrays to the call" in caught.value.fix
    if name.startswith("linen."):  # those of the other styles also make arrays
        for value in [*RIGHT[kind], None]:
            make(**{option: value})


def test_sizes_by_position_are_errors() -> None:
    for make, option in (
        (lambda: linen.Dense(4, 8), "use_bias"),  # type: ignore[arg-type]
        (lambda: linen.BatchNorm(8), "use_running_average"),  # type: ignore[arg-type]
        (lambda: linen.LayerNorm(48), "epsilon"),
        (lambda: linen.remat(linen.LayerNorm)(48), "epsilon"),
        (lambda: nnx.RNN(nnx.LSTMCell(4, 4, rngs=RNGS), 8), "time_major"),  # type: ignore[arg-type]
        (lambda: linen.Dropout(0.5).apply({}, X, 8, rngs={"dropout": KEY}), "deterministic"),
        (lambda: nnx.BatchNorm(4, rngs=RNGS)(X, 8), "use_running_average"),  # type: ignore[arg-type]
    ):
        with pytest.raises(LiftArgumentError, match=f"^{option} of "):
            make()


def test_an_object_with_any_attribute_is_no_array() -> None:
    with pytest.raises(LiftArgumentError, match=r"^use_bias of Linear: .* given a Rngs") as caught:
        nnx.Linear(4, 8, RNGS)  # type: ignore[call-arg, arg-type]
    assert caught.value.fix.startswith("Pass it by name, `Linear(…, use_bias=True)`")


def test_the_fixes_run() -> None:
    for make in (
        lambda: linen.LayerNorm(epsilon=1e-6),
        lambda: linen.BatchNorm(use_running_average=True),
        lambda: linen.Dense(4, use_bias=True),
    ):
        make().init(KEY, X)


def test_traced_options_are_not_checked() -> None:
    def run(epsilon: Any, deterministic: Any) -> Any:
        y, _ = linen.LayerNorm(epsilon).init_with_output(KEY, X)
        use_bias = linen.Dense(4, deterministic).use_bias
        return y, use_bias

    assert jax.jit(run)(1e-3, True)[0].shape == X.shape
    assert jax.jit(lambda: linen.LayerNorm(jnp.float32(1e-3)).init_with_output(KEY, X)[0])().shape == X.shape
