# SPDX-License-Identifier: Apache-2.0
"""Waiting for objects that a run made and that hold each other in a circle to be gone."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def left_alone() -> Iterator[None]:
    """While entered, no garbage is collected of itself: all that a run makes stays young, so that
    :func:`collect_while` finds it among the youngest."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def made_lately() -> Callable[[object], bool]:
    """Tells what may have been made while :func:`left_alone` is entered: all of it is young. Outside, all may be."""
    if gc.isenabled():
        return lambda value: True
    young = set(map(id, gc.get_objects(generation=0)))
    return lambda value: id(value) in young


def collect_while(some_are_left: Callable[[], bool]) -> None:
    """Collects garbage while there are some, the youngest first.

    What a run has made is young. A whole collection looks at every object of the process, which takes tenths of a
    second in one that has loaded PyTorch and a model.
    """
    for generation in range(3):
        if not some_are_left():
            return
        gc.collect(generation)
