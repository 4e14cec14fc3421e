"""Random streams: which keys they draw, where they are split and put back, and that no key is drawn twice."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_like as nnx
from liftcore.errors import LiftArgumentError
from nnx_like.errors import TraceContextError


def data(key: Any) -> list[Any]:
    return jax.random.key_data(getattr(key, "value", key)).tolist()


def shown(rngs: Any) -> dict[str, Any]:
    return {name: (data(stream.key), stream.count.value.tolist()) for name, stream in rngs.items()}


def two() -> Any:
    return nnx.Rngs(params=0, dropout=1)


class Model(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.rngs = rngs
        self.noise = [rngs.dropout.fork()]
        self.weight = nnx.Param(jnp.ones(2))

    @nnx.split_rngs(splits=3)
    def shapes(self, rngs: Any) -> Any:
        return self.noise[0].key.shape, rngs.params.key.shape


# --- streams ----------------------------------------------------------------------------------------------------------


def test_a_draw_folds_the_count_into_the_key_and_counts() -> None:
    stream = nnx.RngStream(3, tag="a")
    drawn = [stream(), stream()]
    assert list(map(data, drawn)) == [data(jax.random.fold_in(jax.random.key(3), i)) for i in range(2)]
    assert stream.count.value == 2
    assert stream.count.value.dtype == jnp.uint32
    assert data(stream.key) == data(jax.random.key(3))


def test_the_tag_is_in_the_metadata_of_both_variables_and_filters_choose_by_it() -> None:
    rngs = two()
    assert rngs.params.key.tag == rngs.params.count.tag == rngs.params.tag == "params"
    assert set(nnx.state(rngs, "dropout")) == {"dropout"}
    keys, counts = nnx.state(rngs, nnx.RngKey, nnx.RngCount)
    assert len(keys.flat_state()) == len(counts.flat_state()) == len(nnx.state(rngs, nnx.RngState)) == 2


def test_names_without_a_stream_are_those_of_the_default_one() -> None:
    rngs = nnx.Rngs(0, params=1)
    assert list(rngs) == ["params", "default"]
    assert len(rngs) == 2
    assert "params" in rngs
    assert "dropout" not in rngs
    assert rngs.dropout is rngs["other"] is rngs.default
    rngs()
    rngs.dropout()
    assert rngs.default.count.value == 2


def test_where_there_is_no_default_stream_the_error_names_those_there_are() -> None:
    for read in (lambda rngs: rngs.noise, lambda rngs: rngs["noise"], lambda rngs: rngs()):
        with pytest.raises((AttributeError, KeyError), match=r"available streams: 'params', 'dropout'. Add it"):
            read(two())


def test_names_with_underscores_are_no_streams_so_that_tools_draw_no_key() -> None:
    rngs = nnx.Rngs(0)
    assert not hasattr(rngs, "_repr_html_")
    assert not hasattr(rngs, "__json__")
    with pytest.raises(AttributeError, match="_repr_html_"):
        rngs._repr_html_  # noqa: B018


@pytest.mark.parametrize("seed", [0.5, "a", None, jnp.uint32(3), jnp.ones(2)])
def test_what_is_no_seed_is_refused(seed: Any) -> None:
    with pytest.raises(LiftArgumentError, match="expected an int, or a key"):
        nnx.Rngs(params=seed)


def test_methods_draw_the_key_of_functions_of_jax_random() -> None:
    rngs, other = nnx.Rngs(0, params=1), nnx.Rngs(0, params=1)
    assert (rngs.normal((2,)) == jax.random.normal(other(), (2,))).all()
    assert (rngs.params.uniform(shape=(2,)) == jax.random.uniform(other.params(), (2,))).all()
    make = rngs.lecun_normal()
    assert (make((2, 2)) == jax.nn.initializers.lecun_normal()(other(), (2, 2))).all()
    assert not (make((2, 2)) == jax.nn.initializers.lecun_normal()(jax.random.key(0), (2, 2))).any()
    assert rngs.default.count.value == 3
    assert list(inspect.signature(nnx.Rngs.normal).parameters)[:3] == ["self", "shape", "dtype"]
    assert "key:" not in nnx.Rngs.normal.__doc__


def test_streams_are_copied_and_pickled_with_their_counts() -> None:
    rngs = two()
    rngs.params()
    for again in (copy.deepcopy(rngs), pickle.loads(pickle.dumps(rngs)), nnx.clone(rngs)):
        assert shown(again) == shown(rngs)
        assert again.params.count is not rngs.params.count


def test_a_stream_of_another_trace_gives_no_key() -> None:
    rngs, made = two(), []

    def inside() -> None:
        made.append(nnx.Rngs(1))
        for draw in (rngs.params, rngs.params.fork, rngs.split):
            with pytest.raises(TraceContextError):
                draw(*([2] if draw == rngs.split else []))
        with pytest.raises(TraceContextError):
            nnx.split_rngs(rngs, splits=2)
        with pytest.raises(TraceContextError):
            nnx.reseed(rngs, params=3)

    jax.jit(inside)()
    assert shown(rngs) == shown(two())
    with pytest.raises(TraceContextError):
        made[0]()


# --- new streams ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda rngs: rngs.split({"params": 2}),
        lambda rngs: rngs.split({"params": 2, ...: None}),
        lambda rngs: rngs.split({}),
        lambda rngs: rngs.broadcast({"params": 2}),
        lambda rngs: rngs.broadcast(None),
        lambda rngs: nnx.Rngs(dict(rngs.items())),
        lambda rngs: nnx.with_rngs(rngs, split={"params": 2}),
        lambda rngs: nnx.with_rngs(rngs, fork="params"),
    ],
)
def test_a_stream_that_is_taken_as_it_is_shares_its_count(change: Any) -> None:
    rngs = two()
    new = change(rngs)
    drawn = [new.dropout(), rngs.dropout(), new.dropout()]
    assert list(map(data, drawn)) == [data(jax.random.fold_in(jax.random.key(1), i)) for i in range(3)]


def test_older_split_of_fork() -> None:
    assert shown(two().fork(split=2)) == shown(two().split(2))
    assert data(two().params.fork(split=(2, 1)).key) == data(two().params.split((2, 1)).key)
    assert two().fork(split={"params": 2}).dropout.key.shape == ()


def test_draws_need_one_key() -> None:
    with pytest.raises(LiftArgumentError, match=r"keys of shape \(2,\)"):
        two().params.split(2)()


# --- for a while ------------------------------------------------------------------------------------------------------


def test_split_streams_are_whole_again_and_their_draw_is_counted() -> None:
    rngs = two()
    rngs.params()
    key, count = rngs.params.key, rngs.params.count
    with nnx.split_rngs(rngs, splits=2):
        assert data(rngs.params.key) == data(jax.random.split(jax.random.fold_in(jax.random.key(0), 1), 2))
        assert rngs.params.count.value.tolist() == [0, 0]
    assert rngs.params.key is key
    assert rngs.params.count is count
    assert shown(rngs) == {"params": ([0, 0], 2), "dropout": ([0, 1], 1)}


def test_streams_are_whole_again_after_an_error() -> None:
    rngs = two()

    @nnx.split_rngs(splits=2)
    def failing(rngs: Any) -> None:
        raise KeyError

    with pytest.raises(KeyError), nnx.fork_rngs(rngs):
        failing(rngs)
    with pytest.raises(KeyError), nnx.split_rngs(rngs, splits=2):
        raise KeyError
    assert shown(rngs) == {"params": ([0, 0], 2), "dropout": ([0, 1], 2)}


def test_streams_are_whole_again_after_an_error_inside_of_vmap() -> None:
    rngs = two()

    @nnx.split_rngs(splits=2)
    @nnx.vmap(in_axes=0)
    def failing(rngs: Any) -> None:
        rngs.params()
        raise KeyError

    with pytest.raises(KeyError):
        failing(rngs)
    assert shown(rngs) == {"params": ([0, 0], 1), "dropout": ([0, 1], 1)}


def test_no_two_elements_and_no_two_calls_draw_one_key() -> None:
    rngs, drawn = nnx.Rngs(0), []
    draw = nnx.split_rngs(splits=3)(nnx.vmap(lambda rngs: (rngs(), rngs())))
    for _ in range(2):
        drawn += [tuple(key) for keys in draw(rngs) for key in data(keys)]
        drawn.append(tuple(data(rngs())))
    assert len(set(drawn)) == len(drawn) == 14


def test_restoring_twice_draws_no_key_twice() -> None:
    rngs = two()
    backups = nnx.split_rngs(rngs, splits=2)
    nnx.restore_rngs(backups)
    first = rngs.params()
    nnx.restore_rngs(backups)
    assert data(rngs.params()) != data(first)
    assert len(list(backups)) == 2


def test_nested_splits_are_put_back_whatever_the_order() -> None:
    rngs = two()
    with nnx.fork_rngs(rngs):
        with nnx.split_rngs(rngs, splits=2, only="params"), nnx.split_rngs(rngs, splits=3, only="dropout"):
            assert (rngs.params.key.shape, rngs.dropout.key.shape) == ((2,), (3,))
        assert rngs.params.count.value == 1
    assert shown(rngs) == {"params": ([0, 0], 1), "dropout": ([0, 1], 1)}


def test_if_one_stream_cannot_be_split_none_is() -> None:
    rngs = nnx.Rngs(a=0, params=0)
    with nnx.split_rngs(rngs, splits=2, only="params"):
        before = shown(rngs)
        for change in (
            lambda: nnx.split_rngs(rngs, splits=2),
            lambda: nnx.fork_rngs(rngs),
            lambda: nnx.with_rngs(rngs, split=2),
            lambda: nnx.reseed(rngs, a=1, params=1),
        ):
            with pytest.raises(LiftArgumentError, match=r"the stream at params.*\(2,\)"):
                change()
        assert shown(rngs) == before


@pytest.mark.parametrize("fork", [False, True])
def test_decorated_functions_and_methods_have_split_streams(fork: bool) -> None:
    change = nnx.fork_rngs(split=3) if fork else nnx.split_rngs(splits=3)

    @change
    def shapes(model: Any, scale: float = 1.0, *, rngs: Any) -> Any:
        """Shapes."""
        return model.rngs.params.key.shape, model.noise[0].key.shape, rngs.params.key.shape, scale

    model, rngs = Model(two()), two()
    assert shapes(model, rngs=rngs) == ((3,), (3,), (3,), 1.0)
    assert model.shapes(rngs) == ((3,), (3,))
    assert (model.rngs.params.count.value, model.noise[0].count.value, rngs.params.count.value) == (2, 2, 2)
    assert shapes.__doc__ == "Shapes."
    assert list(inspect.signature(shapes).parameters) == ["model", "scale", "rngs"]


def test_a_decorator_needs_no_call() -> None:
    @nnx.fork_rngs
    def draw(rngs: Any) -> Any:
        return rngs.params()

    assert data(draw(two())) == data(two().params.fork()())
    shape = nnx.split_rngs(nnx.jit(lambda rngs: rngs.params.key.value), splits=3)
    assert shape(two()).shape == (3,)
    assert nnx.with_rngs(lambda rngs: rngs.params.key.shape, split=3)(two()) == (3,)


def test_streams_that_share_variables_are_split_once() -> None:
    rngs = two()
    shared = rngs.split({"params": None})
    with nnx.split_rngs([rngs, shared], splits=2):
        assert shared.params.key.shape == (2,)
    assert shared.params.count.value == 1
    new, again = nnx.with_rngs([rngs, shared], split=2)
    assert new.params is again.params


def test_only_asks_about_the_key_and_the_count() -> None:
    for only, names in [
        ("params", ["params"]),
        (nnx.RngState, ["dropout", "params"]),
        ([nnx.RngKey, nnx.RngCount], ["dropout", "params"]),
        (nnx.Not("params"), ["dropout"]),
        (nnx.PathContains("params"), ["params"]),
        (None, []),
    ]:
        assert [stream.tag for stream, _, _ in nnx.split_rngs(two(), splits=2, only=only)] == names


@pytest.mark.parametrize(
    "only", [nnx.RngKey, nnx.Param, nnx.PathContains("head"), nnx.All("params", nnx.PathContains(0))]
)
def test_a_filter_of_paths_or_types_that_takes_no_stream_is_an_error(only: Any) -> None:
    uses = {
        "split_rngs": lambda: nnx.split_rngs(two(), splits=2, only=only),
        "fork_rngs": lambda: nnx.fork_rngs(two(), split={only: 2, ...: None}),
        "with_rngs": lambda: nnx.with_rngs(two(), split=2, only=only),
        "Rngs.split": lambda: two().split({only: 2}),
        "Rngs.fork": lambda: two().fork(split={only: 2}),
        "Rngs.broadcast": lambda: two().broadcast({only: 2}),
    }
    for where, use in uses.items():
        if only is nnx.RngKey and where.partition("_")[0] not in ("split", "fork"):
            only = nnx.Param  # the others ask about the stream, not about its key and its count
        with pytest.raises(LiftArgumentError, match=rf"{where}: the filter .* matches no stream .*params"):
            use()


def test_the_filters_of_an_rngs_see_the_names_of_its_streams() -> None:
    split = two().split({nnx.PathContains("params"): 3, nnx.filterlib.PathIn(("dropout",)): 2})
    assert (split.params.key.shape, split.dropout.key.shape) == ((3,), (2,))


def test_a_name_that_no_stream_has_is_no_error() -> None:
    for only in ("missing", None, nnx.Not(...), ("missing", "params"), lambda path, value: False):
        nnx.split_rngs(two(), splits=2, only=only)
    nnx.split_rngs([], splits=2, only=nnx.PathContains("head"))


def test_of_the_filters_of_fork_rngs_the_first_that_matches_decides() -> None:
    rngs = two()
    with nnx.fork_rngs(rngs, split={"params": None, ...: (2, 1)}):
        assert (rngs.params.key.shape, rngs.dropout.key.shape) == ((), (2, 1))
        assert rngs.params.count.value == 0
    with nnx.fork_rngs(rngs, split={"params": 3}):
        assert (rngs.params.key.shape, rngs.dropout.key.shape) == ((3,), ())
    assert shown(rngs) == {"params": ([0, 0], 2), "dropout": ([0, 1], 1)}


def test_a_number_of_keys_may_be_an_array_or_a_symbol() -> None:
    for size in (np.int64(2), np.asarray(2), jnp.asarray(2)):
        assert two().split(size).params.key.shape == (2,)

    def draw(x: Any) -> Any:
        return jax.random.key_data(nnx.RngStream(0, tag="params").split(x.shape[0]).key.get_value())

    size = jax.export.symbolic_shape("n")
    exported = jax.export.export(jax.jit(draw))(jax.ShapeDtypeStruct(size, jnp.float32))
    assert exported.call(jnp.ones(3)).shape == (3, 2)


def test_splits_must_be_a_shape() -> None:
    for given in (-1, "a", 1.5, (2, None)):
        rngs = two()
        changes = {
            "split_rngs": functools.partial(nnx.split_rngs, rngs, splits=given),
            "Rngs.split": functools.partial(rngs.split, {"params": 2, "dropout": given}),
            "Rngs.broadcast": functools.partial(rngs.broadcast, {"params": 2, "dropout": given}),
            "Rngs.fork": functools.partial(rngs.fork, split={"params": 2, "dropout": given}),
            "RngStream.split": functools.partial(rngs.params.split, given),
            "RngStream.broadcast": functools.partial(rngs.params.broadcast, given),
        }
        for where, change in changes.items():
            with pytest.raises(LiftArgumentError, match=f"{where}: expected a number of keys"):
                change()
        assert shown(rngs) == shown(two())  # nothing was drawn
    with pytest.raises(LiftArgumentError, match="only supported for splits=1"):
        nnx.split_rngs(two(), splits=2, squeeze=True)
    rngs = two()
    nnx.split_rngs(rngs, splits=1, squeeze=True)
    assert rngs.params.key.shape == ()


# --- copies and seeds -------------------------------------------------------------------------------------------------


def test_with_rngs_shares_all_but_the_streams_that_a_rule_matches() -> None:
    model = Model(two())
    new = nnx.with_rngs({"m": model}, split={"params": 2})["m"]
    assert type(new) is Model
    assert new is not model
    assert new.weight is model.weight
    assert new.rngs.dropout is not model.rngs.dropout
    assert new.rngs.dropout.count is model.rngs.dropout.count
    assert (new.rngs.params.key.shape, model.rngs.params.key.shape) == ((2,), ())
    assert model.rngs.params.count.value == 1


def test_with_rngs_decorates() -> None:
    @nnx.with_rngs(split=4, only="dropout")
    def shapes(rngs: Any, *, other: Any) -> Any:
        return rngs.params.key.shape, rngs.dropout.key.shape, rngs is other

    rngs = two()
    assert shapes(rngs, other=rngs) == ((), (4,), True)
    assert rngs.dropout.count.value == 1


def test_rules_of_with_rngs_exclude_each_other() -> None:
    rngs = two()
    with pytest.raises(LiftArgumentError, match="multiple rules: split has the filter 'params', fork has"):
        nnx.with_rngs(rngs, split={"params": 4}, fork="params")
    assert rngs.params.count.value == 0


def test_reseed_gives_streams_of_one_name_different_keys_and_the_same_again() -> None:
    model = Model(two())
    nnx.reseed(model, dropout=9, other=1)
    first = [data(model.noise[0].key), data(model.rngs.dropout.key)]
    assert first == [data(jax.random.fold_in(jax.random.key(9), i)) for i in range(2)]
    model.rngs.dropout()
    nnx.reseed([model], dropout=jax.random.key(9))
    assert first == [data(model.noise[0].key), data(model.rngs.dropout.key)]
    assert model.rngs.dropout.count.value == 0
    assert data(model.rngs.params.key) == [0, 0]


def test_reseeding_from_a_stream_counts_in_it() -> None:
    rngs = two()
    nnx.reseed(rngs, params=rngs.dropout)
    assert rngs.dropout.count.value == 1
    assert data(rngs.params.key) == data(jax.random.fold_in(jax.random.key(1), 0))


def test_policies_of_reseed() -> None:
    rngs = two().split(2)
    with pytest.raises(LiftArgumentError, match="a callable as `policy`, given"):
        nnx.reseed(rngs, policy="other", params=0)
    with pytest.raises(LiftArgumentError, match=r"non-scalar key, of shape \(2,\)"):
        nnx.reseed(rngs, params=0)
    nnx.reseed(rngs, policy="match_shape", params=5)
    key = jax.random.fold_in(jax.random.key(5), 0)
    assert data(rngs.params.key) == data(jax.random.split(key, 2))
    asked = []
    nnx.reseed({"m": rngs}, policy=lambda *args: asked.append(args) or args[1], params=5)
    assert (asked[0][0], data(asked[0][1]), asked[0][2]) == (("m", "params"), data(key), (2,))
    assert rngs.params.count.value.shape == ()


def test_a_stream_under_another_name_goes_on_where_the_first_one_is() -> None:
    first = nnx.RngStream(0, tag="first")
    drawn = first()
    second = nnx.Rngs(second=first).second
    assert second.tag == "second"
    assert second() != drawn
    assert (first.count.get_value(), second.count.get_value()) == (1, 2)
