"""Scopes: places, names, variables, captured values, and what each misuse says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
from liftcore import Scope, Variable
from liftcore.errors import (
    ApplyScopeInvalidVariablesStructureError,
    ApplyScopeInvalidVariablesTypeError,
    InvalidFilterError,
    InvalidRngError,
    InvalidScopeError,
    JaxTransformError,
    LiftArgumentError,
    LiftError,
    ModifyScopeVariableError,
    NameInUseError,
    ScopeCollectionNotFound,
    ScopeParamNotFoundError,
    ScopeParamShapeError,
    ScopeVariableNotFoundError,
)

KEY = jax.random.key(0)


def bound(variables: dict[str, Any] | None = None, mutable: Any = True, rngs: Any = KEY) -> Scope:
    return liftcore.bind(variables or {}, rngs, mutable)


# -- the constructor ---------------------------------------------------------------------------------------------------


def test_the_constructor_makes_a_root_scope() -> None:
    variables = {"params": {"dense": {"w": 3}}, "state": {"n": 0}}
    scope = Scope(variables, {"params": KEY, "dropout": jax.random.key(1)}, ["state"])
    assert (scope.path, scope.name, scope.parent) == ((), None, None)
    assert scope.push("dense").get_variable("params", "w") == 3
    assert (scope.has_rng("dropout"), scope.is_initializing()) == (True, False)
    scope.put_variable("state", "n", 1)
    assert scope.mutable_variables() == {"state": {"n": 1}}
    assert variables["state"] == {"n": 0}
    with pytest.raises(ModifyScopeVariableError):
        scope.put_variable("params", "v", 1)


def test_a_constructed_scope_is_that_of_bind() -> None:
    ours, theirs = Scope({}, KEY, True, initializing=True), liftcore.bind({}, KEY, True, initializing=True)
    for scope in (ours, theirs):
        scope.push("a").param("w", jax.random.normal, (2,))
    assert type(ours) is type(theirs) is Scope
    assert ours.variables()["params"]["a"]["w"].tolist() == theirs.variables()["params"]["a"]["w"].tolist()
    assert (ours.is_initializing(), theirs.is_initializing()) == (True, True)


def test_a_constructed_scope_can_be_lifted_and_ended() -> None:
    scope = Scope({"params": {"w": jnp.arange(2.0)}}, mutable=False)
    double = liftcore.vmap(lambda scope, x: x * scope.get_variable("params", "w"), variable_axes={"params": 0})
    assert double(scope, jnp.ones(2)).tolist() == [0.0, 1.0]
    scope.invalidate()
    with pytest.raises(InvalidScopeError):
        scope.get_variable("params", "w")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([],), ApplyScopeInvalidVariablesTypeError, "expected a mapping"),
        (({"params": 3},), ApplyScopeInvalidVariablesTypeError, "expected a collection"),
        (({"params": {"params": {}}},), ApplyScopeInvalidVariablesStructureError, "one level too deep"),
        (({}, 3), InvalidRngError, "expected one PRNG key"),
        (({}, None, 3), InvalidFilterError, "filter"),
    ],
)
def test_the_constructor_checks_what_it_is_given(arguments: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Scope(*arguments)


# -- places ------------------------------------------------------------------------------------------------------------


def test_a_pushed_scope_lies_one_level_below() -> None:
    root = bound()
    inner = root.push("encoder").push("dense")
    assert inner.path == ("encoder", "dense")
    assert inner.name == "dense"
    assert inner.path_text == "/encoder/dense"
    assert inner.parent is not None
    assert inner.parent.path == ("encoder",)
    assert (root.path, root.name, root.parent, root.path_text) == ((), None, None, "/")


def test_automatic_names_count_up_for_each_prefix() -> None:
    root = bound()
    names = [root.push(prefix=prefix).name for prefix in ("dense_", "dense_", "conv_", "", "dense_")]
    assert names == ["dense_0", "dense_1", "conv_0", "0", "dense_2"]


def test_an_automatic_name_is_the_first_free_one_again_once_names_are_given_back() -> None:
    scope = bound()
    names = [scope.push(prefix=prefix).name for prefix in "aabba"]
    assert names == ["a0", "a1", "b0", "b1", "a2"]
    scope.free("a1")
    assert [scope.default_name("a"), scope.default_name("b")] == ["a1", "b2"]
    beside = scope.beside()
    assert [one.push(prefix="a").name for one in (scope, beside, scope)] == ["a1", "a3", "a4"]
    beside.free("a1")
    assert scope.push(prefix="a").name == "a1"
    scope.free_all()
    assert scope.push(prefix="a").name == "a0"


def test_automatic_names_pass_by_taken_ones() -> None:
    root = bound()
    root.push("dense_0")
    root.param("dense_1", lambda key: 1)
    assert root.default_name("dense_") == "dense_2"
    assert root.push(prefix="dense_").name == "dense_2"


def test_child_runs_a_function_in_a_scope_below() -> None:
    def layer(scope: Scope, x: Any, *, by: float = 1.0) -> Any:
        return scope.path, x * by

    root = bound()
    assert root.child(layer, "a")(2) == (("a",), 2)
    assert root.child(layer)(2, by=3) == (("layer_0",), 6)
    assert root.child(layer, prefix="other")(2) == (("other0",), 2)
    assert root.child(layer, by=5.0)(2) == (("layer_1",), 10)
    assert root.child(layer, "b", by=5.0)(2, by=7) == (("b",), 14)


def test_child_called_twice_uses_the_same_variables() -> None:
    def layer(scope: Scope) -> Any:
        return scope.param("w", jax.random.normal, (2,))

    shared = bound().child(layer, "a")
    np.testing.assert_array_equal(shared(), shared())


def test_child_names_its_operations_for_profiles() -> None:
    def layer(scope: Scope, x: Any) -> Any:
        return jnp.sin(x)

    def text(**options: Any) -> str:
        def model(scope: Scope, x: Any) -> Any:
            return scope.child(layer, "encoder", **options)(x)

        return jax.jit(liftcore.apply(model)).lower({}, 1.0).as_text(debug_info=True)

    assert "encoder" in text()
    assert "encoder" not in text(named_call=False)


def test_rewound_frees_the_names_and_keeps_the_variables() -> None:
    scope = bound().push("a")
    first = scope.param("w", jax.random.normal, (2,))
    again = scope.rewound()
    assert again.path == scope.path
    np.testing.assert_array_equal(again.param("w", jax.random.normal, (2,)), first)
    assert scope.name_reserved("w")
    assert not scope.rewound().name_reserved("w")


def test_temporary_ends_the_scope_and_those_below() -> None:
    root = bound({"s": {"a": {"v": 1}}})
    with root.temporary() as scope:
        below = scope.push("a")
        assert below.get_variable("s", "v") == 1
        assert below.is_valid
    assert not scope.is_valid
    assert not below.is_valid
    with pytest.raises(InvalidScopeError, match=r"scope at /a: it was used after"):
        below.get_variable("s", "v")


def test_an_ended_scope_refuses_every_use() -> None:
    scope = bound({"s": {"v": 1}})
    held = scope.variable("s", "v")
    scope.invalidate()
    uses: list[Callable[[], Any]] = [
        lambda: scope.push("a"),
        lambda: scope.child(lambda scope: 0, "b"),
        lambda: scope.rewound(),
        lambda: scope.param("w", lambda key: 0),
        lambda: scope.variable("s", "v2", lambda: 0),
        lambda: scope.get_variable("s", "v"),
        lambda: scope.has_variable("s", "v"),
        lambda: scope.put_variable("s", "v", 2),
        lambda: scope.sow("s", "v", 2),
        lambda: scope.make_rng(),
        lambda: scope.variables(),
        lambda: scope.mutable_variables(),
        lambda: held.value,
        lambda: setattr(held, "value", 2),
        lambda: liftcore.vmap(lambda scope: 0, axis_size=2)(scope),
    ]
    for use in uses:
        with pytest.raises(InvalidScopeError, match="Return what you need from the function"):
            use()


# -- names -------------------------------------------------------------------------------------------------------------


def test_a_name_is_taken_once() -> None:
    root = bound()
    root.push("a")
    with pytest.raises(NameInUseError) as caught:
        root.push("a")
    assert caught.value.where == '"a" at /'
    assert "a scope (or submodule) has it already" in caught.value.what
    assert 'another name, such as "a_2"' in caught.value.fix
    assert root.push("a", reuse=True).path == ("a",)


def test_a_parameter_and_a_scope_cannot_share_a_name() -> None:
    root = bound()
    root.param("w", lambda key: 1)
    with pytest.raises(NameInUseError, match=r'"w" at /: a scope .* but a variable of "params" has it'):
        root.push("w")
    root.push("b")
    with pytest.raises(NameInUseError, match=r"a scope .* has it already"):
        root.param("b", lambda key: 1)
    with pytest.raises(NameInUseError, match='"w" at /'):
        root.param("w", lambda key: 1)


def test_variables_of_two_collections_may_share_a_name() -> None:
    root = bound()
    root.param("w", lambda key: 1)
    root.variable("state", "w", lambda: 2)
    with pytest.raises(NameInUseError, match='a variable of "params" has it already'):
        root.push("w")
    assert root.name_reserved("w")
    assert root.name_reserved("w", "state")
    assert not root.name_reserved("w", "other")
    assert not root.name_reserved("v")


def test_reserve_takes_a_name_and_free_gives_it_back() -> None:
    root = bound()
    root.reserve("a")
    with pytest.raises(NameInUseError):
        root.push("a")
    root.free("a")
    assert not root.name_reserved("a")
    root.push("a")


def test_a_failed_creation_changes_no_variable() -> None:
    def broken(key: Any) -> Any:
        raise RuntimeError("broken")

    root = bound()
    with pytest.raises(RuntimeError, match="broken"):
        root.param("w", broken)
    assert root.variables() == {}


# -- variables ---------------------------------------------------------------------------------------------------------


def test_param_calls_its_initializer_with_a_key_and_the_arguments() -> None:
    seen: list[Any] = []

    def init(key: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append((key, args, kwargs))
        return jnp.ones((2, 3))

    root = bound()
    value = root.push("a").param("w", init, (2, 3), dtype=float)
    expected = liftcore.apply(lambda scope: scope.push("a").make_rng())({}, rngs=KEY)
    assert seen == [(expected, ((2, 3),), {"dtype": float})]
    assert root.variables()["params"]["a"]["w"] is value


@pytest.mark.parametrize("ended", ["the scope", "the root"])
def test_an_initializer_that_ends_its_scope_makes_nothing(ended: str) -> None:
    root = bound(mutable=True)
    scope = root.push("a")
    scope.param("b", jax.nn.initializers.ones, ())

    def init_fn(key: Any) -> Any:
        (scope if ended == "the scope" else root).invalidate()
        return jnp.ones(3)

    with pytest.raises(InvalidScopeError):
        scope.param("w", init_fn)


def test_param_that_exists_with_the_right_shape_calls_nothing() -> None:
    def never(key: Any, shape: Any) -> Any:
        raise AssertionError("called")

    stored = jnp.ones((2, 3))
    assert bound({"params": {"w": stored}}, mutable=False, rngs=None).param("w", never, (2, 3)) is stored
    assert bound({"params": {"w": stored}}, mutable=False, rngs=None).param("w", never, shape=(2, 3)) is stored


def test_param_of_another_shape_shows_both_and_the_path() -> None:
    root = bound({"params": {"dense": {"w": jnp.ones((3, 4))}}}, mutable=False)
    with pytest.raises(ScopeParamShapeError) as caught:
        root.push("dense").param("w", jax.random.normal, (5, 4))
    assert caught.value.where == 'param "w" at /dense'
    assert "(3, 4)" in caught.value.what
    assert "(5, 4)" in caught.value.what
    assert caught.value.what.index("(3, 4)") < caught.value.what.index("(5, 4)")


def test_param_is_checked_against_what_its_initializer_makes_not_what_it_is_called_with() -> None:
    def transposed(key: Any, shape: tuple[int, int]) -> Any:
        return jnp.zeros(shape[::-1])

    root = bound({"params": {"w": jnp.ones((3, 2)), "v": jnp.ones((2, 3))}}, mutable=False)
    assert root.param("w", transposed, (2, 3)).shape == (3, 2)


def test_param_without_a_shape_is_checked_too() -> None:
    root = bound({"params": {"w": jnp.ones(3), "pair": (jnp.ones(2), jnp.ones(3))}}, mutable=False)
    with pytest.raises(ScopeParamShapeError, match=r"\(3,\).*\(4,\)"):
        root.param("w", lambda key: jnp.zeros(4))
    with pytest.raises(ScopeParamShapeError, match=r"shapes \(2,\), \(3,\) in a tuple.*\(2,\), \(5,\)"):
        root.param("pair", lambda key: (jnp.zeros(2), jnp.zeros(5)))
    with pytest.raises(ScopeParamShapeError, match=r"shapes \(2,\), \(3,\) in a tuple, but its .* makes shape \(2,\)"):
        root.rewound().param("pair", jax.nn.initializers.zeros, (2,))


def test_param_of_an_initializer_with_arguments_of_its_own_is_checked_too() -> None:
    root = bound({"params": {"w": jnp.ones(3)}}, mutable=False)
    with pytest.raises(ScopeParamShapeError, match=r"\(3,\).*\(4,\)"):
        root.param("w", functools.partial(lambda scale, key, shape: scale * jnp.ones(shape), 2.0), (4,))


def test_an_initializer_is_a_function_that_makes_a_value() -> None:
    for init_fn in ((3,), 1.0, jnp.ones(3)):
        with pytest.raises(LiftArgumentError, match="expected an initializer, a function of a key, given") as caught:
            bound().push("a").param("w", init_fn)  # type: ignore[arg-type]
        assert caught.value.where == '"params/w" at /a'
        with pytest.raises(LiftArgumentError, match=r"a function, given .*: `lambda: value`"):
            bound().variable("state", "w", init_fn)  # type: ignore[arg-type]
    with pytest.raises(LiftArgumentError, match="its initializer lecun_normal returned a function, not a value"):
        bound().param("w", jax.nn.initializers.lecun_normal, (3, 3))


def test_a_name_is_text() -> None:
    for ask, fix in (
        (lambda scope: scope.push(3), 'Write `name="3"`.'),
        (lambda scope: scope.param(3, jax.nn.initializers.ones, ()), "Write `scope.param(name, init_fn)`."),
        (lambda scope: scope.variable("state", lambda: 0), "Write `scope.variable(collection, name, init_fn)`."),
    ):
        with pytest.raises(LiftArgumentError, match="expected a string as its name, given") as caught:
            ask(bound())
        assert caught.value.fix == fix


@pytest.mark.parametrize("name", ["", "a/b", "/", "a/"])
def test_a_name_is_one_part_of_a_path(name: str) -> None:
    asks: dict[str, Callable[[Scope], Any]] = {
        "a scope (or submodule) at /": lambda scope: scope.push(name),
        'the collection of "w" at /': lambda scope: scope.variable(name, "w", lambda: 0),
        'the collection of "n" at /': lambda scope: scope.put_variable(name, "n", 0),
        'the collection of "m" at /': lambda scope: scope.put_variables({name: {"m": 0}}),
    }
    if not name:  # Linen's own layers have variables such as `dense/kernel/scale`
        asks |= {
            'a variable of "params" at /': lambda scope: scope.param(name, jax.nn.initializers.ones, ()),
            'a variable of "state" at /': lambda scope: scope.variable("state", name, lambda: 0),
            'a variable of "cache" at /': lambda scope: scope.put_variable("cache", name, 0),
            'a variable of "intermediates" at /': lambda scope: scope.sow("intermediates", name, 0),
        }
    for where, ask in asks.items():
        root = bound()
        with pytest.raises(LiftArgumentError, match="one part of a path, given '") as caught:
            ask(root)
        assert caught.value.where == where
        assert root.variables() == {}


def test_an_initializer_that_cannot_take_what_it_is_given_is_told_of_with_what_that_is() -> None:
    class Keyless:
        def __call__(self) -> Any:
            return 0.0

    for init_fn in (lambda: 0.0, Keyless(), functools.partial(lambda n: n, 3.0)):
        with pytest.raises(TypeError, match=r'"params/w" at /a: the call is `\S+\(a PRNG key\)`, but .* takes `\(\)`'):
            bound().push("a").param("w", init_fn)
    with pytest.raises(TypeError, match=r"\(a PRNG key, \(3,\), 7\)`, but .* takes `\(key\)`.*`lambda a, b, c: …`"):
        bound().param("w", lambda key: jax.random.normal(key), (3,), 7)
    with pytest.raises(TypeError, match=r'"state/n" at /: the call is `<lambda>\(\)`, but `<lambda>` takes `\(key\)`'):
        bound().variable("state", "n", lambda key: key)
    with pytest.raises(TypeError, match="of its own") as own:
        bound().variable("state", "n", lambda: _raise(TypeError("of its own")))
    assert not hasattr(own.value, "__notes__")


def _raise(error: Exception) -> Any:
    raise error


def test_an_initializer_of_a_parameter_that_returns_none_is_told_of() -> None:
    with pytest.raises(LiftArgumentError, match=r'"params/w" at /: its initializer <lambda> returned None'):
        bound().param("w", lambda key: None)
    assert bound().variable("state", "n", lambda: None).value is None


def test_a_parameter_that_exists_is_read_without_an_initializer() -> None:
    variables = {"params": {"w": jnp.ones(3)}}
    assert bound(variables, mutable=False).param("w", None).shape == (3,)
    assert bound(variables).param("w", None, (3,)).shape == (3,)
    with pytest.raises(ScopeParamShapeError, match=r"has shape \(3,\), but shape \(2,\) was requested"):
        bound(variables).param("w", None, (2,))
    with pytest.raises(LiftArgumentError, match="expected an initializer, a function of a key, given 3"):
        bound(variables).param("w", 3)  # type: ignore[arg-type]
    with pytest.raises(LiftArgumentError, match="expected an initializer, a function of a key, given None"):
        bound().param("w", None)


def test_a_variable_that_nothing_makes_says_so() -> None:
    with pytest.raises(ScopeCollectionNotFound, match=r"and no `init_fn` to make it\. Pass one"):
        bound().variable("state", "n")


def test_a_missing_variable_says_what_there_is_at_the_nearest_place_that_has_something() -> None:
    root = bound({"params": {"kernel": 1.0}}, mutable=False)
    with pytest.raises(ScopeParamNotFoundError, match=r"available at /: \['kernel'\]"):
        root.push("layers_0").push("dense").param("kernel", jax.nn.initializers.ones, ())
    with pytest.raises(ScopeParamNotFoundError, match=r'"kernel" at / is 1.0, not the variables of a module'):
        root.push("kernel").param("w", jax.nn.initializers.ones, ())


def test_a_missing_collection_names_those_that_were_given() -> None:
    scope = bound({"stats": {"n": 1}}, mutable=False).push("a")
    with pytest.raises(ScopeCollectionNotFound) as caught:
        scope.param("w", jax.random.normal, (2,))
    assert caught.value.where == '"params/w" at /a'
    assert "no collection \"params\" (given: ['stats'])" in caught.value.what
    assert 'apply({"params": …})' in caught.value.fix
    assert 'mutable=["params"]' in caught.value.fix


def test_a_missing_variable_names_what_there_is() -> None:
    scope = bound({"params": {"a": {"kernel": 1, "bias": 2}}, "s": {"v": 1}}, mutable=False)
    with pytest.raises(ScopeParamNotFoundError, match=r"available there: \['bias', 'kernel'\]") as caught:
        scope.push("a").param("w", jax.random.normal, (2,))
    assert caught.value.where == '"params/w" at /a'
    with pytest.raises(ScopeVariableNotFoundError, match=r'"s/u" at /: .*available there: \[\'v\'\]'):
        scope.variable("s", "u", lambda: 0)
    with pytest.raises(ScopeVariableNotFoundError):
        bound({"s": {"v": 1}}).variable("s", "u")


def test_a_missing_sequence_says_what_was_given() -> None:
    with pytest.raises(InvalidRngError, match=r'make_rng\("params"\) at /a: .*given: \[\]'):
        bound(rngs=None).push("a").param("w", jax.random.normal, (2,))


def test_variable_reads_and_writes() -> None:
    root = bound({"state": {"n": 1}})
    held = root.variable("state", "n", lambda: 0)
    assert isinstance(held, Variable)
    assert held.value == 1
    held.value = 5
    assert held.value == root.get_variable("state", "n") == 5
    assert held.is_mutable()
    made = root.push("a").variable("state", "m", lambda x, y: x + y, 1, y=2)
    assert made.value == 3
    assert root.variables() == {"state": {"n": 5, "a": {"m": 3}}}
    assert repr(made) == "Variable(state/a/m)"


def test_an_immutable_variable_cannot_be_written() -> None:
    root = bound({"state": {"a": {"n": 1}}}, mutable=["other"])
    held = root.push("a").variable("state", "n")
    assert not held.is_mutable()
    with pytest.raises(ModifyScopeVariableError) as caught:
        held.value = 2
    assert caught.value.where == '"state/n" at /a'
    assert 'collection "state" is immutable' in caught.value.what
    assert "other" in caught.value.what
    assert 'mutable=["other", "state"]' in caught.value.fix
    assert held.value == 1


def test_get_put_and_has() -> None:
    root = bound({"state": {"n": None}})
    assert root.get_variable("state", "n", 7) is None
    assert root.get_variable("state", "m", 7) == 7
    assert root.get_variable("other", "m") is None
    assert root.has_variable("state", "n")
    assert not root.has_variable("state", "m")
    assert not root.has_variable("other", "n")
    root.put_variable("other", "m", 1)
    assert root.has_variable("other", "m")
    assert set(root.collections) == {"state", "other"}


def test_collections_are_empty_until_something_is_in_them() -> None:
    root = bound({"state": {}})
    assert root.is_collection_empty("state")
    assert root.is_collection_empty("other")
    root.push("a").put_variable("state", "n", 1)
    assert not root.is_collection_empty("state")


def test_variables_are_those_of_the_subtree() -> None:
    root = bound(
        {"params": {"a": {"w": 1, "b": {"v": 2}}, "c": {"w": 3}}, "state": {"c": {"n": 1}}}, mutable=["params"]
    )
    a = root.push("a")
    assert a.variables() == {"params": {"w": 1, "b": {"v": 2}}}
    assert a.mutable_variables() == {"params": {"w": 1, "b": {"v": 2}}}
    assert root.mutable_variables() == {"params": {"a": {"w": 1, "b": {"v": 2}}, "c": {"w": 3}}}
    assert root.push("c").variables() == {"params": {"w": 3}, "state": {"n": 1}}


def test_what_is_read_is_never_copied_and_what_is_given_never_written() -> None:
    class ReadOnly(dict[str, Any]):
        def __setitem__(self, name: str, value: Any) -> None:
            raise AssertionError("written")

    inner = ReadOnly(w=1)
    given = ReadOnly(params=ReadOnly(a=inner, b=ReadOnly(w=2)))
    root = bound(given)
    assert root.push("a").param("w", lambda key: 0) == 1
    assert root.collections_below()["params"]["a"] is inner
    root.push("b").put_variable("params", "w", 3)
    root.push("new").put_variable("params", "w", 4)
    assert root.variables() == {"params": {"a": {"w": 1}, "b": {"w": 3}, "new": {"w": 4}}}
    assert given == {"params": {"a": {"w": 1}, "b": {"w": 2}}}


def test_what_is_written_often_is_copied_once() -> None:
    scope = bound({"state": {"layer": {"a": 1}}}, mutable=True).push("layer")
    scope.put_variable("state", "a", 2)
    mine = scope.collections_below()["state"]
    scope.put_variable("state", "b", 3)
    assert scope.collections_below()["state"] is mine
    assert mine == {"a": 2, "b": 3}


def test_two_views_of_one_place_see_each_others_writes() -> None:
    root = bound({"state": {"a": {"n": 1}}})
    one, other = root.push("a"), root.push("a", reuse=True)
    assert other.get_variable("state", "n") == 1
    one.put_variable("state", "n", 2)
    assert other.get_variable("state", "n") == 2
    other.push("deep").put_variable("state", "m", 3)
    assert one.push("deep", reuse=True).get_variable("state", "m") == 3


def test_a_value_may_be_any_pytree_even_a_mapping_like_thing() -> None:
    root = bound()
    value = root.param("pair", lambda key: (jnp.zeros(2), [jnp.ones(3)]))
    assert jax.tree.structure(root.get_variable("params", "pair")) == jax.tree.structure(value)


# -- captured values ---------------------------------------------------------------------------------------------------


def test_sow_appends_where_the_caller_asked_for_it() -> None:
    root = bound(mutable=["intermediates"])
    assert root.sow("intermediates", "y", 1)
    assert root.sow("intermediates", "y", 2)
    assert not root.sow("other", "y", 3)
    assert root.variables() == {"intermediates": {"y": (1, 2)}}


def test_sow_reduces_as_told() -> None:
    root = bound()
    for value in (1, 2, 3):
        root.sow("sums", "y", value, init_fn=lambda: 10, reduce_fn=lambda total, new: total + new)
    assert root.get_variable("sums", "y") == 16


def test_sow_takes_the_name() -> None:
    root = bound()
    root.sow("intermediates", "y", 1)
    with pytest.raises(NameInUseError):
        root.push("y")


def test_sow_from_two_views_of_one_place_adds_up() -> None:
    root = bound()
    assert root.push("a").sow("intermediates", "y", 1)
    assert root.push("a", reuse=True).sow("intermediates", "y", 2)
    assert root.variables() == {"intermediates": {"a": {"y": (1, 2)}}}


# -- under a raw JAX transformation ------------------------------------------------------------------------------------

ACTS: dict[str, Callable[[Scope], Any]] = {
    'naming "a"': lambda scope: scope.push("a"),
    'naming "b_"': lambda scope: scope.child(lambda scope: 0, prefix="b_"),
    'drawing from "params"': lambda scope: scope.make_rng(),
    'creating "params/w"': lambda scope: scope.create_variable("params", "w", 0.0),
    'writing "state/n"': lambda scope: scope.put_variable("state", "n", 0.0),
    'sowing "intermediates/y"': lambda scope: scope.sow("intermediates", "y", 0.0),
}

RAW: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "vmap": lambda fn: jax.vmap(fn)(jnp.ones(2)),
    "grad": lambda fn: jax.grad(fn)(1.0),
    "value_and_grad": lambda fn: jax.value_and_grad(fn)(1.0),
    "jit": lambda fn: jax.jit(fn)(1.0),
    "scan": lambda fn: jax.lax.scan(lambda carry, x: (carry, fn(x)), 0.0, jnp.ones(2)),
    "checkpoint": lambda fn: jax.checkpoint(fn)(1.0),
    "cond": lambda fn: jax.lax.cond(True, fn, lambda x: x, 1.0),
    "while_loop": lambda fn: jax.lax.while_loop(lambda x: x < 1, fn, 1.0),
    "jvp": lambda fn: jax.jvp(fn, (1.0,), (1.0,)),
    "eval_shape": lambda fn: jax.eval_shape(fn, 1.0),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_live_scope_refuses_to_change_under_a_raw_transformation(act: str) -> None:
    root = bound({"state": {"inner": {"n": 1.0}}})
    scope = root.push("inner")

    def body(x: Any) -> Any:
        ACTS[act](scope)
        return x

    with pytest.raises(JaxTransformError) as caught:
        jax.vmap(body)(jnp.ones(2))
    assert caught.value.where == f"{act} at /inner"
    assert root.variables() == {"state": {"inner": {"n": 1.0}}}
    assert not scope.name_reserved("a")


@pytest.mark.parametrize("name", RAW)
def test_the_error_names_the_lifted_form_of_the_raw_transformation(name: str) -> None:
    root = bound({"params": {"w": 2.0}})

    def body(x: Any) -> Any:
        return x * root.push("layer").param("w", lambda key: 1.0)

    with pytest.raises(JaxTransformError) as caught:
        RAW[name](body)
    known = {"value_and_grad": ("value_and_grad", "grad"), "checkpoint": ("checkpoint", "remat")}.get(name, (name,))
    places = [f"{module}.{one} was applied" for module in ("jax", "jax.lax") for one in known]
    assert caught.value.what.startswith(tuple(places))
    lifted = [f"`liftcore.{one}`" for one in known if hasattr(liftcore, one)] or ["`liftcore.apply(fn)`"]
    assert any(one in caught.value.fix for one in lifted), caught.value.fix
    assert 'naming "layer" at /' in caught.value.where


@pytest.mark.parametrize("name", RAW)
def test_reading_under_a_raw_transformation_is_fine(name: str) -> None:
    root = bound({"params": {"w": 2.0, "a": {"w": 3.0}}})
    below = root.push("a")

    def body(x: Any) -> Any:
        assert root.has_variable("params", "w")
        return x * root.get_variable("params", "w") * below.variables()["params"]["w"]

    if name != "while_loop":
        RAW[name](body)
    assert jax.grad(body)(1.0) == 6.0


def test_a_scope_made_inside_a_raw_transformation_lives_there() -> None:
    def layer(scope: Scope, x: Any) -> Any:
        return x * scope.push("a").param("w", lambda key: 3.0)

    assert jax.grad(lambda x: liftcore.init(layer)(KEY, x)[0])(2.0) == 3.0
    assert jax.vmap(lambda x: liftcore.init(layer)(KEY, x)[0])(jnp.ones(2)).tolist() == [3.0, 3.0]


def test_every_error_of_a_scope_is_a_lift_error_and_a_value_error() -> None:
    for kind in (InvalidScopeError, NameInUseError, ScopeParamShapeError, ModifyScopeVariableError, JaxTransformError):
        assert issubclass(kind, LiftError)
        assert issubclass(kind, ValueError)


# -- several variables at once -----------------------------------------------------------------------------------------


def test_a_tree_of_variables_is_written_here_and_below_and_takes_no_name() -> None:
    scope = bound({"params": {"a": {"w": 1, "b": 2}, "n": 3}, "state": {"table": 0}}, rngs=None)
    before = scope.variables()
    scope.put_variables({"params": {"a": {"w": 4}, "n": 5}, "state": {"deep": {"er": {"m": 6}}}})
    assert scope.variables()["params"] == {"a": {"w": 4, "b": 2}, "n": 5}
    assert scope.child(lambda inner: inner.get_variable("params", "w"), "a")() == 4
    assert scope.push("deep").push("er").get_variable("state", "m") == 6
    scope.put_variables(before)
    assert scope.variables()["params"] == before["params"]


def test_a_variable_that_is_a_dict_is_written_as_one() -> None:
    def model(scope: Scope) -> Any:
        table = scope.variable("state", "table", lambda: {"x": 1.0})
        scope.put_variables({"state": {"table": {"x": 2.0}}})
        return table.value

    (found, variables) = liftcore.init(model)(KEY)
    assert found == {"x": 2.0}
    assert liftcore.apply(model, mutable="state")(variables)[0] == {"x": 2.0}


def test_a_tree_of_variables_passes_through_lifts_and_checks() -> None:
    def model(scope: Scope, x: Any) -> Any:
        scope.put_variables(jax.tree.map(lambda leaf: leaf + x, scope.variables()))
        return x

    lifted = liftcore.vmap(model, variable_axes={"params": 0}, split_rngs={"params": True})
    variables = {"params": {"a": {"w": jnp.arange(3.0)}}}
    _, after = liftcore.apply(lifted, mutable="params")(variables, jnp.ones(3))
    assert after["params"]["a"]["w"].tolist() == [1, 2, 3]
    with pytest.raises(ModifyScopeVariableError):
        liftcore.apply(model)(variables, 1.0)


def test_of_several_variables_all_are_written_or_none() -> None:
    scope = liftcore.bind({"state": {"n": 0}, "params": {"w": 1}}, mutable="state")
    with pytest.raises(ModifyScopeVariableError):
        scope.put_variables({"state": {"n": 1}, "params": {"w": 2}})
    assert scope.get_variable("state", "n") == 0
    with pytest.raises(ApplyScopeInvalidVariablesTypeError):
        scope.put_variables({"state": 3})


def test_a_declared_variable_that_is_a_dict_is_replaced() -> None:
    scope = liftcore.bind({"state": {"table": {"x": 1, "y": 2}}}, mutable="state")
    table = scope.variable("state", "table", dict)
    scope.put_variables({"state": {"table": {"x": 0}}})
    assert table.value == {"x": 0}


def test_variables_that_are_dicts_are_written_back() -> None:
    def make(scope: Scope) -> None:
        for name, value in (("table", {0: 1.0}), ("a/b", {"c": 1.0}), ("empty", {"": 1.0})):
            scope.variable("state", name, lambda value=value: value)

    _, variables = liftcore.init(make)(jax.random.key(0))
    _, after = liftcore.apply(lambda scope: scope.put_variables(scope.variables()), mutable="state")(variables)
    assert after == variables
