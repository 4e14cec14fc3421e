"""Deep models: equal layers whose parameters are stored stacked.

stack        `Stack`, which runs them in one of three ways
one_by_one   stacked layers run by a loop in Python, written with `pack`
stacking     converts stacked layers to layers with separate names, and back
"""
