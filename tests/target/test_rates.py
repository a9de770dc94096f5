"""Rates: looked up, kept as text, usual for each target."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fusec.ir.types import bf16, f32, f64, i8
from fusec.target.cpu import NAMED, cpu_target
from fusec.target.rates import Bandwidth, Rates, usual_rates

RATES = Rates(
    {"f32": 100.0, "bf16": 200.0, "bf16 tiles": 1600.0},
    50.0,
    40.0,
    (
        Bandwidth(1, 100, 10.0, 8.0, 10.0, 6.0, 5.0),
        Bandwidth(1, 10_000, 5.0, 4.0, 5.0, 6.0, 5.0),
        Bandwidth(4, 100, 40.0, 32.0, 40.0, 6.0, 5.0),
        Bandwidth(4, 10_000, 10.0, 8.0, 10.0, 6.0, 5.0),
    ),
    1e-6,
    2e-6,
)


def test_products() -> None:
    assert RATES.matmul(f32, tiles=False) == 100
    assert RATES.matmul(f64, tiles=False) == 50
    assert RATES.matmul(bf16, tiles=True) == 1600
    assert RATES.matmul(i8, tiles=False) == 100


@pytest.mark.parametrize(
    ("footprint", "threads", "read"),
    [(1, 1, 10), (100, 1, 10), (1000, 1, 1 / 0.15), (10_000, 1, 5), (1e9, 1, 5), (100, 4, 40), (1e9, 9, 10)],
)
def test_bandwidth(footprint: float, threads: int, read: float) -> None:
    assert RATES.beyond_l2(footprint, threads).read == pytest.approx(read)


def test_threads_between_have_a_bandwidth_between() -> None:
    assert 10 < RATES.beyond_l2(100, 2).read < RATES.beyond_l2(100, 3).read < 40


def test_seconds_of_reading_and_writing() -> None:
    level = Bandwidth(1, 100, 10.0, 5.0, 20.0, 10.0, 5.0)
    assert level.seconds(10, 0) == 1
    assert level.seconds(0, 10) == 2
    assert level.seconds(10, 10) == 1
    assert level.seconds(20, 10) == 2
    assert level.past(10, 20) == 4


def test_halfway_an_operation_or_a_byte_takes_the_mean_of_both_times() -> None:
    later = replace(RATES, vector=3 * RATES.vector, region=1.0, ends={"bf16 tiles": 3.0})
    later = replace(later, bandwidth=tuple(replace(b, read=3 * b.read) for b in RATES.bandwidth))
    found = replace(RATES, ends={"bf16 tiles": 1.0}).halfway(later)
    assert (found.vector, found.l2, found.region) == pytest.approx((1.5 * RATES.vector, RATES.l2, 1.0))
    assert found.multiply == pytest.approx(RATES.multiply)
    assert found.ends == {"bf16 tiles": 2.0}
    assert [b.read for b in found.bandwidth] == pytest.approx([1.5 * b.read for b in RATES.bandwidth])
    assert [b.copy for b in found.bandwidth] == pytest.approx([b.copy for b in RATES.bandwidth])


def test_text() -> None:
    assert Rates.from_json(RATES.to_json()) == RATES


@pytest.mark.parametrize("text", ["", "{}", "[]", RATES.to_json().replace("50.0", "0", 1), RATES.to_json()[:-9]])
def test_what_is_no_profile(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Rates.from_json(text)


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("threads", [1, 2, 64])
def test_usual_rates(name: str, threads: int) -> None:
    target = cpu_target(f"cpu:{name}")
    rates = usual_rates(target, threads)
    assert not rates.measured
    assert 0.9 * target.peak_flops(32, 1) < rates.matmul(f32, tiles=False) <= target.peak_flops(32, 1)
    assert ("bf16 tiles" in rates.multiply) == target.multiplies_in_tiles(bf16)
    near, far = rates.beyond_l2(target.l2 * threads, threads), rates.beyond_l2(2**40, threads)
    assert near.read >= far.read > 0
    assert far.read <= target.bandwidth
