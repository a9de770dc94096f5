# SPDX-License-Identifier: Apache-2.0
"""Text for a terminal: counts with their nouns, long lines folded, nothing that drives it."""

from __future__ import annotations

import shutil
import sys
import textwrap

_LEAST = 40
"""Columns below which lines are not folded."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 program``, ``2 programs``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def printable(text: str) -> str:
    """No control characters: an entry or a file can't drive the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def fitted(text: str, width: int | None = None) -> str:
    """Lines longer than the terminal folded, what follows indented by four more; as they are where none is written
    to."""
    if width is None:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    if width < _LEAST:
        return text
    return "".join(_folded(line, width) + "\n" for line in text.splitlines())


def _folded(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False, replace_whitespace=False)
