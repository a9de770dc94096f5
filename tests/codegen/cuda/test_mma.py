"""Products by mma.sync: what they say, and that they compile without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cubins import cubins, telling
from fixed import Fixed
from hopper_cases import SWIGLU, linear, product
from mma_cases import CASES, PREPARED, SMALL, SQUARE, WIDE, lowered

from fusec.codegen.cuda.emit import emit_kernel
from fusec.codegen.cuda.nvrtc import has_nvrtc
from fusec.ir.parse import parse
from fusec.passes.families.gemm.schedule.mma import MmaGemmSchedule
from fusec.passes.pipeline import lower
from fusec.target.gpu import gpu_target

SM_80 = gpu_target("cuda:sm_80")
EVERYWHERE = ("square", "tn", "tf32_tn", "odd_everything", "swiglu")
"""Compiled for another card than sm_80, too: each kind of fragment."""


@pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC")
def test_compiles_without_the_card(all_cases: bool) -> None:
    """All for every card: ``python -m tests.campaigns.cards``."""
    sources = {name: [emit_kernel(lowered(parse(text), s, SM_80.name), SM_80)] for name, (text, s) in CASES.items()}
    for name, cubin in telling(sources, SM_80, whole=all_cases):
        assert cubin.code.startswith(b"\x7fELF"), name
        # The form for odd addresses copies elements one by one, which takes longer than its spills.
        assert cubin.spills <= 64 or name.endswith("_unaligned"), name


@pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC")
@pytest.mark.parametrize(
    ("name", "card"), zip(EVERYWHERE, ("sm_86", "sm_89", "sm_90", "sm_100", "sm_100"), strict=True)
)
def test_compiles_for_other_cards(name: str, card: str) -> None:
    """Each kind for one of them; for all: ``python -m tests.campaigns.cards``."""
    text, schedule = CASES[name]
    target = f"cuda:{card}"
    (cubin,) = cubins(lowered(parse(text), schedule, target), target, unaligned=False).values()
    assert cubin.code.startswith(b"\x7fELF")
    assert cubin.spills <= 64


def test_plan() -> None:
    source = emit_kernel(lowered(parse(linear(1024, 512, 768)), SQUARE), SM_80)
    assert (source.grid, source.threads, source.shared) == ((48, 1, 1), 128, 49152)
    assert not source.tensor_maps
    assert "__launch_bounds__(128, 2)" in source.text
    assert "using Left = InRows<1024, 512, 512, 8>;" in source.text
    assert "kLeftTransposed = false, kRightTransposed = false" in source.text
    assert "const Vec<bf16, 2> b_pair = load<2>(b + (column + column_tile * 128));" in source.text
    assert "tanh" in source.text


def test_what_is_not_aligned_is_read_one_by_one() -> None:
    source = emit_kernel(lowered(parse(linear(130, 131, 136)), SQUARE), SM_80)
    assert "using Left = InRows<130, 131, 131, 0>;" in source.text
    assert "bf16 left(int batch, int row, int k) const {\n        return x[k + row * 131];" in source.text
    assert source.unaligned is not None
    assert "store(reinterpret_cast" in source.text
    assert "store(reinterpret_cast" not in source.unaligned.text
    assert "load<2>" not in source.unaligned.text


def test_turned_operands_run_along_their_memory() -> None:
    text = product("256, 384", "256, 512", "contract=[0]x[0]", "384, 512")
    source = emit_kernel(lowered(parse(text), WIDE), SM_80)
    assert "kLeftTransposed = true, kRightTransposed = true" in source.text
    assert "using Right = InRows<256, 512, 512, 8>;" in source.text


def test_narrow_copies() -> None:
    assert "InRows<130, 132, 132, 4>" in emit_kernel(lowered(parse(linear(130, 132, 136)), SMALL), SM_80).text
    assert "InRows<130, 134, 134, 2>" in emit_kernel(lowered(parse(linear(130, 134, 136)), SMALL), SM_80).text


def test_computed_operands_are_rounded() -> None:
    text = emit_kernel(lowered(parse(PREPARED), SMALL), SM_80).text
    assert "using Left = InRows<130, 200, -1, 0>;" in text
    assert "const float as_f32 = float(x[k + row * 200]) * float(s[k]);\n        return bf16(" in text


def test_two_products() -> None:
    source = emit_kernel(lowered(parse(SWIGLU), MmaGemmSchedule(128, 64, 32, 3, 64, 32)), SM_80)
    assert "kDots = 2" in source.text
    assert "if (dot == 0) {\n            return g" in source.text


@pytest.mark.parametrize("dtype", ["f64", "i32"])
def test_refused(dtype: str) -> None:
    text = product("96, 64", "64, 128", "contract=[1]x[0]", "96, 128", dtype)
    program = lower(parse(text), "cuda:sm_80", precision="tf32", selector=Fixed(SM_80, schedule=SQUARE)).program
    assert any(f"tensor cores multiply no {dtype}" in d.reason for d in program.declined)
