"""Waiting for objects that a run made and that hold each other in a circle to be gone."""

from __future__ import annotations

import gc
from collections.abc import Callable


def collect_while(some_are_left: Callable[[], bool]) -> None:
    """Collects garbage while there are some, the youngest first.

    What a run has made is young. A whole collection looks at every object of the process, which takes tenths of a
    second in one that has loaded PyTorch and a model.
    """
    for generation in range(3):
        if not some_are_left():
            return
        gc.collect(generation)
