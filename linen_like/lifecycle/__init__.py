"""The lifecycle of a module: it is defined, named, bound to a scope, and called.

fields   a Module class as a dataclass; equality, hash, text
naming   names of submodules; modules in pytrees
binding  from unbound to bound: adoption, `setup`, clones
places   name scopes of methods, and scopes that modules share
calling  the code around each method; `compact`, `nowrap`, `compact_name_scope`
entry    `init` and `apply` of functions of a module
context  the context of a thread: running modules, captures, interceptors; names of calls in profiles
advice   advice that is added to common errors of Python and JAX
"""
