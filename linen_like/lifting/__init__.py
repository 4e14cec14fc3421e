"""Modules through a transformation of `liftcore`: out to their scopes, and back on lifted ones.

template    a bound module without its place, so that it can be made again on other scopes
closures    modules that a function holds without being given them
crossing    modules through one use of a lift
lifting     a module class, method or function lifted by any transformation
"""
