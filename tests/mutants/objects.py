"""Deliberate breaks of `nnx_like`: of graphs, of how they cross into transformations, of these, and of RNG streams."""

from __future__ import annotations

import functools

from tests.mutants.table import Mutant

_of = functools.partial(Mutant, package="nnx_like")

CROSSING = ("nnx/test_one_lift.py", "nnx/test_hard_cases.py", "nnx/test_found.py")
KEPT = ("nnx/test_kept_walks.py", "nnx/test_found.py", "nnx/test_hard_cases.py")
OBJECTS = ("nnx/test_objects.py", "nnx/test_state.py", "nnx/test_hard_cases.py")
RNGS = ("nnx/test_rngs.py",)
READ = ("nnx/test_what_code_reads.py",)

OF_OBJECTS = (
    _of(
        "graph/walk.py",
        "        order = () if type(value)._numbered else tuple(vars(value))\n",
        "        order = ()\n",
        "attributes come in another order than they were set in, and a change of order is not seen",
        OBJECTS + CROSSING,
    ),
    _of(
        "graph/walk.py",
        """        while key in values:  # names may contain dots, and digits may be names
            key += "'"
""",
        "",
        "of two variables whose paths have one text, the first takes the value of the second",
        OBJECTS + CROSSING,
    ),
    _of(
        "graph/walk.py",
        "            elif (group := self._group(value, path, prefix)) != self.groups[index]:\n"
        "                raise self._aliased(value, path, self.groups[index], group)\n",
        "",
        "a variable that is given on two axes is taken on the first",
        ("nnx/test_misuse.py", *CROSSING),
    ),
    _of(
        "graph/walk.py",
        """        self.table[definition.number] = made  # before its attributes, since the object may contain itself
        attributes = {}
        for name, part in zip(definition.names, definition.parts, strict=True):
            plain = type(part) is StaticDef and type(part.value) is not Fixed  # as `build` does, without its overhead
            attributes[str(name)] = part.value if plain else self.build(part, (made, name))
""",
        """        attributes = {}
        for name, part in zip(definition.names, definition.parts, strict=True):
            plain = type(part) is StaticDef and type(part.value) is not Fixed  # as `build` does, without its overhead
            attributes[str(name)] = part.value if plain else self.build(part, (made, name))
        self.table[definition.number] = made
""",
        "an object that holds itself cannot be made",
        OBJECTS,
    ),
    _of(
        "graph/walk.py",
        "            if definition.marks:\n                mark(made, dict(definition.marks))\n",
        "",
        "an object loses what its attributes were marked as on its way",
        OBJECTS + CROSSING,
    ),
    _of(
        "graph/functions.py",
        "            made = type(leaf).made(leaf._value, leaf._metadata, self.trace)\n",
        "            made = leaf\n",
        "a clone shares its variables with the original",
        OBJECTS,
    ),
    _of(
        "graph/definition.py",
        "isinstance(other, Fixed) and self._hash == other._hash and self._key == other._key",
        "isinstance(other, Fixed)",
        "what was traced for one static value is served for another one",
        OBJECTS + CROSSING,
    ),
    _of(
        "crossing/inside.py",
        "            if parts is not given and not _are_same(parts, given):\n",
        "            if type(parts) is tuple and not _are_same(parts, given):\n",
        "what a body writes stays inside",
        CROSSING,
    ),
    _of(
        "crossing/inside.py",
        "        if found is _NEW and value._trace != self.trace:\n",
        "        if False:\n",
        "a variable from outside that is returned is taken for a new one",
        ("nnx/test_misuse.py", *CROSSING),
    ),
    _of(
        "crossing/inside.py",
        "        if not all(id(node) in self.index for node in table.values()):\n",
        "        if False:\n",
        "an object that a body takes out of another one is not changed as it was inside",
        CROSSING,
    ),
    _of(
        "crossing/inside.py",
        "self.builder.may_change or not all(was.are_in(*made) for made, was in self._made):",
        "self.builder.may_change:",
        "a body that sets an attribute and returns no object leaves the caller's object as it was",
        CROSSING,
    ),
    _of(
        "crossing/outside.py",
        "            if owner._trace != trace:\n                raise self._other_trace(owner)\n",
        "",
        "a variable of an outer trace is written in an inner one: a tracer leaks",
        ("nnx/test_misuse.py", *CROSSING),
    ),
    _of(
        "crossing/outside.py",
        "        rebuilder.commit()\n        return result\n",
        "        return result\n",
        "changes of the structure of an object are lost",
        CROSSING,
    ),
    _of(
        "crossing/outside.py",
        "    may_keep = may_keep and not (others and holds_objects(others))\n",
        "",
        "a walk is kept for a part of the objects only",
        KEPT,
    ),
    _of(
        "crossing/kept.py",
        "        if not self.contents.are_in([*roots, *self.inner], self.variables, self.dicts, self.lists):\n",
        "        if False:\n",
        "an object that was changed since the last call goes in as it was then",
        KEPT,
    ),
    _of(
        "crossing/kept.py",
        "        if self._kept.traces != [trace]:\n            return False\n",
        "",
        "a kept walk writes variables of another trace",
        (*KEPT, "nnx/test_misuse.py"),
    ),
    _of(
        "crossing/kept.py",
        "weakref.ref(root, functools.partial(_drop, first, key))",
        "weakref.ref(root)",
        "a walk that was kept for two objects keeps what is below the second alive after it died",
        KEPT,
    ),
    _of(
        "crossing/groups.py",
        "        while name in self.specs and not alike(self.specs[name], spec):  # different specs may print alike\n"
        '            name += "\'"\n',
        "",
        "two shardings that look alike in texts are one group",
        (*CROSSING, "nnx/test_misuse.py"),
    ),
    _of(
        "transforms/loops.py",
        "        _check_same_structure(where, inside, change, carry)\n",
        "",
        "a carry that gains an attribute in a loop is not refused",
        ("nnx/test_misuse.py", *CROSSING),
    ),
    _of(
        "transforms/loops.py",
        "return known == streams.name or axes[known] == axes[group]",
        "return axes[known] == axes[group]",
        "RNG streams that all iterations share cannot be returned in what is stacked",
        (*CROSSING, "nnx/test_rngs.py"),
    ),
    _of(
        "transforms/loops.py",
        "return known == streams.name or axes[known] == axes[group]",
        "return known == streams.name",
        "an object whose variables are updated in place cannot be returned in what is stacked",
        ("lift/test_in_place.py", *CROSSING),
    ),
    _of(
        "objects/markers.py",
        "if hidden_in(function.func) or not",
        "if not",
        "a partial of a method hides its object in the structure",
        ("nnx/test_native_containers.py", *CROSSING),
    ),
    _of(
        "layers/rotary.py",
        "input_positions if queries == keys else None",
        "None",
        "keys count from 0 where the queries do not",
        ("nnx/test_rotary.py", "nnx/test_layers_b.py"),
    ),
    _of(
        "transforms/branches.py",
        "        _check_agrees(groups.where, traced)\n",
        "",
        "branches that change an object in different ways are not refused in our terms",
        ("nnx/test_misuse.py", *CROSSING),
    ),
    _of(
        "transforms/differentiation.py",
        "        if not (self.alone and not path) and not self.wanted(path, value):\n",
        "        if not self.wanted(path, value):\n",
        "a variable that is an argument itself is not differentiated unless it is a Param",
        ("nnx/test_derivatives.py",),
    ),
    _of(
        "transforms/rules.py",
        "        if structures[0] == structures[1]:\n            return\n",
        "        return\n",
        "a custom rule that writes other variables than the function is not refused",
        ("nnx/test_custom_rules.py",),
    ),
    _of(
        "transforms/loops.py",
        "            if leaf is not old:\n",
        "            if False:\n",
        "another object than the one that came in may be the next carry",
        ("nnx/test_misuse.py", *CROSSING),
    ),
    _of(
        "rnglib/splitting.py",
        "        key, whole = new_key(stream, shape), stream.key.get_value()\n"
        "        backups.append((stream, whole, stream.count.get_value()))  # the count after the draw\n",
        "        backup = stream, stream.key.get_value(), stream.count.get_value()\n"
        "        key = new_key(stream, shape)\n"
        "        backups.append(backup)\n",
        "a stream that is restored draws the key again that its split came from",
        RNGS,
    ),
    _of(
        "rnglib/splitting.py",
        "        if stream.key.get_value() is not key:\n            stream.key",
        "        if True:\n            stream.key",
        "restored twice, a stream draws keys again",
        RNGS,
    ),
    _of(
        "rnglib/splitting.py",
        "        if isinstance(value, RngStream) and id(value.key) not in seen:\n",
        "        if isinstance(value, RngStream):\n",
        "a stream that is in two places is split twice",
        RNGS,
    ),
    _of(
        "rnglib/splitting.py",
        "        if which not in made:\n            made[which] = changes[which](value)\n        return made[which]\n",
        "        return changes[which](value)\n",
        "a stream in two places becomes two streams",
        RNGS,
    ),
    _of(
        "rnglib/splitting.py",
        '        if policy == "scalars_only" and shape:\n',
        "        if False:\n",
        "streams of several keys are given one key",
        RNGS,
    ),
    _of(
        "rnglib/streams.py",
        "    made.count.set_value(value.count.get_value())\n",
        "",
        "a stream that is copied under another name draws the keys again that were drawn from it",
        RNGS,
    ),
    _of(
        "transforms/reading.py",
        """        if not _is_class_of_library(kind):
            self._left.append(_Members(kind))
""",
        "",
        "what the methods of an object in a closure read is not in the key of a shared trace",
        READ,
    ),
    _of(
        "transforms/rematerializing.py",
        ", again=key_of",
        "",
        "a body that changes what it reads does not run for the next block",
        READ,
    ),
    _of(
        "transforms/reading.py",
        "        raise Undescribed(function)  # such as `time.time`, `open` and `print`\n",
        "        return []\n",
        "blocks that print, or read a file or a clock, share a trace",
        READ,
    ),
)
