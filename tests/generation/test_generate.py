from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import liftcore
import linen_like as nn
from benchmarks.counts import compiled
from liftcore.errors import LiftArgumentError
from liftcore.generation import generate, rewind, sample_tokens
from liftcore.generation.loop import Programs
from liftcore.generation.models import Model
from tests.generation.models import VOCABULARY, LanguageModel, by_hand, variables_of

MODEL = LanguageModel(decode=True)
KEY = jax.random.key(7)
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 0], [3, 1]]


@pytest.fixture(scope="module")
def variables() -> Any:
    return variables_of(MODEL)


def same(found: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, found[:2], other[:2])
    np.testing.assert_allclose(found[2], other[2], rtol=1e-5, atol=1e-5)


# -- what is generated -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("stops", [(), (2, 5)])
def test_the_most_probable_tokens_are_those_of_whole_passes(learned: bool, stops: Any) -> None:
    model = MODEL.clone(learned=learned)
    variables = variables_of(model)
    found = generate(model, variables, PROMPTS, max_new_tokens=9, stop_tokens=stops, pad_token=-7)
    assert (found.tokens.shape, found.tokens.dtype, found.log_probs.dtype) == ((4, 9), jnp.int32, jnp.float32)
    for i, prompt in enumerate(PROMPTS):
        tokens, log_probs = by_hand(model, variables, prompt, 9, stops)
        assert found.tokens[i].tolist() == tokens + [-7] * (9 - len(tokens))
        assert found.lengths[i] == len(tokens)
        np.testing.assert_allclose(found.log_probs[i, : len(tokens)], log_probs, rtol=1e-4, atol=1e-4)
        assert not found.log_probs[i, len(tokens) :].any()
        alone = generate(model, variables, [prompt], max_new_tokens=9, stop_tokens=stops, pad_token=-7)
        same(jax.tree.map(lambda x, i=i: x[i : i + 1], found), alone)


def test_draws_depend_on_the_key_of_an_example_and_on_nothing_else(variables: Any) -> None:
    keys, options = jax.random.split(jax.random.key(8), 4), {"temperature": 1.5, "top_k": 8, "top_p": 0.95}
    found = generate(MODEL, variables, PROMPTS, max_new_tokens=8, key=keys, **options)
    for i in (0, 3):
        alone = generate(MODEL, variables, [PROMPTS[i]], max_new_tokens=8, key=keys[i : i + 1], bucket=24, **options)
        same(jax.tree.map(lambda x, i=i: x[i : i + 1], found), alone)
    folded = jax.vmap(jax.random.fold_in, (None, 0))(KEY, jnp.arange(4))
    one = generate(MODEL, variables, PROMPTS, max_new_tokens=8, key=KEY, **options)
    same(one, generate(MODEL, variables, PROMPTS, max_new_tokens=8, key=folded, **options))
    same(one, generate(MODEL, variables, PROMPTS, max_new_tokens=8, key=jax.random.key_data(KEY), **options))
    assert (one.tokens != found.tokens).any()


def test_each_token_is_drawn_with_its_own_key_and_has_its_probability_before_the_temperature(variables: Any) -> None:
    options, number = {"temperature": 2.0, "top_k": 5, "top_p": 0.9}, 6
    found = generate(MODEL, variables, PROMPTS[:1], max_new_tokens=number, key=KEY, **options)
    forward, tokens = jax.jit(MODEL.clone(decode=False).apply), np.array([[*PROMPTS[0], *[0] * number]])
    for n in range(number):
        logits = forward(variables, tokens)[:, len(PROMPTS[0]) + n - 1]
        key = jax.random.fold_in(jax.random.fold_in(KEY, 0), n)
        token = int(sample_tokens(logits, key[None], **options)[0])
        assert found.tokens[0, n] == token
        np.testing.assert_allclose(found.log_probs[0, n], jax.nn.log_softmax(logits)[0, token], rtol=1e-4, atol=1e-4)
        tokens[0, len(PROMPTS[0]) + n] = token


def test_a_temperature_of_zero_selects_also_with_a_key_and_limits(variables: Any) -> None:
    greedy = generate(MODEL, variables, [[1, 2], [3]], max_new_tokens=4)
    for temperature in (0.0, [0.0, 0.0]):
        options: Any = {"key": KEY, "temperature": temperature, "top_k": 3, "top_p": 0.5}
        same(generate(MODEL, variables, [[1, 2], [3]], max_new_tokens=4, **options), greedy)


def test_options_may_differ_between_examples(variables: Any) -> None:
    found = generate(
        MODEL, variables, PROMPTS, max_new_tokens=[2, 8, 1, 8], key=KEY, temperature=[0, 0, 1, 1], top_k=[1, 1, 9, 1]
    )
    greedy = generate(MODEL, variables, PROMPTS, max_new_tokens=8)
    assert found.lengths.tolist() == [2, 8, 1, 8]
    assert found.tokens[0].tolist() == [*greedy.tokens[0, :2].tolist(), *[0] * 6]
    np.testing.assert_array_equal(found.tokens[1], greedy.tokens[1])
    np.testing.assert_array_equal(found.tokens[3], greedy.tokens[3])


def test_the_loop_ends_when_all_examples_have(variables: Any) -> None:
    first = generate(MODEL, variables, PROMPTS, max_new_tokens=1).tokens[:, 0]
    found = generate(MODEL, variables, PROMPTS, max_new_tokens=30, stop_tokens=first.tolist())
    assert found.lengths.tolist() == [1] * 4
    steps: list[int] = []

    class Counts:
        """A model that says when it runs."""

        def apply(self, variables: Any, tokens: Any, mutable: Any) -> Any:
            jax.debug.callback(lambda: steps.append(1))
            return MODEL.apply(variables, tokens, mutable=mutable)

    generate(Counts(), variables, PROMPTS, max_new_tokens=30, stop_tokens=first.tolist())
    jax.effects_barrier()
    assert len(steps) == 2  # for the empty cache and the prompts, which run for their effect here, and no step


def test_what_is_given_of_a_prompt_has_many_forms(variables: Any) -> None:
    expected = generate(MODEL, variables, PROMPTS[:2], max_new_tokens=4)
    padded = np.array([[1, 2, 3], [4, 9, 9]])
    for prompt, lengths in [(padded, [3, 1]), (jnp.asarray(padded), jnp.array([3, 1])), (padded.tolist(), (3, 1))]:
        same(generate(MODEL, variables, prompt, lengths=lengths, max_new_tokens=4), expected)
    same(generate(MODEL, variables, (jnp.array([1, 2, 3]), np.array([4], np.uint8)), max_new_tokens=4), expected)
    given = {**variables, "cache": "not used"}
    same(generate(MODEL, given, PROMPTS[:2], max_new_tokens=4, bucket=3, max_length=6), expected)


def test_a_cache_of_linen_takes_prompts_of_one_length(variables: Any) -> None:
    model = MODEL.clone(ragged=False)  # two layers are stacked, and there are two examples
    prompts = [[1, 2, 3], [3, 2, 1]]
    same(generate(model, variables, prompts, max_new_tokens=6), generate(MODEL, variables, prompts, max_new_tokens=6))
    with pytest.raises(
        LiftArgumentError, match=r"from 1 to 3 tokens, .* Create its attention layers with `ragged_cache=T"
    ):
        generate(model, variables, [[1, 2, 3], [1]], max_new_tokens=6)


def logits_of(scope: liftcore.Scope, tokens: Any) -> Any:
    x = scope.child(liftcore.nn.embedding, "words")(7, 8).lookup(tokens)[..., None, :]
    cache = scope.child(liftcore.nn.decode_cache, "cache")(x, x, ragged=True)
    query, key, value, mask = (x, x, x, None) if cache is None else cache.append(x, x, x)
    x = x + liftcore.nn.dot_product_attention(query, key, value, mask=mask)
    return scope.child(liftcore.nn.dense, "head")(x[..., 0, :], 7)


def test_a_function_of_a_scope_generates() -> None:
    _, made = liftcore.init(logits_of)(KEY, jnp.zeros((1, 4), jnp.int32))
    found = generate(logits_of, made, [[1, 2], [3]], max_new_tokens=4)
    alone = generate(logits_of, made, [[3]], max_new_tokens=4)
    np.testing.assert_array_equal(found.tokens[1:], alone.tokens)


class Masked(nn.Module):
    """A model whose mask has the length of its whole cache: it looks two positions back."""

    room: int = 12

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        index = self.get_variable("cache", "cache_index") if self.has_variable("cache", "cache_index") else 0
        counted = self.variable("cache", "cache_index", lambda: jnp.zeros((), jnp.int32))
        back = index + jnp.arange(tokens.shape[1])[:, None] - jnp.arange(self.room)
        counted.value = jnp.asarray(index + tokens.shape[1])
        x = nn.Embed(VOCABULARY, 8)(tokens)
        x = nn.MultiHeadAttention(2, decode=True, name="attend")(x, mask=(back < 3)[None, None])
        return nn.Dense(VOCABULARY)(x)


def test_prompts_pass_through_a_cache_of_their_own_length(variables: Any) -> None:
    rooms: list[int] = []

    class Looks:
        """A model that says how much room its cache has when prompts pass through it."""

        def apply(self, variables: Any, tokens: Any, mutable: Any) -> Any:
            if "cache" in variables and tokens.shape[1] > 1:
                rooms.append(variables["cache"]["blocks"]["attend"]["cached_key"].shape[-3])
            return MODEL.apply(variables, tokens, mutable=mutable)

    found = generate(Looks(), variables, PROMPTS, max_new_tokens=9, bucket=8)
    same(found, generate(MODEL, variables, PROMPTS, max_new_tokens=9, bucket=17))
    assert rooms == [8]


def test_a_model_that_asserts_the_room_of_its_cache_generates(variables: Any) -> None:
    class Asserts:
        def apply(self, variables: Any, tokens: Any, mutable: Any) -> Any:
            if "cache" in variables:
                assert variables["cache"]["blocks"]["attend"]["cached_key"].shape[-3] == 17
            return MODEL.apply(variables, tokens, mutable=mutable)

    same(
        generate(Asserts(), variables, PROMPTS, max_new_tokens=9, bucket=8),
        generate(MODEL, variables, PROMPTS, max_new_tokens=9, bucket=17),
    )


def test_a_model_with_a_mask_for_the_whole_cache_generates() -> None:
    model = Masked()
    variables = {"params": jax.jit(model.init)(KEY, jnp.zeros((1, 12), jnp.int32))["params"]}
    found = generate(model, variables, [[1, 2, 3, 4]], max_new_tokens=5, bucket=4, max_length=12)
    whole = generate(model, variables, [[1, 2, 3, 4]], max_new_tokens=5, bucket=12, max_length=12)
    same(found, whole)


# -- what is compiled --------------------------------------------------------------------------------------------------


def test_one_program_serves_all_prompts_of_a_bucket(variables: Any) -> None:
    def first() -> Any:
        return generate(MODEL, variables, PROMPTS, max_new_tokens=3, bucket=8)

    def others() -> None:
        for length in range(1, 9):
            generate(MODEL, variables, [[1] * length] * 4, max_new_tokens=3, bucket=8)
            mixed = [[2] * length, [3] * (9 - length), [4], [5] * 8]
            generate(
                MODEL,
                variables,
                mixed,
                max_new_tokens=[1, 3, 1 + length % 3, 2],
                bucket=8,
                key=jax.random.key(length),
                temperature=length / 2,
                top_k=None if length % 2 else length,
                top_p=None if length % 3 else 0.5,
                stop_tokens=range(length % 8),
                pad_token=length,
            )

    run = Programs.of(Model.of("generate", MODEL)).run
    programs = run._cache_size()
    assert compiled(first) >= 1
    assert run._cache_size() == programs + 1
    assert compiled(others) == 0
    assert run._cache_size() == programs + 1
    equal = LanguageModel(decode=True)  # another module, and equal
    assert compiled(lambda: generate(equal, variables, [[1]] * 4, max_new_tokens=3, bucket=8)) == 0


@pytest.mark.parametrize("kind", ["list", "partial"])
def test_models_that_are_equal_by_value_share_a_program(variables: Any, kind: str) -> None:
    class WithSwitch(LanguageModel):
        def __call__(self, tokens: Any, train: bool) -> Any:
            assert train is False
            return super().__call__(tokens)

    def model() -> Any:
        return nn.Sequential([MODEL]) if kind == "list" else functools.partial(WithSwitch(decode=True), train=False)

    given = {"params": {"layers_0": variables["params"]}} if kind == "list" else variables
    found = generate(model(), given, PROMPTS, max_new_tokens=3, bucket=8)
    same(found, generate(MODEL, variables, PROMPTS, max_new_tokens=3, bucket=8))
    assert compiled(lambda: generate(model(), given, PROMPTS, max_new_tokens=3, bucket=8)) == 0


class Needy(nn.Module):
    def __call__(self, tokens: Any, mask: Any, *, train: bool) -> Any:
        raise AssertionError


def needy(scope: Any, tokens: Any, train: bool) -> Any:
    raise AssertionError


WITH_MORE = {
    "by name": (
        functools.partial(Needy(), mask=None),
        r"`train` of Needy has no default\. Give it a default, or fix it: "
        r"`generate\(functools.partial\(model, train=…\), variables, …\)`",
    ),
    "two": (Needy(), r"`mask` and `train` of Needy have no defaults\. Give them .*\(model, mask=…, train=…\)"),
    "function": (needy, r"`train` of needy has no default"),
    "by position": (functools.partial(Needy(), None, train=False), r"Needy has positional arguments, .* by name"),
}


@pytest.mark.parametrize("kind", WITH_MORE)
def test_a_model_that_needs_more_than_tokens_is_refused(kind: str) -> None:
    model, message = WITH_MORE[kind]
    with pytest.raises(LiftArgumentError, match=message):
        generate(model, {}, PROMPTS, max_new_tokens=3)


class Holding(nn.Module):
    arrays: Any

    def __call__(self, tokens: Any) -> Any:
        raise AssertionError


def test_a_model_without_a_hash_that_may_change_is_refused(variables: Any) -> None:
    with pytest.raises(nn.errors.UnhashableModuleError, match='field "arrays" cannot be hashed'):
        generate(Holding([jnp.ones(2)]), variables, PROMPTS, max_new_tokens=3)
    with pytest.raises(nn.errors.UnhashableModuleError, match="bound to variables"):
        generate(MODEL.bind(variables), variables, PROMPTS, max_new_tokens=3)


def test_a_default_bucket_is_a_power_of_two_and_the_model_is_traced_once_for_it(variables: Any) -> None:
    traced: list[tuple[int, ...]] = []

    class Traced:
        def apply(self, variables: Any, tokens: Any, mutable: Any) -> Any:
            traced.append(tokens.shape)
            return MODEL.apply(variables, tokens, mutable=mutable)

    model = Traced()
    for length in (1, 16, 2, 17):
        generate(model, variables, [[1] * length], max_new_tokens=2)
    assert set(traced) == {(1, 18), (1, 16), (1, 1), (1, 34), (1, 32)}
    assert len(traced) <= 8  # JAX may trace the body of a loop twice


def test_numbers_beyond_32_bits_and_rooms_for_one_position(variables: Any) -> None:
    some = {"max_new_tokens": 3, "key": KEY}
    same(generate(MODEL, variables, [[1]], top_k=2**32, **some), generate(MODEL, variables, [[1]], **some))
    whole = generate(MODEL, variables, [[1]], max_new_tokens=1)
    same(generate(MODEL, variables, [[1]], max_new_tokens=1, max_length=1), whole)
    half = jnp.bfloat16(0.5)
    same(*(generate(MODEL, variables, [[1]], temperature=one, **some) for one in (half, 0.5)))


# -- what is refused ---------------------------------------------------------------------------------------------------


BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": [[]]}, "prompt 0 is empty, but a prompt is one or more tokens"),
    ({"prompt": [1, 2]}, "expected prompts of shape (batch, length)"),
    ({"prompt": 3}, "expected prompts of shape (batch, length), or a list of lists of tokens, given 3."),
    ({"prompt": []}, "expected prompts of shape (batch, length)"),
    ({"prompt": "a text"}, "expected prompts of shape (batch, length)"),
    ({"prompt": np.ones((2, 3))}, "prompt 0 has the dtype float64"),
    ({"prompt": [[1, -1]]}, "prompt 0 has the token -1"),
    ({"prompt": [[1], [2**32]]}, "prompt 1 has the token 4294967296, but"),
    ({"lengths": [4, 1]}, "lengths are [4, 1], for prompts of shape (2, 2)"),
    ({"lengths": [1]}, "lengths are [1]"),
    ({"prompt": [[1], [1, 2]], "lengths": [1, 1]}, "leave lengths out for a list of lists"),
    ({"bucket": 1}, "a prompt has 2 tokens, but the bucket is 1. Pass `bucket=2`"),
    ({"max_length": 5}, "need 6 positions; max_length is 5. Shorten the prompts, pass `max_new_tokens=4`"),
    ({"max_length": 20, "bucket": 32}, "in a bucket of 32, and 5 new ones need 32 positions; max_length is 20"),
    ({"max_new_tokens": 0}, "expected 1 or more as `max_new_tokens`, given 0"),
    ({"max_new_tokens": 2.5}, "expected an integer or one for each of 2 examples as `max_new_tokens`, given 2.5"),
    ({"temperature": -1.0, "key": KEY}, "expected 0 or a positive number as `temperature`, given -1.0"),
    ({"temperature": np.nan, "key": KEY}, "as `temperature`, given nan"),
    ({"temperature": [1.0, 2.0, 3.0], "key": KEY}, "expected a number or one for each of 2 examples as `temperature`"),
    ({"temperature": 1.0}, "there is no key to draw tokens with. Pass `key=jax.random.key(0)`"),
    ({"top_k": 0, "key": KEY}, "as `top_k`, given 0"),
    ({"top_k": 3}, "but no token is drawn: the most probable one is selected"),
    ({"top_p": 0.0, "key": KEY}, "expected a number above 0 and at most 1 as `top_p`, given 0.0"),
    ({"top_p": 1.5, "key": KEY}, "as `top_p`, given 1.5"),
    ({"key": 3}, "expected a key or one for each of 2 examples as `key`, given 3"),
    ({"key": jax.random.split(KEY, 3)}, "`jax.random.split(key, 2)`"),
    ({"stop_tokens": ["a"]}, "expected tokens from 0 to 2147483647 as `stop_tokens`"),
    ({"stop_tokens": [[1], [1, 2]]}, "as `stop_tokens`, given [[1], [1, 2]]"),
    ({"stop_tokens": [-1]}, "as `stop_tokens`, given [-1]"),
    ({"stop_tokens": [2**32]}, "as `stop_tokens`, given [4294967296]"),
    (
        {"module": MODEL.clone(decode=False)},
        "no decode cache: there is no `cache_index` in the collection `cache`. Create",
    ),
    ({"module": 3}, "expected a module, an object with `apply`, or a function of a scope, given 3"),
    ({"variables": [1]}, "expected variables, a dict of collections"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message for _, message in BAD])
def test_what_does_not_fit_is_refused(variables: Any, change: Any, message: str) -> None:
    given = {"module": MODEL, "variables": variables, "prompt": [[1, 2], [3, 4]], "max_new_tokens": 5, **change}
    with pytest.raises(LiftArgumentError, match=re.escape(message)) as error:
        generate(given.pop("module"), given.pop("variables"), given.pop("prompt"), **given)
    assert error.value.where == "generate"


def test_prompts_that_are_traced_are_refused(variables: Any) -> None:
    with pytest.raises(LiftArgumentError, match=r"the prompts are traced, .* Call it outside `jax.jit`"):
        jax.jit(lambda prompt: generate(MODEL, variables, prompt, max_new_tokens=1))(np.ones((1, 2), np.int32))


def test_variables_and_keys_may_be_traced(variables: Any) -> None:
    def drawn(variables: Any, key: Any) -> Any:
        return generate(MODEL, variables, PROMPTS[:2], max_new_tokens=3, key=key)

    keys = jax.random.split(KEY, 2)
    found = jax.jit(jax.vmap(drawn, (None, 0)))(variables, keys)
    for i in range(2):
        same(jax.tree.map(lambda x, i=i: x[i], found), drawn(variables, keys[i]))


def test_a_model_of_other_outputs_is_refused(variables: Any) -> None:
    class Pair(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            return LanguageModel(decode=True, name="model")(tokens), 1

    model = Pair()
    variables = model.init(KEY, jnp.zeros((1, 4), jnp.int32))
    with pytest.raises(LiftArgumentError, match=r"for tokens of shape \(1, 1\) it returned a tuple|it returned \("):
        generate(model, variables, [[1]], max_new_tokens=1)


# -- positions that are taken back -------------------------------------------------------------------------------------


def test_positions_that_are_taken_back_are_overwritten(variables: Any) -> None:
    step = jax.jit(lambda cache, tokens: MODEL.apply({**variables, "cache": cache}, tokens, mutable=["cache"]))
    tokens = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    empty = MODEL.init(KEY, jnp.zeros((2, 6), jnp.int32))["cache"]
    expected, _ = step(empty, tokens)
    _, written = step(empty, np.array([[1, 2, 9], [5, 9, 9]]))
    cache = rewind(written["cache"], np.array([1, 2]))
    y, written = step(cache, np.array([[3, 4], [6, 7]]))
    np.testing.assert_allclose(y[0], expected[0, 2:], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(y[1], expected[1, 1:3], rtol=1e-4, atol=1e-5)
    back = rewind(written["cache"], 3)["blocks"]["attend"]["cache_index"]
    assert back.tolist() == [[1, 0], [1, 0]]


def test_an_index_of_all_examples_cannot_be_taken_back_for_each() -> None:
    cache = MODEL.clone(ragged=False).init(KEY, jnp.zeros((2, 6), jnp.int32))["cache"]
    assert rewind(cache, 0)["blocks"]["attend"]["cache_index"].tolist() == [0, 0]
    with pytest.raises(LiftArgumentError, match="all examples share an index"):
        rewind(cache, np.array([1, 2]))


@pytest.mark.parametrize(
    ("cache", "number", "message"),
    [
        ({"cache_index": jnp.array(2)}, 3, r"the cache is at position 2, so it cannot move back 3"),
        ({"cache_index": jnp.array([5, 1])}, np.array([0, 2]), r"position \[5, 1\], so it cannot move back \[0, 2\]"),
        ({"cache_index": jnp.array(2)}, 1.5, r"expected how many positions to move back, given .*1.5"),
        ({"cache_index": jnp.array(2)}, -1, r"expected how many positions to move back"),
        ({"cache_index": jnp.array(2)}, None, r"expected how many positions to move back, given None"),
        ({"cache_index": jnp.array(2)}, "two", r"expected how many positions to move back, given 'two'"),
        ([1], 1, r"there is no `cache_index` in the cache; given \[1\]"),
        ({"kernel": jnp.ones(2)}, 1, r"there is no `cache_index` in the cache; it has \['kernel'\]"),
    ],
)
def test_a_cache_moves_back_only_to_where_it_was(cache: Any, number: Any, message: str) -> None:
    with pytest.raises(LiftArgumentError, match=message):
        rewind(cache, number)


def test_a_traced_cache_moves_back_to_the_start_at_most() -> None:
    assert jax.jit(rewind)({"cache_index": jnp.array(2)}, 3)["cache_index"] == 0


@pytest.mark.parametrize("name", ["bucket", "max_length", "pad_token"])
@pytest.mark.parametrize("given", [16.0, True, 2**40, "x"])
def test_lengths_and_padding_are_whole_numbers(variables: Any, name: str, given: Any) -> None:
    with pytest.raises(LiftArgumentError, match=rf"expected an integer from .* as `?{name}`?, given"):
        generate(MODEL, variables, PROMPTS, max_new_tokens=2, **{name: given})


def test_padding_beyond_the_positions_of_a_model_is_an_error(variables: Any) -> None:
    class Limited(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            is_made = self.has_variable("cache", "cache_index")
            index = self.variable("cache", "cache_index", lambda: jnp.zeros(len(tokens), jnp.int32))
            positions = index.value[:, None] + jnp.arange(tokens.shape[1])
            if is_made:
                index.value += tokens.shape[1]
            x = nn.Embed(11, 8)(tokens) + nn.Embed(20, 8)(positions)
            x = nn.MultiHeadDotProductAttention(2, decode=True, ragged_cache=True)(x)
            return nn.Dense(11)(x)

    model = Limited()
    limited = {"params": model.init(KEY, jnp.zeros((1, 20), jnp.int32))["params"]}
    prompt = [list(range(9)) + list(range(8))]
    with pytest.raises(LiftArgumentError, match=r"logits of the model are NaN\. Prompts were padded to 32 tokens"):
        generate(model, limited, prompt, max_new_tokens=3)
    with pytest.raises(LiftArgumentError, match=r"the greatest token of a prompt is 11\. .* vocabulary has no such"):
        generate(model, limited, [[1, 11]], max_new_tokens=3, max_length=20)
    found = generate(model, limited, prompt, max_new_tokens=3, max_length=20)
    assert np.isfinite(found.log_probs).all()
