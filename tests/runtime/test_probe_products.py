"""What is found from the times of products: rates of a machine that is made up are found again."""

from __future__ import annotations

import pytest

from fusec.runtime.probe_products import found_in, probes
from fusec.target.cpu import cpu_target


@pytest.mark.parametrize("name", ["sapphirerapids", "znver5", "x86-64-v3"])
def test_rates_ends_and_waits_are_told_apart(name: str) -> None:
    """Each block takes its operations at a rate, a time to end, and with more than one block the wait for its panel."""
    target = cpu_target(f"cpu:{name}")
    products = list(probes(target, 2))
    tiles = {p.unit for p in products if p.unit.endswith("tiles")}
    rates = {p.unit: 1e12 * (1 + k) for k, p in enumerate(products)}
    end, wait = 3e-8, 2e-12

    def seconds(unit: str, flops: int, panel: int, blocks: int) -> float:
        block = flops / rates[unit] + (end if unit in tiles else 0.0) + (wait * panel if blocks > 1 else 0.0)
        return blocks * block

    found = found_in(products, {p.kernel.name: 1 / seconds(p.unit, p.flops, p.panel, p.blocks) for p in products})
    assert found.multiply == pytest.approx(rates)
    assert found.ends == pytest.approx(dict.fromkeys(tiles, end))
    assert found.waits == pytest.approx(dict.fromkeys(tiles, wait))
    assert bool(tiles) == (name == "sapphirerapids")


def test_blocks_that_are_waited_for_lie_in_l2() -> None:
    target = cpu_target("cpu:sapphirerapids")
    far = [p for p in probes(target, 2) if p.blocks > 1]
    assert far
    assert all(target.l1 < p.nbytes <= target.l2 // 2 for p in far)
