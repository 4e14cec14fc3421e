"""What a newcomer does wrong in a module: each wrong use names its place, what is wrong there, and what to write.

`test_module_errors` has the first things that go wrong; here is what comes next, as a table. What goes wrong with
variables, keys and lifts is in `test_misuse_of_variables`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like as nn
from linen_like.errors import (
    AssignSubModuleError,
    CallCompactUnboundModuleError,
    CallSetupUnboundModuleError,
    CallShareScopeOnUnboundModuleError,
    CallUnbindOnUnboundModuleError,
    DefineVariableError,
    DescriptorAttributeError,
    IncorrectPostInitOverrideError,
    InvalidScopeError,
    LiftArgumentError,
    ModuleAttributeError,
    NameInUseError,
    ReservedModuleAttributeError,
    ScopeCollectionNotFound,
    SetAttributeFrozenModuleError,
    UnhashableModuleError,
)
from tests.linen.misuse import DENSE, KEY, InSetup, Net, Plain, Table, X, check, compact, plain

ones = nn.initializers.ones


def field(name: str) -> Any:
    return type("Mine", (nn.Module,), {"__annotations__": {name: int}})


def own_init() -> Any:
    class Mine(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.dense = nn.Dense(size)

    return Mine(3).init(KEY, X)


def own_post_init() -> Any:
    class Mine(nn.Module):
        def __post_init__(self) -> None:
            self.size = 3

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(self.size)(x)

    return Mine()


def generate(net: Any, x: Any) -> Any:
    yield nn.Dense(3)(x)


async def wait(net: Any, x: Any) -> Any:
    return nn.Dense(3)(x)


def override_without_compact() -> Any:
    class Deep(nn.Dense):
        def __call__(self, inputs: Any) -> Any:
            return nn.Dense(3)(super().__call__(inputs))

    return Deep(3).init(KEY, X)


def submodule_from_plain_helper() -> Any:
    class Mine(nn.Module):
        @nn.nowrap
        def make(self) -> Any:
            return nn.Dense(3)

        def __call__(self, x: Any) -> Any:
            return self.make()(x)

    return Mine().init(KEY, X)


def parameter_in_property() -> Any:
    class Mine(nn.Module):
        @property
        def scale(self) -> Any:
            return self.param("scale", ones, (3,))

        def __call__(self, x: Any) -> Any:
            return x * self.scale

    return Mine().init(KEY, X)


def misspelt_in_property() -> Any:
    class Mine(Plain):
        @property
        def kernel(self) -> Any:
            return self.dens.kernel

    return Mine(lambda net, x: net.kernel).init(KEY, X)


def set_after_post_init() -> Any:
    class Wide(nn.Module):
        size: int = 3

        def __post_init__(self) -> None:
            super().__post_init__()
            self.hidden = 2 * self.size

    return compact(lambda net, x: Wide())


def forgotten_self() -> Any:
    class Mine(nn.Module):
        def setup(self) -> None:
            dense = nn.Dense(3)
            del dense

        def __call__(self, x: Any) -> Any:
            return self.dense(x)

    return Mine().init(KEY, X)


def forgotten_super_setup() -> Any:
    class Mine(Plain):
        def setup(self) -> None:
            self.other = nn.Dense(3)

    return Mine(lambda net, x: net.dense(x)).init(KEY, X)


def no_call() -> Any:
    class Mine(nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    return Mine().init(KEY, X)


def assign(name: str, value: Any) -> Callable[..., Any]:
    return lambda net, x: setattr(net, name, value() if callable(value) else value)


def set_item(net: Any, x: Any) -> None:
    net.blocks["b"] = nn.Dense(3)


def kept(act: Callable[..., Any]) -> Any:
    """What a function returns within `init`."""
    found: list[Any] = []
    compact(lambda net, x: found.append(act(net, x)))
    return found[0]


def kept_in_global() -> Any:
    made: dict[str, Any] = {}
    model = Net(lambda net, x: made.setdefault("dense", made.get("dense") or nn.Dense(3))(x))
    return model.apply(model.init(KEY, X), X)


def twice(act: Callable[..., Any]) -> Callable[..., Any]:
    return lambda net, x: (act(net), act(net))


# --- the table --------------------------------------------------------------------------------------------------------

CLASSES: Table = {
    "a field called name, that is no name": (
        lambda: field("name"),
        ReservedModuleAttributeError,
        'class Mine | declares a field "name" of type | rename the field: `label: …`',
    ),
    "a field called parent": (
        lambda: field("parent"),
        ReservedModuleAttributeError,
        '"parent" of class Mine | every module uses this name itself. | `parent_`',
    ),
    "forward in place of __call__": (
        no_call,
        ModuleAttributeError,
        'attribute "__call__" of Mine (unbound) | the class defines no `__call__`. | Define `def __call__(self, …)`',
    ),
    "an own __init__, as in PyTorch": (
        own_init,
        IncorrectPostInitOverrideError,
        "class Mine | its own `__init__` does not take `parent` and `name` | Declare fields, such as `size: int`",
    ),
    "super().__post_init__() left out in a submodule": (
        lambda: compact(lambda net, x: own_post_init()(x)),
        IncorrectPostInitOverrideError,
        "class Mine | does not call the one of `Module` | end `__post_init__` with `super().__post_init__()`",
    ),
    "a compact generator": (
        lambda: nn.compact(generate),
        LiftArgumentError,
        "the function generate | cannot be a generator or a coroutine | Collect the results in a list",
    ),
    "a compact coroutine": (
        lambda: nn.compact(wait),
        LiftArgumentError,
        "the function wait | a compact method cannot be a generator or a coroutine | Collect the results in a list",
    ),
    "a __call__ over a compact one, itself not compact": (
        override_without_compact,
        AssignSubModuleError,
        "Deep at / | a submodule Dense was made outside `setup` | put `@nn.compact` on the method",
    ),
    "compact on the class": (
        lambda: nn.compact(type("Mine", (nn.Module,), {})),
        LiftArgumentError,
        "nn.compact | expected a method, given the class Mine. | Put the decorator on the method",
    ),
    "compact on a property": (
        lambda: nn.compact(property(len)),  # type: ignore[type-var]
        LiftArgumentError,
        "nn.compact | expected a method, given a property. | a property may call a compact method.",
    ),
    "a property that reads what is not there": (
        misspelt_in_property,
        DescriptorAttributeError,
        'property "kernel" of Mine at / | attribute "dens" of Mine at /: it does not exist | Check the attributes that',
    ),
}

DEFINITIONS: Table = {
    "a submodule in a plain method": (
        lambda: plain(lambda net, x: nn.Dense(3)(x)),
        AssignSubModuleError,
        "Plain at / | a submodule Dense was made outside | Make it in `setup`",
    ),
    "a submodule from a helper of a plain method": (
        submodule_from_plain_helper,
        AssignSubModuleError,
        "Mine at / | a submodule Dense | Make it in `setup`",
    ),
    "a submodule put in a dict after setup": (
        lambda: plain(set_item),
        AssignSubModuleError,
        "Plain at / | a submodule Dense | Make it in `setup`",
    ),
    "a set of submodules": (
        lambda: InSetup(assign("layers", lambda: {nn.Dense(3)})).init(KEY, X),
        LiftArgumentError,
        'attribute "layers" of InSetup at / | or a list, tuple or dict of modules, given a set. | Use a list',
    ),
    "a parameter in a plain method": (
        lambda: plain(lambda net, x: x * net.param("scale", ones, (3,))),
        DefineVariableError,
        'param "scale" of Plain at / | outside `setup` | `self.scale = self.param("scale", …)`',
    ),
    "a variable in a plain method": (
        lambda: plain(lambda net, x: net.variable("state", "n", lambda: 0)),
        DefineVariableError,
        'variable "n" of Plain at / | outside `setup` | `self.n = self.variable("n", …)`',
    ),
    "a parameter in a property": (
        parameter_in_property,
        DefineVariableError,
        'param "scale" of Mine at / | outside `setup` | `self.scale = self.param("scale", …)`',
    ),
    "an initializer that was not called": (
        lambda: compact(lambda net, x: net.param("w", nn.initializers.lecun_normal, (3, 3))),
        LiftArgumentError,
        '"params/w" at / | its initializer lecun_normal returned a function, not a value. | `lecun_normal()`',
    ),
    "a shape for an initializer": (
        lambda: compact(lambda net, x: net.param("w", (3,))),
        LiftArgumentError,
        '"params/w" at / | expected an initializer, a function of a key, given (3,). | `lambda key: value`',
    ),
    "an array for the initializer of a variable": (
        lambda: compact(lambda net, x: net.variable("state", "n", x)),
        LiftArgumentError,
        '"state/n" at / | expected an initializer, a function, given a float32[2,3] array. | `lambda: value`',
    ),
    "a variable without an initializer": (
        lambda: compact(lambda net, x: net.variable("state", "n")),
        ScopeCollectionNotFound,
        '"state/n" at / | no `init_fn` to make it. | `self.variable("state", "n", init_fn)`',
    ),
    "an initializer for the name of a parameter": (
        lambda: compact(lambda net, x: net.param(ones, "w", (3,))),
        LiftArgumentError,
        'a variable of "params" at / | expected a string as its name, given the function ones. | `self.param(name,',
    ),
    "an initializer for the name of a variable": (
        lambda: compact(lambda net, x: net.variable("n", jnp.zeros)),
        LiftArgumentError,
        'a variable of "n" at / | expected a string as its name, given the function zeros. | `self.variable(',
    ),
    "a number for the name of a submodule": (
        lambda: compact(lambda net, x: nn.Dense(3, name=3)),  # type: ignore[arg-type]
        LiftArgumentError,
        'a scope (or submodule) at / | expected a string as its name, given 3. | `name="3"`',
    ),
    "one name for two submodules": (
        lambda: compact(twice(lambda net: nn.Dense(3, name="a"))),
        NameInUseError,
        '"a" at / | asks for the name | "a_2"',
    ),
    "one name for two parameters": (
        lambda: compact(twice(lambda net: net.param("w", ones, ()))),
        NameInUseError,
        '"w" at / | asks for the name | "w_2"',
    ),
    "one name for two variables": (
        lambda: compact(twice(lambda net: net.variable("state", "n", lambda: 0))),
        NameInUseError,
        '"n" at / | asks for the name | "n_2"',
    ),
    "one name for a parameter and a submodule": (
        lambda: compact(lambda net, x: (net.param("w", ones, ()), nn.Dense(3, name="w"))),
        NameInUseError,
        '"w" at / | a scope (or submodule) asks for the name, but a variable of "params" has it already. | "w_2"',
    ),
    "one name for a submodule and a sown value": (
        lambda: Net(lambda net, x: (nn.Dense(3, name="h"), net.sow("seen", "h", x))).init(KEY, X),
        NameInUseError,
        '"h" at / | asks for the name | "h_2"',
    ),
    "one attribute for two submodules": (
        lambda: plain(lambda net, x: net.setup()),
        NameInUseError,
        '"dense" at / | asks for the name | "dense_2"',
    ),
}

ATTRIBUTES: Table = {
    "an attribute set in a compact call": (
        lambda: compact(assign("dense", lambda: nn.Dense(3))),
        SetAttributeFrozenModuleError,
        'attribute "dense" of Net at / | its attributes can be set only in `setup`. | use `self.variable(',
    ),
    "a field of a submodule changed": (
        lambda: plain(lambda net, x: setattr(net.dense, "features", 4)),
        SetAttributeFrozenModuleError,
        'attribute "features" of Dense at /dense | a bound module is frozen | Set it in `setup`',
    ),
    "a field of a bound model changed": (
        lambda: setattr(nn.Dense(3).bind(DENSE), "features", 4),
        SetAttributeFrozenModuleError,
        'attribute "features" of Dense at / | a bound module is frozen | Set it in `setup`',
    ),
    "the variables set": (
        lambda: compact(assign("variables", {})),
        SetAttributeFrozenModuleError,
        'attribute "variables" of Net at / | a bound module is frozen | self.variable(',
    ),
    "an attribute set after __post_init__ of a submodule": (
        set_after_post_init,
        SetAttributeFrozenModuleError,
        'attribute "hidden" of Wide at /Wide_0 | a bound module is frozen | Set it in `setup`',
    ),
    "a self forgotten in setup": (
        forgotten_self,
        ModuleAttributeError,
        'attribute "dense" of Mine at / | it does not exist | Set it in `setup`: `self.dense = …`.',
    ),
    "super().setup() forgotten": (
        forgotten_super_setup,
        ModuleAttributeError,
        'attribute "dense" of Mine at / | (available: act, name, other | Set it in `setup`: `self.dense = …`.',
    ),
    "a parameter of a layer read as its attribute": (
        lambda: plain(lambda net, x: x @ net.dense.kernel),
        ModuleAttributeError,
        'attribute "kernel" of Dense at /dense | it does not exist (available: bias_init,  | Set it in `setup`',
    ),
    "the parameters read as an attribute": (
        lambda: nn.Dense(3).params,
        ModuleAttributeError,
        'attribute "params" of Dense (unbound) | it does not exist (available:  | `module.bind(variables)`',
    ),
    "a submodule of a compact call read as an attribute": (
        lambda: Net(lambda net, x: nn.Dense(3, name="dense")(x)).bind({}).dense,
        ModuleAttributeError,
        'attribute "dense" of Net at / | it does not exist (available: act,  | Set it in `setup`: `self.dense = …`.',
    ),
}

TIMES: Table = {
    "setup of an unbound module": (
        Plain(len).setup,
        CallSetupUnboundModuleError,
        "setup of Plain (unbound) | it was called on a module without variables. | `setup` then runs automatically.",
    ),
    "a submodule called in setup": (
        lambda: InSetup(lambda net, x: nn.Dense(3)(x)).init(KEY, X),
        CallCompactUnboundModuleError,
        "Dense.__call__ | it was called in `setup` of InSetup at /, before | Assign it first, `self.dense = Dense(…)`",
    ),
    "a module that the class holds, and no field": (
        lambda: InSetup(lambda net, x: None).init(KEY, X),
        CallCompactUnboundModuleError,
        "Dense.__call__ | it was called in InSetup at /, but the module is not a submodule | declare it as a field",
    ),
    "share_scope of unbound modules": (
        lambda: nn.share_scope(nn.Dense(3), nn.Dense(3)),
        CallShareScopeOnUnboundModuleError,
        "share_scope of Dense (unbound) and Dense (unbound) | a description without variables | Call it in `setup`",
    ),
    "share_scope of what is no module": (
        lambda: compact(lambda net, x: nn.share_scope(net, 3)),
        LiftArgumentError,
        "nn.share_scope | expected two modules, given 3. | `nn.share_scope(self, self.base)`",
    ),
    "unbind of an unbound module": (
        nn.Dense(3).unbind,
        CallUnbindOnUnboundModuleError,
        "unbind of Dense (unbound) | the module holds no variables | `model.bind(variables).encoder.unbind()`",
    ),
    "a submodule called after its init": (
        lambda: kept(lambda net, x: nn.Dense(3))(X),
        InvalidScopeError,
        "scope at /Dense_0 | it was used after the lift, `init` or `apply` that it belonged to | Return what you need",
    ),
    "a submodule kept in a global": (
        kept_in_global,
        InvalidScopeError,
        "scope at /Dense_0 | it was used after | Return what you need",
    ),
    "a variable written after its init": (
        lambda: setattr(kept(lambda net, x: net.variable("state", "n", lambda: 0)), "value", 1),
        InvalidScopeError,
        "scope at / | it was used after | Return what you need",
    ),
    "jit of a bound module": (
        lambda: jax.jit(nn.Dense(3).bind(DENSE))(X),
        UnhashableModuleError,
        "hash of Dense at / | a module that is bound to variables has no hash. | `nn.jit` for `jax.jit`",
    ),
    "a raw cond over a submodule": (
        lambda: compact(lambda net, x: jax.lax.cond(True, nn.Dense(3), jnp.sin, x)),
        UnhashableModuleError,
        "hash of Dense at /Dense_0 | a module that is bound to variables has no hash. | `nn.cond` for `jax.lax.cond`",
    ),
}

TABLE = {**CLASSES, **DEFINITIONS, **ATTRIBUTES, **TIMES}


@pytest.mark.parametrize("use", TABLE)
def test_wrong_use_says_where_what_and_how_to_fix_it(use: str) -> None:
    check(TABLE[use])


CHANGES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "an item appended": ([], lambda layers: layers.append(nn.Dense(3))),
    "items added in a list": ([[]], lambda layers: layers[0].extend([nn.Dense(3)])),
    "an item of a list set": ([None], lambda layers: operator.setitem(layers, 0, nn.relu)),
    "an item of a dict set": ({}, lambda layers: operator.setitem(layers, "act", nn.relu)),
    "a dict updated": ({}, lambda layers: layers.update(act=nn.relu)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("place", ["setup", "call"])
def test_list_or_dict_changed_after_it_was_assigned_is_told_to_build_it_first(change: str, place: str) -> None:
    class Changes(nn.Module):
        def setup(self) -> None:
            self.layers = CHANGES[change][0]
            self.run("setup")

        def __call__(self, x: Any) -> None:
            self.run("call")

        def run(self, here: str) -> None:
            if here == place:
                CHANGES[change][1](self.layers)

    with pytest.raises((TypeError, AttributeError)) as caught:
        Changes().init(KEY, X)
    assert [note for note in caught.value.__notes__ if note.startswith("A list or dict")] == [
        "A list or dict that is assigned to a module becomes immutable. Build it first, then assign it: "
        "`layers = [nn.Dense(3) for _ in range(2)]; self.layers = layers`."
    ]


def test_property_that_is_set_in_setup_calls_its_setter() -> None:
    class Mine(nn.Module):
        @property
        def layer(self) -> Any:
            return self.kept

        @layer.setter
        def layer(self, value: Any) -> None:
            self.kept = value

        def setup(self) -> None:
            self.layer = nn.Dense(3)

        def __call__(self, x: Any) -> Any:
            return self.layer(x)

    assert list(Mine().init(KEY, X)["params"]) == ["layer"]


def test_property_without_a_setter_cannot_be_set_in_setup() -> None:
    with pytest.raises(AttributeError, match="has no setter"):
        type("Mine", (InSetup,), {"layer": property(len)})(assign("layer", 3)).init(KEY, X)


@pytest.mark.parametrize(
    "act",
    [
        lambda net, x: nn.grad(lambda net, x: x.sum())(net, x),
        lambda net, x: nn.vjp(lambda net, x: x),
        lambda net, x: nn.while_loop(lambda n: n < 3, lambda n: n + 1, 0),
        lambda net, x: nn.fori_loop(0, 3, lambda i, x: x, x),
    ],
)
def test_what_runs_at_once_says_so_where_its_module_is_missing(act: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"missing .* positional argument") as caught:
        compact(act)
    assert caught.value.__notes__ == [
        "This transformation runs at once, and takes the module to lift: `nn.grad(fn, module, x)`, "
        "`nn.while_loop(cond_fn, body_fn, module, init)`."
    ]
