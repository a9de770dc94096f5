"""Copies ahead of need, without a GPU: plain memory stands for pinned memory."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fusec.runtime import staging


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "pinned_empty", np.empty)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_every_piece_arrives_and_none_is_overwritten_too_soon(count: int) -> None:
    rng = np.random.default_rng(0)
    first, second = rng.random((count, 300, 7)), rng.random((count, 2, 90)).transpose(0, 2, 1)
    pieces = [{0: first[n : n + 1], 3: second[n : n + 1]} for n in range(count)]
    stages = staging.Stages(pieces, 3)
    held: dict[int, dict[int, Any]] = {}

    def let_go(number: int) -> None:
        for k, buffer in held.pop(number, {}).items():
            np.testing.assert_array_equal(buffer, pieces[number][k])

    for number in range(count):
        held[number] = stages.take(number)
        stages.release(number, lambda n=number: let_go(n))
    for number in sorted(held):
        let_go(number)


@pytest.mark.usefixtures("plain")
def test_the_last_piece_may_be_smaller() -> None:
    x = np.arange(70.0)
    stages = staging.Stages([{1: x[:32]}, {1: x[32:64]}, {1: x[64:]}], 1)
    for number, wanted in enumerate((x[:32], x[32:64], x[64:])):
        np.testing.assert_array_equal(stages.take(number)[1], wanted)
        stages.release(number, lambda: None)


def test_nothing_to_stage() -> None:
    stages = staging.Stages([{}, {}], 4)
    assert [stages.take(n) for n in range(2)] == [{}, {}]


class Driver:
    """CUDA's calls that pin memory, noted."""

    CUDARuntimeError = RuntimeError

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}
        self.hostRegister, self.hostUnregister = self.pin, self.pinned.pop

    def pin(self, start: int, nbytes: int, flags: int) -> None:
        if any(a < start + nbytes and start < a + n for a, n in self.pinned.items()):
            raise RuntimeError("already")
        self.pinned[start] = nbytes


def test_an_array_is_pinned_the_second_time_until_it_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, table = Driver(), staging._Pinned()
    monkeypatch.setattr(staging, "load_cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=driver)))
    monkeypatch.setattr(staging, "_WORTH_PINNING", 100)
    x, small = np.zeros((8, 50)), np.zeros(3)
    assert [table.offer(a) for a in (x, small, small, x.T, x[2:])] == [False, False, False, False, True]
    assert driver.pinned == {x[2:].ctypes.data: 6 * 400}
    assert not table.offer(x)  # a part of it is
    assert not table.offer(np.frombuffer(bytearray(800)).reshape(2, 50))
    del x
    gc.collect()
    assert driver.pinned == {}
    assert table._seen == {}
