"""Second derivatives, and lifts of a user: meta-learning, gradient surgery, sparse kernels, a tangent kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import sparse
from jax.flatten_util import ravel_pytree

import liftcore
import nnx_like as nnx
from liftcore import Captured, Scope, filters

pytestmark = pytest.mark.rest

KEY, WIDTH, TASKS = jax.random.key(0), 4, 3
X = jax.random.normal(jax.random.key(1), (5, WIDTH))
TARGETS = jnp.sin(jnp.arange(1.0, TASKS + 1)[:, None, None] * X[None])


def close(a: Any, b: Any) -> bool:
    a, b = jax.tree.leaves(a), jax.tree.leaves(b)
    return len(a) == len(b) and all(jnp.allclose(one, two, rtol=1e-4, atol=1e-5) for one, two in zip(a, b, strict=True))


# Learned rates of inner steps ----------------------------------------------------------------------------------------


def local_params(fn: Callable[..., Any]) -> Callable[..., Any]:
    def transform(body: Any, variables: Any, rngs: Any, *args: Any) -> Any:
        return body.writing_locally("params")(variables, rngs, *args)

    return liftcore.transformation(transform, [True], [True, Captured(all=True)], [True], name="local_params")(fn)


def normed_net(scope: Scope, x: Any, train: bool) -> Any:
    h = scope.child(liftcore.nn.dense, "first")(x, WIDTH)
    h = scope.child(liftcore.nn.batch_norm, "norm")(h, use_running_average=not train, momentum=0.9)
    return scope.child(liftcore.nn.dense, "last")(jnp.tanh(h), 1)


def test_meta_gradients_equal_those_by_hand() -> None:
    runs: list[str] = []
    xs = jax.random.normal(jax.random.key(2), (TASKS, 2, 6, 1))
    ys = jnp.sin(xs * jnp.arange(1.0, TASKS + 1)[:, None, None, None])

    def inner(scope: Scope, x: Any, y: Any) -> Any:
        runs.append("inner")
        return jnp.mean((normed_net(scope, x, True) - y) ** 2)

    def adapted(scope: Scope, x: Any, y: Any) -> Any:
        def step(scope: Scope, carry: Any, _: Any) -> Any:
            slopes = liftcore.grad(inner)(scope, x[0], y[0])["params"]
            rate = scope.variable("rates", "rate", lambda: jnp.float32(0.1)).value
            fast = jax.tree.map(lambda p, slope: p - rate * slope, scope.variables()["params"], slopes)
            scope.put_variables({"params": fast})
            return carry, None

        carried = ("params", "batch_stats")
        loop = liftcore.scan(step, length=2, variable_carry=carried, variable_axes={"rates": 0}, split_rngs=False)
        loop(scope, None, None)
        return jnp.mean((normed_net(scope.rewound(), x[1], False) - y[1]) ** 2)

    def task(scope: Scope, x: Any, y: Any) -> Any:
        loss = local_params(adapted)(scope, x, y)
        scope.put_variables(jax.lax.pmean({"batch_stats": scope.variables()["batch_stats"]}, "tasks"))
        return loss

    shared = {"params": None, "batch_stats": None, "rates": None}
    tasks = liftcore.vmap(task, axis_name="tasks", variable_axes=shared, split_rngs=False)
    _, made = jax.jit(liftcore.init(tasks))(KEY, xs, ys)
    assert runs == ["inner"]
    assert made["rates"]["rate"].shape == (2,)
    assert made["params"]["first"]["kernel"].shape == (1, WIDTH)

    def lifted(meta: Any) -> Any:
        losses, after = liftcore.apply(tasks, mutable="batch_stats")({**made, **meta}, xs, ys)
        return losses.mean(), after["batch_stats"]

    def by_hand(meta: Any) -> Any:
        def loss(params: Any, stats: Any, x: Any, y: Any) -> Any:
            value, after = liftcore.apply(inner, mutable="batch_stats")({"params": params, "batch_stats": stats}, x, y)
            return value, after["batch_stats"]

        def one(x: Any, y: Any) -> Any:
            params, stats = meta["params"], made["batch_stats"]
            for rate in meta["rates"]["rate"]:
                slopes, stats = jax.grad(loss, has_aux=True)(params, stats, x[0], y[0])
                params = jax.tree.map(lambda p, slope, rate=rate: p - rate * slope, params, slopes)
            y_found = liftcore.apply(normed_net)({"params": params, "batch_stats": stats}, x[1], False)
            return jnp.mean((y_found - y[1]) ** 2), stats

        losses, stats = jax.vmap(one)(xs, ys)
        return losses.mean(), jax.tree.map(lambda leaf: leaf.mean(0), stats)

    meta = {"params": made["params"], "rates": made["rates"]}
    found, expected = (jax.jit(jax.value_and_grad(fn, has_aux=True))(meta) for fn in (lifted, by_hand))
    assert close(found, expected)


# Gradient surgery ----------------------------------------------------------------------------------------------------


def project(gradients: Any) -> Any:
    """Remove from the gradient of each task what conflicts with those of the others: (tasks, n) -> (tasks, n)."""

    def one(gradient: Any) -> Any:
        def step(gradient: Any, other: Any) -> Any:
            inner = gradient @ other
            return gradient - jnp.where(inner < 0, inner / (other @ other), 0.0) * other, None

        return jax.lax.scan(step, gradient, gradients)[0]

    return jax.vmap(one)(gradients)


def surgery(fn: Callable[..., Any], average: Any = ("state",)) -> Callable[..., Any]:
    """`lifted(scope, tasks, *args)` returns losses and projected gradients; it averages what the tasks write."""

    def transform(body: Any, variables: Any, rngs: Any, tasks: Any, *args: Any) -> Any:
        def element(body: Any, chosen: Any, others: Any, rngs: Any, task: Any) -> Any:
            return body((chosen, *others), rngs, task, *args)

        chosen, *others = variables
        first = jax.eval_shape(lambda tree: jax.tree.map(lambda leaf: leaf[0], tree), tasks)
        split = body.split(chosen, others, rngs, first, via=element)

        def batch(fn: Any, in_axes: Any, out_axes: Any) -> Any:
            return jax.vmap(fn, in_axes=tuple(in_axes), out_axes=out_axes, axis_size=len(tasks))

        axes = [None, None, None, 0, 0]  # of the groups, of captured values, and of effects
        created = split.batched_prologue(batch, (chosen, others, rngs, tasks), (None, None, None, 0), axes)

        def loss(differentiated: Any, created: Any, task: Any) -> Any:
            chosen, made = differentiated
            return split.remainder([made, *created[1:]], chosen, others, rngs, task)

        run = batch(jax.value_and_grad(loss, has_aux=True), (None, axes, 0), ((0, 0), 0))
        (losses, values), slopes = run((chosen, created[0]), created, tasks)
        _, unflatten = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], slopes))
        existing, made = jax.vmap(unflatten)(project(jax.vmap(lambda tree: ravel_pytree(tree)[0])(slopes)))
        gradients = [filters.merge(*trees) for trees in zip(existing, made, strict=True)]
        means = [jax.tree.map(lambda leaf: leaf.mean(0), value) for value in values[:2]]
        rest = jax.tree.map(lambda leaf: leaf[0], values[2])
        return split.join(created, (losses, gradients[0]["params"]), [*means, rest, values[-1]])

    groups = ["params", average, True]
    return liftcore.transformation(transform, groups, [*groups, Captured(all=True)], [True], name="surgery")(fn)


def task_loss(scope: Scope, target: Any, x: Any) -> Any:
    scope.variable("state", "calls", lambda: jnp.zeros(())).value += target.mean()
    h = jnp.tanh(scope.child(liftcore.nn.dense, "first")(x, WIDTH))
    y = scope.child(liftcore.nn.dense, "last")(h, WIDTH)
    scope.sow("intermediates", "y", y.mean())
    return jnp.mean((y - target) ** 2)


def test_surgery_in_the_core() -> None:
    (losses, gradients), made = jax.jit(liftcore.init(surgery(task_loss)))(KEY, TARGETS, X)
    assert losses.shape == made["intermediates"]["y"][0].shape == (TASKS,)
    assert jnp.allclose(made["state"]["calls"], TARGETS.mean())

    def by_hand(params: Any, target: Any) -> Any:
        fresh = {"params": params, "state": {"calls": jnp.zeros(())}}
        return liftcore.apply(task_loss, mutable="state")(fresh, target, X)[0]

    expected, slopes = jax.vmap(jax.value_and_grad(by_hand), (None, 0))(made["params"], TARGETS)
    _, unflatten = ravel_pytree(made["params"])
    slopes = jax.vmap(unflatten)(project(jax.vmap(lambda tree: ravel_pytree(tree)[0])(slopes)))
    assert close((losses, gradients), (expected, slopes))


class Noisy(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.drop(self.norm(self.first(x)))


def test_surgery_of_objects_keeps_the_counts_of_streams() -> None:
    def loss(target: Any, model: Noisy, x: Any) -> Any:
        return jnp.mean((model(x) - target) ** 2)

    model = Noisy(nnx.Rngs(0, dropout=1))
    losses, _ = nnx.lift(surgery, loss, average="batch_stats")(TARGETS, model, X)
    assert losses.shape == (TASKS,)
    assert model.drop.rngs.count.dtype == jnp.uint32
    assert model.drop.rngs.count[...] == 1
    with pytest.raises(liftcore.errors.LiftArgumentError, match="it belongs to an RNG stream"):
        nnx.lift(surgery, loss, average=("batch_stats", "RngCount"))(TARGETS, model, X)
    assert model.drop.rngs.count[...] == 1


# Sparse kernels, and a tangent kernel --------------------------------------------------------------------------------


def net(scope: Scope, x: Any) -> Any:
    scope.variable("state", "n", lambda: jnp.zeros(())).value += 1
    h = jnp.tanh(scope.child(liftcore.nn.dense, "first")(x, WIDTH))
    scope.sow("intermediates", "h", h.mean())
    return scope.child(liftcore.nn.dense, "last")(h, 2)


def test_sparsify_runs_sparse_in_an_apply_that_may_create() -> None:
    def transform(body: Any, variables: Any, rngs: Any, *args: Any) -> Any:
        if body.is_initializing():
            return body(variables, rngs, *args)
        run = sparse.sparsify(lambda kernels, *args: body((kernels, variables[1]), rngs, *args))
        kernels = jax.tree.map(lambda leaf: sparse.BCOO.fromdense(leaf, nse=leaf.size), variables[0])
        return run(kernels, *args)

    groups = [filters.All("params", filters.PathContains("kernel")), True]
    out = [*groups, Captured(all=True)]
    lifted = liftcore.transformation(transform, groups, out, [True], name="sparsified")(net)
    y, made = liftcore.init(lifted)(KEY, X)
    assert close(y, liftcore.init(net)(KEY, X)[0])
    run, plain = (liftcore.apply(fn, mutable=["state", "intermediates"]) for fn in (lifted, net))
    assert close(run(made, X), plain(made, X))
    assert "bcoo_dot_general" in str(jax.make_jaxpr(run)(made, X))


def test_a_tangent_kernel_by_linearize() -> None:
    runs: list[str] = []

    def traced(scope: Scope, x: Any) -> Any:
        runs.append("net")
        return net(scope, x)

    def transform(body: Any, variables: Any, rngs: Any, v: Any, *args: Any) -> Any:
        def inner(body: Any, chosen: Any, others: Any, keys: Any, *args: Any) -> Any:
            return body((chosen, others), keys, *args)

        chosen, others = variables
        operands = others, rngs, *args
        split = body.split(chosen, *operands, via=inner)
        made, *created = split.prologue(chosen, *operands)

        def forward(chosen: Any, made: Any) -> Any:
            return split.remainder([made, *created], chosen, *operands)

        y, along, values = jax.linearize(forward, chosen, made, has_aux=True)
        back = jax.linear_transpose(along, chosen, made)
        return split.join([made, *created], (y, along(*back(v))), values)

    groups = ["params", True]
    out = [*groups, Captured(all=True)]
    lifted = liftcore.transformation(transform, groups, out, [True], name="tangent_kernel")(traced)
    vector = jnp.ones((5, 2))

    def step(scope: Scope, carry: Any, _: Any) -> Any:
        return carry, lifted(scope, vector, X)

    options = {"variable_broadcast": "params", "variable_carry": "state", "split_rngs": False}
    (_, (y, product)), made = liftcore.init(liftcore.scan(step, length=2, **options))(KEY, None, None)
    assert runs == ["net"]
    assert made["state"]["n"] == 2

    def by_hand(params: Any) -> Any:
        return liftcore.apply(net, mutable="state")({**made, "params": params}, X)[0]

    expected, pull = jax.vjp(by_hand, made["params"])
    along = jax.jvp(by_hand, (made["params"],), pull(vector))[1]
    assert close((y[0], product[1]), (expected, along))


# Products of a Hessian and a vector ----------------------------------------------------------------------------------


def test_a_hessian_vector_product_of_one_part() -> None:
    head = filters.All("params", filters.PathContains("last"))

    def value(scope: Scope, x: Any) -> Any:
        return jnp.mean(net(scope, x) ** 2)

    _, made = liftcore.init(value)(KEY, X)
    vector = {"params": {"last": jax.tree.map(jnp.ones_like, made["params"]["last"])}}

    def product(scope: Scope, x: Any) -> Any:
        slope = liftcore.grad(value, wrt=head)
        return liftcore.jvp(lambda scope: slope(scope, x))(scope, (), (), vector)[1]

    found, _ = liftcore.apply(product, mutable="state")(made, X)

    def by_hand(part: Any) -> Any:
        params = {**made["params"], "last": part}
        return liftcore.apply(value, mutable="state")({**made, "params": params}, X)[0]

    expected = jax.jvp(jax.grad(by_hand), (made["params"]["last"],), (vector["params"]["last"],))[1]
    assert list(found["params"]) == ["last"]
    assert close(found["params"]["last"], expected)


def test_a_hessian_vector_product_of_an_object_under_lift() -> None:
    layer = nnx.Linear(WIDTH, 2, rngs=nnx.Rngs(0))
    vector = {"params": {"kernel": jnp.ones((WIDTH, 2))}}

    def value(layer: nnx.Linear) -> Any:
        return jnp.sum(layer(X) ** 3)

    y, along = nnx.lift(liftcore.jvp, value)((layer,), (None,), vector)
    expected = jax.jvp(lambda kernel: jnp.sum((X @ kernel) ** 3), (layer.kernel[...],), (vector["params"]["kernel"],))
    assert close((y, along), expected)
