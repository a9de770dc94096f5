# SPDX-License-Identifier: Apache-2.0
"""Compiled modules and functions among what a capture reads: objects that stand for what they compile."""

from __future__ import annotations

from typing import Any

from fusec.frontend import raw

COMPILED = "_fusec_module"
"""Where a compiled module keeps the one that it compiles, among its own attributes."""


STANDS = "stands_for_function"
"""What a class has whose objects are what :func:`fusec.jit` makes of functions: what these are given is theirs."""


def compiled_of(value: object) -> Any:
    """The module that a compiled module stands for; None for any other object."""
    own = raw.attributes_of(value)
    return own.get(COMPILED) if type(own) is dict else None
