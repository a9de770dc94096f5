"""A standing set of wrong compilers, each fusec with one line changed: the tests have to notice every one.

``python -m tests.mutants`` runs all; ``tests/test_mutants.py`` runs a few.
"""
