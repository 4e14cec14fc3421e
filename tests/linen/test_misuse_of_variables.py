"""What a newcomer does wrong with variables, keys, layers and lifts; see `test_misuse`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import liftcore
import linen_like as nn
from linen_like.errors import (
    ApplyModuleInvalidMethodError,
    ApplyScopeInvalidVariablesStructureError,
    ApplyScopeInvalidVariablesTypeError,
    AxisSizeError,
    CarryTypeError,
    InvalidFilterError,
    InvalidInstanceModuleError,
    InvalidRngError,
    JaxTransformError,
    LazyInitError,
    LiftArgumentError,
    LoopInvarianceError,
    ModifyScopeVariableError,
    ModuleAttributeError,
    ScopeCollectionNotFound,
    ScopeParamNotFoundError,
    ScopeParamShapeError,
    ScopeVariableNotFoundError,
    TransformedMethodReturnValueError,
    TransformTargetError,
    UnliftedCollectionError,
    UnliftedStreamError,
)
from tests.linen.misuse import BY_LANE, DENSE, KEY, Net, Table, X, check, compact, scanned

NORM = nn.BatchNorm(use_running_average=False)
STATS = NORM.init(KEY, X)
MUTABLE = ["batch_stats"]
DROP = nn.Dropout(0.5, deterministic=False)
ones = nn.initializers.ones


def no_call_at_all() -> None:
    """Takes nothing."""


def cut(variables: Any, *path: str) -> Any:
    """Variables without one of them."""
    first, *rest = path
    if not rest:
        return {name: found for name, found in variables.items() if name != first}
    return {**variables, first: cut(variables[first], *rest)}


def two_layers() -> Any:
    model = nn.Sequential([nn.Dense(3), nn.Dense(3)])
    return model.apply(cut(model.init(KEY, X), "params", "layers_1"), X)


def changes(net: Any, x: Any) -> None:
    net.variable("state", "n", lambda: 0).value = 1


def advance(net: Any, number: Any) -> Any:
    net.variable("state", "n", lambda: jnp.zeros((), int)).value = number
    return number + 1


def count(net: Any, carry: Any, x: Any) -> Any:
    net.variable("state", "n", lambda: jnp.zeros(())).value = carry.sum()
    return carry, None


# --- the table --------------------------------------------------------------------------------------------------------

ENTRIES: Table = {
    "a key for dropout only": (
        lambda: nn.Dense(3).init({"dropout": KEY}, X),
        InvalidRngError,
        'make_rng("params") at / | no RNG stream "params" was given | `rngs={"params": jax.random.key(0)}`',
    ),
    "dropout without a key": (
        lambda: nn.Sequential([DROP]).apply({}, X),
        InvalidRngError,
        'make_rng("dropout") at /layers_0 | no RNG stream "dropout" was | `rngs={"dropout": jax.random.key(0)}`',
    ),
    "a misspelt stream": (
        lambda: DROP.apply({}, X, rngs={"droput": KEY}),
        InvalidRngError,
        'make_rng("dropout") at / | (given: [\'droput\']) | `rngs={"dropout": jax.random.key(0)}`',
    ),
    "the inputs in place of a key": (
        lambda: nn.Dense(3).init(X, KEY),
        InvalidRngError,
        'rngs["params"] | expected one PRNG key, given a float32[2,3] array. | to `init` it comes first',
    ),
    "several keys in place of one": (
        lambda: nn.Dense(3).init(jax.random.split(KEY), X),
        InvalidRngError,
        'rngs["params"] | expected one PRNG key, given PRNG keys of shape (2,). | Pass a key',
    ),
    "a number for the name of a stream": (
        lambda: nn.Dense(3).init({0: KEY}, X),  # type: ignore[dict-item]
        InvalidRngError,
        'rngs | expected names of streams, given 0. | {"params": jax.random.key(0)}',
    ),
    "a list of keys": (
        lambda: DROP.apply({}, X, rngs=[KEY]),  # type: ignore[arg-type]
        InvalidRngError,
        'rngs["params"] | expected one PRNG key, given [a PRNG key]. | Pass a key, such as `rngs=',
    ),
    "apply without its variables": (
        lambda: nn.Dense(3).apply(None, X),  # type: ignore[arg-type]
        ApplyScopeInvalidVariablesTypeError,
        "variables | expected a mapping {collection: {name: value}}, given None. | Pass the variables that",
    ),
    "all that a mutable apply returned": (
        lambda: NORM.apply(NORM.apply(STATS, X, mutable=MUTABLE), X),
        ApplyScopeInvalidVariablesTypeError,
        "variables | given (a  | Pass the variables that `init` returned",
    ),
    "only what a mutable apply changed": (
        lambda: NORM.apply(NORM.apply(STATS, X, mutable=MUTABLE)[1], X, mutable=MUTABLE),
        ScopeCollectionNotFound,
        '"params/scale" at / | there is no collection "params" (given: [\'batch_stats\']) | `apply({"params": …})`',
    ),
    "a method that does not exist": (
        lambda: nn.Dense(3).apply(DENSE, X, method="forward"),
        ModuleAttributeError,
        "method=\"forward\" of Dense (unbound) | no such method (available: ['__call__']). | Name one of",
    ),
    "a class for method": (
        lambda: nn.Dense(3).apply(DENSE, X, method=nn.Dense),
        ApplyModuleInvalidMethodError,
        "method of Dense (unbound) | given the class Dense. | Pass a name, `method=",
    ),
    "a method of another class": (
        lambda: nn.Dense(3).apply(DENSE, X, method=NORM.__call__),
        ApplyModuleInvalidMethodError,
        "method of Dense (unbound) | given the function BatchNorm.__call__. | Pass a name, `method=",
    ),
    "a function that takes no module": (
        lambda: nn.Dense(3).apply(DENSE, method=no_call_at_all),
        ApplyModuleInvalidMethodError,
        "method of Dense (unbound) | whose first argument is the module, given the function | `method=lambda module",
    ),
    "nn.apply the wrong way round": (
        lambda: nn.apply(nn.Dense(3), lambda net, x: net(x))(DENSE, X),  # type: ignore[arg-type]
        InvalidInstanceModuleError,
        "nn.init or nn.apply | expected a function of a module, then the module | `nn.apply(lambda module, x",
    ),
    "nn.init of a module alone": (
        lambda: nn.init(nn.Dense(3), nn.Dense(3))(KEY, X),
        InvalidInstanceModuleError,
        "nn.init or nn.apply | given Dense(features=3) and Dense(features=3). | `nn.apply(lambda module, x",
    ),
    "the name of a method in capture_intermediates": (
        lambda: nn.Dense(3).apply(DENSE, X, capture_intermediates="__call__"),  # type: ignore[arg-type]
        LiftArgumentError,
        "capture_intermediates | expected a bool, or a function | `capture_intermediates=lambda module, method:",
    ),
    "an option given nowhere": (
        lambda: nn.Sequential([nn.BatchNorm()]).init(KEY, X),
        LiftArgumentError,
        '"use_running_average" of BatchNorm at /layers_0 | given neither to the constructor nor | Give it in one place',
    ),
    "keys by position": (
        lambda: DROP.apply({}, X, KEY),
        LiftArgumentError,
        '"deterministic" of Dropout at / | given to the constructor and at the call. | Give it in one place',
    ),
    "a number for the name of a collection": (
        lambda: nn.Dense(3).apply({**DENSE, 3: {}}, X),  # type: ignore[dict-item]
        ApplyScopeInvalidVariablesTypeError,
        'variables | expected names of collections, given 3. | {"params": {…}}',
    ),
    "an array for a collection": (
        lambda: nn.Dense(3).apply({"params": X}, X),
        ApplyScopeInvalidVariablesTypeError,
        'variables["params"] | (a mapping from names), given a float32[2,3] array. | Pass `{"params": params}`',
    ),
    "params and statistics one level too deep": (
        lambda: NORM.apply({"params": STATS}, X),
        ApplyScopeInvalidVariablesStructureError,
        'variables["params"] | it contains another "params", so the variables are nested one level | Pass `variables`',
    ),
    "a misspelt collection": (
        lambda: nn.Dense(3).apply({"param": DENSE["params"]}, X),
        ScopeCollectionNotFound,
        '"params/kernel" at / | there is no collection "params" (given: [\'param\']) | `apply({"params": …})`',
    ),
    "a layer that the variables lack": (
        two_layers,
        ScopeParamNotFoundError,
        "\"params/kernel\" at /layers_1 | (available at /: ['layers_0']) | Check that the variables come from `init`",
    ),
    "a parameter that the variables lack": (
        lambda: nn.Dense(3).apply(cut(DENSE, "params", "bias"), X),
        ScopeParamNotFoundError,
        '"params/bias" at / | (available there: [\'kernel\']) | or pass `mutable=["params"]`',
    ),
    "inputs of another size": (
        lambda: nn.Dense(3).apply(DENSE, jnp.ones((2, 5))),
        ScopeParamShapeError,
        'param "kernel" at / | value has shape (3, 3), but its initializer makes shape (5, 3). | Check the sizes',
    ),
    "lists for parameters": (
        lambda: nn.Dense(3).apply({"params": {"kernel": X.tolist(), "bias": [0.0] * 3}}, X),
        ScopeParamShapeError,
        'param "kernel" at / | has shapes (), (), (), … in a list, but its initializer makes shape | Check the sizes',
    ),
    "no value for a parameter": (
        lambda: nn.Dense(3).apply({"params": {"kernel": None, "bias": None}}, X),
        ScopeParamShapeError,
        'param "kernel" at / | the stored value has no shape (it is None), | call `init` again',
    ),
    "sizes of an embedding swapped": (
        lambda: nn.Embed(4, 3).apply(nn.Embed(3, 4).init(KEY, jnp.array([1])), jnp.array([1])),
        ScopeParamShapeError,
        'param "embedding" at / | has shape (3, 4), but its initializer makes shape (4, 3). | call `init` again',
    ),
    "a dict for a parameter": (
        lambda: nn.Dense(3).apply({"params": {"kernel": {"w": jnp.ones((3, 3))}, "bias": X}}, X),
        ScopeParamShapeError,
        'param "kernel" at / | has shapes (3, 3) in a dict, but its initializer makes shape (3, 3). | Check the sizes',
    ),
    "mutable that is no filter": (
        lambda: nn.Dense(3).apply(DENSE, X, mutable=3),  # type: ignore[arg-type]
        InvalidFilterError,
        "filter | 3 of type int is not a filter. | Use ..., True, None, False, a collection name",
    ),
    "numbers in mutable": (
        lambda: nn.Dense(3).apply(DENSE, X, mutable=[3]),  # type: ignore[list-item]
        InvalidFilterError,
        "filter | 3 of type int is not a filter. | a collection name",
    ),
    "a shape for a value that init needs": (
        lambda: Net(lambda net, x: net.param("w", lambda key: x)).lazy_init(
            KEY,
            jax.ShapeDtypeStruct((2,), jnp.float32),  # type: ignore[no-untyped-call]
        ),
        LazyInitError,
        '"params/w" | its initial value depends on the values of an argument | Pass an array for that argument',
    ),
}

VARIABLES: Table = {
    "statistics not made mutable": (
        lambda: NORM.apply(STATS, X),
        ModifyScopeVariableError,
        '"batch_stats/mean" at / | collection "batch_stats" is immutable here | `apply(..., mutable=["batch_stats"])`',
    ),
    "statistics misspelt in mutable": (
        lambda: NORM.apply(STATS, X, mutable=["batch_stat"]),
        ModifyScopeVariableError,
        '"batch_stats/mean" at / | \'batch_stat\' | `apply(..., mutable=["batch_stats"])`',
    ),
    "statistics of a bound model": (
        lambda: NORM.bind(STATS)(X),
        ModifyScopeVariableError,
        '"batch_stats/mean" at / | is immutable | mutable=',
    ),
    "a variable made where nothing is mutable": (
        lambda: compact(changes, {}),
        ScopeCollectionNotFound,
        '"state/n" at / | no collection "state" (given: []), and it is immutable. | allow its creation: `mutable=',
    ),
    "a variable written where nothing is mutable": (
        lambda: compact(changes, {"state": {"n": 0}}),
        ModifyScopeVariableError,
        '"state/n" at / | collection "state" is immutable here | `apply(..., mutable=["state"])`',
    ),
    "a variable that the collection lacks": (
        lambda: compact(changes, {"state": {"m": 0}}),
        ScopeVariableNotFoundError,
        '"state/n" at / | (available there: [\'m\']) | mutable=["state"]',
    ),
    "a parameter written": (
        lambda: compact(lambda net, x: net.put_variable("params", "kernel", 0), DENSE),
        ModifyScopeVariableError,
        '"params/kernel" at / | collection "params" is immutable here | `apply(..., mutable=["params"])`',
    ),
    "a stream that was never given": (
        lambda: compact(lambda net, x: net.make_rng("noise"), {}),
        InvalidRngError,
        'make_rng("noise") at / | no RNG stream "noise" was given | `rngs={"noise": jax.random.key(0)}`',
    ),
}

LAYERS: Table = {
    "a class among layers": (
        lambda: nn.Sequential([nn.Dense]),
        LiftArgumentError,
        "Sequential, layers[0] | expected a module or a function, given the class Dense. | Make the module: `Dense(",
    ),
    "a number among layers": (
        lambda: nn.Sequential([nn.Dense(3), 3]),  # type: ignore[list-item]
        LiftArgumentError,
        "Sequential, layers[1] | expected a module or a function, given 3. | write a function: `lambda x: …`",
    ),
    "a scalar for a dense layer": (
        lambda: nn.Dense(3).init(KEY, 1.0),
        LiftArgumentError,
        "dense at / | expected inputs of shape (..., in), given | `inputs[None]`",
    ),
    "numbers for an embedding": (
        lambda: nn.Sequential([nn.Embed(4, 3)]).init(KEY, X),
        LiftArgumentError,
        "embedding at /layers_0 | expected indices of an integer dtype, given float32. | `inputs.astype(jnp.int32)`",
    ),
    "a padding that does not exist": (
        lambda: nn.Conv(3, (3, 3), padding="FULL").init(KEY, jnp.ones((2, 8, 8, 3))),
        LiftArgumentError,
        "conv at / | given 'FULL' | `padding=\"SAME\"`",
    ),
    "a dropout rate of two": (
        lambda: nn.Dropout(2.0, deterministic=False).apply({}, X, rngs={"dropout": KEY}),
        LiftArgumentError,
        "dropout at / | expected a probability from 0 to 1 as `rate`, given 2.0. | `rate=0.1`",
    ),
}

LIFTS: Table = {
    "a lift of a result": (
        lambda: compact(lambda net, x: nn.vmap(nn.Dense(3)(x))),  # type: ignore[type-var]
        TransformTargetError,
        "nn.vmap | a Module class or a function of a module, given a float32[2,3] array. | `nn.vmap(MyModule, …)",
    ),
    "a lifted method that returns a module": (
        lambda: nn.jit(Net)(lambda net, x: nn.Dense(3)).init(KEY, X),
        TransformedMethodReturnValueError,
        "Net at /jit(Net) | it returned a Dense | Return arrays",
    ),
    "a lifted function that returns a variable": (
        lambda: compact(
            lambda net, x: nn.vmap(lambda net, x: net.variable("state", "n", lambda: 0), {"state": 0})(net, x)
        ),
        TransformedMethodReturnValueError,
        "<lambda> at /vmap(<lambda>) | it returned a Variable | or the value of the variable.",
    ),
    "vmap without variable_axes": (
        lambda: compact(lambda net, x: nn.vmap(nn.Dense)(3)(x)),
        UnliftedCollectionError,
        '"params/kernel" at /VmapDense_0/vmap(Dense) | no output group of vmap(Dense) takes it | `variable_axes={',
    ),
    "vmap with a misspelt collection": (
        lambda: nn.vmap(nn.Dense, {"param": 0}, {"params": True})(3).init(KEY, X),
        UnliftedCollectionError,
        '"params/kernel" at /vmap(Dense) | (output groups: \'param\') | Add `variable_axes={"params": 0}`',
    ),
    "vmap without split_rngs": (
        lambda: nn.vmap(nn.Dense, {"params": 0})(3).init(KEY, X),
        UnliftedStreamError,
        'make_rng("params") at /vmap(Dense) | but vmap(Dense) does not pass it in | Add `split_rngs={"params": True}`',
    ),
    "vmap over another size": (
        lambda: nn.vmap(nn.Dense, **BY_LANE, axis_size=4)(3).init(KEY, X),
        AxisSizeError,
        "vmap(Dense) at / | the sizes of the mapped axes disagree (the size given: 4, inputs: 2). | Make them equal",
    ),
    "vmap with an axis too many": (
        lambda: nn.vmap(nn.Dense, **BY_LANE, in_axes=(0, 0))(3).init(KEY, X),
        LiftArgumentError,
        "vmap(Dense) at /, in_axes | (0, 0) is not a prefix | the scope (or module) does not count.",
    ),
    "variable_axes that is a name": (
        lambda: scanned(lambda net, carry, x: (carry, None), variable_axes="params"),
        LiftArgumentError,
        "variable_axes | expected a mapping from filters to axes, given 'params'. | `variable_axes={\"params\": 0}`",
    ),
    "while_loop with the module first": (
        lambda: compact(lambda net, x: nn.while_loop(net, lambda net, n: n < 3, lambda net, n: n + 1, 0)),
        LiftArgumentError,
        "nn.while_loop | given the function <lambda> | after the functions: `nn.cond(pred, true_fn, false_fn, self",
    ),
    "fori_loop of a class": (
        lambda: compact(lambda net, x: nn.fori_loop(0, 3, nn.Dense, net, x)),
        LiftArgumentError,
        "nn.fori_loop | expected a function of the module, given the class Dense. | `lambda mdl, …: Dense(…)(x)`",
    ),
    "a static argument that there is not, by name": (
        lambda: nn.jit(nn.Dense, static_argnames="trian"),
        LiftArgumentError,
        "static_argnums=(), static_argnames=('trian',) | has no argument ['trian'] (by number there are: 1 inputs) | "
        "Use the name",
    ),
    "a static argument that there is not, by number": (
        lambda: nn.remat(nn.Dense, static_argnums=5),
        LiftArgumentError,
        "static_argnums=(5,), static_argnames=() | Dense.__call__ has no argument [5] | or the number",
    ),
    "a carry that grows": (
        lambda: nn.Stack(nn.Dense(5), 2).init(KEY, X),
        CarryTypeError,
        "scan(layer) at /block | (carry: float32[2,3] in, float32[2,5] out) | Return a carry with the shape",
    ),
    "a lift of scopes given a module": (
        lambda: liftcore.remat(lambda layer, x: layer(x))(nn.Dense(3), X),
        LiftArgumentError,
        "the first argument of a lifted function | expected a scope, or a pytree of scopes, given Dense(features=3) | "
        "modules have lifts of their own",
    ),
    "a lift of scopes given an array": (
        lambda: liftcore.vmap(liftcore.nn.dense)(X, 3),
        LiftArgumentError,
        "the first argument of a lifted function | given a float32[2,3] array | Pass the scope",
    ),
    "scan with JAX's arguments": (
        lambda: compact(lambda net, x: nn.scan(lambda carry, x: (carry, x), 0.0, x)),
        LiftArgumentError,
        "variable_axes | expected a mapping from filters to axes, given 0.0. | to the lifted function",
    ),
    "vmap of a class with a function's argument": (
        lambda: nn.vmap(nn.Dense, X),
        LiftArgumentError,
        "variable_axes | expected a mapping from filters to axes, given a float32[2,3] array. | to the lifted function",
    ),
    "a scan whose body returns one value": (
        lambda: scanned(lambda net, carry, x: carry),
        LiftArgumentError,
        "scan(Loop) at / | expected the body to return a pair | `return carry, ys`, or `return carry, None`",
    ),
    "a scan without a length": (
        lambda: scanned(lambda net, carry, x: (carry, None), length=None),
        AxisSizeError,
        "scan(Loop) at / | nothing is mapped, so the size of the axis is unknown. | `length=…`",
    ),
    "a scan over another length": (
        lambda: scanned(lambda net, carry, x: (carry, None), xs=jnp.ones((3, 1))),
        AxisSizeError,
        "scan(Loop) at / | (the size given: 2, x: 3) | Make them equal, or give",
    ),
    "a scan whose carry changes its shape": (
        lambda: scanned(lambda net, carry, x: (nn.Dense(4)(carry), None)),
        CarryTypeError,
        "scan(Loop) at / | (carry: float32[2,3] in, float32[2,4] out) | Return a carry with the shape",
    ),
    "a scan that writes what it shares": (
        lambda: scanned(count, variable_broadcast="state"),
        LoopInvarianceError,
        "scan(Loop) at / | ['state/n'] is shared by all iterations (variable_broadcast) | `variable_carry=\"state\"`",
    ),
    "branches of other shapes": (
        lambda: compact(lambda net, x: nn.cond(True, lambda net, x: x, lambda net, x: x.sum(), net, x)),
        LiftArgumentError,
        "cond(<lambda>) at / | the branches return different types: float32[2,3], float32[]. | Return",
    ),
    "a branch for a list of branches": (
        lambda: compact(lambda net, x: nn.switch(0, jnp.sin, net, x)),  # type: ignore[arg-type]
        LiftArgumentError,
        "nn.switch | expected at least one function, given | Pass a list: `nn.switch(index, [f, g], mdl)`.",
    ),
    "a value for a branch": (
        lambda: compact(lambda net, x: nn.cond(True, lambda net, x: x, x, net, x)),  # type: ignore[arg-type]
        LiftArgumentError,
        "nn.cond | expected a function, given a float32[2,3] array. | Give the function itself",
    ),
    "a gradient in place of the function": (
        lambda: compact(lambda net, x: nn.grad(x.sum(), net, x)),
        LiftArgumentError,
        "nn.grad | expected a function, given a float32[] array. | Give the function itself",
    ),
    "a value for a backward function": (
        lambda: nn.custom_vjp(lambda net, x: x, lambda net, x: (x, ()), 3),  # type: ignore[arg-type]
        LiftArgumentError,
        "nn.custom_vjp | expected a function, given 3. | Give the function itself",
    ),
    "apply of what a module returned": (
        lambda: nn.apply(X, nn.Dense(3)),  # type: ignore[arg-type]
        nn.errors.InvalidInstanceModuleError,
        "nn.init or nn.apply | a function of a module, then the module, given a float32[2,3] array | lambda module, x",
    ),
    "a text for a policy": (
        lambda: nn.remat(nn.Dense, policy="dots")(3).init(KEY, X),  # type: ignore[arg-type]
        LiftArgumentError,
        "remat, policy | of `jax.checkpoint_policies`, given 'dots'. | `jax.checkpoint_policies.dots_saveable`",
    ),
    "a while_loop that writes what it shares": (
        lambda: compact(lambda net, x: nn.while_loop(lambda net, n: n < 2, advance, net, 0), {}, mutable=True),
        LoopInvarianceError,
        "['state/n'] in while_loop(advance) at / | it is shared by all iterations | `carry_variables=\"state\"`",
    ),
    "a cond without its module": (
        lambda: compact(lambda net, x: nn.cond(True, lambda net, x: x, lambda net, x: x, x)),
        LiftArgumentError,
        "nn.cond | expected a module as the first argument | such as `self`",
    ),
    "the module as a static argument": (
        lambda: nn.remat(nn.Dense, static_argnums=(0,))(3).init(KEY, X),
        LiftArgumentError,
        "static_argnums=(0,), static_argnames=() | number 0 is the scope (or module) itself | Count from 1",
    ),
}

TABLE = {**ENTRIES, **VARIABLES, **LAYERS, **LIFTS}


@pytest.mark.parametrize("use", TABLE)
def test_wrong_use_says_where_what_and_how_to_fix_it(use: str) -> None:
    check(TABLE[use])


# --- modules as arrays ------------------------------------------------------------------------------------------------

RAW: dict[str, Callable[[Any], Any]] = {
    "jit": lambda module: jax.jit(lambda module, x: module.apply(DENSE, x))(module, X),
    "jit of a method of the class": lambda module: jax.jit(nn.Dense.apply)(module, DENSE, X),
    "jit of what returns it": lambda module: jax.jit(lambda x: module)(X),
    "grad": lambda module: jax.grad(lambda module: module.apply(DENSE, X).sum())(module),
    "vmap": lambda module: jax.vmap(lambda module, x: module.apply(DENSE, x))(module, X),
    "checkpoint": lambda module: jax.checkpoint(lambda module, x: module.apply(DENSE, x))(module, X),
    "eval_shape": lambda module: jax.eval_shape(lambda module: module.apply(DENSE, X), module),
    "scan": lambda module: jax.lax.scan(lambda module, x: (module, x), module, X),
    "cond": lambda module: jax.lax.cond(True, lambda module: X, lambda module: X, module),
    "a sum": lambda module: jnp.sum(module),
    "an operator": lambda module: X + module,
    "a list of it": lambda module: jax.jit(len)([module]),
}


@pytest.mark.parametrize("raw", RAW)
def test_module_handed_to_jax_is_told_the_lifted_transformation(raw: str) -> None:
    bound = nn.Sequential([nn.Dense(3)]).bind({"params": {"layers_0": DENSE["params"]}}).layers[0]
    for module, where in ((nn.Dense(3), "Dense (unbound)"), (bound, "Dense at /layers_0")):
        with pytest.raises(JaxTransformError) as caught:
            RAW[raw](module)
        assert caught.value.where == where
        assert "as an argument of a raw transformation" in caught.value.what
        assert caught.value.fix.startswith("Use the lifted transformation")
        assert "`nn.grad`" in caught.value.fix


def test_module_may_be_static_or_closed_over() -> None:
    module, expected = nn.Dense(3), nn.Dense(3).apply(DENSE, X)
    static = jax.jit(lambda module, x: module.apply(DENSE, x), static_argnums=0)
    for found in (static(module, X), jax.jit(lambda x: module.apply(DENSE, x))(X), jax.jit(module.apply)(DENSE, X)):
        assert (found == expected).all()
    assert jax.tree.leaves({"a": module}) == [module]
