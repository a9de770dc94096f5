# SPDX-License-Identifier: Apache-2.0
"""What a tensor descriptor says of a parameter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Descriptor:
    """A parameter's memory seen as a tensor: ``shape`` and ``strides`` in elements; ``block`` is moved at a time."""

    parameter: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]
    dtype: str
