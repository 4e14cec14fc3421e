"""`RngStream` and `Rngs`: named streams of keys. A stream is a key and a count of the keys drawn from it."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from liftcore.errors import Expected, LiftArgumentError
from liftcore.filters import asking_further

from ..errors import UnknownStreamError
from ..filterlib import Filter, PathIn, PathParts, Predicate, to_predicate
from ..objects.pytree import Pytree
from ..variablelib.kinds import RngCount, RngKey

__all__ = [
    "Draws",
    "KeylessInitializer",
    "RngStream",
    "RngValue",
    "Rngs",
    "Sampler",
    "Shape",
    "check_takes",
    "drawn_key",
    "rules_of",
    "shape_of",
]


# --- the functions of `jax.random` and JAX's initializers, as methods that draw the key -------------------------------

Sampler = Callable[..., jax.Array]
"""A function of `jax.random` without its first argument, the key."""

KeylessInitializer = Callable[..., jax.Array]
"""An initializer without its first argument, `init(shape, dtype)`. Each call draws a key."""


class Draws:
    """The methods for `jax.random` and the initializers, on a callable that returns a new key.

    A method named like a function of `jax.random` takes the same arguments without the key. A method named like an
    initializer takes the arguments of the function in `jax.nn.initializers`, and returns a function of shape and dtype.
    `orthogonal`, `normal`, `uniform` and `truncated_normal` are the functions of `jax.random`.

    Example:
        >>> import jax
        >>> import nnx_like as nnx
        >>> rngs = nnx.Rngs(0)
        >>> drawn = rngs.normal((2, 3))
        >>> bool((drawn == jax.random.normal(nnx.Rngs(0)(), (2, 3))).all())
        True
        >>> rngs.lecun_normal()((2, 3)).shape
        (2, 3)
    """

    __slots__ = ()

    ball: Sampler
    bernoulli: Sampler
    beta: Sampler
    binomial: Sampler
    bits: Sampler
    categorical: Sampler
    cauchy: Sampler
    chisquare: Sampler
    choice: Sampler
    dirichlet: Sampler
    double_sided_maxwell: Sampler
    exponential: Sampler
    f: Sampler
    gamma: Sampler
    generalized_normal: Sampler
    geometric: Sampler
    gumbel: Sampler
    laplace: Sampler
    loggamma: Sampler
    logistic: Sampler
    lognormal: Sampler
    maxwell: Sampler
    multinomial: Sampler
    multivariate_normal: Sampler
    normal: Sampler
    orthogonal: Sampler
    pareto: Sampler
    permutation: Sampler
    poisson: Sampler
    rademacher: Sampler
    randint: Sampler
    rayleigh: Sampler
    t: Sampler
    triangular: Sampler
    truncated_normal: Sampler
    uniform: Sampler
    wald: Sampler
    weibull_min: Sampler

    delta_orthogonal: Callable[..., KeylessInitializer]
    glorot_normal: Callable[..., KeylessInitializer]
    glorot_uniform: Callable[..., KeylessInitializer]
    he_normal: Callable[..., KeylessInitializer]
    he_uniform: Callable[..., KeylessInitializer]
    kaiming_normal: Callable[..., KeylessInitializer]
    kaiming_uniform: Callable[..., KeylessInitializer]
    lecun_normal: Callable[..., KeylessInitializer]
    lecun_uniform: Callable[..., KeylessInitializer]
    variance_scaling: Callable[..., KeylessInitializer]
    xavier_normal: Callable[..., KeylessInitializer]
    xavier_uniform: Callable[..., KeylessInitializer]

    def __call__(self) -> jax.Array:
        """Return a new key."""
        raise NotImplementedError


def _sampling(sample: Callable[..., Any]) -> Callable[..., Any]:
    """Turn a function of `jax.random` into a method."""

    def method(self: Draws, *args: Any, **kwargs: Any) -> Any:
        return sample(self(), *args, **kwargs)

    return _described(method, sample, skipped="key")


def _initializing(make: Callable[..., Any]) -> Callable[..., Any]:
    """Turn an initializer factory into a method; the initializers that it returns need no key."""

    def method(self: Draws, *args: Any, **kwargs: Any) -> KeylessInitializer:
        initializer = make(*args, **kwargs)
        return lambda *shape, **options: initializer(self(), *shape, **options)

    return _described(method, make, skipped=None)


def _described(method: Any, wrapped: Callable[..., Any], skipped: str | None) -> Callable[..., Any]:
    """Set the signature and docstring of a method from the function behind it, without the argument that it draws."""
    signature = inspect.signature(wrapped)
    of_self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    kept = [one for name, one in signature.parameters.items() if name != skipped]
    method.__signature__ = signature.replace(parameters=[of_self, *kept])
    text = inspect.getdoc(wrapped) or ""
    method.__doc__ = "\n".join(line for line in text.splitlines() if not line.startswith("  key:"))
    method.__name__, method.__qualname__ = wrapped.__name__, f"{Draws.__name__}.{wrapped.__name__}"
    return method


def _fill() -> None:
    for name, kind in Draws.__annotations__.items():
        made = _sampling if kind == "Sampler" else _initializing
        module = jax.random if kind == "Sampler" else jax.nn.initializers
        if hasattr(module, name):  # not all releases of JAX have every function
            setattr(Draws, name, made(getattr(module, name)))


_fill()


# --- streams ----------------------------------------------------------------------------------------------------------

RngValue = int | jax.Array
"""A seed: an int, a key of `jax.random.key`, or the raw `uint32` data of one."""

Shape = int | tuple[int, ...]
"""The number of keys: an int, or one for each axis."""


class RngStream(Draws, Pytree):
    """A stream of keys. Each draw folds `count` into `key`, and raises `count` by one.

    Both are variables, so a stream crosses transformations like any object. Both have the `tag` of the stream in
    their metadata, so a string selects them as a filter.

    Example:
        >>> import jax
        >>> import nnx_like as nnx
        >>> stream = nnx.RngStream(0, tag="params")
        >>> stream() == jax.random.fold_in(jax.random.key(0), 0)
        Array(True, dtype=bool)
        >>> int(stream.count.get_value())
        1

    Args:
        key: a seed, a key, or an array of keys of any shape. To draw from an array of keys, map over its axes.
        tag: the name of the stream.

    Attributes:
        tag: the name of the stream.
        key: an `RngKey`; draws do not change it.
        count: an `RngCount` of dtype `uint32` and of the shape of `key`.

    Raises:
        LiftArgumentError: if `key` has another type.
    """

    tag: str
    key: RngKey[jax.Array]
    count: RngCount[jax.Array]

    def __init__(self, key: RngValue, *, tag: str) -> None:
        keys = _keys(key, tag)
        self.tag = tag
        self.key = RngKey(keys, tag=tag)
        self.count = RngCount(jnp.zeros(keys.shape, jnp.uint32), tag=tag)

    def __call__(self) -> jax.Array:
        """Draw a key.

        Returns:
            A key of shape `()`.

        Raises:
            TraceContextError: inside a transformation to which the stream was not passed.
            LiftArgumentError: if the stream holds an array of keys.
        """
        key = self.key.get_value()
        if key.shape:
            where = f"the stream {self.tag!r}"
            what = f"a key was drawn from a stream that holds keys of shape {key.shape}; a draw needs a single key."
            fix = (
                "Draw inside a transformation that maps over these axes, such as `nnx.vmap` with the stream on axis 0."
            )
            raise LiftArgumentError(where, what, fix, stream=self.tag, given=f"keys of shape {key.shape}")
        drawn = self.count.get_value()
        self.count.set_value(drawn + 1)  # first, since it raises an error if the stream belongs to another trace
        return jax.random.fold_in(key, drawn)

    def fork(self, *, split: Shape | None = None) -> RngStream:
        """Return a new stream, seeded with a key drawn from this one.

        Args:
            split: the number of keys of the new stream; an older form of `split(k)`.

        Returns:
            A stream with a count of zero.
        """
        return RngStream(drawn_key(self, split), tag=self.tag)

    def split(self, k: Shape) -> RngStream:
        """Return a new stream of several keys, split from one key drawn here.

        Args:
            k: the shape of the keys.

        Returns:
            A stream with keys and counts of shape `(k,)`, or `k` where that is a tuple.
        """
        return self.fork(split=k)

    def broadcast(self, k: Shape) -> RngStream:
        """Return a new stream that repeats one key, drawn here: all elements draw the same keys.

        Args:
            k: the shape of the keys.

        Returns:
            A stream with keys and counts of shape `(k,)`, or `k` where that is a tuple.
        """
        shape = shape_of("RngStream.broadcast", k)
        return RngStream(jnp.broadcast_to(drawn_key(self), shape), tag=self.tag)


class Rngs(Draws, Pytree):
    """Streams of keys by name, with a `default` for names without a stream.

    Each stream is an attribute and an item. Calling the object, or a method of `jax.random` on it, draws from
    `default`. If a stream of another `Rngs` is given under its own name, it is shared, including its count, and no key
    is drawn twice. Under another name it is copied, as if the same seed were given twice.

    Example:
        >>> import nnx_like as nnx
        >>> rngs = nnx.Rngs(0, params=1)
        >>> kernel = rngs.params.normal((2, 3))
        >>> key, other = rngs(), rngs.dropout()  # both from `default`
        >>> list(rngs), int(rngs.default.count.get_value())
        (['params', 'default'], 2)

    Args:
        default: a seed or a key for the stream `default`; or a mapping from names to seeds, keys or streams.
        **rngs: a seed, a key or a stream for each name.

    Raises:
        LiftArgumentError: if an argument is not a seed, a key or a stream.
    """

    def __init__(
        self,
        default: RngValue | RngStream | Mapping[str, RngValue | RngStream] | None = None,
        **rngs: RngValue | RngStream,
    ) -> None:
        given: dict[str, Any] = {**default, **rngs} if isinstance(default, Mapping) else dict(rngs)
        if default is not None and not isinstance(default, Mapping):
            given["default"] = default
        for name, value in given.items():
            setattr(self, name, _stream(value, name))

    def __call__(self) -> jax.Array:
        """Draw a key from the stream `default`.

        Returns:
            A key of shape `()`.
        """
        return self._get_stream("default")()

    def __getattr__(self, name: str) -> RngStream:
        # Tools ask objects for names with underscores; returning a stream would let them call it and draw a key.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")
        return self._get_stream(name)

    def __getitem__(self, name: str) -> RngStream:
        return self._get_stream(name)

    def _get_stream(self, name: str) -> RngStream:
        streams = dict(self.items())
        found = streams.get(name, streams.get("default"))
        if found is None:
            known = ", ".join(map(repr, streams)) or "none"
            what = f"there is no stream of that name, and no stream 'default'; available streams: {known}."
            fix = f"Add it, as in `Rngs({name}=0)`, or add a default, as in `Rngs(0)`."
            raise UnknownStreamError(f"the stream {name!r} of Rngs", what, fix, stream=name, available=tuple(streams))
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self.items()))

    def __len__(self) -> int:
        return len(dict(self.items()))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and isinstance(vars(self).get(name), RngStream)

    def items(self) -> Iterator[tuple[str, RngStream]]:
        """Return the streams by name.

        Yields:
            Pairs of a name and its `RngStream`, in the order in which they were set.
        """
        for name, stream in vars(self).items():
            if isinstance(stream, RngStream):
                yield name, stream

    def fork(self, /, *, split: Mapping[Filter, Shape | None] | Shape | None = None) -> Rngs:
        """Return new streams, each seeded with a key drawn from the stream of its name.

        Example:
            >>> import nnx_like as nnx
            >>> rngs = nnx.Rngs(params=1, dropout=2)
            >>> rngs.fork().params() == nnx.Rngs(params=1).params.fork()()
            Array(True, dtype=bool)

        Args:
            split: the number of keys of the new streams, in the form that `Rngs.split` takes; streams that no filter
                matches are forked. Kept for older code; new code calls `split(k)`.

        Returns:
            Streams with the same names and counts of zero.
        """
        shapes = _chosen("Rngs.fork", split, self)
        return Rngs({name: stream.fork(split=shapes[name]) for name, stream in self.items()})

    def split(self, k: Mapping[Filter, Shape | None] | Shape) -> Rngs:
        """Return new streams of several keys, each split from a key drawn from the stream of its name.

        Example:
            >>> import nnx_like as nnx
            >>> rngs = nnx.Rngs(params=1, dropout=2, noise=3)
            >>> new = rngs.split({"params": 5, "dropout": None, ...: (2, 5)})
            >>> new.params.key.shape, new.dropout.key.shape, new.noise.key.shape
            ((5,), (), (2, 5))

        Args:
            k: the shape of the keys; or a mapping from filters to shapes, in which the first filter that matches a
                stream applies. Streams with None, and those that no filter matches, are shared with this object.

        Returns:
            Streams with the same names and counts of zero.
        """
        return self._each(k, RngStream.split)

    def broadcast(self, k: Mapping[Filter, Shape | None] | Shape | None) -> Rngs:
        """Return new streams that repeat one key, drawn from the stream of that name: all elements draw the same keys.

        Example:
            >>> import nnx_like as nnx
            >>> keys = nnx.Rngs(0).broadcast(5).default.key.get_value()
            >>> keys.shape, bool(keys[0] == keys[4])
            ((5,), True)

        Args:
            k: the shape of the keys; or a mapping from filters to shapes, in which the first filter that matches a
                stream applies. Streams with None, and those that no filter matches, are shared with this object.

        Returns:
            Streams with the same names and counts of zero.
        """
        return self._each(k, RngStream.broadcast)

    def _each(self, k: Any, change: Callable[[RngStream, Any], RngStream]) -> Rngs:
        shapes = _chosen(f"Rngs.{change.__name__}", k, self)
        changed = {name: change(stream, shapes[name]) for name, stream in self.items() if shapes[name] is not None}
        return Rngs({**dict(self.items()), **changed})


def drawn_key(stream: RngStream, split: Shape | None = None) -> jax.Array:
    """Draw a key from a stream; split it into a shape, unless that is None."""
    shape = None if split is None else shape_of("RngStream.split", split)
    key = stream()
    return key if shape is None else jax.random.split(key, shape)


def shape_of(where: str, k: Any) -> tuple[int, ...]:
    """Return a number of keys, or one for each axis, as a shape.

    Raises:
        LiftArgumentError: if it is neither.
    """
    shape = tuple(k) if isinstance(k, tuple | list) else (k,)
    try:
        wrong = any(operator.index(size) < 0 for size in shape if not jax.export.is_symbolic_dim(size))
    except TypeError:
        wrong = True
    if wrong:
        expected = Expected("a number of keys, or a tuple of one for each axis", k)
        raise LiftArgumentError(where, expected, "Write a number such as `5`, or a tuple such as `(2, 5)`.")
    return shape


def rules_of(k: Mapping[Filter, Shape | None] | Shape | None) -> list[tuple[Predicate, Shape | None]]:
    """Convert a mapping from filters to shapes, or one shape for all, to predicates and shapes."""
    return [(to_predicate(one), shape) for one, shape in (k if isinstance(k, Mapping) else {...: k}).items()]


def _chosen(where: str, k: Any, rngs: Rngs) -> dict[str, Shape | None]:
    """Return for each stream, by name, the shape of the first rule that matches it."""
    rules, streams = rules_of(k), [((name,), stream) for name, stream in rngs.items()]
    for matches, shape in rules:  # all checks come before the first draw
        check_takes(where, matches, streams)
        if shape is not None:
            shape_of(where, shape)
    return {
        path[0]: next((shape for matches, shape in rules if matches(path, stream)), None) for path, stream in streams
    }


def check_takes(
    where: str,
    predicate: Predicate,
    streams: Sequence[tuple[PathParts, RngStream]],
    matches: Callable[[Predicate, PathParts, RngStream], bool] = lambda predicate, *one: predicate(*one),
) -> None:
    """Check that a filter of paths or types takes one of the streams, if there are any. A name may be missing.

    Args:
        where: the function, for errors.
        predicate: the filter.
        streams: the streams with their paths.
        matches: returns whether a filter takes a stream.

    Raises:
        LiftArgumentError: if it takes none.
    """
    is_by_name = asking_further(predicate) is None and not isinstance(predicate, PathIn)
    if is_by_name or not streams or any(matches(predicate, path, stream) for path, stream in streams):
        return
    paths = tuple(".".join(map(str, path)) or "the given one" for path, _ in streams)
    what = f"the filter {predicate!r} matches no stream (available: {', '.join(paths)})."
    fix = f"Write the name of a stream, {streams[0][1].tag!r}, or a part of one of these paths."
    raise LiftArgumentError(where, what, fix, given=repr(predicate), available=paths)


def _stream(value: Any, name: str) -> RngStream:
    if not isinstance(value, RngStream):
        return RngStream(value, tag=name)
    if value.tag == name:  # another stream with the same variables: draws from either one count for both
        made = RngStream.__new__(RngStream)
        made.tag, made.key, made.count = value.tag, value.key, value.count
        return made
    made = RngStream(value.key.get_value(), tag=name)
    made.count.set_value(value.count.get_value())
    return made


def _keys(value: Any, tag: str) -> jax.Array:
    """Return the keys that a seed gives."""
    if isinstance(value, int):
        return jax.random.key(value)
    if isinstance(value, jax.Array):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return value
        if value.dtype == jnp.uint32 and value.ndim:
            return jax.random.wrap_key_data(value)
    where = f"the stream {tag!r}"
    fix = f"Write `Rngs({tag}=0)` or `Rngs({tag}=jax.random.key(0))`."
    raise LiftArgumentError(where, Expected("an int, or a key made by `jax.random.key`", value), fix, stream=tag)
