"""The page's table of kernels."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusec
from fusec.measuring import Spread
from fusec.page.gather import Gathered, Part, gather_compiled, gather_file
from fusec.page.kernels import anchor, kernel_table
from fusec.page.write import page
from fusec.runtime.program import Pack


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
    assert len(part.program.reports) == 3
    assert re.findall(r'href="#kernel-7-[^"]*">([^<]*)<', text) == [f"{part.program.reports[0].kernel} × 3"]
    assert "100 %" in text
    assert "numpy.sort × 3" in text


def test_like_kernels_have_one_text_and_an_anchor_each(part: Part) -> None:
    text = page(Gathered("steps", [], [part], True))
    assert text.count('class="kernel-text"') == 1
    for report in part.program.reports:
        assert text.count(f'id="{anchor(0, report.kernel)}"') == 1
    assert "Its text was not kept." not in text


@pytest.mark.parametrize("precision", ["ieee", "bf16"])
def test_kernels_of_packed_weights_have_their_texts(precision: Any, tmp_path: Path) -> None:
    """The graph of a file says which weights are packed once, so that its kernels can be written again."""
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
    compiled = fusec.compile(net, fusec.TensorSpec((256, 256), "float32"), precision=precision)
    assert any(isinstance(step, Pack) for step in compiled.only.executable.program.steps)
    compiled.save(tmp_path / "f.fusec")
    for gathered in (gather_compiled(compiled), gather_file(tmp_path / "f.fusec")):
        assert "Its text was not kept." not in page(gathered)
        names = {kernel.name for kernel in gathered.parts[0].kernels if kernel.source}
        assert names == {kernel.name for kernel in compiled.only.executable.program.kernels}


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
