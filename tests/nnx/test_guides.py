"""The ground that the guides of NNX to filters and to transformations cover, in programs of our own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_like as nnx
from nnx_like.errors import AliasError, TraceContextError


class Steps(nnx.Variable):
    pass


class Affine(nnx.Module):
    """`x @ matrix + shift`, with a count of calls, and noise where there is a seed."""

    def __init__(self, matrix, shift, steps=None, seed=None):
        self.matrix, self.shift = nnx.Param(matrix), nnx.Param(shift)
        if steps is not None:
            self.steps = Steps(steps)
        if seed is not None:
            self.rngs = nnx.Rngs(noise=seed)


def _stack(**options):
    return Affine(jax.random.normal(jax.random.key(0), (4, 2, 3)), jnp.ones((4, 3)), **options)


def _single(**options):
    return Affine(jnp.ones((2, 3)), jnp.zeros(3), **options)


X = jnp.arange(8.0).reshape(4, 2)


def _apply(model, x):
    assert (model.matrix.ndim, x.ndim) == (2, 1)
    if hasattr(model, "steps"):
        model.steps += 1
    y = x @ model.matrix + model.shift
    return y + jax.random.normal(model.rngs.noise(), y.shape) if hasattr(model, "rngs") else y


def _expected(model):
    return jnp.einsum("ni,nij->nj", X, model.matrix[...]) + model.shift[...]


# --- filters


class Mixed(nnx.Module):
    def __init__(self):
        self.weight = nnx.Param(1.0)
        self.average = nnx.BatchStat(True)


def _split(node, *filters):
    """`nnx.split`, of what is public about filters and flat states."""
    graphdef, leaves = nnx.graph.flatten(node)
    predicates = [nnx.filterlib.to_predicate(one) for one in filters]
    groups = [{} for _ in predicates]
    for path, leaf in leaves:
        number = next(number for number, predicate in enumerate(predicates) if predicate(path, leaf))
        groups[number][path] = leaf
    return graphdef, *[nnx.State.from_flat_path(found) for found in groups]


@pytest.mark.parametrize("split", [nnx.split, _split])
def test_filters_are_types_and_the_first_that_matches_counts(split):
    class Special(nnx.Param):
        pass

    graphdef, params, stats = split(Mixed(), nnx.Param, nnx.BatchStat)
    assert (params.to_pure_dict(), stats.to_pure_dict()) == ({"weight": 1.0}, {"average": True})
    assert nnx.merge(graphdef, params, stats).weight == 1.0
    model = nnx.Dict(a=nnx.Param(0), b=Special(0))
    assert [list(state) for state in split(model, nnx.Param, Special)[1:]] == [["a", "b"], []]
    assert [list(state) for state in split(model, Special, nnx.Param)[1:]] == [["b"], ["a"]]


def test_literals_become_predicates():
    to_predicate = nnx.filterlib.to_predicate
    shown = [repr(to_predicate(one)) for one in (..., True, None, False, (nnx.Param, "dropout"))]
    assert shown[:4] == ["Everything()", "Everything()", "Nothing()", "Nothing()"]
    assert shown[4].startswith("Any(OfType(")
    assert shown[4].endswith("), WithTag('dropout'))")
    assert nnx.OfType(nnx.Param)((), nnx.Param(0))
    assert nnx.OfType(nnx.Param)((), nnx.VariableState(type=nnx.Param, value=0))
    assert not nnx.All(nnx.Param, nnx.Not(nnx.PathContains("head")))(("head", "w"), nnx.Param(0))


# --- state and graph through transformations


def test_vmap_maps_objects_as_pytrees_and_makes_them():
    model = _stack()
    assert jnp.allclose(_expected(model), nnx.vmap(_apply, in_axes=0, out_axes=1)(model, X).T, atol=1e-5)
    made = nnx.vmap(lambda seed: Affine(jax.random.uniform(jax.random.key(seed), (2, 3)), jnp.zeros(3)))(jnp.arange(4))
    assert (made.matrix.shape, made.shift.shape) == ((4, 2, 3), (4, 3))
    assert (made.matrix[2] == jax.random.uniform(jax.random.key(2), (2, 3))).all()


def test_methods_are_decorated():
    class Ensemble(nnx.Module):
        @nnx.vmap
        def __init__(self, seed):
            self.matrix, self.shift = (
                nnx.Param(jax.random.uniform(jax.random.key(seed), (2, 3))),
                nnx.Param(jnp.ones(3)),
            )

        @nnx.vmap(in_axes=0, out_axes=1)
        def __call__(self, x):
            return _apply(self, x)

    model = Ensemble(jnp.arange(4))
    assert jnp.allclose(_expected(model), model(X).T, atol=1e-5)


def test_state_changes_propagate():
    model = _stack(steps=jnp.arange(4))
    nnx.vmap(_apply, out_axes=1)(model, X)
    assert model.steps.tolist() == [1, 2, 3, 4]


def test_graph_changes_propagate():
    def rearrange(model, x):
        y = _apply(model, x)
        model.listed = ["a", 2, False]
        del model.shift
        model.tied = model.matrix
        return y

    model = _stack(steps=jnp.arange(4))
    matrix, expected = model.matrix, _expected(model)
    np.testing.assert_allclose(nnx.vmap(rearrange)(model, X), expected, rtol=1e-5)
    assert model.listed == ["a", 2, False]
    assert model.tied is model.matrix is matrix
    assert not hasattr(model, "shift")
    assert model.steps.tolist() == [1, 2, 3, 4]


def test_state_axes_say_which_variables_are_mapped():
    model = _stack(steps=jnp.array(0))
    axes = nnx.StateAxes({nnx.Param: 0, Steps: None})
    nnx.vmap(_apply, in_axes=(axes, 0), out_axes=1)(model, X)
    assert model.steps[...] == 1


def test_random_state_is_state():
    axes = nnx.StateAxes({nnx.RngState: 0, (nnx.Param, Steps): None})
    forward = nnx.vmap(_apply, in_axes=(axes, 0))
    model = _single(steps=jnp.array(0), seed=jax.random.split(jax.random.key(0), 4))
    first, second = forward(model, X), forward(model, X)
    assert not jnp.allclose(first, second)
    assert not jnp.allclose(first[0] - X[0].sum(), first[1] - X[1].sum())
    model = _single(steps=jnp.array(0), seed=0)
    split = nnx.split_rngs(splits=4)(forward)
    assert not jnp.allclose(split(model, X), split(model, X))
    assert model.rngs.noise.key.shape == ()
    assert model.steps[...] == 2


# --- rules


def test_a_model_held_by_closure_is_not_changed():
    model = nnx.Dict(n=nnx.Param(jnp.array(0)))

    def held(x):
        model.n += 1
        return x

    with pytest.raises(TraceContextError, match="as an argument"):
        nnx.jit(held)(3)
    assert model.n[...] == 0


def test_one_object_has_one_axis():
    model = nnx.Dict(w=nnx.Param(jnp.arange(4)))
    one, other = {"a": {"b": model}, "c": model}, [(model, model), model]
    with pytest.raises(AliasError, match=r"axis 0.*axis 1"):
        nnx.vmap(lambda one, other: None, in_axes=(0, 1))(one, other)
    with pytest.raises(AliasError, match=r"axis 0.*axis 1"):
        nnx.vmap(lambda one: one, in_axes=0, out_axes=1)(one)


def test_names_of_axes_go_and_come_with_the_axes():
    names = {nnx.PARTITION_NAME: "b"}

    @nnx.vmap(in_axes=1, transform_metadata=names)
    def look(model):
        assert (model.w.shape, model.w.out_sharding, model.w.sharding) == ((3, 5), ("a", None), ("a", None))

    def make():
        return nnx.Dict(w=nnx.Param(jnp.ones((3, 5)), sharding=("a", None)))

    with jax.set_mesh(jax.make_mesh((1, 1), ("a", "b"))):
        model = nnx.Dict(w=nnx.Param(jnp.ones((3, 4, 5)), out_sharding=("a", "b", None)))
        look(model)
        made = nnx.vmap(make, out_axes=1, axis_size=4, transform_metadata=names)()
    for one in (model, made):
        assert (one.w.shape, one.w.out_sharding) == ((3, 4, 5), ("a", "b", None))


# --- forms that NNX had


def test_older_forms_work():
    model = nnx.Dict(w=nnx.Param(jnp.array(2.0)), rngs=nnx.Rngs(0))
    w = model.w
    for change, expected in {"+=": 5, "-=": 2, "*=": 6, "/=": 2, "**=": 8, "//=": 2, "%=": 2}.items():
        exec(f"model.w {change} 3.0", {"model": model})
        assert (model.w.value, model.w is w) == (expected, True)
    assert issubclass(nnx.RngKey, nnx.RngState)
    assert issubclass(nnx.RngCount, nnx.RngState)
    graphdef, flat = nnx.graph.flatten(model)
    state = nnx.split(model)[1]
    assert dict(flat.flat_state()) == dict(flat) == dict(state.flat_state())
    assert nnx.State.from_flat_path(dict(flat)) == nnx.State.from_flat_path(flat) == state
    assert isinstance(nnx.unpack(model), nnx.GraphState)
    assert nnx.merge(graphdef, nnx.State.from_flat_path(flat)).w is w
    nnx.display(model)
