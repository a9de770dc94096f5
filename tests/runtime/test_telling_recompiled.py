"""FUSEC_LOGS=recompile says what is new in a call."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import fusec


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ((np.ones((4, 3), np.float32), 1), "array 0 is f32[4, 3], was f32[2, 3]"),
        ((np.ones((2, 3), np.float64), 1), "array 0 is f64[2, 3], was f32[2, 3]"),
        ((np.ones((3, 2), np.float32).T, 1), "array 0 has strides (1, 2), had (3, 1)"),
        ((np.ones((2, 3), np.float32), 2), "argument 1 is 2, was 1"),
        ((np.ones((2, 3), np.float32), np.ones(3, np.float32)), "argument 1 has another structure"),
        ((np.ones((2, 3), np.float32),), "other arguments are given"),
    ],
)
def test_why(second: tuple[np.ndarray, ...], message: str, caplog: pytest.LogCaptureFixture) -> None:
    jitted = fusec.jit(lambda x, n=3: np.tanh(x) * n)
    with caplog.at_level(logging.INFO, "fusec.recompile"):
        jitted(np.ones((2, 3), np.float32), 1)
        assert "first call" in caplog.text
        jitted(*second)
    (line,) = (record.message for record in caplog.records if "new signature" in record.message)
    assert message in line
    assert ";" not in line
