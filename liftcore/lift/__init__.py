"""Lifted transformations, most of them made with `transformation`; users import them from `liftcore`.

    mappings       vmap, map, pmap, shard_map, custom_vmap
    loops          scan, remat_scan, while_loop, fori_loop, associative_scan
    branches       cond, switch
    derivatives    grad, value_and_grad, vjp, jvp, linearize, jacfwd, jacrev, hessian, custom_vjp, custom_jvp
    compilation    jit, remat (checkpoint), named_call, eval_shape, purify, checkify
    variables      map_variables, swap_collection, add_metadata_axis, fold_rngs, with_rngs
    any values     filtered

`liftcore.runners` contains the ways to run a body.
"""
