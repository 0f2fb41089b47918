"""DSRL's environments on today's Python: 29 of its 38 tasks, by its own names.

Its packages, as they lie on PyPI, were written for Gymnasium 0.28, MuJoCo 2.3 and Python 3.10.
Nothing in them is changed on disk, and nothing is imported before an environment is made.
"""
