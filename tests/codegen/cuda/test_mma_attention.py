"""Attention by mma.sync: that plain code becomes a plan, and that it compiles without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))
from cubins import cubins, telling  # noqa: E402
from fixed import RefusedError  # noqa: E402
from mma_attention_cases import (  # noqa: E402
    CASES,
    LONG,
    PLAIN,
    causal,
    lowered,
    lowered_for,
    plain,
    soft_window,
)

from fusec.codegen.cuda.emit import emit_kernel  # noqa: E402
from fusec.codegen.cuda.nvrtc import has_nvrtc  # noqa: E402
from fusec.errors import LoweringError  # noqa: E402
from fusec.passes.families.attention.schedule.mma import MmaAttentionSchedule  # noqa: E402
from fusec.target.gpu import gpu_target  # noqa: E402

SM_80 = gpu_target("cuda:sm_80")


@pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC")
def test_compiles_without_the_card(all_cases: bool) -> None:
    """All for every card: ``python -m tests.campaigns.cards``."""
    kernels = {name: lowered(*case, torch.bfloat16, SM_80.name) for name, case in CASES.items()}
    sources = {name: [emit_kernel(kernel, SM_80)] for name, kernel in kernels.items()}
    for name, cubin in telling(sources, SM_80, whole=all_cases):
        assert cubin.code.startswith(b"\x7fELF"), name
        assert cubin.spills <= 160, name


@pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC")
@pytest.mark.parametrize("target", ["cuda:sm_86", "cuda:sm_89", "cuda:sm_90", "cuda:sm_100"])
def test_compiles_for_other_cards(target: str) -> None:
    kernel = lowered(*CASES["causal"], torch.bfloat16, target)
    (cubin,) = cubins(kernel, target, unaligned=False).values()
    assert cubin.code.startswith(b"\x7fELF")
    assert cubin.spills <= 160


def test_plan_of_a_causal_mask() -> None:
    source = emit_kernel(lowered(causal, [(3, 5, 512, 128)] * 3, PLAIN, torch.bfloat16), SM_80)
    assert (source.grid, source.threads, source.shared) == ((60, 1, 1), 128, 65536)
    assert not source.tensor_maps
    assert "__launch_bounds__(128, 2)" in source.text
    assert "using Keys = InRows<64, 128, 128, 8>;" in source.text
    assert "kMaskedBefore = false, kMaskedAfter = true" in source.text
    assert "head_and_block<kHeads, kBlocks, 8>(block)" in source.text
    assert "part = query_block * -128 + 384;" in source.text


def test_the_last_queries_and_keys() -> None:
    text = emit_kernel(lowered(plain, [(1, 2, 333, 64)] * 3, LONG, torch.bfloat16), SM_80).text
    assert "using Queries = InRows<-1, 64, 64, 8>;" in text
    assert "using Keys = InRows<333, 64, 64, 8>;" in text
    assert "rows = query_block * 128 + 77;" in text


def test_whole_blocks_of_keys_have_no_mask() -> None:
    text = emit_kernel(lowered(*CASES["causal"], torch.bfloat16), SM_80).text
    assert "score_whole(float raw, const Row& at, int offset, float number) const {\n        return raw;" in text


def test_window_is_masked_on_both_sides() -> None:
    text = emit_kernel(lowered(soft_window, [(1, 4, 1280, 128)] * 3, PLAIN, torch.bfloat16), SM_80).text
    assert "tanh" in text
    assert "first = 0;" not in text


def test_other_addresses() -> None:
    source = emit_kernel(lowered(*CASES["plain"], torch.bfloat16), SM_80)
    assert source.unaligned is not None
    assert "using Keys = InRows<64, 128, 128, 0>;" in source.unaligned.text
    assert "Type key(int row, int column) const {\n        return k[" in source.unaligned.text


def test_columns_that_are_no_neighbours() -> None:
    q = torch.empty(1, 2, 256, 64, dtype=torch.bfloat16)
    v = torch.empty(1, 2, 64, 256, dtype=torch.bfloat16).transpose(-1, -2)
    text = emit_kernel(lowered_for([q, q.clone(), v], plain, PLAIN, "cuda:sm_80"), SM_80).text
    assert "using Keys = InRows<64, 64, 64, 8>;" in text
    assert "using Values = InRows<64, 64, -1, 0>;" in text


@pytest.mark.parametrize(
    ("shape", "schedule", "reason"),
    [
        ((1, 2, 256, 72), PLAIN, "heads of 72 columns"),
        ((1, 2, 256, 512), PLAIN, "heads of 512 columns"),
        ((1, 2, 256, 256), PLAIN, "too many registers"),
        ((1, 2, 256, 64), MmaAttentionSchedule(64, 64, 8, 1), "blocks of 64 queries"),
        ((1, 2, 512, 256), MmaAttentionSchedule(128, 64, 8, 2), "bytes of shared memory"),
    ],
)
def test_refused(shape: tuple[int, ...], schedule: MmaAttentionSchedule, reason: str) -> None:
    with pytest.raises((LoweringError, RefusedError), match=reason):
        emit_kernel(lowered(plain, [shape] * 3, schedule, torch.bfloat16), SM_80)


def test_float32_is_refused() -> None:
    with pytest.raises(RefusedError, match="holds f32"):
        lowered(plain, [(1, 2, 256, 64)] * 3, PLAIN, torch.float32)
