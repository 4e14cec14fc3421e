"""The optimized program of a lifted model has the operations of the hand-written JAX function, and no more."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import liftcore
from liftcore import Scope

pytestmark = pytest.mark.cpu("the operations that are counted are those of its programs")

X = jnp.arange(1.0, 4.0) / 10
PARAMS = {"w": jnp.eye(3) + 0.1, "b": jnp.ones(3)}
STACKED = {"w": jnp.stack([PARAMS["w"]] * 4), "b": jnp.ones((4, 3))}
STATE = {"n": jnp.float32(2)}

_OPERATION = re.compile(r"^\s*(?:ROOT )?[\w.%-]+ = .*? ([a-z][\w-]*)\(", re.MULTILINE)


def operations(fn: Callable[..., Any], *args: Any) -> Counter[str]:
    """How often each operation is in the optimized program, those inside of fusions, loops and branches included."""
    options = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
    if jax.__version_info__ < (0, 11):  # later releases have no others
        options["xla_cpu_use_fusion_emitters"] = True

    def machine_code(*args: Any) -> Any:  # a name of its own: the run's cache of programs is asked without the options
        return fn(*args)

    text = jax.jit(machine_code, compiler_options=options).lower(*args).compile().as_text()
    found = Counter(_OPERATION.findall(text or ""))
    assert found, "nothing was recognized in the text"
    return found


# -- a layer with parameters, with and without state -------------------------------------------------------------------


def dense(scope: Scope, x: Any) -> Any:
    kernel = scope.param("w", jax.random.normal, (3, 3))
    return jnp.tanh(x @ kernel + scope.param("b", jax.random.normal, (3,)))


def by_hand(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["b"])


def negative(scope: Scope, x: Any) -> Any:
    return -x


def counting(scope: Scope, x: Any) -> Any:
    n = scope.variable("state", "n")
    n.value = n.value + 1
    scope.sow("intermediates", "x", x)
    return dense(scope, x) * n.value


def counted(params: Any, n: Any, x: Any) -> Any:
    """What `counting` is: the result, the new state, and what is captured."""
    return by_hand(params, x) * (n + 1), n + 1, x


class Row(NamedTuple):
    """A model, and the same without liftcore.

    Attributes:
        lifted: `(scope, x)`.
        plain: `(params, x)`.
        params: what both are called on.
        backward: whether there is a gradient.
    """

    lifted: Callable[..., Any]
    plain: Callable[..., Any]
    params: Any = PARAMS
    backward: bool = True


def _scan(scope: Scope, x: Any) -> Any:
    layers = liftcore.scan(
        lambda scope, x, _: (dense(scope, x), x.sum()),
        length=4,
        variable_axes={"params": 0},
        split_rngs={"params": True},
    )
    return layers(scope, x, None)


def _with_rule_vjp() -> tuple[Any, Any]:
    lifted, plain = liftcore.custom_vjp(dense), jax.custom_vjp(by_hand)
    lifted.defvjp(lambda scope, x: liftcore.vjp(dense)(scope, x), lambda pullback, cotangent: pullback(cotangent))
    plain.defvjp(lambda params, x: jax.vjp(by_hand, params, x), lambda pullback, cotangent: pullback(cotangent))
    return lifted, plain


def _with_rule_jvp() -> tuple[Any, Any]:
    lifted, plain = liftcore.custom_jvp(dense), jax.custom_jvp(by_hand)
    lifted.defjvp(lambda scope, *args: liftcore.jvp(dense)(scope, *args))
    plain.defjvp(lambda primals, tangents: jax.jvp(by_hand, primals, tangents))
    return lifted, plain


def _total(scope: Scope, x: Any) -> Any:
    return dense(scope, x).sum()


def _pulled(y: Any, pullback: Any) -> Any:
    return y, pullback(y)


ROWS = {
    "scan": Row(_scan, lambda p, x: jax.lax.scan(lambda x, p: (by_hand(p, x), x.sum()), x, p), STACKED),
    "vmap": Row(
        liftcore.vmap(dense, in_axes=None, variable_axes={"params": 0}, split_rngs={"params": True}),
        jax.vmap(by_hand, (0, None)),
        STACKED,
    ),
    "remat": Row(liftcore.remat(dense), jax.checkpoint(by_hand)),
    "jit": Row(liftcore.jit(dense), jax.jit(by_hand)),
    "cond": Row(
        lambda scope, x: liftcore.cond(dense, negative)(scope, x[0] > 0, x),
        lambda p, x: jax.lax.cond(x[0] > 0, lambda: by_hand(p, x), lambda: -x),
    ),
    "switch": Row(
        lambda scope, x: liftcore.switch([dense, negative, dense])(scope, x[0].astype(int), x),
        lambda p, x: jax.lax.switch(x[0].astype(int), [lambda: by_hand(p, x), lambda: -x, lambda: by_hand(p, x)]),
    ),
    "fori_loop": Row(
        lambda scope, x: liftcore.fori_loop(lambda scope, i, x: dense(scope, x) + i)(scope, 0, 5, x),
        lambda p, x: jax.lax.fori_loop(0, 5, lambda i, x: by_hand(p, x) + i, x),
    ),
    "fori_loop, bound unknown": Row(
        lambda scope, x: liftcore.fori_loop(lambda scope, i, x: dense(scope, x) + i)(scope, 0, x[0].astype(int), x),
        lambda p, x: jax.lax.fori_loop(0, x[0].astype(int), lambda i, x: by_hand(p, x) + i, x),
        backward=False,
    ),
    "while_loop": Row(
        lambda scope, x: liftcore.while_loop(lambda _, x: x[0] < 1, lambda scope, x: dense(scope, x) + x)(scope, x),
        lambda p, x: jax.lax.while_loop(lambda x: x[0] < 1, lambda x: by_hand(p, x) + x, x),
        backward=False,
    ),
    "grad": Row(liftcore.grad(_total, (0, 1)), jax.grad(lambda p, x: by_hand(p, x).sum(), (0, 1))),
    "vjp": Row(lambda scope, x: _pulled(*liftcore.vjp(dense)(scope, x)), lambda p, x: _pulled(*jax.vjp(by_hand, p, x))),
    "jvp": Row(
        lambda scope, x: liftcore.jvp(dense)(scope, (x,), (x,)),
        lambda p, x: jax.jvp(lambda x: by_hand(p, x), (x,), (x,)),
    ),
    "jvp, along one variable": Row(
        lambda scope, x: liftcore.jvp(dense)(scope, (x,), (x,), {"params": {"b": x}}),
        lambda p, x: jax.jvp(lambda b, x: by_hand({**p, "b": b}, x), (p["b"], x), (x, x)),
    ),
    "linearize": Row(
        lambda scope, x: liftcore.linearize(dense)(scope, x)[1]({"params": {"w": jnp.eye(3), "b": x}}, x),
        lambda p, x: jax.linearize(by_hand, p, x)[1]({"w": jnp.eye(3), "b": x}, x),
    ),
    "jacfwd": Row(liftcore.jacfwd(dense, (0, 1)), jax.jacfwd(by_hand, (0, 1))),
    "jacrev": Row(liftcore.jacrev(dense, (0, 1)), jax.jacrev(by_hand, (0, 1))),
    "hessian": Row(liftcore.hessian(_total, 1), jax.hessian(lambda p, x: by_hand(p, x).sum(), 1)),
    "custom_vjp": Row(*_with_rule_vjp()),
    "custom_jvp": Row(*_with_rule_jvp()),
}


def total(tree: Any) -> Any:
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("way", ["forward", "gradient"])
@pytest.mark.parametrize("mutable", [False, ["state"]])
@pytest.mark.parametrize("name", ROWS)
def test_a_lifted_model_has_the_operations_of_the_hand_written_function(name: str, mutable: Any, way: str) -> None:
    row = ROWS[name]
    if way == "gradient" and not row.backward:
        pytest.skip("it has no gradient in reverse, in JAX neither")

    def ours(params: Any, x: Any) -> Any:
        found = liftcore.apply(row.lifted, mutable=mutable)({"params": params}, x)
        return found[0] if mutable else found

    each = []
    for fn in (ours, row.plain):
        run = fn if way == "forward" else jax.grad(lambda params, x, fn=fn: total(fn(params, x)), (0, 1))
        each.append(operations(run, row.params, X))
    assert each[0] == each[1]


# -- a layer that writes and sows --------------------------------------------------------------------------------------


def _scan_state(scope: Scope, x: Any) -> Any:
    layers = liftcore.scan(
        lambda scope, x, _: (counting(scope, x), None),
        length=4,
        variable_axes={"params": 0},
        variable_carry="state",
    )
    return layers(scope, x, None)[0]


def _scan_by_hand(params: Any, n: Any, x: Any) -> Any:
    def step(carry: Any, params: Any) -> Any:
        y, n, sown = counted(params, *carry[::-1])
        return (y, n), sown

    (y, n), sown = jax.lax.scan(step, (x, n), params)
    return y, n, sown


def _fori_by_hand(params: Any, n: Any, x: Any) -> Any:
    def step(carry: Any, _: Any) -> Any:
        y, n, sown = counted(params, *carry[::-1])
        return (y, n), sown

    (y, n), sown = jax.lax.scan(step, (x, n), length=4)
    return y, n, sown


def _derivative_by_hand(params: Any, n: Any, x: Any) -> Any:
    def fn(params: Any, x: Any) -> Any:
        y, after, sown = counted(params, n, x)
        return y.sum(), (after, sown)

    grads, (after, sown) = jax.grad(fn, (0, 1), has_aux=True)(params, x)
    return grads, after, sown


STATEFUL = {
    "scan": (_scan_state, _scan_by_hand, STACKED),
    "vmap": (
        liftcore.vmap(counting, in_axes=None, variable_axes={"params": 0, "state": None}),
        lambda p, n, x: jax.vmap(lambda p: counted(p, n, x), out_axes=(0, None, 0))(p),
        STACKED,
    ),
    "remat": (liftcore.remat(counting), jax.checkpoint(counted), PARAMS),
    "jit": (liftcore.jit(counting), jax.jit(counted), PARAMS),
    "cond": (
        lambda scope, x: liftcore.cond(counting, negative)(scope, x[0] > 0, x),
        lambda p, n, x: jax.lax.cond(x[0] > 0, lambda: counted(p, n, x), lambda: (-x, n, jnp.zeros(3))),
        PARAMS,
    ),
    "switch": (
        lambda scope, x: liftcore.switch([negative, counting])(scope, x[0].astype(int), x),
        lambda p, n, x: jax.lax.switch(x[0].astype(int), [lambda: (-x, n, jnp.zeros(3)), lambda: counted(p, n, x)]),
        PARAMS,
    ),
    "fori_loop": (
        lambda scope, x: liftcore.fori_loop(lambda scope, _, x: counting(scope, x), variable_carry="state")(
            scope, 0, 4, x
        ),
        _fori_by_hand,
        PARAMS,
    ),
    "grad": (
        liftcore.grad(lambda scope, x: counting(scope, x).sum(), (0, 1)),
        _derivative_by_hand,
        PARAMS,
    ),
}


@pytest.mark.parametrize("way", ["forward", "gradient"])
@pytest.mark.parametrize("name", STATEFUL)
def test_state_and_captured_values_cost_what_they_cost_by_hand(name: str, way: str) -> None:
    lifted, plain, params = STATEFUL[name]

    def ours(params: Any, n: Any, x: Any) -> Any:
        apply = liftcore.apply(lifted, mutable=["state", "intermediates"])
        y, mutated = apply({"params": params, "state": {"n": n}}, x)
        return y, mutated["state"]["n"], mutated["intermediates"]["x"][0]

    each = []
    for fn in (ours, plain):
        run = fn if way == "forward" else jax.grad(lambda *args, fn=fn: total(fn(*args)), (0, 1, 2))
        each.append(operations(run, params, STATE["n"], X))
    assert each[0] == each[1]


def test_while_loops_carry_only_what_they_write() -> None:
    def body(scope: Scope, x: Any) -> Any:
        n = scope.variable("state", "n")
        n.value = n.value + 1
        return dense(scope, x) * n.value

    def ours(params: Any, n: Any, x: Any) -> Any:
        loop = liftcore.while_loop(lambda _, x: x[0] < 1, body, variable_carry="state")
        y, mutated = liftcore.apply(loop, mutable=["state"])({"params": params, "state": {"n": n, "read": X}}, x)
        return y, mutated["state"]["n"]

    def plain(params: Any, n: Any, x: Any) -> Any:
        step = lambda now: (by_hand(params, now[0]) * (now[1] + 1), now[1] + 1)  # noqa: E731
        return jax.lax.while_loop(lambda now: now[0][0] < 1, step, (x, n))

    assert operations(ours, PARAMS, STATE["n"], X) == operations(plain, PARAMS, STATE["n"], X)


def test_a_count_sees_one_operation_more() -> None:
    assert operations(lambda x: jnp.sin(jnp.sin(x)), X) - operations(jnp.sin, X) == Counter({"sine": 1})
