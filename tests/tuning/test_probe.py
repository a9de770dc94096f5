"""How long one repetition of a kernel's work takes, on a machine that does other work as well."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import pytest

from fusec.target.cpu import host_cpu
from fusec.target.rates import usual_rates
from fusec.tuning import probe


class Clock:
    """Time that a kernel's runs let pass, and what comes between them."""

    def __init__(self, each: float, waits: Iterator[float]) -> None:
        self.now, self.each, self.waits = 0.0, each, waits

    def perf_counter(self) -> float:
        return self.now

    def run(self, *arguments: Any) -> None:
        self.now += arguments[-1] * self.each + next(self.waits)


@pytest.mark.parametrize("each", [3e-9, 2e-6, 4e-4, 0.1])
@pytest.mark.parametrize("waits", [(), (0.01, 0.01), (0.01, 0.01, 0.01), (0.0, 0.02, 0.01, 0.01, 0.0, 0.01)], ids=len)
def test_a_wait_is_not_taken_for_the_work(each: float, waits: tuple[float, ...], monkeypatch: Any) -> None:
    """Of a kernel of nanoseconds, a wait of 10 ms made one a million times as slow."""
    clock = Clock(each, chain(waits, repeat(0.0)))
    monkeypatch.setattr(probe.time, "perf_counter", clock.perf_counter)
    assert probe.per_repeat(clock.run, []) == pytest.approx(each, rel=0.2)


def test_the_run_in_the_middle_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = iter([1.0, 1.0, 1.0, 2.0, 5.0, 2.0])
    monkeypatch.setattr(probe, "_timed", lambda function, addresses, count: next(speeds) * 1e-5 * count)
    monkeypatch.setattr(probe, "SECONDS", 3e-5)
    monkeypatch.setattr(probe, "REPEATS", 3)
    assert probe.per_repeat(print, []) == pytest.approx(2e-5)


def test_rates_are_of_the_rounds_but_the_slowest() -> None:
    rounds = [dict.fromkeys(("vector", "l2", "regions", "far starts"), n) for n in (0.01, 1.0, 4.0)]
    found = probe.typical_rates(rounds, (), usual_rates(host_cpu(), 2))
    assert (found.vector, found.l2, 1 / found.region, 1 / found.far_start) == pytest.approx((1.6, 1.6, 1.6, 1.6))
