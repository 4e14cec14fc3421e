"""liftcore: JAX transformations inside stateful models.

A model is a function of a `Scope`, which owns its variables and its RNG streams. `init` and `apply` turn it into pure
functions. JAX's transformations exist here in lifted form for such functions, and `pack` makes more of them.

    entry          apply, bind, init, lazy_init
    scopes         Scope, Variable
    lifts          see liftcore.lift; axes of variables: In, Out, InOut, InPlace, broadcast
    custom lifts   pack, Captured, Changes; for a Module layer, lifter_of, static_key
    any values     Rest, split_static, flatten_static, join_static, is_array, is_traceable, filtered,
                   Blueprint, Scoped, is_scoped, split_scoped
    diagnostics    explain, retraces, assert_max_traces
    layers         liftcore.nn
    training       liftcore.training
    generation     liftcore.generation
    filters        liftcore.filters; also here: DenyList
    frozen dicts   FrozenDict, freeze, unfreeze, copy, pop, pretty_repr
    boxes          liftcore.meta; also here: AxisMetadata, unbox
    on a mesh      init_sharded; liftcore.mesh_specs
    edits          liftcore.cursor
    on disk        liftcore.checkpoints
    from elsewhere liftcore.foreign: models of flax, Haiku and Equinox
    caches         clear_caches; liftcore.caches
    others         liftcore.pytrees, errors, lazy, meta, owners, pickling, rng, serialization, statics, struct,
                   frozen_dict, traverse_util, typing
"""

import jax  # noqa: F401 - here, since two threads that load it at their first use of a name would wait for each other

from .lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__, ".elsewhere", {"Use": ("Body", "0.4")})
