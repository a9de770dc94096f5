"""Matmuls of few rows with packed weights: what they compute (on a CPU), what they say, and that they compile without a
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
from skinny_cases import CASES, arrays_of, graph_of, kernel_of
from sweeps import covering

from fusec.codegen.cuda.emit import emit_kernel
from fusec.codegen.cuda.nvrtc import has_nvrtc
from fusec.ir.interpret import interpret
from fusec.target.gpu import gpu_target

SM_90 = gpu_target("cuda:sm_90")
UNALIGNED = ("groups_f16", "bytes", "table_wide", "words", "halves_of_rows")
COVERING = covering([{"function": id(function), "schedule": schedule} for function, _, schedule in CASES.values()], 1)
"""Each function and each schedule once."""
USUAL = [name for n, name in enumerate(CASES) if n in COVERING]
SPECIAL = ("blocks", "scaled_in_f32", "signed", "affine", "zero_points")
OTHER_GPUS = {"groups_f16": "cuda:sm_80", "bytes": "cuda:sm_80", "gate_and_up": "cuda:sm_89", "table": "cuda:sm_100"}


@pytest.mark.skipif(emulated.COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((n, "") for n in USUAL),
        *(pytest.param(n, "", marks=pytest.mark.nightly) for n in CASES if n not in USUAL),
        *((n, "unaligned") for n in UNALIGNED),
        *((n, "special") for n in SPECIAL),
    ],
)
def test_computes_what_the_graph_says(name: str, kind: str, tmp_path: Path) -> None:
    graph, kernel = graph_of(name), kernel_of(name)
    source = emit_kernel(kernel, SM_90)
    if kind == "unaligned":
        assert source.unaligned is not None
        source = source.unaligned
    shift = int(kind == "unaligned")
    arrays = arrays_of(name, special=kind == "special")
    named = {v.name: a for v, a in zip(graph.inputs, arrays, strict=True)}
    count = len(kernel.parameters) - kernel.outputs
    inputs = [emulated.placed(named[b.name], shift) for b in kernel.parameters[:count]]
    outputs = [emulated.placed(np.full(b.shape, 77, b.dtype.numpy), shift) for b in kernel.parameters[count:]]
    emulated.run(source, [*inputs, *outputs], tmp_path)
    assert_close_to_oracle(outputs, interpret(graph, arrays, float64=True), interpret(graph, arrays))


@pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC")
@pytest.mark.parametrize("name", ["groups_split", "five_bits", "table_wide", "gate_and_up", "batches", *OTHER_GPUS])
def test_compiles_without_the_gpu(name: str) -> None:
    target = OTHER_GPUS.get(name, "cuda:sm_90")
    for cubin in cubins(kernel_of(name, target), target, unaligned=name in UNALIGNED).values():
        assert cubin.code.startswith(b"\x7fELF")
        assert not cubin.spills


def test_nibbles_become_floats_by_their_bits() -> None:
    """No conversion instruction, and words of packed memory in one load."""
    text = emit_kernel(kernel_of("groups"), SM_90).text
    assert "load_words<4, true>(found.w_0" in text
    assert "subtract_pairs<bf16>((found.w_0[0] & both_halves(0x000fu) ^ 0x43004300u), 0x43084308u)" in text
    assert "pack(" not in text[: text.index("void vector_pairs")]


@pytest.mark.parametrize("name", ["zero_points", "blocks", "halves_of_rows", "signed", "two_bits", "divided", "words"])
def test_however_they_are_packed(name: str) -> None:
    text = emit_kernel(kernel_of(name), SM_90).text
    assert "float(i" not in text
    assert "float(u" not in text


def test_arithmetic_that_wraps_is_done_in_its_type() -> None:
    assert "wrapping_sub" in emit_kernel(kernel_of("wrapping"), SM_90).text


def test_tables_are_in_shared_memory() -> None:
    source = emit_kernel(kernel_of("table"), SM_90)
    assert "in_shared<float>(0)" in source.text
    assert "kTables = 64" in source.text


def test_blocks_that_share_the_depth_are_a_cluster() -> None:
    source = emit_kernel(kernel_of("groups_split"), SM_90)
    assert source.cluster == (2, 1, 1)
    assert source.grid == (4, 1, 1)
    assert "__cluster_dims__(2, 1, 1)" in source.text
