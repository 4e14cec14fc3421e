"""Every way into the library that calls functions of users, as a call of a function that raises."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import equinox_like as eqx
import liftcore
import linen_like as nn
import nnx_like as nnx
import pax_like as pax
from tests.lift.only import KINDS, only
from tests.linen.rows import ROWS
from tests.nnx.lifts import ALSO, ONCE

Entry = Callable[[], Any]

KEY, X = jax.random.key(0), jnp.ones(3)


def wrong(x: Any) -> Any:
    return x @ jnp.ones((4, 4))


# --- the core ---------------------------------------------------------------------------------------------------------


def square(scope: Any, x: Any) -> Any:
    return wrong(x @ scope.param("w", jax.random.normal, (3, 3)))


def first_key(key: Any) -> Any:
    return wrong(jnp.ones(3))


def made(scope: Any, x: Any) -> Any:
    return x * scope.param("w", first_key)


def plain(scope: Any, x: Any) -> Any:
    return x.sum()


def bound() -> Any:
    return liftcore.bind({}, KEY, mutable=True)


def nested(scope: Any, x: Any) -> Any:
    inner = liftcore.vmap(liftcore.jit(square), None, axis_size=2, variable_axes={"params": None}, split_rngs=False)
    loop = liftcore.scan(lambda s, x: (inner(s, x), None), length=4, variable_broadcast="params", split_rngs=False)
    return loop(scope, x)


def sowing(scope: Any, x: Any) -> Any:
    return scope.sow("intermediates", "y", x, reduce_fn=lambda values, value: wrong(value))


def one_pass(transform: Callable[..., Any]) -> Callable[..., Any]:
    return liftcore.transformation(transform, [True], [True, liftcore.Captured(all=True)], [True], name="own")


def own(body: Any, variables: Any, rngs: Any, x: Any) -> Any:
    return liftcore.outline(jax.checkpoint, body, variables, rngs, x)


def own_wrong(body: Any, variables: Any, rngs: Any, x: Any) -> Any:
    return wrong(x)


def vjp_rule(scope: Any, x: Any) -> Any:
    ruled: Any = liftcore.custom_vjp(plain)
    ruled.defvjp(lambda scope, x: (plain(scope, x), x), lambda x, dy: (None, wrong(x)))
    return liftcore.grad(ruled, argnums=1)(scope, x)


def jvp_rule(scope: Any, x: Any) -> Any:
    ruled: Any = liftcore.custom_jvp(plain)
    ruled.defjvp(lambda scope, primals, tangents, _: wrong(x))
    return liftcore.grad(ruled, argnums=1)(scope, x)


def vmap_rule(scope: Any, x: Any) -> Any:
    ruled: Any = liftcore.custom_vmap(plain)
    ruled.def_vmap(lambda size, batched, scope, x: wrong(x))
    return liftcore.vmap(ruled, variable_axes={})(scope, jnp.stack([x, x]))


IN_SCOPES: dict[str, Callable[[Any, Any], Any]] = {
    "function": square,
    "initializer": made,
    "child": lambda scope, x: scope.child(square)(x),
    "nested lifts": nested,
    "transformation": one_pass(own)(square),
    "transformation of a user": one_pass(own_wrong)(square),
    "sow": sowing,
    "rule of custom_vjp": vjp_rule,
    "rule of custom_jvp": jvp_rule,
    "rule of custom_vmap": vmap_rule,
    "filtered": lambda scope, x: liftcore.filtered(liftcore.jit, square)(scope, x),
    "hessian": lambda scope, x: liftcore.hessian(lambda scope, x: square(scope, x).sum(), argnums=1)(scope, x),
    "with_rngs": lambda scope, x: liftcore.with_rngs(square, {"noise": KEY})(scope, x),
    "swap_collection": lambda scope, x: liftcore.swap_collection(square, "a", "b")(scope, x),
    "add_metadata_axis": lambda scope, x: liftcore.add_metadata_axis(square, variable_axes={"params": 0})(scope, x),
    "named_call": lambda scope, x: liftcore.named_call(square)(scope, x),
    "associative_scan": lambda scope, x: liftcore.associative_scan(lambda scope, a, b: wrong(a))(scope, x),
    "lower": lambda scope, x: liftcore.jit(square).lower(scope, x),
    "per_example_gradients": lambda scope, x: liftcore.training.per_example_gradients(square)(scope, X[None]),
    "accumulate_gradients": lambda scope, x: liftcore.training.accumulate_gradients(square, 1)(scope, X[None]),
    "layer": lambda scope, x: liftcore.nn.dense(scope, x, 2, kernel_init=lambda *_: wrong(x)),
    **{name: lambda scope, x, name=name: only(name, square, ["params"], ["params"])(scope, x) for name in KINDS},  # type: ignore[misc]
}


def initialized(fn: Callable[..., Any]) -> Any:
    return liftcore.init(fn)(KEY, X)


def on_bound(fn: Callable[..., Any]) -> Any:
    return fn(bound(), X)


CORE: dict[str, Entry] = {
    "init": lambda: liftcore.init(square)(KEY, X),
    "apply": lambda: liftcore.apply(square)({"params": {"w": jnp.eye(3)}}, X),
    "lazy_init": lambda: liftcore.lazy_init(square)(KEY, X),
    "init_sharded": lambda: liftcore.init_sharded(wrong, jax.make_mesh((1,), ("i",)))(X),
    "explain": lambda: liftcore.explain(square)(bound(), X),
    "count_operations": lambda: liftcore.count_operations(wrong)(X),
    "jaxpr_of": lambda: liftcore.jaxpr_of(wrong, X),
    "purify": lambda: liftcore.purify(square, bound(), X),
    "TrainState.value_and_grad": lambda: train_state().value_and_grad(lambda variables: wrong(X).sum())(),
    "DynamicScale.value_and_grad": lambda: liftcore.training.DynamicScale().value_and_grad(wrong)(X),
    "TrainState.apply_gradients": lambda: train_state(bad_tx()).apply_gradients(grads={"w": X}),
    "generate": lambda: liftcore.generation.generate(Tokens(), {}, [[1]], max_new_tokens=2),
    "path_aware_map": lambda: liftcore.traverse_util.path_aware_map(lambda path, x: wrong(x), {"a": X}),
    "jax.jit(init)": lambda: jax.jit(liftcore.init(square))(KEY, X),
    "jax.grad(apply)": lambda: jax.grad(lambda v: liftcore.apply(square)(v, X).sum())({"params": {"w": jnp.eye(3)}}),
    **{f"init, {name}": functools.partial(initialized, fn) for name, fn in IN_SCOPES.items()},
    **{f"bind, {name}": functools.partial(on_bound, fn) for name, fn in IN_SCOPES.items() if fn is not square},
}


def train_state(tx: Any = None) -> Any:
    return liftcore.training.TrainState.create(apply_fn=wrong, params={"w": X}, tx=tx or optax.sgd(0.1))


def bad_tx() -> Any:
    return optax.GradientTransformation(lambda params: (), lambda updates, state, params=None: wrong(X))


class Tokens(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        return wrong(X)


# --- modules ----------------------------------------------------------------------------------------------------------


class Wrong(nn.Module):
    @nn.compact
    def __call__(self, x: Any, *_: Any) -> Any:
        y = wrong(nn.Dense(3)(x))
        return y, None

    def other(self, x: Any) -> Any:
        return wrong(x)


class Inside(nn.Module):
    part: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return self.part(x)


class InSetup(nn.Module):
    def setup(self) -> None:
        self.w = self.param("w", first_key)

    def __call__(self, x: Any) -> Any:
        return self.w * x


class Row(nn.Module):
    row: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return self.row(lambda mdl, x: wrong(x), self, x)


def intercepted() -> Any:
    with nn.intercept_methods(lambda call, args, kwargs, context: call(*args, **kwargs)):
        return Wrong().init(KEY, X)


def in_row(row: Callable[..., Any]) -> Any:
    return Row(row).init(KEY, X)


def on_bound_module(row: Callable[..., Any]) -> Any:
    return row(lambda mdl, x: wrong(x), Wrong().bind({}), X)


SCAN: dict[str, Any] = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}, "length": 3}

LINEN: dict[str, Entry] = {
    "init": lambda: Wrong().init(KEY, X),
    "init_with_output": lambda: Wrong().init_with_output(KEY, X),
    "lazy_init": lambda: Wrong().lazy_init(KEY, X),
    "apply": lambda: Wrong().apply({"params": {"Dense_0": {"kernel": jnp.eye(3), "bias": X}}}, X),
    "apply, method": lambda: Wrong().apply({}, X, method="other"),
    "apply, function": lambda: Wrong().apply({}, X, method=lambda module, x: wrong(x)),
    "bind": lambda: Wrong().bind({}).other(X),
    "unbound": lambda: Wrong().other(X),
    "nn.init": lambda: nn.init(lambda module, x: module(x), Wrong())(KEY, X),
    "nn.apply": lambda: nn.apply(lambda module, x: wrong(x), Wrong())({}, X),
    "inside": lambda: Inside(Wrong()).init(KEY, X),
    "setup": lambda: InSetup().init(KEY, X),
    "Sequential": lambda: nn.Sequential([nn.Dense(3), wrong]).init(KEY, X),
    "initializer": lambda: nn.Dense(3, kernel_init=lambda *_: first_key(KEY)).init(KEY, X),
    "interceptor": intercepted,
    "tabulate": lambda: Wrong().tabulate(KEY, X),
    "init_sharded": lambda: nn.init_sharded(Wrong(), jax.make_mesh((1,), ("i",)))(KEY, X),
    "jax.jit": lambda: jax.jit(Wrong().init)(KEY, X),
    "RNN": lambda: nn.RNN(nn.SimpleCell(3, activation_fn=lambda x: wrong(x))).init(KEY, jnp.ones((2, 4, 3))),
    "scan of a class": lambda: nn.scan(Wrong, **SCAN)().init(KEY, X, None),
    "scan(remat) of a class": lambda: nn.scan(nn.remat(Wrong), **SCAN)().init(KEY, X, None),
    "jit of a class": lambda: nn.jit(Wrong)().init(KEY, X),
    "eval_shape": lambda: Row(lambda fn, mdl, x: nn.eval_shape(fn, mdl, x)).init(KEY, X),
    **{f"init, {name}": functools.partial(in_row, row) for name, row in ROWS.items()},
    **{f"bind, {name}": functools.partial(on_bound_module, row) for name, row in ROWS.items()},
}

# --- objects ----------------------------------------------------------------------------------------------------------


class Net(nnx.Module):
    def __init__(self) -> None:
        self.layer = nnx.Linear(3, 3, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        return wrong(self.layer(x))


def update() -> Any:
    model = Net()
    return nnx.Optimizer(model, bad_tx(), wrt=nnx.Param).update(model, nnx.state(model, nnx.Param))


def nnx_rule(name: str) -> Any:
    fn: Any = getattr(nnx, name)(lambda net, x: x.sum())
    if name == "custom_vjp":
        fn.defvjp(lambda net, x: (x.sum(), None), lambda residuals, dy: wrong(X))
        return nnx.grad(lambda x, net: fn(net, x))(X, Net())
    if name == "custom_jvp":
        fn.defjvp(lambda primals, tangents: wrong(X))
        return nnx.grad(lambda x, net: fn(net, x))(X, Net())
    fn.def_vmap(lambda size, batched, net, x: wrong(X))
    return nnx.vmap(fn, in_axes=(None, 0))(Net(), X[None])


def nnx_call(lift: Any) -> Entry:
    return lambda: lift(lambda net, x: net(x))(Net(), X)


OBJECTS: dict[str, Entry] = {
    **{name: nnx_call(lift) for name, lift in {**ONCE, **ALSO}.items()},
    "jit, jit": nnx_call(lambda f: nnx.jit(nnx.jit(f))),
    "jit, lower": lambda: nnx.jit(lambda net, x: net(x)).lower(Net(), X),
    "eval_shape": lambda: nnx.eval_shape(lambda net: net(X), Net()),
    "make_jaxpr": lambda: nnx.make_jaxpr(lambda net: net(X))(Net()),
    "associative_scan": lambda: nnx.associative_scan(lambda net, a, b: wrong(a))(Net(), X),
    "Optimizer.update": update,
    "Optimizer": lambda: nnx.Optimizer(Net(), optax.GradientTransformation(lambda _: wrong(X), wrong), wrt=nnx.Param),
    "tabulate": lambda: nnx.tabulate(Net(), X),
    "map": lambda: nnx.map(lambda path, value: wrong(X), Net()),
    "map_state": lambda: nnx.map_state(lambda path, value: wrong(X), nnx.state(Net())),
    "get_abstract_model": lambda: nnx.spmd.get_abstract_model(lambda: Net()(X), jax.make_mesh((1,), ("i",))),
    "Sequential": lambda: nnx.jit(lambda net: net(X))(nnx.Sequential(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), wrong)),
    "capture": lambda: nnx.capture(Net(), nnx.Intermediate)(X),
    "split_rngs, method": lambda: nnx.split_rngs(lambda net: net(X), splits=2)(Net()),
    "ToLinen": lambda: nnx.bridge.ToLinen(Net).init(KEY, X),
    "ToNNX": lambda: nnx.bridge.ToNNX(Wrong(), rngs=nnx.Rngs(0)).lazy_init(X),
    **{f"rule of {name}": functools.partial(nnx_rule, name) for name in ("custom_vjp", "custom_jvp", "custom_vmap")},
}

# --- pytrees ----------------------------------------------------------------------------------------------------------


class Tree(eqx.Module):
    w: Any

    def __call__(self, x: Any) -> Any:
        return wrong(x * self.w)


def ruled(fn: Any) -> Any:
    fn.def_jvp(lambda primals, tangents: (primals[0], tangents[0]))
    return fn


def tree_rule(name: str) -> Any:
    fn: Any = getattr(eqx, name)(lambda x: x.sum())
    if name == "filter_custom_jvp":
        fn.def_jvp(lambda primals, tangents: wrong(X))
    else:
        fn.def_fwd(lambda perturbed, x: (x.sum(), None))
        fn.def_bwd(lambda residuals, dy, perturbed, x: wrong(X))
    return eqx.filter_grad(fn)(X)


PYTREES: dict[str, Entry] = {
    "filter_jit": lambda: eqx.filter_jit(Tree(X))(X),
    "filter_jit, lower": lambda: eqx.filter_jit(Tree(X)).lower(X),
    "filter_grad": lambda: eqx.filter_grad(lambda tree: tree(X).sum())(Tree(X)),
    "filter_value_and_grad": lambda: eqx.filter_value_and_grad(lambda tree: tree(X).sum())(Tree(X)),
    "filter_vmap": lambda: eqx.filter_vmap(Tree(X), in_axes=None, axis_size=2)(X),
    "filter_pmap": lambda: eqx.filter_pmap(Tree(X))(X[None]),
    "filter_checkpoint": lambda: eqx.filter_checkpoint(Tree(X))(X),
    "filter_eval_shape": lambda: eqx.filter_eval_shape(Tree(X), X),
    "filter_make_jaxpr": lambda: eqx.filter_make_jaxpr(Tree(X))(X),
    "filter_jvp": lambda: eqx.filter_jvp(Tree(X), (X,), (X,)),
    "filter_vjp": lambda: eqx.filter_vjp(Tree(X), X),
    "filter_jacfwd": lambda: eqx.filter_jacfwd(Tree(X))(X),
    "filter_jacrev": lambda: eqx.filter_jacrev(Tree(X))(X),
    "filter_hessian": lambda: eqx.filter_hessian(lambda x: Tree(X)(x).sum())(X),
    "filter_closure_convert": lambda: eqx.filter_closure_convert(Tree(X), X),
    "filter_custom_jvp": lambda: ruled(eqx.filter_custom_jvp(wrong))(X),
    "filter_custom_vjp": lambda: tree_rule("filter_custom_vjp"),
    "rule of filter_custom_jvp": lambda: tree_rule("filter_custom_jvp"),
    "method": lambda: eqx.filter_jit(lambda tree, x: tree(x))(Tree(X), X),
    "Applied": lambda: eqx.Applied.init(Wrong(), KEY, X),
    "tree_at": lambda: eqx.tree_at(lambda tree: wrong(X), Tree(X), X),
    "Partial": lambda: eqx.Partial(wrong, X)(),
}


class Kinds(pax.Module):
    w: Any

    def __init__(self) -> None:
        self.register_parameter("w", X)

    def __call__(self, x: Any) -> Any:
        return wrong(x * self.w)


KINDS_OF_PAX: dict[str, Entry] = {
    "pure": lambda: pax.pure(lambda kinds: kinds(X))(Kinds()),
    "pure, module": lambda: pax.pure(Kinds())(X),
    "module_and_value": lambda: pax.module_and_value(Kinds())(X),
    "value_and_grad": lambda: pax.value_and_grad(lambda kinds: kinds(X).sum())(Kinds()),
    "lift": lambda: pax.lift(liftcore.vmap, Kinds.__call__, variable_axes={"params": None})(Kinds(), X[None]),
    "lift, remat": lambda: pax.lift(liftcore.remat, Kinds.__call__)(Kinds(), X),
}

STYLES = {"core": CORE, "linen": LINEN, "nnx": OBJECTS, "equinox": PYTREES, "pax": KINDS_OF_PAX}
