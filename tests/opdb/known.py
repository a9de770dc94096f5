"""Rows that are known to differ from eager, each with the reason. One that comes out right fails the run."""

from __future__ import annotations

KNOWN: dict[str, str] = {}
"""By ``op dtype check``, as the run prints it."""
