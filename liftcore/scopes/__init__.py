"""Scopes: places in a tree of variables. A scope reads, writes and creates variables, names children and draws keys.

scope, tree      a scope, and the state that the scopes of one `init`, `apply` or lift share
declaring        names, the checks before a variable is used, and initial values
sharing          what scopes offer to styles
scoped           values that hold scopes: `Variable`, `Child`, and those of users
blueprint        the arrays of any pytree as variables
lifts            the filters of a lift, and its advice for error messages
observers        what is told of calls and traces
problems         the errors
"""
