"""Deep models: equal layers whose parameters are stored stacked.

stack      `Stack`, which runs them in one of three ways
stacking   converts stacked layers to layers with separate names, and back
"""
