"""The documented rules, asked of a program without running it: what breaks one is taken out.

For each value the rules follow what it depends on: the batch elements and iterations around it (each lift is a number).
A shared variable may be made from, and written with, what is the same for all.

The library has no say here: where it raises an error on a legal program, either it is wrong or a rule is missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from tests.fuzz import programs
from tests.fuzz.plain import GIVEN, IllegalError, Path, treatment
from tests.fuzz.programs import CARRY

Deps = frozenset[int | str]
NONE: Deps = frozenset()
RESHAPED = "reshaped"
"""Depended on by what is read from a variable that may have another shape later."""
WRITTEN = ("state", "cache")
LOOPS = ("scan", "fori_loop", "while_loop")
GROUPED = ("vmap", *LOOPS)
DERIVATIVES = ("vjp", "grad", "jvp")
BRANCHES = ("cond", "switch")
RULED = ("custom_vjp", "custom_jvp", "custom_vmap")
"""Lifts with rules. A rule is a derivative of the function, or maps it; it closes over nothing."""
SCOPE = "scope"
"""In the place of a collection: the name of a scope."""
CALLS = ("call", "named_call")
"""What lifts no variable: the body around goes on in it."""


@dataclasses.dataclass
class State:
    """What is known at one place of a program.

    Attributes:
        variables: what each variable depends on.
        around: the lifts around, with their numbers.
        control: what it depends on whether this is run.
        number: of the last lift.
        before: the variables that were there before the innermost lift, and are not declared again in it yet.
        reshaped: the variables that may get another shape, as collections and names.
    """

    variables: dict[Path, Deps] = dataclasses.field(default_factory=dict)
    around: tuple[tuple[int, programs.Lift], ...] = ()
    control: Deps = NONE
    number: int = 0
    before: frozenset[Path] = frozenset()
    reshaped: frozenset[tuple[str, str]] = frozenset()

    def has(self, *kinds: str) -> bool:
        return any(lift.kind in kinds for _, lift in self.around)

    def mapped(self, path: Path) -> Deps:
        """The lifts around that treat a variable as one of many."""
        deps = set()
        for number, lift in self.around:
            if lift.kind in GROUPED:
                axis = treatment(lift, path)
                if axis == "unlifted":
                    raise IllegalError(f"{path} is not lifted")
                if axis is not None:
                    deps.add(number)
                if axis == CARRY:
                    deps.add(carried_by(number))
        return frozenset(deps)

    def hides(self, collection: str) -> bool:
        """Whether no gradient flows through a collection: through all but parameters, inside a rule, for JAX only."""
        return collection != "params" and self.has(*DERIVATIVES) and self.has(*RULED)

    def shared(self, path: Path, kinds: tuple[str, ...]) -> Deps:
        """The lifts around, of some kinds, that share a variable."""
        return frozenset(n for n, lift in self.around if lift.kind in kinds and treatment(lift, path) is None)


def legal(program: programs.Program) -> programs.Program:
    """The program without what breaks a rule."""
    body, *_ = of_body(program.body, (), {"x": NONE}, State(reshaped=frozenset(reshaped(program.body))))
    return dataclasses.replace(program, body=body)


def reshaped(body: programs.Body) -> Iterator[tuple[str, str]]:
    """The variables that get the shape of an expression, anywhere in a body."""
    for statement in body.statements:
        match statement:
            case programs.Write(collection, name, value, True) if not isinstance(value, programs.Num):
                yield collection, name
            case programs.Call():
                for inner in statement.bodies:
                    yield from reshaped(inner)


def of_body(body: programs.Body, at: Path, env: dict[str, Deps], state: State) -> tuple[programs.Body, Deps, Deps]:
    """A body without what breaks a rule; what its result and what it stacks depend on."""
    env, kept = dict(env), []
    for statement in body.statements:
        try:
            kept.append(of_statement(statement, at, env, state))
        except IllegalError:
            continue
    result, deps = or_nothing(body.result, programs.Local("x"), at, env, state)
    stacked, more = or_nothing(body.stacked, programs.Num(0), at, env, state)
    return programs.Body(tuple(kept), result, stacked), deps, more


def or_nothing(expr: Any, instead: Any, at: Path, env: dict[str, Deps], state: State) -> tuple[Any, Deps]:
    try:
        return expr, of_expr(expr, at, env, state)
    except IllegalError:
        return instead, of_expr(instead, at, env, state)


def of_expr(expr: Any, at: Path, env: dict[str, Deps], state: State) -> Deps:
    """What an expression, or an initial value, depends on."""
    match expr:
        case programs.Num():
            return NONE
        case programs.Local(name):
            if name not in env:
                raise IllegalError(f"no local {name}")
            return env[name]
        case programs.Read(collection, name):
            path = (collection, *at, name)
            if path not in state.variables or state.hides(collection):
                raise IllegalError(f"no variable {path}")
            return state.variables[path] | state.mapped(path)
        case programs.Op(_, args) | programs.Tree(_, args):
            return NONE.union(*(of_expr(arg, at, env, state) for arg in args))
        case programs.Key(sequence):
            name = sequence if sequence in GIVEN else "params"
            return frozenset(n for n, lift in state.around if lift.kind in GROUPED and dict(lift.splits)[name])
    raise TypeError(expr)


def of_statement(statement: Any, at: Path, env: dict[str, Deps], state: State) -> Any:
    """The statement, or what is left of it."""
    match statement:
        case programs.Make(into, collection, name, init):
            deps = of_expr(init, at, env, state)
            if collection == "params" and draws(init):  # from the key that the parameter is made with
                deps |= of_expr(programs.Key("params"), at, env, state)
            deps |= {RESHAPED} if (collection, name) in state.reshaped else NONE
            env[into] = made((collection, *at, name), init, deps, state)
        case programs.Write(collection, name, value, _):
            wrote((collection, *at, name), of_expr(value, at, env, state), state)
        case programs.Let(into, value):
            env[into] = of_expr(value, at, env, state)
        case programs.Draw(into, sequence):
            env[into] = of_expr(programs.Key(sequence), at, env, state)
            drawn(state)
        case programs.Sow(_, value):
            of_expr(value, at, env, state)
            sown(state)
        case programs.Has(into):
            env[into] = NONE
        case programs.Call():
            return of_call(statement, at, env, state)
    return statement


def carried_by(number: int) -> str:
    """Depended on by what goes from one iteration of a loop to the next."""
    return f"carried by {number}"


def drawn(state: State) -> None:
    if state.has("custom_vmap"):
        raise IllegalError("a rule for `vmap` has no keys")


def sown(state: State) -> None:
    if state.has("while_loop") or any("traced" in lift.flags for _, lift in state.around):
        raise IllegalError("a loop of unknown length cannot stack what is sown")
    if any(lift.kind in LOOPS and not lift.size for _, lift in state.around):
        raise IllegalError("a loop of no iterations has nothing to stack")


def draws(init: Any) -> bool:
    """Whether an initial value draws a key."""
    match init:
        case programs.Key():
            return True
        case programs.Op(_, args) | programs.Tree(_, args):
            return any(map(draws, args))
    return False


def made(path: Path, init: Any, deps: Deps, state: State) -> Deps:
    mapped = state.mapped(path)
    if state.hides(path[0]):
        raise IllegalError(f"no gradient flows through {path}")
    if path in state.variables:
        if path not in state.before or path[0] == "params":
            raise IllegalError(f"{path} exists")
        state.before -= {path}
        return state.variables[path] | mapped
    if deps & state.shared(path, GROUPED):
        raise IllegalError(f"{path} is shared and depends on the iteration")
    around = [(number, lift) for number, lift in state.around if lift.kind in GROUPED]
    for place, (number, lift) in enumerate(around):
        outer = any(treatment(each, path) is None for _, each in around[:place])
        if outer and carried_by(number) in deps and isinstance(treatment(lift, path), int):
            raise IllegalError(f"{path} is made in a loop from what that carries, and a lift around shares it")
    if path[0] == "params" and RESHAPED in deps:
        raise IllegalError(f"{path} is made from what has another shape later, so that `apply` expects another one")
    if path[0] == "params" and state.has(*DERIVATIVES, *RULED) and not is_float(init):
        raise IllegalError(f"one cannot differentiate by {path}")
    state.variables[path] = deps | mapped
    return state.variables[path]


def wrote(path: Path, deps: Deps, state: State) -> None:
    if path[0] not in WRITTEN or path not in state.variables or state.has("custom_vmap"):
        raise IllegalError(f"{path} cannot be written")
    deps |= state.control | state.variables[path]
    if state.shared(path, LOOPS) or deps & state.shared(path, ("vmap",)):
        raise IllegalError(f"{path} is shared")
    state.variables[path] = deps


def is_float(init: Any) -> bool:
    """Whether an initial value is of floating point for sure."""
    match init:
        case programs.Key():
            return True
        case programs.Num(value):
            return isinstance(value, float)
        case programs.Tree(_, values):
            return all(map(is_float, values))
        case programs.Op(name, _):
            return name in ("tanh", "vector", "bfloat16", "float32")
    return False


def of_call(statement: programs.Call, at: Path, env: dict[str, Deps], state: State) -> programs.Call:
    """A lift without what breaks a rule."""
    lift, place = statement.lift, statement.place
    may_lift(statement, state)
    args = [of_expr(arg, at, env, state) for arg in statement.args]
    if place is not None:
        take_name((SCOPE, *at, place), state)
    state.number += 1
    number = state.number
    below = at if place is None else (*at, place)
    known = state.before if lift.kind in CALLS else frozenset(state.variables)
    around = (*state.around, (number, lift))
    inner = State(dict(state.variables), around, state.control, number, known, state.reshaped)
    if lift.until and (lift.until[0], *below, lift.until[1]) not in state.variables:
        raise IllegalError("the condition reads what does not exist")
    if lift.until:
        inner.control |= of_expr(programs.Read(*lift.until), below, env, inner)
    if lift.kind in BRANCHES:
        inner.control |= args[0]
        bodies, deps = of_branches(statement, below, {**env, "x": args[1]}, inner, state)
    else:
        own = frozenset([number]) if lift.kind in GROUPED else NONE
        env_in = {} if lift.kind in RULED else env
        held = {"x": args[0] | own | ({carried_by(number)} if lift.kind in LOOPS else NONE)}
        if lift.kind in GROUPED:
            held["y"] = NONE.union(*args[1:]) | (own if lift.kind in LOOPS else NONE)
        bodies, deps = of_runs(statement, below, {**env_in, **held}, inner, state)
    if lift.kind == "grad" and not any(
        isinstance(each, programs.Make) and each.collection == "params" and not isinstance(each.init, programs.Tree)
        for each in bodies[0].statements
    ):
        raise IllegalError("there is nothing to differentiate by")
    state.number = inner.number
    if lift.kind in CALLS:
        state.before = inner.before
    state.variables = {path: found - {number} for path, found in inner.variables.items()}
    env[statement.into] = (deps | inner.control) - {number} | NONE.union(*args)
    return dataclasses.replace(statement, bodies=bodies)


def may_lift(statement: programs.Call, state: State) -> None:
    """Checks that a lift may be here, whatever its bodies are."""
    lift, place = statement.lift, statement.place
    axes = [axis for _, axis in lift.groups if isinstance(axis, int)]
    if place is None and (axes or lift.kind in DERIVATIVES or statement.times > 1):
        raise IllegalError("what is in this scope is no slice, and its names are taken")
    if lift.kind == "custom_vjp" and state.has("jvp", "custom_jvp"):
        raise IllegalError("a function with a pullback has no forward derivative")
    if lift.kind == "custom_vmap" and state.has(*DERIVATIVES, *RULED):
        raise IllegalError("JAX may call a rule for `vmap` in a derivative")
    if state.has("vjp", "grad", "custom_vjp") and (lift.kind == "while_loop" or "traced" in lift.flags):
        raise IllegalError("a loop of unknown length has no reverse")


def take_name(path: Path, state: State) -> None:
    """A scope has its name to itself; what happens to variables, happens to names."""
    if path in state.variables:
        raise IllegalError(f"{path} is taken")
    state.variables[path] = NONE


def of_branches(
    statement: programs.Call, at: Path, env: dict[str, Deps], inner: State, outer: State
) -> tuple[tuple[programs.Body, ...], Deps]:
    """Each branch begins with what exists before; afterwards there is what any of them made."""
    bodies, deps, after = [], NONE, dict(inner.variables)
    for body in statement.bodies:
        inner.variables, inner.before = dict(outer.variables), frozenset(outer.variables)
        body, found, _ = of_body(body, at, env, inner)
        bodies.append(body)
        deps |= found
        for path, reads in inner.variables.items():
            after[path] = after.get(path, NONE) | reads
    inner.variables = after
    return tuple(bodies), deps | inner.control


def of_runs(
    statement: programs.Call, at: Path, env: dict[str, Deps], inner: State, outer: State
) -> tuple[tuple[programs.Body, ...], Deps]:
    """A body is looked at until nothing is left that depends on an iteration before in a way that breaks a rule."""
    (body,), again = statement.bodies, inner.before
    while True:
        looked, known, before = dict(inner.variables), dict(env), body
        inner.before = again
        body, deps, stacked = of_body(body, at, env, inner)
        carries = inner.around[-1][1].kind in LOOPS or statement.times > 1
        env = {**env, "x": env["x"] | (deps if carries else NONE)}
        after = inner.variables
        inner.variables = {path: after.get(path, found) | found for path, found in looked.items()}
        inner.number = outer.number
        if env == known and inner.variables == looked and body == before:
            inner.variables = after
            return (body,), deps | stacked
