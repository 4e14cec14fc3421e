from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_like as nn
from liftcore.checkpoints import WeightRule, export_weights, load_weights
from liftcore.errors import LiftArgumentError, SerializationError
from liftcore.meta import Partitioned

LAYERS, WIDTH, HEADS, HIDDEN, WORDS = 3, 8, 2, 12, 11

# --- an encoder with the names of PyTorch -----------------------------------------------------------------------------


def bert(rng: np.random.Generator) -> dict[str, Any]:
    """Weights with the names and shapes of BERT's as PyTorch has them."""

    def linear(name: str, out: int, into: int) -> dict[str, Any]:
        return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}

    def norm(name: str) -> dict[str, Any]:
        return {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}

    shapes = {"embeddings.word_embeddings.weight": (WORDS, WIDTH), **norm("embeddings.LayerNorm")}
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= linear(f"{at}.attention.{part}", WIDTH, WIDTH)
        shapes |= norm(f"{at}.attention.output.LayerNorm")
        shapes |= linear(f"{at}.intermediate.dense", HIDDEN, WIDTH) | linear(f"{at}.output.dense", WIDTH, HIDDEN)
        shapes |= norm(f"{at}.output.LayerNorm")
    shapes |= linear("pooler.dense", WIDTH, WIDTH)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {"embeddings.position_ids": np.arange(5), **arrays}


RULES = [
    WeightRule("embeddings.position_ids", None),
    WeightRule("embeddings.word_embeddings.weight", "params/words/embedding"),
    WeightRule("embeddings.LayerNorm.{leaf}", "params/norm/{leaf}"),
    WeightRule("encoder.layer.{i}.attention.self.{part}.weight", "params/layers/attention/{part}/kernel", "linear"),
    WeightRule("encoder.layer.{i}.attention.self.{part}.bias", "params/layers/attention/{part}/bias"),
    WeightRule("encoder.layer.{i}.attention.output.dense.weight", "params/layers/attention/out/kernel", "linear"),
    WeightRule("encoder.layer.{i}.attention.output.dense.bias", "params/layers/attention/out/bias"),
    WeightRule("encoder.layer.{i}.attention.output.LayerNorm.{leaf}", "params/layers/attention_norm/{leaf}"),
    WeightRule("encoder.layer.{i}.{part:intermediate|output}.dense.weight", "params/layers/{part}/kernel", "linear"),
    WeightRule("encoder.layer.{i}.{part:intermediate|output}.dense.bias", "params/layers/{part}/bias"),
    WeightRule("encoder.layer.{i}.output.LayerNorm.{leaf}", "params/layers/output_norm/{leaf}"),
    WeightRule("pooler.dense.weight", "params/pooler/kernel", "linear"),
    WeightRule("pooler.dense.bias", "params/pooler/bias"),
]


class Norm(nn.Module):
    """A layer norm whose parameters have PyTorch's names."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        weight = self.param("weight", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        return normalized(x, weight, bias)


def normalized(x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / (1e-12 + (centred**2).mean(-1, keepdims=True)) ** 0.5 * weight + bias


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: Any, _: None) -> Any:
        y = nn.MultiHeadDotProductAttention(num_heads=HEADS, name="attention")(x, x)
        x = Norm(name="attention_norm")(x + y)
        y = nn.Dense(WIDTH, name="output")(jax.nn.relu(nn.Dense(HIDDEN, name="intermediate")(x)))
        return Norm(name="output_norm")(x + y), None


class Encoder(nn.Module):
    @nn.compact
    def __call__(self, ids: Any) -> Any:
        x = Norm(name="norm")(nn.Embed(WORDS, WIDTH, name="words")(ids))
        layers = nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS)
        x, _ = layers(name="layers")(x, None)
        return jnp.tanh(nn.Dense(WIDTH, name="pooler")(x[:, 0]))


def by_hand(weights: dict[str, Any], ids: Any) -> Any:
    """What PyTorch computes with such weights."""

    def linear(name: str, x: Any) -> Any:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name: str, x: Any) -> Any:
        return normalized(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def heads(x: Any) -> Any:
        return x.reshape(*x.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)

    x = norm("embeddings.LayerNorm", weights["embeddings.word_embeddings.weight"][ids])
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        query, key, value = (heads(linear(f"{at}.attention.self.{part}", x)) for part in ("query", "key", "value"))
        scores = np.exp(query @ key.swapaxes(-1, -2) / np.sqrt(WIDTH // HEADS))
        mixed = (scores / scores.sum(-1, keepdims=True) @ value).transpose(0, 2, 1, 3).reshape(x.shape)
        x = norm(f"{at}.attention.output.LayerNorm", x + linear(f"{at}.attention.output.dense", mixed))
        y = linear(f"{at}.output.dense", np.maximum(linear(f"{at}.intermediate.dense", x), 0))
        x = norm(f"{at}.output.LayerNorm", x + y)
    return np.tanh(linear("pooler.dense", x[:, 0]))


def shapes_of_encoder() -> Any:
    return jax.eval_shape(Encoder().init, jax.random.key(0), jnp.zeros((1, 2), int))


def test_a_scanned_encoder_computes_what_pytorch_does() -> None:
    foreign, ids = bert(np.random.default_rng(0)), np.array([[1, 2, 3, 4], [5, 6, 7, 10]])
    variables = load_weights(foreign, shapes_of_encoder(), RULES)
    np.testing.assert_allclose(Encoder().apply(variables, ids), by_hand(foreign, ids), rtol=1e-4, atol=1e-5)


def test_what_is_exported_is_what_was_loaded() -> None:
    foreign = bert(np.random.default_rng(0))
    back = export_weights(load_weights(foreign, shapes_of_encoder(), RULES), foreign, RULES)
    assert list(back) == list(foreign)
    for name, array in foreign.items():
        np.testing.assert_array_equal(back[name], array, err_msg=name)
        assert back[name].dtype == array.dtype


# --- single rules -----------------------------------------------------------------------------------------------------

F = np.float32
QKV = np.arange(24, dtype=F).reshape(6, 4)
THIRDS = {f"p/{name}": QKV[2 * at : 2 * at + 2].T for at, name in enumerate("qkv")}

CASES = {
    "conv": ({"c.w": np.zeros((5, 3, 2, 7), F)}, {"c": (2, 7, 3, 5)}, [WeightRule("{n}.w", "{n}", "conv")]),
    "split": ({"qkv": QKV}, {"p": dict.fromkeys("qkv", (4, 2))}, [WeightRule("qkv", ("p/q", "p/k", "p/v"), "linear")]),
    "sizes": ({"ab": QKV}, {"a": (4, 4), "b": (4, 2)}, [WeightRule("ab", ("a", "b"), "linear", sizes=(4, 2))]),
    "joined": ({"a": QKV, "b": QKV[:2]}, {"ab": (4, 8)}, [WeightRule(("a", "b"), "ab", "linear")]),
    "axis": ({"a": QKV, "b": QKV}, {"ab": (6, 8)}, [WeightRule(("a", "b"), "ab", axis=-1)]),
    "tied": ({"a": QKV}, {"a": (6, 4), "b": (6, 4)}, [WeightRule("a", ("a", "b"), axis=None)]),
    "stacked and split": (
        {f"l.{i}.qk": QKV + i for i in (10, *range(10))},
        {"l": {"q": (11, 4, 3, 1), "k": (11, 4, 3)}},
        [WeightRule("l.{i}.qk", ("l/q", "l/k"), "linear")],
    ),
    "deep": ({"a.b.c.w": np.ones(3, F)}, {"a": {"b": {"c": (3,)}}}, [WeightRule("{module:.*}.w", "{module}")]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_arrays_go_where_rules_say_and_back(name: str) -> None:
    foreign, shapes, rules = CASES[name]
    target = jax.tree.map(lambda shape: jnp.zeros(shape), shapes, is_leaf=lambda node: isinstance(node, tuple))
    loaded = load_weights(foreign, target, rules)
    assert jax.tree.map(jnp.shape, loaded) == shapes
    back = export_weights(loaded, foreign, rules)
    for key, array in foreign.items():
        np.testing.assert_array_equal(back[key], array)


def test_parts_and_layers_are_in_order() -> None:
    target = {"l": {"q": np.zeros((11, 4, 3), F), "k": np.zeros((11, 4, 3), F)}}
    foreign, _, rules = CASES["stacked and split"]
    loaded = load_weights(foreign, target, rules)
    np.testing.assert_array_equal(loaded["l"]["q"], np.stack([QKV[:3].T + i for i in range(11)]))
    np.testing.assert_array_equal(loaded["l"]["k"], np.stack([QKV[3:].T + i for i in range(11)]))


def test_a_function_changes_arrays_and_cannot_be_undone() -> None:
    rules = [WeightRule("w", "w", lambda array: array[::-1])]
    loaded = load_weights({"w": np.arange(3.0)}, {"w": np.zeros(3)}, rules)
    np.testing.assert_array_equal(loaded["w"], [2, 1, 0])
    with pytest.raises(LiftArgumentError, match="inverted"):
        export_weights(loaded, {"w": np.arange(3.0)}, rules)


def test_boxes_stay_round_what_is_loaded() -> None:
    target, rules = (
        {"kernel": Partitioned(jnp.zeros((4, 6)), ("in", "out"))},
        [WeightRule("weight", "kernel", "linear")],
    )
    loaded = load_weights({"weight": QKV}, target, rules)
    assert loaded["kernel"].names == ("in", "out")
    np.testing.assert_array_equal(loaded["kernel"].value, QKV.T)
    np.testing.assert_array_equal(
        export_weights(loaded, {"weight": QKV}, [WeightRule("weight", "kernel", "linear")])["weight"], QKV
    )


# --- what does not fit ------------------------------------------------------------------------------------------------


def test_all_that_is_left_over_or_does_not_fit_is_listed_at_once() -> None:
    foreign = {"a.weight": np.zeros((3, 2), F), "b.weight": np.zeros(3), "c": np.zeros(2), "l.0.w": QKV, "l.2.w": QKV}
    foreign |= {"typo": np.zeros(3), "q": QKV, "odd": np.zeros(5), "far": np.zeros(4)}
    target = {
        "a": {"kernel": np.zeros((2, 3), F), "bias": np.zeros(3)},
        "b": np.zeros(3, F),
        "l": np.zeros((3, 6, 4), F),
        "typos": np.zeros(3),
        "x": np.zeros(2),
        "qk": np.zeros((12, 4)),
    }
    rules = [
        WeightRule("a.weight", "a/kernel"),
        WeightRule("b.weight", "b"),
        WeightRule("l.{i}.w", "l"),
        WeightRule("typo", "typo"),
        WeightRule(("q", "k"), "qk"),
        WeightRule("odd", ("x", "y")),
        WeightRule("far", ("u", "v"), axis=5),
    ]
    with pytest.raises(SerializationError) as caught:
        load_weights(foreign, target, rules)
    for text in (
        "a/kernel: shape (3, 2), not (2, 3) as in the target",
        'a/kernel: it would fit if the rule for "a.weight" had the change "linear"',
        "a/bias: missing",
        "b: dtype float64, not float32 as in the target",
        "\nnot all names could be used:\n",
        "c: no rule matches it",
        'l (rule for "l.{i}.w"): no layer 1, but a layer 2',
        "typos: missing, float64[3] in the target; closest: typo",
        'qk (rule for "q, k"): q without k',
        'u, v (rule for "far"): shape (4,) has no axis 5',
        'x, y (rule for "odd"): axis 0 of shape',
    ):
        assert text in caught.value.what, text


def test_what_is_left_over_may_be_passed_over() -> None:
    target = {"a": np.zeros(2), "b": np.full(2, 7.0)}
    loaded = load_weights(
        {"a": np.ones(2, F), "c": np.ones(2)}, target, [WeightRule("a", "a")], strict=False, cast=True
    )
    np.testing.assert_array_equal(loaded["a"], [1, 1])
    np.testing.assert_array_equal(loaded["b"], [7, 7])
    with pytest.raises(SerializationError, match="c: no rule matches it"):
        load_weights({"a": np.ones(2), "c": np.ones(2)}, {"a": np.ones(2)}, [WeightRule("a", "a")])


@pytest.mark.parametrize("name", ["l.x.w", "l.99999.w", "l.³.w", f"l.{'9' * 5000}.w"])
def test_what_is_no_number_of_a_layer_is_listed(name: str) -> None:
    with pytest.raises(SerializationError, match="not the number of a layer"):
        load_weights({name: QKV}, {"l": np.zeros((1, 6, 4), F)}, [WeightRule("l.{i:.*}.w", "l")])


def test_two_names_for_one_path_are_an_error() -> None:
    with pytest.raises(LiftArgumentError, match="a and b both go there"):
        load_weights({"a": QKV, "b": QKV}, {"x": QKV}, [WeightRule("a", "x"), WeightRule("b", "x")])
    with pytest.raises(SerializationError, match=r"l\.0 and l\.00 both go there"):
        load_weights({"l.0": QKV, "l.00": QKV}, {"x": QKV[None]}, [WeightRule("l.{i}", "x")])
    with pytest.raises(LiftArgumentError, match="b goes below x, where a goes"):
        load_weights({"a": QKV, "b": QKV}, {"x": {"y": QKV}}, [WeightRule("a", "x"), WeightRule("b", "x/y")])


def test_variables_that_do_not_fit_the_names_cannot_be_exported() -> None:
    like, rules = {"a": QKV, "b": QKV}, [WeightRule("a", "a"), WeightRule("b", "b", "linear")]
    with pytest.raises(
        SerializationError, match=r"(?s)a: missing in the variables.*\(4, 5\) cannot be reshaped to \(4, 6\)"
    ):
        export_weights({"b": np.zeros((4, 5))}, like, rules)
    foreign, _, tied = CASES["tied"]
    with pytest.raises(SerializationError, match="share one array, but their values differ"):
        export_weights({"a": QKV, "b": QKV + 1}, foreign, tied)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: WeightRule((), "a"), "no foreign name"),
        (lambda: WeightRule(3, "a"), "expected a template, given 3"),
        (lambda: WeightRule("a", ["b", None]), "expected a template, given None"),
        (lambda: WeightRule("a", ("b", "c"), axis="0"), "as `axis`, given '0'"),
        (lambda: WeightRule(("{a}.w", "{b}.w"), "{a}"), "different fields"),
        (lambda: WeightRule(("a", "b"), ("c", "d")), "several names go to several paths"),
        (lambda: WeightRule("{a}", "{b}"), "lacks"),
        (lambda: WeightRule("{a}.{b}", "c"), "no path has"),
        (lambda: WeightRule("a", "b", "liner"), "'liner'"),
        (lambda: WeightRule("a", "b", sizes=(1, 2)), "sizes"),
        (lambda: WeightRule("a.{b", "b"), "brace"),
        (lambda: WeightRule("{a:(}", "{a}"), "regular expression"),
    ],
)
def test_rules_that_cannot_be_used(make: Any, text: str) -> None:
    with pytest.raises(LiftArgumentError, match=text):
        make()


@pytest.mark.parametrize("rules", [WeightRule("a", "a"), [("a", "a")], {"a": "a"}, None])
def test_rules_of_another_class_are_an_error(rules: Any) -> None:
    arrays = {"a": np.ones(2)}
    for call in (load_weights, export_weights):
        with pytest.raises(LiftArgumentError, match=rf"{call.__name__}, rules: expected .*Write a list of rules"):
            call(arrays, arrays, rules)
    with pytest.raises(LiftArgumentError, match="load_weights, target: expected variables, given None"):
        load_weights(arrays, None, [WeightRule("a", "a")])
    with pytest.raises(LiftArgumentError, match="expected arrays by name, given 3"):
        load_weights(3, arrays, [WeightRule("a", "a")])  # type: ignore[arg-type]


# --- several paths ----------------------------------------------------------------------------------------------------

WORDS_AND_HEAD = ["words", "head"]
TIED = {"words": np.zeros((10, 4)), "head": np.zeros((4, 10))}


def test_one_array_goes_to_several_paths_with_a_change_for_each() -> None:
    foreign = {"wte.weight": np.arange(40.0).reshape(10, 4)}
    rules = [WeightRule("wte.weight", WORDS_AND_HEAD, [None, "linear"], axis=None)]
    found = load_weights(foreign, TIED, rules)
    np.testing.assert_array_equal(found["words"], foreign["wte.weight"])
    np.testing.assert_array_equal(found["head"], foreign["wte.weight"].T)
    np.testing.assert_array_equal(export_weights(found, foreign, rules)["wte.weight"], foreign["wte.weight"])
    with pytest.raises(SerializationError, match="share one array, but their values differ"):
        export_weights(TIED | {"words": np.ones((10, 4))}, foreign, rules)


@pytest.mark.parametrize(
    "rules",
    [
        [WeightRule("wte.weight", WORDS_AND_HEAD, axis=None)],
        [WeightRule("wte.weight", WORDS_AND_HEAD, "linear", axis=None)],
        [WeightRule("wte.weight", "words"), WeightRule("wte.weight", "head", "linear")],
    ],
)
def test_advice_for_a_tied_array_works(rules: list[WeightRule]) -> None:
    foreign = {"wte.weight": np.ones((10, 4))}
    with pytest.raises(SerializationError) as caught:
        load_weights(foreign, TIED, rules)
    if len(rules) == 1:
        assert 'had the changes (None, "linear")' in caught.value.what
        change: Any = (None, "linear")
        load_weights(foreign, TIED, [WeightRule("wte.weight", WORDS_AND_HEAD, change, axis=None)])
    else:
        [advice] = [line for line in caught.value.what.splitlines() if "one rule" in line]
        rule = eval(advice[advice.index("WeightRule(") :], {"WeightRule": WeightRule})
        assert load_weights(foreign, TIED, [rule])["head"].shape == (4, 10)


@pytest.mark.parametrize(
    ("heads", "groups", "sizes"),
    [([2, 2, 2], 2, None), ([4, 2, 2], 2, (16, 8, 8)), ([2, 2, 2], 1, None), ([2, 2, 2], 8, None)],
    ids=["GPT-NeoX", "with fewer keys", "not interleaved", "element by element"],
)
@pytest.mark.parametrize("axis", [0, -1])
def test_interleaved_queries_keys_and_values_are_split(heads: list[int], groups: int, sizes: Any, axis: int) -> None:
    depth, width = 4, 8
    parts = [np.random.default_rng(0).normal(size=(width, count, depth)) for count in heads]
    shares = [part.reshape(width, groups, -1) for part in parts]
    rows = np.concatenate(shares, 2).reshape(width, -1).T  # (out, in), as in PyTorch
    foreign = {"qkv": rows if axis == 0 else rows.T, "qkv.bias": rows[:, 0]}
    target = {name: np.zeros(part.shape) for name, part in zip("qkv", parts, strict=True)}
    target |= {f"{name}_bias": np.zeros(part.shape[1:]) for name, part in zip("qkv", parts, strict=True)}
    options: Any = {"sizes": sizes, "groups": groups}
    rules = [
        WeightRule("qkv", list("qkv"), "linear" if axis == 0 else None, axis=axis, **options),
        WeightRule("qkv.bias", ["q_bias", "k_bias", "v_bias"], **options),
    ]
    found = load_weights(foreign, target, rules)
    for name, part in zip("qkv", parts, strict=True):
        np.testing.assert_array_equal(found[name], part)
        np.testing.assert_array_equal(found[f"{name}_bias"], part[0])
    back = export_weights(found, foreign, rules)
    assert all(np.array_equal(back[name], foreign[name]) for name in foreign)
    joined = [WeightRule(tuple("qkv"), "all", axis=1, groups=groups)]  # the other way round
    flat = {name: part.reshape(width, -1) for name, part in zip("qkv", parts, strict=True)}
    whole = load_weights(flat, {"all": np.zeros(rows.T.shape)}, joined)
    np.testing.assert_array_equal(whole["all"], rows.T)
    assert all(np.array_equal(export_weights(whole, flat, joined)[name], flat[name]) for name in flat)


SPLIT = {"q": np.zeros((8, 8)), "k": np.zeros((8, 4)), "v": np.zeros((8, 4))}
IMPOSSIBLE = {
    "no sizes": (WeightRule("w", list("qkv"), "linear"), ["axis 0 of shape (16, 8)", "write `sizes=(8, 4, 4)`"]),
    "wrong sizes": (WeightRule("w", list("qkv"), sizes=(8, 8, 8)), ["sizes (8, 8, 8)", "axis 0 of shape (16, 8)"]),
    "sizes and groups": (WeightRule("w", list("qkv"), sizes=(8, 4, 4), groups=8), ["(8, 4, 4)", "`groups=8`"]),
    "groups": (WeightRule("w", list("qkv"), groups=3), ["axis 0 of shape (16, 8)", "`groups=3`"]),
    "no axis": (WeightRule("w", list("qkv"), axis=2), ["shape (16, 8) has no axis 2", "`axis=`"]),
    "function": (
        WeightRule("w", list("qkv"), lambda w: w.reshape(3), sizes=(8, 4, 4)),
        ["called with an array of shape (8, 8)", "cannot reshape", "`groups=`"],
    ),
    "three dimensions": (WeightRule("w", "q", "linear"), []),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_be_split_names_shape_axis_and_option(name: str) -> None:
    rule, texts = IMPOSSIBLE[name]
    foreign = {"w": np.ones((16, 8))} if texts else {"w": np.ones((2, 8, 8))}
    with pytest.raises(SerializationError) as caught:
        load_weights(foreign, SPLIT, [rule])
    for text in texts or ['"linear" takes arrays of 2 dimensions, not one of shape (2, 8, 8)']:
        assert text in caught.value.what


def test_arrays_that_cannot_be_joined_name_their_shapes() -> None:
    with pytest.raises(SerializationError, match=r"arrays of shapes \(2, 3\), \(2, 4\) cannot be joined along axis 0"):
        load_weights(
            {"a": np.ones((2, 3)), "b": np.ones((2, 4))}, {"c": np.ones((4, 3))}, [WeightRule(("a", "b"), "c")]
        )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"change": [None]}, "1 changes for 2 path"),
        ({"change": [None, "lin"]}, "as `change`, given"),
        ({"groups": 0}, "`groups`, given 0"),
        ({"groups": 2, "axis": None}, "`groups`, given 2"),
    ],
)
def test_options_for_several_paths_are_checked(options: Any, text: str) -> None:
    with pytest.raises(LiftArgumentError, match=text):
        WeightRule("w", ["a", "b"], **options)
