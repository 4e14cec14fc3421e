"""Deliberate breaks of the core, chosen from reading the code, and the near tests that should see each of them."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A break.

    Attributes:
        path: the file, below `liftcore`.
        before: text that stands in it once.
        after: what is put there instead.
        reason: what it breaks.
        tests: test files, below `tests`.
    """

    path: str
    before: str
    after: str
    reason: str
    tests: tuple[str, ...]


PACK = ("core/test_pack.py", "core/test_hoist.py", "core/test_scope.py")

MUTANTS = (
    Mutant(
        "packing.py",
        "draws |= {place: max(count, draws.get(place, 0)) for place, count in record.draws}",
        "draws |= {place: count for place, count in record.draws}",
        "after branches the draws of the last one are counted, not those of the longest",
        (*PACK, "lift/test_cond.py"),
    ),
    Mutant(
        "packing.py",
        "            scope.take_names(names)\n        packed =",
        "            pass\n        packed =",
        "a body does not know the names that were taken before the lift",
        (*PACK, "lift/test_remat.py"),
    ),
    Mutant(
        "packing.py",
        "root=outer.node.copy_counts(fresh),",
        "root=outer.node,",
        "scopes inside count draws in the nodes of those outside",
        (*PACK, "lift/test_remat.py", "lift/test_cond.py"),
    ),
    Mutant(
        "packing.py",
        "key=lambda other: len(other.path))",
        "key=lambda other: -len(other.path))",
        "of nested scopes the innermost are lifted",
        PACK,
    ),
    Mutant(
        "packing.py",
        "left=(*layout.left[index], *outer.tree.left),",
        "left=layout.left[index],",
        "a lift forgets what the lifts around it left outside",
        (*PACK, "lift/test_jit.py"),
    ),
    Mutant(
        "packing.py",
        "return rng.word((*path[len(outer.path) :], count))",
        "return rng.word((*path, count))",
        "the keys of a fresh sequence depend on what is above",
        (*PACK, "lift/test_fold_rngs.py", "lift/test_with_rngs.py"),
    ),
    Mutant(
        "tree.py",
        "return self.mutable, self.initializing, self.writes,",
        "return self.mutable, False, self.writes,",
        "a compiled body is shared by `init` and `apply`",
        (*PACK, "lift/test_jit.py"),
    ),
    Mutant(
        "tree.py",
        "rules, self.given, made, self.left",
        "rules, self.given, made, ()",
        "which variables lifts outside left is no part of the key of a compiled body",
        (*PACK, "lift/test_jit.py"),
    ),
    Mutant(
        "tree.py",
        "        if name in self.given:\n            return None\n",
        "",
        "a sequence that was given and is not lifted falls back to `params`",
        PACK,
    ),
    Mutant(
        "layout.py",
        "    values: PyTree\n    created: PyTree",
        "    created: PyTree\n    values: PyTree",
        "first and last values are mistaken for each other",
        PACK,
    ),
    Mutant(
        "groups.py",
        "functools.reduce(union, out, nothing)",
        "functools.reduce(union, into, nothing)",
        "a lift says that what it takes in is what it lets out",
        PACK,
    ),
    Mutant(
        "sequences.py",
        "        if rng.DEFAULT in group:  # a name",
        "        if False:  # a name",
        "a sequence that was never given and that no rule names has nothing to draw from",
        (*PACK, "core/test_rng.py", "lift/test_vmap.py"),
    ),
    Mutant(
        "sequences.py",
        "return [(filters.subtract(matches, given), root) for matches, root in fallbacks] if given else fallbacks",
        "return fallbacks",
        "a sequence that a lift gave, and one inside it does not lift, falls back to `params`",
        (*PACK, "lift/test_with_rngs.py"),
    ),
    Mutant(
        "scope.py",
        "            mine = dict(self._read(collection))",
        "            mine = self._read(collection)",
        "a write changes the dicts that the caller gave",
        ("core/test_scope.py", "core/test_entry.py"),
    ),
    Mutant(
        "scope.py",
        "        decided = self.tree.writable(collection)\n        if decided:",
        "        decided = self.tree.writable(collection)\n        if decided is not False:",
        "a filter that looks at single variables lets all of them be written",
        ("core/test_scope.py", "core/test_entry.py", "core/test_filters.py"),
    ),
    Mutant(
        "naming.py",
        "self._numbers[prefix] = max(number, self._numbers.get(prefix, 0))",
        "self._numbers[prefix] = number",
        "after branches automatic names begin again after those of the last",
        ("core/test_scope.py", "core/test_pack.py", "lift/test_cond.py"),
    ),
    Mutant(
        "naming.py",
        "        self._first_free = None\n        self._reserved.get(name, set())",
        "        self._reserved.get(name, set())",
        "a name that was given back is not given out again",
        ("core/test_scope.py", "core/test_pack.py"),
    ),
    Mutant(
        "rng.py",
        "item.to_bytes((item.bit_length() + 7) // 8,",
        "item.to_bytes((item.bit_length() + 15) // 8,",
        "numbers are folded with a byte too many",
        ("core/test_rng.py",),
    ),
    Mutant(
        "rng.py",
        "if code.co_argcount == 0 or _SEES_ALL.intersection(code.co_names):",
        "if code.co_argcount == 0:",
        "an initializer that reads its key by `locals()` is given None",
        ("core/test_rng.py",),
    ),
    Mutant(
        "variable.py",
        "put = self.scope.put_unboxed if self.unbox else self.scope.put_variable",
        "put = self.scope.put_variable",
        "a write throws the box away",
        ("core/test_scope.py", "core/test_meta.py"),
    ),
    Mutant(
        "hoist.py",
        "level[number] = 1 + max((level[one] for one in self.earlier[number]), default=-1)",
        "level[number] = 0",
        "initial values are made at once, whatever they read",
        (*PACK, "laws/test_initial_values.py"),
    ),
    Mutant(
        "hoist.py",
        "along = [None if self._batch is None else 0 for _ in effects]",
        "along = [None for _ in effects]",
        "what an effect gives to each element of a batch is taken to be the same for all",
        (*PACK, "lift/test_vmap.py", "lift/test_scan.py"),
    ),
    Mutant(
        "hoist.py",
        "        if not makers:\n            return []\n        read = set(variables_of(self.jaxpr.outvars))",
        "        return []\n        read = set(variables_of(self.jaxpr.outvars))",
        "an effect runs again in what is left of a body",
        (*PACK, "lift/test_remat.py"),
    ),
    Mutant(
        "pure.py",
        "for path, _ in filters.leaves_of(tree)\n        ]",
        "for path, _ in ()\n        ]",
        "a rule does not draw what the function drew for its initial values",
        (*PACK, "lift/test_custom_vjp.py", "lift/test_custom_rules.py"),
    ),
    Mutant(
        "split.py",
        "axes = [group_axes[part] for part in self.traced.parts]",
        "axes = [group_axes[0] for part in self.traced.parts]",
        "all created groups are stacked along the axis of the first",
        (*PACK, "lift/test_vmap.py"),
    ),
    Mutant(
        "equations.py",
        "return not jaxpr.effects and keys <= {_threefry()}",
        "return True",
        "what draws with other keys is batched",
        (*PACK, "lift/test_scan.py"),
    ),
    Mutant(
        "bodies/branches.py",
        "        return result, overlay(begin, values), slots.fill(index, captured)",
        "        return result, overlay(values, begin), slots.fill(index, captured)",
        "branches give back what variables began with",
        ("lift/test_cond.py",),
    ),
    Mutant(
        "bodies/branches.py",
        "        jax.eval_shape(branches[number])\n",
        "        pass\n",
        "without jit the draws of branches that do not run are not counted",
        ("lift/test_cond.py", "laws/test_disable_jit.py"),
    ),
    Mutant(
        "bodies/carry.py",
        "if not old.weak_type or old.dtype == new.dtype:\n        return leaf",
        "if old.dtype == new.dtype:\n        return leaf",
        "a carry with a type of its own is cast",
        ("lift/test_scan.py", "laws/test_number_types.py"),
    ),
    Mutant(
        "bodies/changes.py",
        'return "/".join(map(str, path))',
        'return "/".join(path)',
        "an error about a dict with keys that are no names is another error",
        ("lift/test_scan.py", "lift/test_vmap.py", "lift/test_cond.py"),
    ),
    Mutant(
        "bodies/compiled.py",
        "self._key = fn, layout, fixed, paths, shardings",
        "self._key = fn, layout, fixed, shardings",
        "a body whose filters look at paths is shared by other paths",
        ("lift/test_jit.py",),
    ),
    Mutant(
        "bodies/compiled.py",
        "count = scope.node.counts.get(self.name, 0) + self.count",
        "count = self.count",
        "a compiled body begins to count anew in each call",
        ("lift/test_jit.py",),
    ),
    Mutant(
        "bodies/custom.py",
        "return _names(values[:-1])",
        "return set()",
        "a rule may write something else than its function",
        ("lift/test_custom_vjp.py", "lift/test_custom_jvp.py", "lift/test_custom_rules.py"),
    ),
    Mutant(
        "bodies/derivative.py",
        "    tree.setdefault(path[-1], value)",
        "    tree[path[-1]] = value",
        "of tangents given through several scopes the last counts",
        ("lift/test_jvp.py", "lift/test_vjp.py"),
    ),
    Mutant(
        "bodies/lanes.py",
        "along = [axis if any(group) else None for",
        "along = [axis for",
        "a group without variables takes part in the mapping",
        ("lift/test_vmap.py",),
    ),
    Mutant(
        "bodies/lens.py",
        "        found = fn(_copied(tree))",
        "        found = fn(tree)",
        "a map that changes what it is given changes what is stored",
        ("lift/test_map_variables.py",),
    ),
    Mutant(
        "bodies/loop.py",
        "state = [_STATE in read or bool(carried & earlier)",
        "state = [_STATE in read",
        "an initial value that reads a created carried one is made once for all iterations",
        ("lift/test_scan.py", "laws/test_initial_values.py"),
    ),
    Mutant(
        "bodies/loop.py",
        "begin = self.size - 1 if self.reverse else 0",
        "begin = 0",
        "in a reversed scan a carried initial value reads the slice that comes last",
        ("lift/test_scan.py", "laws/test_initial_values.py"),
    ),
    Mutant(
        "bodies/outline.py",
        "outputs = transformation(parts.remainder)(created, *operands)",
        "outputs = parts.remainder(created, *operands)",
        "a transformation is left out where the body writes",
        ("lift/test_remat.py", "lift/test_named_call.py"),
    ),
    Mutant(
        "bodies/repeat.py",
        "number = offset if axis is None else 2 * index + offset",
        "number = offset if axis is None else index + offset",
        "a condition draws the keys of the next body",
        ("lift/test_while_loop.py", "lift/test_fori_loop.py"),
    ),
    Mutant(
        "bodies/shardings.py",
        "rest = {name: each.get(name) for name in kept}",
        "rest = {name: None for name in kept}",
        "`in_shardings` count for donated arguments only",
        ("lift/test_jit_sharding.py",),
    ),
    Mutant(
        "bodies/shards.py",
        "[*values, jax.tree.map(lambda leaf: leaf[None], captured)]",
        "[*values, captured]",
        "captured values of shards are put together along an axis of their own",
        ("lift/test_shard_map.py",),
    ),
    Mutant(
        "bodies/signature.py",
        'return f"{what} of scope {index}" if index else what',
        "return what",
        "several scopes are told as one",
        ("core/test_retrace.py",),
    ),
    Mutant(
        "bodies/varying.py",
        "scope.take_names(inner.names())",
        "pass",
        "names that a shard took are free again",
        ("lift/test_shard_map.py",),
    ),
    Mutant(
        "bodies/boxes.py",
        "    return (*changed, *groups[len(changed) :])",
        "    return tuple(changed)",
        "captured values are lost where a box gains an axis",
        ("lift/test_metadata.py", "lift/test_vmap.py"),
    ),
    Mutant(
        "bodies/axes.py",
        "return [axis if isinstance(leaf, jax.Array | np.ndarray) else None for",
        "return [axis if isinstance(leaf, jax.Array) else None for",
        "a NumPy array given by name is not mapped",
        ("lift/test_vmap.py", "lift/test_scan.py"),
    ),
    Mutant(
        "bodies/arguments.py",
        "positional = sorted(filter(str.isdecimal, arguments), key=int)",
        "positional = sorted(filter(str.isdecimal, arguments))",
        "of more than nine arguments the tenth comes second",
        ("lift/test_remat.py", "lift/test_jit.py"),
    ),
    Mutant(
        "lift/fori_loop.py",
        "number = index - state[0] if counts else ()",
        "number = index if counts else ()",
        "the keys of an iteration depend on the lower bound",
        ("lift/test_fori_loop.py",),
    ),
    Mutant(
        "lift/scan.py",
        "return kwargs[names[0]], (), {name: value for name, value in kwargs.items() if name != names[0]}",
        "return kwargs[names[0]], (), dict(kwargs)",
        "a carry given by name is given twice",
        ("lift/test_scan.py",),
    ),
    Mutant(
        "lift/while_loop.py",
        "run(cond_fun, 1), run(body_fun, 0)",
        "run(cond_fun, 0), run(body_fun, 0)",
        "condition and body draw the same keys",
        ("lift/test_while_loop.py",),
    ),
)
