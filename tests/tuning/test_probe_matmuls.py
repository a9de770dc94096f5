"""What is found from the times of products: rates of a machine that is made up are found again."""

from __future__ import annotations

import pytest

from fusec.target.cpu import cpu_target
from fusec.tuning.probe_matmuls import found_in, probes


@pytest.mark.parametrize("name", ["sapphirerapids", "znver5", "x86-64-v3"])
def test_rates_and_ends_are_told_apart(name: str) -> None:
    """Each block takes its operations at a rate, and on tiles a time to end."""
    target = cpu_target(f"cpu:{name}")
    products = list(probes(target, 2))
    tiles = {p.unit for p in products if p.unit.endswith("tiles")}
    rates = {p.unit: 1e12 * (1 + k) for k, p in enumerate(products)}
    end = 3e-8
    seconds = {p.kernel.name: p.flops / rates[p.unit] + (end if p.unit in tiles else 0.0) for p in products}
    found = found_in(products, {kernel: 1 / taken for kernel, taken in seconds.items()})
    assert found.multiply == pytest.approx(rates)
    assert found.ends == pytest.approx(dict.fromkeys(tiles, end))
    assert bool(tiles) == (name == "sapphirerapids")


def test_a_core_that_was_slower_for_half_a_product_makes_no_unit_faster() -> None:
    products = [p for p in probes(cpu_target("cpu:sapphirerapids"), 2) if p.unit == "bf16 tiles"]
    seconds = {False: 1.0, True: 0.9}
    found = found_in(products, {p.kernel.name: 1 / seconds[p.shallow] for p in products})
    assert found.ends == {"bf16 tiles": 0.25}
    assert found.multiply["bf16 tiles"] == pytest.approx(next(p.flops for p in products if not p.shallow) / 0.75)


def test_both_operands_fit_l1() -> None:
    target = cpu_target("cpu:sapphirerapids")
    assert all(2 * p.nbytes < target.l1 for p in probes(target, 2))
