# SPDX-License-Identifier: Apache-2.0
"""The sizes that a kernel takes, and numbers of its launch that depend on them, in the JSON of a saved module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from fusec.ir.index import Index, Symbol, symbol
from fusec.ir.index_text import parse_index
from fusec.ir.indexing import most


def record_of(made: Any) -> dict[str, Any]:
    """The fields of a dataclass as they are; ``asdict`` copies them, which index expressions are not."""
    return {f.name: getattr(made, f.name) for f in fields(made)}


def sizes_to_json(sizes: Sequence[Symbol]) -> Any:
    """Name and range of each."""
    return [[s.name, s.lo, most(s)] for s in sizes]


def sizes_from_json(data: Any) -> tuple[Symbol, ...]:
    """What :func:`sizes_to_json` wrote."""
    return tuple(symbol(str(name), int(low), int(high)) for name, low, high in data)


def indices_to_json(indices: Sequence[Index]) -> Any:
    """Integers as they are, expressions of sizes as text."""
    return [n if isinstance(n, int) else str(n) for n in indices]


def indices_from_json(data: Any, sizes: Sequence[Symbol]) -> tuple[Index, ...]:
    """What :func:`indices_to_json` wrote. KeyError for a size that the kernel does not take."""
    known = {s.name: s for s in sizes}
    return tuple(n if isinstance(n, int) else parse_index(str(n), known.__getitem__) for n in data)
