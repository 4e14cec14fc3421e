"""What the body sees: its variables, its keys, its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

import liftcore
from tests.lift.plain import Body
from tests.lift.rows.row import Row


def checked() -> Row:
    """`checkify`."""

    def lifted(body: Body) -> Body:
        both = liftcore.checkify(body)
        return lambda scope, x: both(scope, x)[1]

    return Row(lifted, lambda body: body)


def seen_doubled() -> Row:
    """`map_variables`: the body sees its parameters twice as large as they are stored."""

    def times(number: float) -> Callable[[Any], Any]:
        return lambda variables: jax.tree.map(lambda leaf: number * leaf, variables)

    def lifted(body: Body) -> Body:
        return liftcore.map_variables(body, "params", times(2.0), times(0.5), init=True)

    def plain(body: Body) -> Body:
        def call(scope: Any, x: Any) -> Any:
            world = scope.world
            stored = {path: value for path, value in world.values.items() if path[0] == "params"}
            world.values |= {path: 2 * value for path, value in stored.items()}
            world.pending |= {path: 2 * value for path, value in world.pending.items() if path[0] == "params"}
            y = body(scope, x)
            for values in (world.values, world.pending, world.first):
                values |= {path: 0.5 * value for path, value in values.items() if path[0] == "params"}
            world.values |= stored
            return y

        return call

    return Row(lifted, plain)


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
    """`with_rngs`: one sequence begins anew, from a key that is given."""

    def plain(body: Body) -> Body:
        def call(scope: Any, x: Any) -> Any:
            with scope.world.anew({"dropout": key}, len(scope.path)):
                return body(scope, x)

        return call

    return Row(lambda body: liftcore.with_rngs(body, {"dropout": key}), plain)
