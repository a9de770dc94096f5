"""The page's table of kernels."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusec
from fusec.measuring import Spread
from fusec.page.gather import Part, gather_compiled
from fusec.page.kernels import kernel_table


@pytest.fixture(scope="module")
def part() -> Part:
    def steps(x: Any) -> Any:
        for _ in range(3):
            x = np.sort(np.exp(x - x.max(axis=1, keepdims=True)), axis=1)
        return x

    return gather_compiled(fusec.compile(steps, np.ones((4, 8), np.float32))).parts[0]


def test_like_kernels_are_one_row_and_calls_have_a_table(part: Part) -> None:
    text = "\n".join(kernel_table(part, 7))
    assert "Times are predicted." in text
    assert len(re.findall(r'href="#kernel-7-', text)) == len(part.program.reports)
    assert " × 3 " in text
    assert "100 %" in text
    assert "numpy.sort × 3" in text


def test_measured_parts_and_whole(part: Part) -> None:
    each = [1e-3] * len(part.program.steps)
    quiet = replace(part, measured=each, whole=Spread(sum(each), sum(each), sum(each)))
    text = "\n".join(kernel_table(quiet, 0))
    assert "Times are measured." in text
    assert f"A call takes {len(each)} ms" in text
    assert "3 ms</td></tr>" in text  # three calls of the library
    assert "warning" not in text
    busy = replace(quiet, whole=Spread(1e-3, 1e-3, 2e-3))
    assert "more than the whole" in "\n".join(kernel_table(busy, 0))
