"""What a run has made in circles is collected with the youngest objects, not with all of the process."""

from __future__ import annotations

import gc
import random

import numpy as np
import pytest

from fusec.frontend.garbage import collect_while, left_alone, made_lately
from fusec.frontend.numpy import capture


class Circle:
    def __init__(self) -> None:
        self.own = self

    def scale(self, x):
        return x * 2


def in_a_circle(x):
    return Circle().scale(x)


def a_generator(x):
    return x * random.Random(0).randrange(3)


@pytest.fixture
def whole_collections():
    seen = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            seen.append(info)

    gc.collect()
    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


@pytest.mark.parametrize("function", [in_a_circle, a_generator])
def test_a_capture_collects_the_youngest(function, whole_collections) -> None:
    captured = capture(function, (np.ones(3),), {})
    assert not whole_collections
    assert captured.environment.holds()


def test_what_is_young_is_told_while_nothing_is_collected() -> None:
    before = Circle()
    gc.collect()
    with left_alone():
        after = Circle()
        is_new = made_lately()
        assert is_new(after)
        assert not is_new(before)
    assert made_lately()(before)


def test_the_next_generation_only_where_some_are_left() -> None:
    left = [True, True, False]
    collect_while(lambda: left.pop(0))
    assert left == []
    collect_while(lambda: True)
