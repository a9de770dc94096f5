# SPDX-License-Identifier: Apache-2.0
"""Generators of random numbers and files, whose state a traced run may change, and which get back what they had."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from io import BufferedRandom, BufferedReader, TextIOWrapper
from pickle import dumps
from random import Random
from typing import Any

import numpy as np

from fusec.frontend.raw import is_a

_FILES = (TextIOWrapper, BufferedReader, BufferedRandom)
"""Files of which the position is held."""


class HeldGenerator:
    """A generator of random numbers, or a file that is read, which is kept alive, and the state that it had."""

    def __init__(
        self,
        value: object,
        read: Callable[[], Any],
        write: Callable[[Any], Any],
        what: str = "the state of a generator of random numbers",
    ) -> None:
        self.what = what
        self._value = value
        self._read = read
        self._write = write
        self._before = read()
        self._text = dumps(self._before)

    def has_drawn(self) -> bool:
        return dumps(self._read()) != self._text

    def put_back(self) -> None:
        if self.has_drawn():
            self._write(self._before)


def held_generator(value: Any, path: str, *, of_arrays: bool) -> HeldGenerator | None:
    """A value with what it is put back to; None for one that is no generator.

    path: how it is reached from outside the run; empty for one that the run may have made: a file is then no matter.
    of_arrays: whether NumPy's generators count.
    """
    if is_a(value, Random):
        return HeldGenerator(value, value.getstate, value.setstate)
    if is_a(value, np.random.Generator) and of_arrays:
        bits = value.bit_generator
        return HeldGenerator(value, lambda: bits.state, partial(setattr, bits, "state"))
    if path and type(value) in _FILES and not value.closed and value.readable() and value.seekable():
        return HeldGenerator(value, value.tell, value.seek, "the position in a file")
    return None
