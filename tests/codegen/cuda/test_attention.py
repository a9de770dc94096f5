"""Attention for Hopper: that plain code becomes a plan, and that it compiles without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))
from cubins import telling  # noqa: E402
from fixed import RefusedError  # noqa: E402
from hopper_attention_cases import (  # noqa: E402
    CASES,
    LONG,
    PING_PONG,
    THREE,
    THREE_PERSISTENT,
    causal,
    library,
    lowered,
    plain,
    soft_window,
)

import fusec  # noqa: E402
from fusec.codegen.cuda.emit import emit_kernel  # noqa: E402
from fusec.codegen.cuda.nvrtc import has_nvrtc  # noqa: E402
from fusec.errors import LoweringError  # noqa: E402
from fusec.ir.index import mul  # noqa: E402
from fusec.ir.indexing import evaluate  # noqa: E402
from fusec.passes.families.attention.schedule.hopper import HopperAttentionSchedule  # noqa: E402
from fusec.target.gpu import gpu_target  # noqa: E402

SM_90 = gpu_target("cuda:sm_90")


@pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC")
def test_compiles_without_spills(all_cases: bool) -> None:
    kernels = {name: lowered(*case, torch.bfloat16) for name, case in CASES.items()}
    sources = {name: [emit_kernel(kernel, SM_90)] for name, kernel in kernels.items()}
    for name, cubin in telling(sources, SM_90, whole=all_cases):
        assert cubin.code.startswith(b"\x7fELF"), name
        assert cubin.spills <= 160, name


def test_plan_of_a_causal_mask() -> None:
    kernel = lowered(causal, [(3, 5, 512, 128)] * 3, PING_PONG, torch.bfloat16)
    source = emit_kernel(kernel, SM_90)
    assert (source.grid, source.threads, source.shapes) == ((60, 1, 1), 384, (128,))
    assert [m.box for m in source.tensor_maps] == [(1, 1, 128, 64)] * 3 + [(1, 1, 64, 64)]
    assert "kPingPong = true, kPersistent = false, kStaged = true, kSubtractsFirst = false" in source.text
    assert "kMaskedBefore = false, kMaskedAfter = true" in source.text
    assert "kHeads = 15, kBlocks = 4" in source.text
    assert "head_and_block<kHeads, kBlocks, 8>(block)" in source.text
    assert "part = query_block * -128 + 384;" in source.text
    assert "return {row, first_key, first_key * -1 + row + query_block * -128 + 384};" in source.text
    assert "return (offset <= at.bound) ? raw : -infinity;" in source.text


def test_whole_blocks_of_keys_have_no_mask() -> None:
    text = emit_kernel(lowered(*CASES["causal"], torch.bfloat16), SM_90).text
    assert "float score_whole(float raw, const Row& at, int offset, float number) const {\n        return raw;" in text


def test_rows_without_a_finite_score() -> None:
    shapes = [(1, 4, 640, 64)] * 3
    for function, guarded in ((library, "true"), (causal, "false")):
        text = emit_kernel(lowered(function, shapes, LONG, torch.bfloat16), SM_90).text
        assert f"kGuarded = {guarded}" in text


def test_window_is_masked_on_both_sides() -> None:
    kernel = lowered(soft_window, [(1, 4, 1280, 128)] * 3, PING_PONG, torch.bfloat16)
    text = emit_kernel(kernel, SM_90).text
    assert "tanh" in text
    assert "first = 0;" not in text
    assert "return ((offset > at.bound) || (offset <= at.bound_1)) ? -infinity : changed;" in text


def test_even_blocks_go_head_by_head() -> None:
    text = emit_kernel(lowered(plain, [(1, 4, 640, 128)] * 3, LONG, torch.bfloat16), SM_90).text
    assert "head_and_block<kHeads, kBlocks, 0>(block)" in text
    assert "kMaskedBefore = false, kMaskedAfter = false" in text


def test_blocks_that_walk() -> None:
    """As many as run at once; results do not lie where the next queries come."""
    kernel = lowered(causal, [(3, 60, 500, 64)] * 3, THREE_PERSISTENT, torch.bfloat16)
    source = emit_kernel(kernel, SM_90)
    standing = emit_kernel(lowered(causal, [(3, 60, 500, 64)] * 3, THREE, torch.bfloat16), SM_90)
    assert (source.grid, standing.grid) == ((132, 1, 1), (540, 1, 1))
    assert source.shared - standing.shared == 192 * 64 * 2
    assert "kPersistent = true" in source.text


def test_few_blocks_of_queries_have_a_block_each() -> None:
    source = emit_kernel(lowered(plain, [(1, 4, 300, 64)] * 3, THREE_PERSISTENT, torch.bfloat16), SM_90)
    assert source.grid == (4, 1, 1)


@pytest.mark.parametrize(
    ("shape", "schedule", "reason"),
    [
        ((1, 2, 256, 72), PING_PONG, "heads of 72 columns"),
        ((1, 2, 256, 512), PING_PONG, "heads of 512 columns"),
        ((1, 2, 256, 256), HopperAttentionSchedule(128, 128, 2, ping_pong=True), "too many registers"),
        ((1, 2, 256, 128), HopperAttentionSchedule(128, 128, 4, ping_pong=True), "bytes of shared memory"),
        ((1, 2, 256, 128), THREE, "too many registers"),
    ],
)
def test_refused(shape: tuple[int, ...], schedule: HopperAttentionSchedule, reason: str) -> None:
    with pytest.raises((LoweringError, RefusedError), match=reason):
        emit_kernel(lowered(plain, [shape] * 3, schedule, torch.bfloat16), SM_90)


def test_float32_is_refused() -> None:
    with pytest.raises(RefusedError, match="holds f32"):
        lowered(plain, [(1, 2, 256, 64)] * 3, PING_PONG, torch.float32)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("function", [plain, causal], ids=["full", "causal"])
def test_queries_and_keys_of_symbolic_extent(function: Any) -> None:
    dims = {"B": (2, 16), "T": (2, 4096)}
    specs = [fusec.TensorSpec(("B", 8, "T", 64), "bfloat16")] * 3
    made = fusec.compile(function, *specs, dims=dims, target="cuda:sm_90", cache=False)
    program = made.specialised({"B": 16, "T": 4096}).executable.program
    (kernel,) = program.kernels
    assert kernel.language == "cuda"
    source = emit_kernel(kernel, SM_90)
    assert "kHeads = -1, kBlocks = -1" in source.text
    assert "int heads() const { return B * 8; }" in source.text
    b, t = source.sizes
    assert source.tensor_maps[0].shape == (b, 8, t, 64)
    assert source.tensor_maps[0].strides == (mul(t, 512), mul(t, 64), 64, 1)
    assert [evaluate(source.grid[0], {"B": n, "T": 5}) for n in (2, 16)] == [16, 128]
