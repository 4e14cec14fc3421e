"""A program ends in silence, whatever is alive when the interpreter ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

OBJECTS = """
import functools, jax, jax.numpy as jnp, optax
import nnx_like as nnx

models = [nnx.Linear(1, 1, rngs=nnx.Rngs(0)) for _ in range(2)]
optimizer = nnx.Optimizer(models[0], optax.sgd(1e-3), wrt=nnx.Param)

@nnx.jit
def step(model, optimizer, x):
    optimizer.update(model, nnx.grad(lambda m: m(x).sum())(model))

@nnx.jit
def both(first, second):
    return first.kernel.get_value() + second.kernel.get_value()

cached = functools.partial(step, models[0], optimizer)
nested = functools.partial(functools.partial(both, models[0]), models[1])
for _ in range(3):
    cached(jnp.ones((2, 1)))
    nested()
for one in models:
    one.friend = models  # a cycle
kept = nnx.List([nnx.Dict(w=nnx.Param(jnp.ones(1)))])
jax.tree.map(lambda x: x, nnx.split(kept))
"""

MODULES = """
import threading, time, jax, jax.numpy as jnp
import liftcore, linen_like as nn, equinox_like as eqx, pax_like as pax

bound = nn.Dense(2).bind(nn.Dense(2).init(jax.random.key(0), jnp.ones(2)))
bound(jnp.ones(2))
scope = liftcore.bind({"params": {"w": jnp.ones(2)}}, mutable=True)
child = scope.child(lambda scope: scope.get_variable("params", "w"), "net")
compiled = liftcore.jit(lambda scope: scope.get_variable("params", "w"))
compiled(scope)
layer = eqx.filter_jit(lambda x: x * 2)
layer(jnp.ones(2))
held = pax.Linear(2, 2, key=jax.random.key(0))
traces = liftcore.retraces().__enter__()

def work():
    compiled(liftcore.bind({"params": {"w": jnp.ones(2)}}))
    time.sleep(60)

threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""

FILES = """
import sys, jax.numpy as jnp
from liftcore.checkpoints import Checkpoints

saved = Checkpoints(sys.argv[1])
saved.save(1, {"w": jnp.ones(2)})
"""


@pytest.mark.parametrize("program", [OBJECTS, MODULES, FILES], ids=["objects", "modules and threads", "files"])
def test_nothing_is_printed_at_exit(program: str, tmp_path: Path) -> None:
    options = {"capture_output": True, "text": True, "check": False, "timeout": 300}
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=environment, **options)  # type: ignore[call-overload]
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
