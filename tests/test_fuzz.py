"""Random graphs, compiled and run, against the interpreter.

More of them, of other seeds, run with ``python tests/fuzz.py FIRST LAST``.
"""

from __future__ import annotations

import pytest
from fuzz import trial

SEEDS = range(1000, 1060)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("first", SEEDS[::10])
def test_random_graphs(first: int) -> None:
    for seed in range(first, first + 10):
        trial(seed)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_random_graphs_in_the_tile_interpreter() -> None:
    for seed in range(2000, 2120):
        trial(seed, compiled=False)
