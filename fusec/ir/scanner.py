# SPDX-License-Identifier: Apache-2.0
"""Reads IR text piece by piece and says where a mistake is."""

from __future__ import annotations

import json
import re
from os.path import basename

from fusec.errors import ParseError
from fusec.ir.text import BARE_NAME
from fusec.location import Location

_SKIPPED = re.compile(r"(?:\s|//[^\n]*)*")
_COMMENT = re.compile(r"[ \t]*//[ \t]*(.+):(\d{1,9})[ \t]*(?:\n|$)")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_INT = re.compile(r"-?\d+")
_FLOAT = re.compile(r"-?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|inf\b|nan\b)")
_TOKEN = re.compile(r"[A-Za-z0-9_.]+|.")


class Scanner:
    """A position in a text. Spaces and ``//`` comments before each piece are skipped."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.end_of_piece = 0

    def error(self, message: str, position: int | None = None) -> ParseError:
        """A ParseError with the line and column (both from 1) of the position, or of the next piece."""
        if position is None:
            self.skip()
            position = self.position
        line = self.text.count("\n", 0, position) + 1
        column = position - self.text.rfind("\n", 0, position)
        return ParseError(f"line {line}, column {column}: {message}")

    def skip(self) -> None:
        found = _SKIPPED.match(self.text, self.position)
        assert found is not None
        self.position = found.end()

    def pass_over(self, end: int) -> None:
        """Moves to the end of a piece that was read."""
        self.position = self.end_of_piece = end

    @property
    def at_end(self) -> bool:
        self.skip()
        return self.position == len(self.text)

    def read(self, pattern: re.Pattern[str]) -> str | None:
        """The text that the pattern matches here, passed over; None when it doesn't match."""
        self.skip()
        found = pattern.match(self.text, self.position)
        if found is None:
            return None
        self.pass_over(found.end())
        return found.group()

    def accept(self, literal: str) -> bool:
        """Passes over the literal if it comes next. A word must not run on."""
        self.skip()
        end = self.position + len(literal)
        if not self.text.startswith(literal, self.position):
            return False
        if literal[-1].isalnum() and end < len(self.text) and (self.text[end].isalnum() or self.text[end] == "_"):
            return False
        self.pass_over(end)
        return True

    def expect(self, literal: str) -> None:
        if not self.accept(literal):
            raise self.error(f"expected '{literal}', found {self.next_piece()}")

    def next_piece(self) -> str:
        """The next piece as an error message shows it."""
        self.skip()
        found = _TOKEN.match(self.text, self.position)
        return f"'{found.group()}'" if found else "the end of the text"

    def word(self, what: str) -> str:
        found = self.read(BARE_NAME)
        if found is None:
            raise self.error(f"expected {what}, found {self.next_piece()}")
        return found

    def name(self, sigil: str, what: str) -> str:
        """A name after its sigil, ``%`` or ``@``; one with unusual characters is quoted."""
        self.expect(sigil)
        if self.text.startswith('"', self.position):
            return self.string()
        found = BARE_NAME.match(self.text, self.position)
        if found is None:
            raise self.error(f"expected the name of {what} after '{sigil}', found {self.next_piece()}")
        self.pass_over(found.end())
        return found.group()

    def string(self) -> str:
        self.skip()
        start = self.position
        found = self.read(_STRING)
        if found is None:
            raise self.error(f"expected a quoted string, found {self.next_piece()}")
        try:
            value = json.loads(found)
        except ValueError:
            raise self.error(f"{found} is not a well-formed string", start) from None
        assert isinstance(value, str)
        return value

    def integer(self) -> int:
        self.skip()
        start = self.position
        found = self.read(_INT)
        if found is None:
            raise self.error(f"expected an integer, found {self.next_piece()}")
        if len(found) > 40:
            raise self.error("the integer has more than 40 digits", start)
        return int(found)

    def number(self) -> int | float:
        """An integer, or a float if it has a point, an exponent, or is ``inf`` or ``nan``."""
        found = self.read(_FLOAT)
        if found is None:
            raise self.error(f"expected a number, found {self.next_piece()}")
        if _INT.fullmatch(found):
            self.position -= len(found)
            return self.integer()
        return float(found)

    def bracketed(self) -> list[tuple[str, int]]:
        """The comma-separated texts between ``[`` and ``]``, each with its position. ``//`` divides in here."""
        self.expect("[")
        start = self.position
        parts: list[tuple[str, int]] = []
        depth = 0
        for end in range(start, len(self.text)):
            letter = self.text[end]
            depth += (letter in "([") - (letter in ")")
            if (letter == "," and depth == 0) or letter in "]\n":
                parts.append((self.text[start:end], start))
                start = end + 1
            if letter == "]":
                self.pass_over(start)
                return parts if len(parts) > 1 or parts[0][0].strip() else []
            if letter == "\n":
                break
        raise self.error("this '[' is not closed on its line", self.position - 1)

    def location(self) -> Location | None:
        """The ``// file:line`` comment that ends the line after the last piece read."""
        found = _COMMENT.match(self.text, self.end_of_piece)
        if found is None or not basename(found.group(1).strip()):
            return None
        return Location(found.group(1).strip(), int(found.group(2)))
