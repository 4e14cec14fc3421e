"""The lifecycle of a module: it is defined, named, bound to a scope, and called.

fields   a Module class as a dataclass; equality, hash, text; modules in the values of fields, and their names
binding  from unbound to bound: adoption, `setup`, clones; name scopes of methods, and scopes that modules share
calling  the code around each method; `compact`, `nowrap`, `compact_name_scope`
entry    `init` and `apply` of functions of a module; bound methods that a module keeps
context  the context of a thread: running modules, captures, interceptors; names of calls in profiles
advice   advice that is added to common errors of Python and JAX
"""
