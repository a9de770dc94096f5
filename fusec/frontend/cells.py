# SPDX-License-Identifier: Apache-2.0
"""What is told by a function's code: the cells that it assigns to, the modules that it imports."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from types import CellType, CodeType, ModuleType
from typing import Any

from fusec.frontend.insides import MISSING


@cache
def assigned_cells(code: CodeType) -> frozenset[str]:
    """The variables of outer functions that code assigns to."""
    stores = [i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_DEREF", "DELETE_DEREF")]
    return frozenset(stores).intersection(code.co_freevars)


def imported(code: CodeType, namespace: Mapping[str, object]) -> Iterator[ModuleType]:
    """The modules that code imports when it runs, of those that are there."""
    before: list[Any] = [None, None]
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            level, name = before[-2], instruction.argval
            package = str(namespace.get("__package__") or "")
            if type(level) is int and level > 0:
                name = ".".join(part for part in (package.rsplit(".", level - 1)[0], name) if part)
            found = sys.modules.get(name)
            top = sys.modules.get(name.partition(".")[0])
            yield from (module for module in dict.fromkeys((found, top)) if module is not None)
        before.append(instruction.argval)


def content_of(cell: CellType) -> object:
    """What is in a cell, or MISSING."""
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return MISSING


def refill(cell: CellType, content: object) -> None:
    """Puts something, or with MISSING nothing, into a cell."""
    if content is MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = content
