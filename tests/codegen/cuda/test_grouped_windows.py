"""Convolutions in groups of few channels: what they compute (on a CPU), what they say, and that they compile without a
GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))
import emulated
from cubins import cubins
from oracle import assert_close_to_oracle
from window_cases import CASES, in_memory

from fusec.codegen.cuda.emit import emit_kernel
from fusec.codegen.cuda.nvrtc import has_nvrtc
from fusec.ir.interpret import interpret
from fusec.target.gpu import gpu_target

SM_90 = gpu_target("cuda:sm_90")
OTHER_GPUS = {"parts": "cuda:sm_80", "groups of 16": "cuda:sm_89", "uneven": "cuda:sm_100"}


@pytest.mark.skipif(emulated.COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    ("name", "special"),
    [*((name, False) for name in CASES), ("depthwise", True), ("parts", True), ("groups of 8", True)],
)
def test_computes_what_the_graph_says(name: str, special: bool, tmp_path: Path) -> None:
    """Also where an infinity or NaN lies beside a window: it is in no other."""
    case = CASES[name]
    graph, kernel, arrays = case.graph, case.kernel(), case.arrays(special=special)
    named = {v.name: in_memory(a) if v is graph.inputs[0] else a for v, a in zip(graph.inputs, arrays, strict=True)}
    count = len(kernel.parameters) - kernel.outputs
    inputs = [emulated.placed(named[b.name]) for b in kernel.parameters[:count]]
    (result,) = kernel.parameters[count:]
    found = emulated.placed(np.full(result.shape, 77, result.dtype.numpy))
    emulated.run(emit_kernel(kernel, SM_90), [*inputs, found], tmp_path)
    steps = [n * found.itemsize for n in result.strides]
    shown = np.lib.stride_tricks.as_strided(found, found.shape, steps)
    with np.errstate(all="ignore"):
        (exact,), (eager,) = interpret(graph, arrays, float64=True), interpret(graph, arrays)
        wanted, theirs = (x if x.shape == shown.shape else in_memory(x) for x in (exact, eager))
        assert_close_to_oracle([shown], [wanted], [theirs])


@pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC")
@pytest.mark.parametrize("name", ["depthwise", "groups of 8", *OTHER_GPUS])
def test_compiles_without_the_gpu(name: str) -> None:
    target = OTHER_GPUS.get(name, "cuda:sm_90")
    for cubin in cubins(CASES[name].kernel(target), target, unaligned=False).values():
        assert cubin.code.startswith(b"\x7fELF")
        assert cubin.spills <= 64


def test_plan() -> None:
    source = emit_kernel(CASES["parts"].kernel(), SM_90)
    assert source.grid == (4 * 3 * 2, 1, 1)
    assert source.threads == 128
    assert source.aligned
    assert "kSizeY = 7, kStrideY = 1, kDilationY = 1, kLowY = 3;" in source.text
    assert "kRows = 6, kWide = 8, kTogether = 16, kDown = 2;" in source.text
    assert "depthwise_windows(Plan" in source.text
    assert "return w[column * 49 + k];" in source.text
    assert "grouped_windows(Plan" in emit_kernel(CASES["groups of 8"].kernel(), SM_90).text


def test_results_of_16_bits_leave_in_eights() -> None:
    assert "kStaged = 1;" in emit_kernel(CASES["depthwise"].kernel(), SM_90).text
    assert "kStaged = 0;" in emit_kernel(CASES["float result"].kernel(), SM_90).text
