"""PyTorch's own samples (``op_db``) through fusec: values, layouts, aliasing, gradients and special values.

``python -m tests.opdb`` runs the whole; ``tests/test_opdb.py`` runs a quick slice.
"""
