"""Lifted `jax.jit`.

What a body draws depends on the path and the counts of its caller, which are no part of what is compiled. A key is
`fold_in(root, word)`, where the word is a hash of path and count: so the *words* are arguments of the compiled
function, taken from one vector in the order of the draws. Which draws a body makes, the names it takes and what it sows
is static. It rides home in the pytree structure of the compiled function's output, on cached calls as well.

One compiled function serves all calls of equal functions, layouts and static arguments. It knows nothing of the call
that traces it but through `Here`, which is emptied when the call ends.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import rng
from ..filters import names_collections
from ..hoist import Traced
from ..pack import Captured, Crossing, Layout, Pure, Record, lift, name_of
from ..typing import Filter, Path
from .arguments import choose, fixed_arguments, join_arguments, name_arguments
from .outline import with_created, without_created

__all__ = ["jit"]

_CACHED = 256
"""How many compiled functions of different configurations are kept."""

_FEW = 256
"""How many draws a body is traced with room for at first."""


def jit(
    fn: Callable[..., Any],
    *,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    donate_argnums: int | Iterable[int] = (),
    donate_argnames: str | Iterable[str] = (),
    keep_unused: bool = False,
    device: Any = None,
    backend: str | None = None,
    inline: bool = False,
    compiler_options: Mapping[str, Any] | None = None,
    variables: Filter = True,
    rngs: Filter = True,
) -> Callable[..., Any]:
    """`jax.jit` for a function of scopes: compiled once for all equal calls, wherever in a model these stand.

    Names, values and draws are those of `fn` itself.

    Example:
        >>> import liftcore
        >>> runs = []
        >>> def layer(scope, x):
        ...     runs.append(scope.path)
        ...     return jnp.sin(x * scope.param("w", jax.random.normal, ()))
        >>> def model(scope, x):
        ...     for name in "abc":
        ...         x = scope.child(liftcore.jit(layer), name)(x)
        ...     return x
        >>> _, variables = liftcore.init(model)(jax.random.key(0), 1.0)
        >>> len(runs), sorted(variables["params"])
        (1, ['a', 'b', 'c'])

    Args:
        fn: called as `fn(scopes, *args, **kwargs)`. Calls share what is compiled where their functions are equal.
        static_argnums: see `jax.jit`; they count in the signature of `fn`, where the scopes are 0.
        static_argnames: see `jax.jit`.
        donate_argnums: see `jax.jit`; they count as `static_argnums` do. Variables are not donated.
        donate_argnames: see `jax.jit`.
        keep_unused: see `jax.jit`.
        device: see `jax.jit`.
        backend: see `jax.jit`.
        inline: see `jax.jit`.
        compiler_options: see `jax.jit`.
        variables: a filter of the variables that are lifted.
        rngs: a filter of the PRNG sequences that are lifted.

    Returns:
        `lifted(scopes, *args, **kwargs)`.
    """
    static = choose(fn, "static", static_argnums, static_argnames)
    donated = choose(fn, "donated", donate_argnums, donate_argnames)
    options = _options(
        keep_unused=keep_unused,
        device=device,
        backend=backend,
        inline=inline,
        compiler_options=tuple(sorted(compiler_options.items())) if compiler_options else None,
    )
    find = _shared if _is_shareable(fn) else functools.lru_cache(_CACHED)(Compiled)

    def transform(pure: Pure, variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = name_arguments(args, kwargs)
        fixed = fixed_arguments(pure.where, arguments, static)
        gone = {name: value for name, value in arguments.items() if name in donated and name not in fixed}
        kept = {name: value for name, value in arguments.items() if name not in fixed and name not in gone}
        compiled = find(Body(fn, pure.crossing.layout, _hashable(fixed), _paths(pure.crossing)), options)
        return compiled(pure.crossing, gone, (variable_groups, rng_groups, kept))

    return lift(transform, fn, [variables], [variables, Captured()], [rngs], "jit")


class Here:
    """The use of a lift that a call belongs to. All are equal, so it is no part of what is compiled."""

    def __init__(self, crossing: Crossing) -> None:
        self.crossing: Crossing | None = crossing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Here)

    def __hash__(self) -> int:
        return hash(Here)


class Draw(NamedTuple):
    """One draw of a body, by its place in what was lifted and by how many draws came before it there."""

    index: int
    path: Path
    name: str
    count: int

    def word(self, crossing: Crossing) -> np.uint32:
        """The word of this draw in another call."""
        scope = crossing.outers[self.index].below(self.path)
        found = scope.tree.sequence(self.name)
        assert found is not None, "drawn from in one of two equal calls alone"
        return rng.word((*scope.path[found[1].since :], scope.node.counts.get(self.name, 0) + self.count))


@dataclasses.dataclass(frozen=True)
class Kept:
    """What a body did that is no array, as a pytree without leaves."""

    record: Record
    draws: tuple[Draw, ...]


jax.tree_util.register_static(Kept)


class TooFewWords(Exception):
    """A body drew more keys than there was room for."""


class Dealer:
    """Deals out the words to a body while it is traced, and notes what each of them is for."""

    def __init__(self, words: Any, crossing: Crossing) -> None:
        self._words, self._outers = words, crossing.outers
        self.draws: list[Draw] = []

    def to(self, index: int) -> Callable[[Path, rng.Sequence, str, int], Any]:
        """What the scopes below one of the outermost scopes ask for words."""
        outer = self._outers[index]

        def deal(path: Path, sequence: rng.Sequence, name: str, count: int) -> Any:
            below = path[len(outer.path) :]
            before = outer.below(below).node.counts.get(name, 0)
            self.draws.append(Draw(index, below, name, count - before))
            if len(self.draws) > self._words.size:
                raise TooFewWords
            return self._words[len(self.draws) - 1]

        return deal


@dataclasses.dataclass(frozen=True)
class Body:
    """The function that is compiled. Equal ones share a trace."""

    fn: Callable[..., Any]
    layout: Layout
    fixed: tuple[tuple[str, type, Any], ...]
    paths: tuple[Path, ...]

    @property
    def __name__(self) -> str:
        return name_of(self.fn)

    def __call__(self, here: Here, words: Any, gone: Any, operands: Any) -> Any:
        crossing = here.crossing
        assert crossing is not None, "traced outside of the call that asked for it"
        variable_groups, rng_groups, kept = operands
        args, kwargs = join_arguments({**{name: value for name, _, value in self.fixed}, **gone, **kept})
        dealer = Dealer(words, crossing)
        scopes = crossing.scope_fn(variable_groups, rng_groups, hoisted=True, words=dealer.to)
        result = self.fn(scopes, *args, **kwargs)
        created, rest = without_created(result, crossing.repack_fn(scopes))
        return created, (*rest, Kept(crossing.records.pop(), tuple(dealer.draws)))


class Compiled:
    """A body under `jax.jit`."""

    def __init__(self, body: Body, options: tuple[tuple[str, Any], ...]) -> None:
        self._jit = functools.partial(jax.jit, **{name: _plain(value) for name, value in options})
        self._name = body.__name__
        self._whole = self._jit(body, static_argnums=0, donate_argnums=2)
        self._rest = functools.lru_cache(_CACHED)(self._without_created)
        self._room = _FEW

    def __call__(self, crossing: Crossing, gone: Any, operands: Any) -> tuple[Any, tuple[Any, ...]]:
        here = Here(crossing)
        try:
            return self._call(here, crossing, gone, operands)
        finally:
            here.crossing = None

    def _call(self, here: Here, crossing: Crossing, gone: Any, operands: Any) -> tuple[Any, tuple[Any, ...]]:
        words = np.zeros(self._room, np.uint32)
        creates = False
        if crossing.writes or any(group for group in jax.tree.leaves(operands[1], is_leaf=_is_dict)):
            traced = self._trace(here, gone, operands)
            created, (_, _, kept) = traced.out_info
            words = np.zeros(self._room, np.uint32)
            words[: len(kept.draws)] = [draw.word(crossing) for draw in kept.draws]
            creates = bool(jax.tree.leaves(created))
        if creates:
            sizes = tuple(len(jax.tree.leaves(one)) for one in (words, gone, operands))
            hoisted, run = self._rest(traced.jaxpr, sizes, jax.tree.structure(traced.out_info))
            created = hoisted.create(None, words, gone, operands)
            result, values, kept = run(created, words, gone, operands)
        else:
            created, (result, values, kept) = self._whole(here, words, gone, operands)
        crossing.records.append(kept.record)
        return with_created(created, result, values)

    def _trace(self, here: Here, gone: Any, operands: Any) -> Any:
        """What is known of the body without running it; it is traced if no equal call was before."""
        while True:
            try:
                return self._whole.trace(here, np.zeros(self._room, np.uint32), gone, operands)
            except TooFewWords:
                self._room *= 4

    def _without_created(self, closed: Any, sizes: tuple[int, ...], out_tree: Any) -> tuple[Traced, Callable[..., Any]]:
        """The body as traced, and the compiled function of it without what makes its initial values."""
        hoisted = Traced(closed, sizes, jax.tree.unflatten(out_tree, closed.jaxpr.outvars))

        def rest(created: Any, words: Any, gone: Any, operands: Any) -> Any:
            return hoisted.rest(None, created, words, gone, operands)[1]

        rest.__name__ = self._name
        return hoisted, self._jit(rest, donate_argnums=2)


_shared = functools.lru_cache(_CACHED)(Compiled)
"""Compiled functions of bodies that hold no arrays and may be found again by an equal one."""


def _is_shareable(fn: Callable[..., Any]) -> bool:
    """Whether a function can be kept without keeping arrays alive: it has no closure, or it compares by value."""
    if isinstance(fn, types.FunctionType):
        return fn.__closure__ is None
    return not isinstance(fn, types.MethodType | functools.partial) and type(fn).__eq__ is not object.__eq__


def _options(**given: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((name, value) for name, value in given.items() if value)


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, tuple) else value


def _hashable(fixed: Mapping[str, Any]) -> tuple[tuple[str, type, Any], ...]:
    return tuple((name, type(value), value) for name, value in fixed.items())


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _paths(crossing: Crossing) -> tuple[Path, ...]:
    """The paths of what is lifted, where a filter may ask for them."""
    layout = crossing.layout
    rules = [*layout.in_filters, *layout.out_filters, *(outer.tree.mutable for outer in crossing.outers)]
    return () if all(map(names_collections, rules)) else tuple(outer.path for outer in crossing.outers)
