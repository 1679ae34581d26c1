"""What is measured on a device before cascade is relied on there: kernels, tokens, serving speed.

Runs in processes of its own, never in a serving engine.
"""
