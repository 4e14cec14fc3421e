"""Code that is reloaded in place, as by IPython's autoreload: classes that were imported before run the new code."""

from __future__ import annotations

import contextlib
import gc
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import equinox_like as eqx
import nnx_like as nnx

SOURCE = """
import functools
import jax
import equinox_like as eqx
import linen_like as nn
import nnx_like as nnx
import pax_like as pax

class Compact(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x * self.param("w", jax.nn.initializers.ones, ()) * FACTOR

class Setup(nn.Module):
    positive: bool = True
    def setup(self):
        self.by = FACTOR
    def __call__(self, x):
        return x * self.by if self.positive else -x

class Helped(nn.Module):
    def __call__(self, x):
        return self.helper(x) * self.same
    def helper(self, x):
        return x * FACTOR
    @property
    def same(self):
        return FACTOR / FACTOR

class Property(nn.Module):
    def __call__(self, x):
        return x * self.factor
    @property
    def factor(self):
        return FACTOR

class CachedProperty(nn.Module):
    def __call__(self, x):
        return x * self.factor
    @functools.cached_property
    def factor(self):
        return FACTOR

class NameScope(nn.Module):
    def __call__(self, x):
        return self.scaled(x)
    @nn.compact_name_scope
    def scaled(self, x):
        return Compact(name="inner")(x) * self.unwrapped()
    @nn.nowrap
    def unwrapped(self):
        return 1

class JitMethod(nn.Module):
    @nn.jit
    @nn.compact
    def __call__(self, x):
        return x * self.param("w", jax.nn.initializers.ones, ()) * FACTOR

class RematMethod(nn.Module):
    @nn.compact
    @nn.remat
    def __call__(self, x):
        return x * self.param("w", jax.nn.initializers.ones, ()) * FACTOR

JitClass = nn.jit(Compact)
RematOfJitClass = nn.remat(nn.jit(Setup))

class Child(Compact):
    pass

class Object(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(1.0)
    def __call__(self, x):
        return x * self.w.get_value() * self.factor
    @property
    def factor(self):
        return FACTOR

class Pytree(eqx.Module):
    w: float = 1.0
    def __call__(self, x):
        return self.scaled(x)
    @eqx.filter_jit
    def scaled(self, x):
        return x * self.w * FACTOR

class Kinds(pax.Module):
    def __call__(self, x):
        return x * FACTOR
"""

LINEN = ["Compact", "Setup", "Helped", "Property", "CachedProperty", "NameScope", "JitMethod", "RematMethod"]
LINEN += ["JitClass", "RematOfJitClass", "Child"]
FUNCTION_PARTS = ["__code__", "__defaults__", "__doc__", "__closure__", "__globals__", "__dict__", "__kwdefaults__"]


def loaded(factor: int) -> dict[str, Any]:
    module = types.ModuleType("reloaded_module")
    sys.modules[module.__name__] = module
    try:
        exec(SOURCE.replace("FACTOR", str(factor)), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return vars(module)


def update(old: Any, new: Any) -> bool:
    """Make an old object of a module the new one, as far as that is possible in place. Return whether it is."""
    if isinstance(old, type) and isinstance(new, type):
        update_class(old, new)
    elif isinstance(old, types.FunctionType) and isinstance(new, types.FunctionType):
        for name in FUNCTION_PARTS:
            with contextlib.suppress(AttributeError, TypeError):
                setattr(old, name, getattr(new, name))
    elif isinstance(old, property) and isinstance(new, property):
        for name in ("fget", "fset", "fdel"):
            update(getattr(old, name), getattr(new, name))
    else:
        return False
    return True


def update_class(old: type, new: type) -> None:
    for name in list(vars(old)):
        before, after = getattr(old, name), getattr(new, name, None)
        if (before == after) is not True and not update(before, after):
            with contextlib.suppress(AttributeError, TypeError):
                setattr(old, name, after)
    for one in gc.get_referrers(old):
        if type(one) is old:
            object.__setattr__(one, "__class__", new)


def reload(generations: list[dict[str, Any]], factor: int) -> None:
    """Reload a module whose objects of all earlier generations may still be in use."""
    generations.append(loaded(factor))
    for name, new in generations[-1].items():
        if getattr(new, "__module__", None) == "reloaded_module":
            for old in generations[:-1]:
                update(old[name], new)


@pytest.mark.parametrize("before", ["an instance from before", "a new instance"])
def test_imported_classes_run_the_new_code(before: str) -> None:
    generations = [loaded(2)]
    old = generations[0]
    names = [*LINEN, "Object", "Pytree", "Kinds"]
    held = {name: old[name]() for name in names}

    def run(name: str) -> float:
        one, x = held[name], jnp.float32(1)
        return float(one.init_with_output(jax.random.key(0), x)[0] if name in LINEN else one(x))

    assert {run(name) for name in names} == {2}
    for factor in (3, 5):
        reload(generations, factor)
        if before == "a new instance":
            held = {name: old[name]() for name in names}
        assert {name: run(name) for name in names} == dict.fromkeys(names, factor)


def test_compiled_functions_of_a_user_run_the_new_code() -> None:
    old = loaded(2)
    model, tree, x = old["Object"](), old["Pytree"](), jnp.float32(1)
    of_objects, of_pytrees = nnx.jit(lambda model, x: model(x)), eqx.filter_jit(lambda tree, x: tree(x))
    assert (of_objects(model, x), of_pytrees(tree, x)) == (2, 2)
    reload([old], 3)
    assert (of_objects(model, x), of_pytrees(tree, x)) == (3, 3)
