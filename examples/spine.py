"""The core of liftcore in one file: JAX transformations of functions that have state.

A model is a function of a *scope*. The scope holds named variables, draws random keys, and remembers which names are in
use. A *lift* makes such a function pure, transforms it with JAX, and writes back what changed. `docs/spine.md` explains
the six steps. The library adds what real models need; names, keys and numbers are the same.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Set
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core as jex

# 1. Scopes ------------------------------------------------------------------------------------------------------------

Path = tuple[str, ...]  # of a variable: (collection, *modules, name); of a stream of keys: (stream,)
Values = dict[Path, Any]
Fn = Callable[..., Any]


class LiftError(Exception):
    """A wrong use of a scope or of a lift."""


class State:
    """What all scopes of one `init`, `apply` or lift share."""

    def __init__(self, values: Values, keys: Values, mutable: Any, counts: Any = (), names: Any = (), place: str = "/"):
        self.values, self.keys, self.mutable, self.place = dict(values), keys, mutable, place
        self.counts: dict[Any, int] = dict(counts)  # how many keys each scope has drawn from each stream
        self.names: set[Path] = set(names)  # variables that were declared, and children as ("", *modules, name)
        self.created: Values = {}  # the initial value of each new variable
        self.written: Values = {}  # the last value of each variable that was written
        self.ended = False

    def check(self, allowed: bool = True, problem: str = "") -> None:
        """Raise an error if the scopes have ended, or if something is not allowed."""
        if self.ended or not allowed:
            raise LiftError(f"{self.place}: {'this scope has ended' if self.ended else problem}")


class Scope:
    """One place in a model."""

    def __init__(self, state: State, modules: Path = ()):
        self.state, self.modules = state, modules

    def child(self, fn: Fn, name: str) -> Fn:
        """Return `fn` on a scope below this one."""
        self._claim(("", *self.modules, name))
        return partial(fn, Scope(self.state, (*self.modules, name)))

    def param(self, name: str, init_fn: Fn, *args: Any) -> Any:
        """Return the value of a parameter; `init_fn` gets a key, and is called only if the parameter is new."""
        return self.variable("params", name, lambda: init_fn(self.make_rng("params"), *args)).value

    def variable(self, collection: str, name: str, init_fn: Callable[[], Any]) -> Variable:
        """Return a variable, which is created if it is new."""
        path = (collection, *self.modules, name)
        self._claim(path)
        if path not in self.state.values:
            self.state.check(matches(self.state.mutable, path), f"{path} does not exist, and cannot be created")
            self.state.values[path] = self.state.created[path] = mark(init_fn())
        return Variable(self.state, path)

    def make_rng(self, stream: str) -> Any:
        """Return a key that depends on the root key of the stream, this place, and the number of keys drawn here."""
        self.state.check((stream,) in self.state.keys, f"there is no stream {stream!r}")
        count = self.state.counts.get((self.modules, stream), 0) + 1
        self.state.counts[self.modules, stream] = count
        items = *map(str.encode, self.modules), count.to_bytes((count.bit_length() + 7) // 8, "big")
        digest = hashlib.sha1(b"".join(b"\0" + item for item in items)).digest()
        return jax.random.fold_in(self.state.keys[stream,], int.from_bytes(digest[:4], "big"))

    def _claim(self, name: Path) -> None:
        self.state.check(name not in self.state.names, f"{name} is in use")
        self.state.names.add(name)


class Variable:
    """A handle to one value."""

    def __init__(self, state: State, path: Path):
        self.state, self.path = state, path

    @property
    def value(self) -> Any:
        """The current value; assign to it to write the variable."""
        self.state.check()
        return self.state.values[self.path]

    @value.setter
    def value(self, value: Any) -> None:
        self.state.check(matches(self.state.mutable, self.path), f"{self.path} is immutable")
        self.state.values[self.path] = self.state.written[self.path] = value


def mark(value: Any) -> Any:
    """Return an equal array; in a trace, an equation of its own makes it."""
    return checkpoint_name(jnp.asarray(value), "initial value")


def matches(filter: Any, path: Path) -> bool:
    """Return whether a filter selects a path: True, the first item of the path, a predicate, or a tuple of filters."""
    if isinstance(filter, tuple):
        return any(matches(one, path) for one in filter)
    return bool(filter(path)) if callable(filter) else filter is True or filter == path[0]


def run(fn: Fn, scope: Scope, *args: Any) -> Any:
    """Call a function of a scope; the scope ends with the call."""
    try:
        return fn(scope, *args)
    finally:
        scope.state.ended = True


def apply(fn: Fn, mutable: Any = ()) -> Fn:
    """Make a function of a scope pure: `(variables, *args, rngs) -> result`, or a pair with the mutable variables."""

    def applied(variables: Values, *args: Any, rngs: dict[str, Any] | None = None) -> Any:
        keys: Values = {(stream,): key for stream, key in (rngs or {}).items()}
        state = State(variables, keys, mutable)
        result = run(fn, Scope(state), *args)
        after = {path: value for path, value in state.values.items() if matches(mutable, path)}
        return (result, after) if mutable else result

    return applied


def init(fn: Fn) -> Fn:
    """Make a function that creates variables: `(key, *args) -> (result, variables)`."""
    return lambda key, *args: apply(fn, True)({}, *args, rngs=key if isinstance(key, dict) else {"params": key})


# 2. Lifts -------------------------------------------------------------------------------------------------------------

Rules = dict[Any, Any]  # {filter: treatment}: the first filter that matches a path decides
Groups = dict[Any, Values]  # {treatment: {path: value}}


class Changes(NamedTuple):
    """What a body did to its variables."""

    created: Values
    written: Values


class Body:
    """A function of a scope as a pure function: `(variables, keys, *args) -> (result, Changes)`."""

    def __init__(self, fn: Fn, scope: Scope, rules: Rules, name: str):
        self.fn, self.scope, self.place = fn, scope, f"{scope.state.place}{name}/"
        self.filters = tuple(rules)

    def __call__(self, values: Values, keys: Values, *args: Any) -> tuple[Any, Changes]:
        """Run the function on a new scope at the same place, which holds these variables and keys."""
        outer = self.scope.state
        children = outer.names - outer.values.keys()  # a body may declare the variables of its scope again
        self.state = State(values, keys, self._mutable, outer.counts, children, self.place)
        result = run(self.fn, Scope(self.state, self.scope.modules), *args)
        return result, Changes(self.state.created, self.state.written)

    def _mutable(self, path: Path) -> bool:
        return matches(self.filters, path) and matches(self.scope.state.mutable, path)


def transformation(transform: Fn, variables: Rules, streams: Rules, name: str) -> Fn:
    """Make a lift of `transform(body, variables, keys, *args) -> (result, Changes)`; both come grouped by treatment."""

    def lift(fn: Fn) -> Fn:
        def lifted(scope: Scope, *args: Any) -> Any:
            outer, body = scope.state, Body(fn, scope, variables, name)
            groups, keys = partition(outer.values, variables), partition(outer.keys, streams)
            result, changes = transform(body, groups, keys, *args)
            # Nothing outside has changed so far. If the body or JAX raises an error, nothing ever does.
            outer.values |= changes.created | changes.written
            outer.created |= changes.created
            outer.written |= changes.written
            outer.counts, outer.names = body.state.counts, outer.names | body.state.names  # of the last run
            return result

        return lifted

    return lift


def treatment(rules: Rules, path: Path) -> Any:
    """Return what the first filter that matches says, or None."""
    return next((how for filter, how in rules.items() if matches(filter, path)), None)


def partition(values: Values, rules: Rules) -> Groups:
    """Return a group of values for each treatment. A value that no filter matches is in none of them."""
    groups: Groups = defaultdict(dict)
    for path, value in values.items():
        if matches(tuple(rules), path):
            groups[treatment(rules, path)][path] = value
    return groups


ALL: Rules = {True: "all"}


def _frozen(body: Body, groups: Groups, keys: Groups, *args: Any) -> Any:
    return body(jax.lax.stop_gradient(groups["all"]), keys["all"], *args)


frozen = transformation(_frozen, ALL, ALL, "frozen")
"""A lift that changes what its body sees: variables without gradients."""


# 3. Initial values, jit and remat -------------------------------------------------------------------------------------

Known = dict[Any, tuple[Any, int | None]]  # variables of a jaxpr, with their values and the axes of their elements


class Split:
    """A body that is traced once, and run in two parts: first the initial values of its variables, then the rest."""

    def __init__(self, body: Fn, *operands: Any):
        closed, types = jax.make_jaxpr(body, return_shape=True)(*operands)
        self.jaxpr = closed.jaxpr
        self.constants = known(closed.jaxpr.constvars, closed.consts)  # everything that the body closes over
        self.operands = like(operands, closed.jaxpr.invars)
        self.result, (self.created, self.written) = like(types, closed.jaxpr.outvars)

    def prologue(self, env: Known, paths: Iterable[Path], size: int | None = None, reads: str = "") -> Values:
        """Return initial values that follow from what is known, with a size one for each element.

        If a value does not follow, the error says what it may read.
        """
        env, goals = dict(env), {path: self.created[path] for path in paths}
        others = set(self.created.values()) - set(goals.values())  # known, or not to be computed here
        for eqn in needed(self.jaxpr, goals.values(), env.keys() | others):
            if all(var in env for var in variables_of(eqn.invars)):
                evaluate(self.jaxpr, eqn, env, size)
                for var in set(goals.values()) & set(eqn.outvars):
                    env[var] = spread(*env[var], size)  # what reads the variable later reads this value
        missing = [path for path, var in goals.items() if var not in env]
        refuse(missing, f"the initial value of {{}} may only depend on {reads}")
        return {path: env[var][0] for path, var in goals.items()}

    def initial(self, values: Values, axis: int | None = None) -> Known:
        """Return what is known if these variables begin with these values."""
        return {self.created[path]: (value, axis) for path, value in values.items()}

    def remainder(self, created: Values, *operands: Any) -> tuple[Any, Values]:
        """Return the result and the written values, given the initial values."""
        env = self.constants | known(self.operands, operands) | self.initial(created)
        outputs = self.result, self.written
        for eqn in needed(self.jaxpr, jax.tree.leaves(outputs), env.keys()):
            evaluate(self.jaxpr, eqn, env)
        values = [atom.val if isinstance(atom, jex.Literal) else env[atom][0] for atom in jax.tree.leaves(outputs)]
        result, written = like(outputs, values)
        return result, written


def refuse(paths: Iterable[Path], problem: str) -> None:
    """Raise an error about the first of these paths, if there is one."""
    for path in sorted(paths):
        raise LiftError(problem.format(path))


def like(tree: Any, leaves: list[Any]) -> Any:
    """Return a pytree of the same structure with other leaves."""
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def known(variables: Any, values: Any, axis: int | None = None) -> Known:
    """Return what is known if these variables have these values, one for each element if there is an axis."""
    return {var: (value, axis) for var, value in zip(jax.tree.leaves(variables), jax.tree.leaves(values), strict=True)}


def variables_of(atoms: Iterable[Any]) -> list[Any]:
    """Return the inputs or outputs of equations that are no literals."""
    return [atom for atom in atoms if not isinstance(atom, jex.Literal)]


def needed(jaxpr: Any, outputs: Iterable[Any], given: Set[Any]) -> list[Any]:
    """Return the equations that compute the outputs from given variables, in order."""
    live = set(variables_of(outputs)) - given
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if not live.isdisjoint(eqn.outvars):
            kept.append(eqn)
            live |= set(variables_of(eqn.invars)) - given
    return kept[::-1]


def evaluate(jaxpr: Any, eqn: Any, env: Known, size: int | None = None) -> None:
    """Evaluate one equation, for all elements at once if an input differs between them, and add its results."""
    inputs = variables_of(eqn.invars)
    values, axes = [env[var][0] for var in inputs], [env[var][1] for var in inputs]
    alone = jaxpr.replace(constvars=[], invars=inputs, eqns=[eqn], outvars=eqn.outvars, effects=eqn.effects)
    compute, axis = jex.jaxpr_as_fun(jex.ClosedJaxpr(alone, [])), None
    if 0 in axes:
        compute, axis = jax.vmap(compute, axes, axis_size=size), 0
    env |= known(eqn.outvars, compute(*values), axis)


def spread(value: Any, axis: int | None, size: int | None) -> tuple[Any, int | None]:
    """Return a value for each element, with its axis."""
    if size is None or axis == 0:
        return value, axis
    return jnp.broadcast_to(value, (size, *value.shape)), 0


def outlined(transform: Fn, name: str) -> Fn:
    """Lift a JAX transformation that makes one equation of a function."""

    def run(body: Body, groups: Groups, keys: Groups, *args: Any) -> Any:
        operands = groups["all"], keys["all"], *args
        split = Split(body, *operands)
        created = split.prologue(split.constants | known(split.operands, operands), split.created)
        result, written = transform(split.remainder)(created, *operands)
        return result, Changes(created, written)

    return transformation(run, ALL, ALL, name)


jit = outlined(jax.jit, "jit")
remat = outlined(jax.checkpoint, "remat")


# 4. vmap --------------------------------------------------------------------------------------------------------------


def vmap(fn: Fn, *, variable_axes: Rules, split_rngs: Rules, axis_size: int | None = None) -> Fn:
    """Lift `jax.vmap`: each variable has axis 0 or is shared (None), each stream is split or is not."""
    axis = partial(treatment, variable_axes)

    def transform(body: Body, groups: Groups, keys: Groups, *args: Any) -> Any:
        size = axis_size or len(jax.tree.leaves((args, groups[0]))[0])
        operands = groups[0], split_keys(keys[True], size), args

        def element(values: Values, own: Values, args: Any) -> Any:
            return body({**groups[None], **values}, {**keys[False], **own}, *args)

        split = Split(element, *first(operands))
        new = partition(split.created, variable_axes)
        env = split.constants  # what the body closes over, the same in all elements
        shared = split.prologue(env, new[None], reads="what all elements share")
        env = env | split.initial(shared) | known(split.operands, operands, 0)
        mapped = split.prologue(env, new[0], size)
        created = {**shared, **mapped}
        in_axes, out_axes = ({path: axis(path) for path in paths} for paths in (created, split.written))
        run = jax.vmap(split.remainder, (in_axes, 0, 0, 0), (0, out_axes), axis_size=size)
        result, written = run(created, *operands)
        return result, Changes(created, written)

    return transformation(transform, variable_axes, split_rngs, "vmap")(fn)


def split_keys(keys: Values, size: int) -> Values:
    """Return a root key for each element."""
    return {stream: jax.random.split(key, size) for stream, key in keys.items()}


def first(tree: Any) -> Any:
    """Return the part of one element."""
    return jax.tree.map(lambda leaf: leaf[0], tree)


# 5. scan --------------------------------------------------------------------------------------------------------------


def scan(
    fn: Fn,
    *,
    variable_broadcast: Any = (),
    variable_carry: Any = (),
    variable_axes: Rules | None = None,
    split_rngs: Rules,
    length: int | None = None,
) -> Fn:
    """Lift `jax.lax.scan`: each variable is shared, carried, or stacked on axis 0."""
    rules = {variable_broadcast: "shared", variable_carry: "carried", **dict.fromkeys(variable_axes or {}, "stacked")}

    def transform(body: Body, groups: Groups, keys: Groups, carry: Any, xs: Any) -> Any:
        size = length or len(jax.tree.leaves((xs, groups["stacked"]))[0])
        state = groups["carried"], carry
        slices = groups["stacked"], split_keys(keys[True], size), xs

        def iteration(state: Any, slices: Any) -> Any:
            (carried, carry), (stacked, own, x) = state, slices
            return body({**groups["shared"], **carried, **stacked}, {**keys[False], **own}, carry, x)

        split = Split(iteration, state, first(slices))
        new = partition(split.created, rules)
        refuse(partition(split.written, rules)["shared"], "{} is shared by all iterations, so none can write it")

        # Three kinds of initial values; each may read the kinds before it.
        env = split.constants
        shared = split.prologue(env, new["shared"], reads="what all iterations share")
        env = env | split.initial(shared)
        every = env | known(split.operands[1], slices, 0)
        stacked = split.prologue(every, new["stacked"], size, reads="the slice of its iteration, not on the carry")
        begin = env | split.initial(first(stacked)) | known(split.operands, (state, first(slices)))
        carried = split.prologue(begin, new["carried"])

        def step(state: Any, slices: Any) -> Any:
            (variables, carry), (own, inputs) = state, slices
            old, now = select(variables, groups["carried"]), select(variables, carried)
            (carry, y), written = split.remainder({**shared, **own, **now}, (old, carry), inputs)
            after = partition(written, rules)
            return ({**variables, **after["carried"]}, carry), (y, after["stacked"])

        start = {**groups["carried"], **carried}, carry
        (variables, carry), (ys, written) = jax.lax.scan(step, start, (stacked, slices), size)
        written |= select(variables, partition(split.written, rules)["carried"])
        return (carry, ys), Changes({**shared, **stacked, **carried}, written)

    return transformation(transform, rules, split_rngs, "scan")(fn)


def select(values: Values, paths: Iterable[Path]) -> Values:
    """Return the values of some paths."""
    return {path: values[path] for path in paths}


# 6. grad --------------------------------------------------------------------------------------------------------------


def grad(fn: Fn, wrt: Any = "params") -> Fn:
    """Lift `jax.grad`: the gradient with respect to variables, also those that the function creates."""
    rules = {(wrt,): "wrt", True: "others"}

    def transform(body: Body, groups: Groups, keys: Groups, *args: Any) -> Any:
        split = Split(lambda old: body({**groups["others"], **old}, keys["all"], *args), groups["wrt"])
        created = split.prologue(split.constants | known(split.operands, (groups["wrt"],)), split.created)

        def loss(new: Values, old: Values) -> Any:
            return split.remainder({**created, **new}, old)

        new = partition(created, rules)["wrt"]
        (of_new, of_old), written = jax.grad(loss, (0, 1), has_aux=True)(new, groups["wrt"])
        return {**of_new, **of_old}, Changes(created, written)

    return transformation(transform, rules, ALL, "grad")(fn)


# Together -------------------------------------------------------------------------------------------------------------


def layer(scope: Scope, x: Any) -> Any:
    """A dense layer that counts its calls."""
    calls = scope.variable("state", "calls", lambda: jnp.zeros((), int))
    calls.value += 1
    w = scope.param("w", jax.nn.initializers.lecun_normal(), (x.shape[-1], x.shape[-1]))
    return jnp.tanh(x @ w)


def deep(scope: Scope, x: Any) -> Any:
    """Four layers, compiled as one, with parameters of their own."""
    layers = scan(
        lambda scope, x, _: (remat(layer)(scope, x), None),
        variable_carry="state",
        variable_axes={"params": 0},
        split_rngs={"params": True},
        length=4,
    )
    return scope.child(layers, "layers")(x, None)[0]


def main() -> None:
    """Create an ensemble of three deep networks, and print its variables."""
    ensemble = vmap(jit(deep), variable_axes={True: 0}, split_rngs={"params": True})
    _, variables = init(ensemble)(jax.random.key(0), jnp.ones((3, 8)))
    for path, value in variables.items():
        print(f"{'/'.join(path):20} {value.dtype}{list(value.shape)}")


if __name__ == "__main__":
    main()
