"""What is measured of calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fusec import probing
from fusec.target.cpu import host_cpu
from fusec.target.rates import usual_rates


def test_calls_are_measured_in_typical_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of calls takes 1 µs and 0.2 µs for each further input; every fourth is disturbed."""
    rows = iter(range(1000))
    monkeypatch.setattr(probing, "_PAUSE", 0.0)
    calls = probing.Calls()
    monkeypatch.setattr(
        calls,
        "_seconds",
        lambda count, name: (9e-6 if next(rows) % 4 == 0 else 1e-6) + 2e-7 * (probing._INPUTS - 1) * (name == "many"),
    )
    found = calls.measure(replace(usual_rates(host_cpu(), 2), tensors=1.0))
    assert (found.call, found.argument) == pytest.approx((1e-6, 2e-7))
    assert found.tensors < 1e-5
