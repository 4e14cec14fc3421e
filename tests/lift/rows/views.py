"""What the body sees: its variables, its keys, its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import liftcore
from tests.lift.plain import Body, Path
from tests.lift.rows.row import Row


def checked() -> Row:
    """`checkify`."""

    def lifted(body: Body) -> Body:
        both = liftcore.checkify(body)
        return lambda scope, x: both(scope, x)[1]

    return Row(lifted, lambda body: body)


def seen_doubled() -> Row:
    """`map_variables`: the body sees its parameters twice as large as they are stored."""

    def lifted(body: Body) -> Body:
        return liftcore.map_variables(body, "params", each(lambda x: 2 * x), each(lambda x: 0.5 * x), init=True)

    return Row(lifted, seen_through(("params",), lambda x: 2 * x, lambda x: 0.5 * x, lambda x: 0.5 * x))


def seen_greater(*collections: str) -> Row:
    """`map_variables`: what the body makes is one more when it sees it again, and is stored as half of what it made."""

    def lifted(body: Body) -> Body:
        into, out = each(lambda x: 2 * x + 1), each(lambda x: 0.5 * x)
        return liftcore.map_variables(body, collections, into, out, mutable=True)

    plain = seen_through(collections, lambda x: 2 * x + 1, lambda x: 0.5 * x, lambda x: 0.5 * (x - 1))
    return Row(lifted, plain, shown="map_variables")


Number = Callable[[Any], Any]


def each(fn: Number) -> Callable[[Any], Any]:
    """A map of all variables, each by itself."""
    return lambda variables: jax.tree.map(fn, variables)


def seen_through(collections: tuple[str, ...], into: Number, out: Number, back: Number) -> Callable[[Body], Body]:
    """`map_variables` in plain Python; `back` undoes `into`."""

    def mapped(fn: Number, values: dict[Path, Any]) -> dict[Path, Any]:
        return {path: jax.tree.map(fn, value) for path, value in values.items() if path[0] in collections}

    def plain(body: Body) -> Body:
        def call(scope: Any, x: Any) -> Any:
            world, outer = scope.world, scope.world.copy()

            def seen(path: Path, made: Any) -> Any:
                stored = outer.seen(path, mapped(out, {path: made}).get(path, made))
                return mapped(into, {path: stored}).get(path, stored)

            world.values |= mapped(into, world.values)
            world.pending |= mapped(into, world.pending)
            world.changed, world.first, world.seen = {}, {}, seen
            y = body(scope, x)
            written = {path: world.values[path] for path in world.changed}
            kept = {path: value for path, value in written.items() if _same(value, world.first.get(path))}
            world.values |= mapped(out, written) | mapped(back, kept)
            world.values |= {path: outer.values[path] for path in outer.values if path not in written}
            world.first = {**outer.first, **world.first, **mapped(back, world.first)}
            world.pending, world.seen, world.changed = outer.pending, outer.seen, outer.changed | world.changed
            return y

        return call

    return plain


def _same(value: Any, first: Any) -> bool:
    """Whether a variable is as it was made; one that was written has another value."""
    alike = jax.tree.structure(value) == jax.tree.structure(first)
    return alike and all(map(jnp.array_equal, jax.tree.leaves(value), jax.tree.leaves(first)))


def swapped(one: str, other: str) -> Row:
    """`swap_collection`."""

    def plain(body: Body) -> Body:
        def call(scope: Any, x: Any) -> Any:
            names = {one: other, other: one}
            scope.world.rename(names)
            y = body(scope, x)
            scope.world.rename(names)
            return y

        return call

    return Row(lambda body: liftcore.swap_collection(body, one, other), plain, shown="map_variables")


def folded() -> Row:
    """`fold_rngs`: all keys are drawn from new roots."""

    def plain(body: Body) -> Body:
        def call(scope: Any, x: Any) -> Any:
            place = scope.below("fold_rngs")
            roots = {name: place.make_rng(name) for name in sorted(scope.world.given)}
            with scope.world.anew(roots, len(scope.path)):
                return body(scope, x)

        return call

    return Row(liftcore.fold_rngs, plain)


def keyed(key: Any) -> Row:
    """`with_rngs`: one stream begins anew, from a key that is given."""

    def plain(body: Body) -> Body:
        def call(scope: Any, x: Any) -> Any:
            with scope.world.anew({"dropout": key}, len(scope.path)):
                return body(scope, x)

        return call

    return Row(lambda body: liftcore.with_rngs(body, {"dropout": key}), plain)
