"""Calls with other arguments than a function takes: Python's own error, with a note that says where, what and how."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

import equinox_like as eqx
import liftcore
import linen_like as nn
import nnx_like as nnx
import pax_like as pax
from liftcore.calls import bind_user, call_user
from liftcore.errors import LiftError
from tests.core.traced import KEY, Kinds, Net, Row, Tree, Wrong, X, bound, one_pass, plain, ruled, square
from tests.lift.only import KINDS, only
from tests.linen.rows import ROWS
from tests.nnx.lifts import ALSO, ONCE

NOTE = re.compile(
    r"(?P<where>.+): the call is `(?P<name>\S+?)\(.*\)`, but `(?P=name)` takes `(?P<takes>.*)`. "
    r"Call it with what it takes, or write `(?P<line>.*)`."
)
X1 = X[None]


def no_arguments() -> Any:
    raise AssertionError


def vjp_of_core(fwd: Any, bwd: Any) -> Any:
    fn: Any = liftcore.custom_vjp(plain)
    fn.defvjp(fwd, bwd)
    return liftcore.grad(fn, argnums=1)(bound(), X)


def jvp_of_core() -> Any:
    fn: Any = liftcore.custom_jvp(plain)
    fn.defjvp(no_arguments)
    return liftcore.grad(fn, argnums=1)(bound(), X)


def vmap_of_core() -> Any:
    fn: Any = liftcore.custom_vmap(plain)
    fn.def_vmap(no_arguments)
    return liftcore.vmap(fn, variable_axes={})(bound(), X1)


def vjp_of_objects() -> Any:
    fn: Any = nnx.custom_vjp(lambda x, net: x.sum())
    fn.defvjp(lambda x, net: (x.sum(), None), no_arguments)
    return nnx.grad(fn)(X, Net())


def vjp_of_pytrees() -> Any:
    fn: Any = eqx.filter_custom_vjp(lambda x: x.sum())
    fn.def_fwd(lambda perturbed, x: (x.sum(), None))
    fn.def_bwd(no_arguments)
    return eqx.filter_grad(fn)(X)


def vjp_of_modules() -> Any:
    rule = nn.custom_vjp(lambda mdl, x: x.sum(), lambda mdl, x: (x.sum(), None), no_arguments)
    return nn.grad(rule, Wrong().bind({}), X)


def in_kind(kind: str) -> Any:
    fn: Any = no_arguments
    return only(kind, fn, [], [])(bound(), X)


def of_object(lift: Any) -> Any:
    return lift(no_arguments)(Net(), X)


def in_row(row: Any) -> Any:
    return Row(lambda _, mdl, x: row(no_arguments, mdl, x)).init(KEY, X)


# Rows of the tables whose own wrappers call the function are calls of users.
WRAPPED = ("scan", "fori_loop", "grad", "remat_scan")
WRAPPED_ROWS = (
    "scan",
    "scan_shared",
    "while_loop",
    "fori_loop",
    "grad",
    "value_and_grad",
    "jacfwd",
    "jacrev",
    "hessian",
)
WRAPPED_OBJECTS = ("scan", "fori_loop", "while_loop", "grad", "jacfwd", "jacrev", "hessian", "batched_map")

fn: Any = no_arguments
CALLS: dict[str, Callable[[], Any]] = {
    **{f"core, {kind}": functools.partial(in_kind, kind) for kind in KINDS if kind not in WRAPPED},
    "core, init": lambda: liftcore.init(fn)(KEY, X),
    "core, apply": lambda: liftcore.apply(fn)({}, X),
    "core, param": lambda: bound().param("w", fn),
    "core, variable": lambda: bound().variable("state", "n", lambda key: key),
    "core, scan": lambda: liftcore.scan(fn, length=2)(bound(), X, None),
    "core, fori_loop": lambda: liftcore.fori_loop(fn)(bound(), 0, 2, X),
    "core, grad": lambda: liftcore.grad(fn)(bound(), X),
    "core, remat_scan": lambda: liftcore.remat_scan(fn, (2, 2))(bound(), X),
    "core, transformation": lambda: one_pass(fn)(square)(bound(), X),
    "core, filtered": lambda: liftcore.filtered(liftcore.jit, fn)(bound(), X),
    "core, fwd": lambda: vjp_of_core(fn, fn),
    "core, bwd": lambda: vjp_of_core(lambda scope, x: (plain(scope, x), x), fn),
    "core, jvp rule": jvp_of_core,
    "core, vmap rule": vmap_of_core,
    "core, argument by a wrong name": lambda: liftcore.custom_jvp(plain)(bound(), y=3),
    **{f"linen, {n}": functools.partial(in_row, r) for n, r in ROWS.items() if n not in WRAPPED_ROWS},
    "linen, scan": lambda: nn.scan(fn, length=2)(Wrong().bind({}), X, None),
    "linen, grad": lambda: nn.grad(fn, Wrong().bind({}), X),
    "linen, while_loop": lambda: nn.while_loop(fn, fn, Wrong().bind({}), X),
    "linen, fori_loop": lambda: nn.fori_loop(0, 2, fn, Wrong().bind({}), X),
    "linen, init": lambda: nn.Dense(3).init(KEY, X, X),
    "linen, method": lambda: Wrong().apply({}, X, X, method="other"),
    "linen, function": lambda: Wrong().apply({}, X, method=lambda mdl: mdl),
    "linen, bound": lambda: getattr(Wrong().bind({}), "other")(),  # noqa: B009  # not for type checkers
    "linen, lifted": lambda: nn.remat(nn.Dense)(3).init(KEY, X, X),
    "linen, initializer": lambda: nn.Dense(3, kernel_init=fn).init(KEY, X),
    "linen, bwd": vjp_of_modules,
    **{f"nnx, {n}": functools.partial(of_object, r) for n, r in {**ONCE, **ALSO}.items() if n not in WRAPPED_OBJECTS},
    "nnx, scan": lambda: nnx.scan(fn, length=2)(X, None),
    "nnx, fori_loop": lambda: nnx.fori_loop(0, 2, fn, X),
    "nnx, while_loop": lambda: nnx.while_loop(fn, fn, X),
    "nnx, grad": lambda: nnx.grad(fn)(Net(), X),
    "nnx, jacfwd": lambda: nnx.jacfwd(fn)(Net(), X),
    "nnx, argument by a wrong name": lambda: nnx.vmap(lambda x: x)(y=X),
    "nnx, initializer": lambda: nnx.Linear(3, 3, kernel_init=fn, rngs=nnx.Rngs(0)),
    "nnx, bwd": vjp_of_objects,
    "equinox, jit": lambda: eqx.filter_jit(fn)(X),
    "equinox, jit, by name": lambda: eqx.filter_jit(fn)(x=X),
    "equinox, grad": lambda: eqx.filter_grad(fn)(X),
    "equinox, vmap": lambda: eqx.filter_vmap(fn)(X),
    "equinox, pmap": lambda: eqx.filter_pmap(fn)(X1),
    "equinox, checkpoint": lambda: eqx.filter_checkpoint(fn)(X),
    "equinox, eval_shape": lambda: eqx.filter_eval_shape(fn, X),
    "equinox, make_jaxpr": lambda: eqx.filter_make_jaxpr(fn)(X),
    "equinox, jvp": lambda: eqx.filter_jvp(fn, (X,), (X,)),
    "equinox, vjp": lambda: eqx.filter_vjp(fn, X),
    "equinox, jacfwd": lambda: eqx.filter_jacfwd(fn)(X),
    "equinox, closure_convert": lambda: eqx.filter_closure_convert(fn, X),
    "equinox, custom_jvp": lambda: ruled(eqx.filter_custom_jvp(fn))(X),
    "equinox, bwd": vjp_of_pytrees,
    "pax, pure": lambda: pax.pure(fn)(Kinds()),
    "pax, module_and_value": lambda: pax.module_and_value(fn)(Kinds()),
    "pax, value_and_grad": lambda: pax.value_and_grad(fn)(Kinds()),
    "pax, lift": lambda: pax.lift(liftcore.remat, fn)(Kinds(), X),
}


built_in: Any = min


def notes_of(call: Callable[[], Any]) -> list[str]:
    with pytest.raises(TypeError) as caught:
        call()
    assert not isinstance(caught.value, LiftError)
    return [note for note in getattr(caught.value, "__notes__", ()) if "the call is" in note]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_wrong_call_has_one_note_that_says_where_what_and_how(call: Callable[[], Any]) -> None:
    (note,) = notes_of(call)
    assert NOTE.fullmatch(note)


def takes_keywords(a: Any, /, b: Any = 1, *, c: int) -> Any:
    raise AssertionError


class Method:
    def call(self, x: Any) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "takes", "line"),
    [
        (no_arguments, (X, 2), {}, "()", "def no_arguments(a, b): …"),
        (takes_keywords, (1, 2, 3), {"d": 4}, "(a, /, b=1, *, c)", "def takes_keywords(a, b, c, *, d): …"),
        (lambda x: x, (), {}, "(x)", "lambda: …"),
        (lambda x: x, (), {"y": 1}, "(x)", "lambda *, y: …"),
        (Method.call, (Method(), 1, 2), {}, "(self, x)", "def call(self, a, b): …"),
        (functools.partial(lambda x, y: x, 1), (1, 2), {}, "(y)", "lambda a, b: …"),
    ],
)
def test_the_line_in_the_note_takes_the_call(fn: Any, args: Any, kwargs: Any, takes: str, line: str) -> None:
    (note,) = notes_of(lambda: call_user("here", fn, *args, **kwargs))
    found = NOTE.fullmatch(note)
    assert found
    assert (found["where"], found["takes"], found["line"]) == ("here", takes, line)
    names: dict[str, Any] = {}
    code = line.replace("…", "...")
    exec(code if code.startswith("def") else f"made = {code}", names)
    names.pop("__builtins__")
    (made,) = names.values()
    call_user("here", made, *args, **kwargs)
    assert notes_of(lambda: bind_user("here", fn, *args, **kwargs)) == [note]


@pytest.mark.parametrize(
    "call",
    [
        lambda: liftcore.init(lambda scope, x: fn(x))(KEY, X),
        lambda: liftcore.init(jnp.dot)(KEY, X),  # JAX hides its frames
        lambda: liftcore.init(liftcore.remat(lambda scope: built_in(scope, key=3)))(KEY),
        lambda: Wrong().apply({}, X, method=lambda mdl, x: fn(x)),
        lambda: nnx.jit(lambda net: fn(net))(Net()),
        lambda: eqx.filter_jit(lambda tree: fn(tree))(Tree(X)),
    ],
)
def test_an_error_of_the_function_itself_has_no_note(call: Callable[[], Any]) -> None:
    assert notes_of(call) == []


def test_an_initializer_of_a_variable_that_wants_a_key_is_told_to_draw_one() -> None:
    scope = bound()
    with pytest.raises(TypeError) as caught:
        scope.variable("state", "n", lambda key: jnp.zeros(3))
    assert "draw it in the function, with `make_rng()`" in caught.value.__notes__[-1]
    value = scope.variable("state", "m", lambda: scope.make_rng("params")).value
    assert value.shape == ()
