"""Recurrent models in many styles, each a function of a library that returns a model; see `module_styles`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

STYLES: dict[str, Callable[[Any], Any]] = {}

WORDS, START = 5, 0


def style(build: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Adds a style."""
    STYLES[build.__name__] = build
    return build


def tokens(x: Any) -> Any:
    """The two rows of three numbers that models are called with, as words of a vocabulary."""
    return jnp.round(jnp.abs(x) * (WORDS - 1)).astype(int)


@style
def cell_made_where_its_layer_is(nn: Any) -> Any:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            y = nn.RNN(nn.LSTMCell(4))(x[..., None])
            return nn.RNN(nn.GRUCell(2, name="last"), name="second")(y)

    return Model()


@style
def layers_in_setup(nn: Any) -> Any:
    class Model(nn.Module):
        def setup(self) -> None:
            self.layers = [nn.RNN(nn.OptimizedLSTMCell(4)), nn.Bidirectional(nn.RNN(nn.MGUCell(2)), self.backward())]
            self.head = nn.Dense(2)

        @nn.nowrap
        def backward(self) -> Any:
            return nn.RNN(nn.SimpleCell(2))

        def __call__(self, x: Any) -> Any:
            x = x[..., None]
            for layer in self.layers:
                x = layer(x, seq_lengths=jnp.array([2, 3]))
            return self.head(x)

    return Model()


@style
def layers_in_a_sequence(nn: Any) -> Any:
    return nn.Sequential([lambda x: x[..., None], nn.RNN(nn.LSTMCell(4)), nn.relu, nn.RNN(nn.GRUCell(3))])


@style
def cell_shared_by_layers_and_steps(nn: Any) -> Any:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            cell = nn.GRUCell(4)
            carry, y = nn.RNN(cell, return_carry=True)(x[..., None])
            carry, last = cell(carry, x[:, :1])
            return y + nn.RNN(cell, reverse=True)(x[..., None], initial_carry=carry) + last[:, None]

    return Model()


@style
def cell_in_a_field(nn: Any) -> Any:
    class Encoder(nn.Module):
        cell: Any

        def setup(self) -> None:
            self.rnn = nn.RNN(self.cell, return_carry=True)

        def __call__(self, x: Any) -> Any:
            carry, y = self.rnn(x[..., None])
            return self.cell(carry, y[:, -1, :1])[1]

    class Model(nn.Module):
        cell: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return Encoder(self.cell)(x) + Encoder(nn.SimpleCell(4))(x)

    return Model(nn.LSTMCell(4, name="core"))


@style
def cell_stepped_by_the_caller(nn: Any) -> Any:
    class Model(nn.Module):
        def setup(self) -> None:
            self.cell, self.head = nn.MGUCell(4), nn.Dense(2)
            self.rnn = nn.RNN(self.cell, return_carry=True)

        def step(self, carry: Any, x: Any) -> Any:
            carry, y = self.cell(carry, x)
            return carry, self.head(y)

        def __call__(self, x: Any) -> Any:
            carry, y = self.rnn(x[:, :2, None])
            return self.head(y), self.step(carry, x[:, 2:])

    return Model()


@style
def lifted_cells(nn: Any) -> Any:
    class Model(nn.Module):
        def setup(self) -> None:
            options = {"variable_axes": {"params": None}, "split_rngs": {"params": False}}
            self.saving = nn.RNN(nn.remat(nn.LSTMCell)(4))
            self.mapped = nn.vmap(nn.RNN, **options)(nn.GRUCell(2))

        def __call__(self, x: Any) -> Any:
            return self.mapped(self.saving(x[..., None]))

    return Model()


@style
def residual_cells_of_one_class(nn: Any) -> Any:
    class Residual(nn.RNNCellBase):
        cell: Any

        def __call__(self, carry: Any, x: Any) -> Any:
            carry, y = self.cell(carry, x)
            return carry, x + y

        @nn.nowrap
        def initialize_carry(self, rng: Any, input_shape: Any) -> Any:
            return self.cell.initialize_carry(rng, input_shape)

        @property
        def num_feature_axes(self) -> int:
            return int(self.cell.num_feature_axes)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Dense(3)(x[..., None])
            for number in range(2):
                x = nn.RNN(Residual(nn.GRUCell(3, parent=None), parent=None), name=f"layer{number}")(x)
            return x

    return Model()


@style
def language_model_that_writes(nn: Any) -> Any:
    """A decoder: it reads words, and goes on with the likeliest ones, which it feeds back to itself."""

    class Writer(nn.Module):
        def setup(self) -> None:
            self.words, self.cell, self.head = nn.Embed(WORDS, 4), nn.GRUCell(4), nn.Dense(WORDS)

        def read(self, words: Any) -> Any:
            carry, y = nn.RNN(self.cell, return_carry=True, parent=None)(self.words(words))
            return carry, self.head(y)

        def write(self, carry: Any, words: Any, steps: int) -> Any:
            def step(mdl: Any, state: Any, _: Any) -> Any:
                carry, word = state
                carry, y = mdl.cell(carry, mdl.words(word))
                logits = mdl.head(y)
                word = logits.argmax(-1)
                return (carry, word), (word, logits)

            loop = nn.scan(step, variable_broadcast="params", length=steps, out_axes=1)
            return loop(self, (carry, words), None)[1]

        def __call__(self, x: Any) -> Any:
            carry, logits = self.read(tokens(x))
            return logits, self.write(carry, logits[:, -1].argmax(-1), 3)

    return Writer()


def _decoder_step(nn: Any) -> Any:
    class Step(nn.Module):
        """One word of the output: the true one before it is given, or else its own guess."""

        forced: bool

        @nn.compact
        def __call__(self, state: Any, word: Any) -> Any:
            carry, guess = state
            word = word if self.forced else guess
            carry, y = nn.LSTMCell(4, name="cell")(carry, nn.Embed(WORDS, 3, name="words")(word))
            logits = nn.Dense(WORDS, name="head")(y)
            return (carry, logits.argmax(-1)), logits

    return Step


@style
def sequence_to_sequence(nn: Any) -> Any:
    """An encoder and a decoder, with the true words before each one, and with its own."""
    step = _decoder_step(nn)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            source, target = tokens(x), tokens(x[:, ::-1])
            embedded = nn.Embed(WORDS, 3, name="source")(source)
            encoder = nn.RNN(nn.LSTMCell(4), return_carry=True, name="encoder")
            carry, _ = encoder(embedded, seq_lengths=jnp.array([3, 2]))
            state = carry, jnp.full(len(x), START)
            before = jnp.concatenate([state[1][:, None], target[:, :-1]], axis=1)
            options = {"variable_broadcast": "params", "split_rngs": {"params": False}, "in_axes": 1, "out_axes": 1}
            decoder = nn.scan(step, **options)
            _, taught = decoder(True, name="decoder")(state, before)
            return taught

    return Model()


@style
def greedy_decoding_with_the_same_parameters(nn: Any) -> Any:
    """One class for both: training by `RNN`, decoding by a lifted loop over the methods of the model."""

    class Seq2Seq(nn.Module):
        def setup(self) -> None:
            self.words = nn.Embed(WORDS, 3)
            self.encoder = nn.RNN(nn.LSTMCell(4), return_carry=True)
            self.cell, self.head = nn.LSTMCell(4), nn.Dense(WORDS)
            self.decoder = nn.RNN(self.cell)

        def teach(self, carry: Any, before: Any) -> Any:
            return self.head(self.decoder(self.words(before), initial_carry=carry))

        def guess(self, state: Any, _: Any) -> Any:
            carry, word = state
            carry, y = self.cell(carry, self.words(word))
            logits = self.head(y)
            return (carry, logits.argmax(-1)), logits

        def __call__(self, x: Any) -> Any:
            carry, _ = self.encoder(self.words(tokens(x)), seq_lengths=jnp.array([3, 2]))
            taught = self.teach(carry, tokens(x[:, ::-1]))
            loop = nn.scan(Seq2Seq.guess, variable_broadcast="params", length=4, out_axes=1)
            _, guessed = loop(self, (carry, jnp.full(len(x), START)), None)
            return taught, guessed

    return Seq2Seq()


@style
def decoder_with_attention(nn: Any) -> Any:
    class Attend(nn.RNNCellBase):
        memory: int

        @nn.compact
        def __call__(self, carry: Any, x: Any, states: Any) -> Any:
            cell = nn.GRUCell(self.memory)
            weights = jax.nn.softmax(jnp.einsum("bf,btf->bt", nn.Dense(self.memory)(carry), states))
            context = jnp.einsum("bt,btf->bf", weights, states)
            carry, y = cell(carry, jnp.concatenate([x, context], axis=-1))
            return carry, (y, weights)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            carry, states = nn.RNN(nn.GRUCell(4), return_carry=True)(x[..., None])
            options = {"variable_broadcast": "params", "split_rngs": {"params": False}}
            loop = nn.scan(Attend, in_axes=(1, nn.broadcast), out_axes=1, **options)
            return loop(4)(carry, x[:, ::-1, None], states)[1]

    return Model()
