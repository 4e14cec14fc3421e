"""What goes wrong for a newcomer: each wrong use gets an error that says where, what and how to put it right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_like as nn
from linen_like import errors

KEY, X = jax.random.key(0), jnp.ones((2, 3))
OUTER = nn.Dense(3)


class Net(nn.Module):
    """Does what a function says, within a compact call."""

    act: Callable[..., Any]
    size: int = 3

    def setup(self) -> None:
        self.dense = nn.Dense(self.size)
        self.layers = [self.dense]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return self.act(self, x)


class InSetup(nn.Module):
    """Does what a function says, within `setup`."""

    act: Callable[..., Any]
    sizes: Any = (1, 2)

    def setup(self) -> None:
        self.act(self)

    def __call__(self, x: Any) -> Any:
        return x


def forgets_post_init() -> Any:
    class Bad(nn.Module):
        def __post_init__(self) -> None:
            pass

    return Bad()


def own_init() -> Any:
    class Bad(nn.Module):
        def __init__(self, size: int) -> None:
            self.size = size

    return Bad(3)


def change_size(net: Any, x: Any) -> None:
    net.size = 4


def add_submodule(net: Any, x: Any) -> None:
    net.other = nn.Dense(3)


def set_field(net: Any) -> None:
    net.sizes = (3,)


def set_name(net: Any) -> None:
    net.name = "other"


def dense(size: int) -> Any:
    return nn.Dense(size).init(KEY, X)


WRONG = {
    "changing a field while bound": (
        lambda: Net(change_size).init(KEY, X),
        errors.SetAttributeFrozenModuleError,
        r'attribute "size" of Net at /: .*`self.variable\("state", "size", …\)`',
    ),
    "assigning a submodule after setup": (
        lambda: Net(add_submodule).init(KEY, X),
        errors.SetAttributeFrozenModuleError,
        'attribute "other" of Net at /: a bound module is frozen.*Set it in `setup`',
    ),
    "setting a field in setup": (
        lambda: InSetup(set_field).init(KEY, X),
        errors.SetAttributeInModuleSetupError,
        'field "sizes" of InSetup at /: .*`self.sizes_ = …`',
    ),
    "setting the name in setup": (
        lambda: InSetup(set_name).init(KEY, X),
        errors.SetAttributeInModuleSetupError,
        'field "name" of InSetup at /',
    ),
    "changing a list after setup": (
        lambda: Net(lambda net, x: net.layers.append(nn.Dense(3))).init(KEY, X),
        AttributeError,
        "'tuple' object has no attribute 'append'",
    ),
    "changing a list given to the constructor": (
        lambda: InSetup(lambda net: net.sizes.append(3), sizes=[1]).init(KEY, X),
        AttributeError,
        "'tuple' object has no attribute 'append'",
    ),
    "reading what setup makes while unbound": (
        lambda: Net(len).dense,
        errors.ModuleAttributeError,
        r'"dense" of Net \(unbound\): .*\(available: .*act.*\). If `setup` sets it, .*`module.bind\(variables',
    ),
    "misspelling an attribute": (
        lambda: Net(lambda net, x: net.denze(x)).init(KEY, X),
        errors.ModuleAttributeError,
        r'attribute "denze" of Net at /: it does not exist \(av.*dense.*\). Set it in `setup`: `self.denze = …`',
    ),
    "calling a class without __call__": (
        lambda: nn.Module().init(KEY, X),
        errors.ModuleAttributeError,
        "the class defines no `__call__`. Define `def __call__",
    ),
    "calling an unbound module": (
        lambda: nn.Dense(3)(X),
        errors.CallCompactUnboundModuleError,
        r"Dense.__call__: it is a compact method, but it was called on a module without variables",
    ),
    "using another unbound module inside": (
        lambda: Net(lambda net, x: OUTER(x)).init(KEY, X),
        errors.CallCompactUnboundModuleError,
        "Dense.__call__",
    ),
    "leaving out super().__post_init__()": (
        lambda: forgets_post_init().init(KEY, X),
        errors.IncorrectPostInitOverrideError,
        r"class Bad: .*`super\(\).__post_init__\(\)`",
    ),
    "writing __init__": (
        lambda: own_init().apply({}),
        errors.IncorrectPostInitOverrideError,
        "its own `__init__` does not take `parent`",
    ),
    "init on the class": (
        lambda: nn.Dense.init(KEY, X),  # type: ignore[arg-type]
        errors.InvalidInstanceModuleError,
        r"Module.init: expected an instance .* first argument, given .*`MyModule\(…\).init\(…\)`",
    ),
    "apply on the class": (
        lambda: nn.Dense.apply({}, X),  # type: ignore[arg-type]
        errors.InvalidInstanceModuleError,
        "Module.apply: expected an instance of a Module class as the first argument, given {}",
    ),
    "bind on the class": (
        lambda: nn.Dense.bind(nn.Dense, {}),  # type: ignore[arg-type]
        errors.InvalidInstanceModuleError,
        "given the class Dense",
    ),
    "a method that takes no module": (
        lambda: nn.Dense(3).apply({}, method=lambda: 3),
        errors.ApplyModuleInvalidMethodError,
        r"of Dense \(unbound\): expected the name of a method or a function whose first argument is the module",
    ),
    "a method that is no method": (
        lambda: nn.Dense(3).apply({}, method="features"),
        errors.ApplyModuleInvalidMethodError,
        "method of Dense.*given 3",
    ),
    "a method that does not exist": (
        lambda: nn.Dense(3).init(KEY, X, method="forward"),
        errors.ModuleAttributeError,
        'method="forward" of Dense.*there is no such method',
    ),
    "no key": (lambda: nn.Dense(3).init(None, X), errors.InvalidRngError, "init: expected a PRNG key, given None"),  # type: ignore[arg-type]
    "a number for a key": (lambda: nn.Dense(3).init(0, X), errors.InvalidRngError, "expected one PRNG key, given 0"),  # type: ignore[arg-type]
    "params of another shape": (
        lambda: nn.Dense(3).apply(dense(4), X),
        errors.ScopeParamShapeError,
        r'param "kernel" at /: the stored value has shape \(3, 4\), but its initializer makes shape \(3, 3\)',
    ),
    "params of another model": (
        lambda: nn.Sequential([nn.Dense(3)]).apply(dense(3), X),
        errors.ScopeParamNotFoundError,
        '"params/kernel" at /layers_0: there is no such variable',
    ),
    "params without their collection": (
        lambda: nn.Dense(3).apply(dense(3)["params"], X),
        errors.ApplyScopeInvalidVariablesTypeError,
        r'Pass `\{"params": params\}`',
    ),
    "params one level too deep": (
        lambda: nn.Dense(3).apply({"params": dense(3)}, X),
        errors.ApplyScopeInvalidVariablesStructureError,
        "one level too deep",
    ),
    "no variables": (
        lambda: nn.Dense(3).apply({}, X),
        errors.ScopeCollectionNotFound,
        'there is no collection "params"',
    ),
    "variables that are none": (
        lambda: nn.Dense(3).apply(X, X),  # type: ignore[arg-type]
        errors.ApplyScopeInvalidVariablesTypeError,
        "expected a mapping",
    ),
}


@pytest.mark.parametrize("use", WRONG)
def test_wrong_use_is_explained(use: str) -> None:
    run, kind, text = WRONG[use]
    with pytest.raises(kind, match=text):
        run()


@pytest.mark.parametrize(
    "ask",
    [
        lambda m: m.param("w", nn.initializers.ones, (2,)),
        lambda m: m.variable("state", "w", lambda: 0),
        lambda m: m.get_variable("params", "w"),
        lambda m: m.put_variable("params", "w", 1),
        lambda m: m.has_variable("params", "w"),
        lambda m: m.sow("intermediates", "x", 1),
        lambda m: m.make_rng("dropout"),
        lambda m: m.has_rng("dropout"),
        lambda m: m.is_initializing(),
        lambda m: m.is_mutable_collection("params"),
        lambda m: m.variables,
        lambda m: m.path,
    ],
)
def test_question_to_an_unbound_module_says_how_to_bind_it(ask: Callable[[Any], Any]) -> None:
    with pytest.raises(errors.UnboundModuleError, match=r"of Dense \(unbound\): .*`module.bind\(variables\)`"):
        ask(nn.Dense(3))


def test_module_kept_after_its_call_is_dead() -> None:
    kept = []
    model = Net(lambda net, x: kept.append(net))
    model.init(KEY, X)
    with pytest.raises(errors.InvalidScopeError, match="Return what you need"):
        _ = kept[0].variables


def test_error_classes_share_a_base_and_refine_builtins() -> None:
    for name in errors.__all__:
        cls = getattr(errors, name)
        assert issubclass(cls, errors.LiftError)
        assert cls is errors.LiftError or issubclass(cls, (ValueError, TypeError, AttributeError, RuntimeError))
        assert cls.__doc__


def test_missing_attribute_is_an_attribute_error() -> None:
    assert not hasattr(nn.Dense(3), "missing")
    assert getattr(nn.Dense(3), "missing", None) is None
    assert not callable(nn.Module())


def test_error_in_setup_is_not_taken_for_a_missing_attribute() -> None:
    def fail(net: Any) -> None:
        raise ValueError("in setup")

    with pytest.raises(ValueError, match="in setup"):
        hasattr(InSetup(fail).bind({}), "layers")


class Faulty:
    """A descriptor that asks for what is not there."""

    def __get__(self, module: Any, cls: Any = None) -> Any:
        return self if module is None else module.missing


class Mixin:
    """No module: its property is that of a plain class."""

    @property
    def size(self) -> Any:
        return self.missing  # type: ignore[attr-defined]


class WithDescriptors(Mixin, nn.Module):
    """Has a faulty descriptor of its own, and one from a class that is no module."""

    own = Faulty()

    @nn.compact
    def __call__(self, name: str) -> Any:
        return getattr(self, name)


@pytest.mark.parametrize("name", ["own", "size"])
def test_a_descriptor_that_raises_is_told_as_such_with_what_it_missed(name: str) -> None:
    with pytest.raises(errors.DescriptorAttributeError, match=rf'descriptor "{name}" of .* at /: .*"missing"'):
        WithDescriptors().apply({}, name)
