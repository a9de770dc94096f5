# SPDX-License-Identifier: Apache-2.0
"""What a tensor descriptor says of a parameter."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir.index import Index


@dataclass(frozen=True)
class Descriptor:
    """A parameter's memory seen as a tensor: ``shape`` and ``strides`` in elements, which may depend on the kernel's
    sizes; ``block`` is moved at a time."""

    parameter: int
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    block: tuple[int, ...]
    dtype: str
