# SPDX-License-Identifier: Apache-2.0
"""How an array is seen through memory: view ops, one after another."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.ir.attributes import Attributes


@dataclass(frozen=True)
class Step:
    """A view op's name in the IR and its attributes."""

    name: str
    attributes: Attributes
