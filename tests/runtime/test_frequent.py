"""Functions whose calls have ever new extents, and no program for ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusec
from fusec.runtime.frequent import MOST, OFTEN, Repeated


def double(x: Any) -> Any:
    return np.tanh(x) * 2.0 + x


def compiled(jitted: Any, rows: int, calls: int = 1) -> bool:
    """Whether the last of some calls ran by a plan of its own."""
    before = len(jitted.dispatcher.plans)
    for _ in range(calls):
        x = np.random.default_rng(rows).normal(size=(rows, 3))
        np.testing.assert_allclose(jitted(x), double(x), rtol=1e-12)
    return len(jitted.dispatcher.plans) > before


def test_ever_new_extents_are_compiled_when_they_come_again() -> None:
    jitted = fusec.jit(double)
    assert all(compiled(jitted, 2 + n) for n in range(MOST))
    with pytest.warns(fusec.RunsAsWritten, match="sets of extents"):
        assert not compiled(jitted, 50, OFTEN - 1)
    assert not compiled(jitted, 51, OFTEN - 1)
    assert compiled(jitted, 50)
    assert not compiled(jitted, 3)
    assert not compiled(jitted, 50)


def test_other_kinds_of_calls_are_compiled_at_once() -> None:
    jitted = fusec.jit(double, warn=False)
    assert all(compiled(jitted, 2 + n) for n in range(MOST))
    assert not compiled(jitted, 50)
    before = len(jitted.dispatcher.plans)
    jitted(np.zeros((50, 3), np.float32))
    jitted(np.zeros(50))
    assert len(jitted.dispatcher.plans) == before + 2


@pytest.mark.parametrize("options", [{"dynamic": False}, {"fallback": "error"}], ids=str)
def test_all_are_where_that_was_asked_for(options: dict[str, Any]) -> None:
    jitted = fusec.jit(double, **options)
    assert all(compiled(jitted, 2 + n) for n in range(MOST + 2))


def test_what_is_counted_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.runtime.frequent._COUNTED", 3)
    repeated = Repeated()
    for _ in range(MOST):
        assert not repeated.waits("kind", 0)
        repeated.made("kind")
    assert all(repeated.waits("kind", n) for n in range(100))
