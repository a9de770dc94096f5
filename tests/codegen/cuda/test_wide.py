"""Rows that a cluster of blocks holds: what is kept in shared memory, and how it gets there."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cuda_cases import softmax

from fusec.codegen.cuda.emit import emit_kernel
from fusec.codegen.cuda.source import KernelSource
from fusec.errors import LoweringError
from fusec.ir.parse import parse
from fusec.passes.pipeline import lower
from fusec.passes.select_gpu import GpuSelector
from fusec.target.gpu import gpu_target
from fusec.tile.kernel import Kernel

CARD = gpu_target("cuda:sm_90")


def lowered(text: str, card: str = "cuda:sm_90") -> Kernel:
    selector = GpuSelector(gpu_target(card), cuda=True)
    (kernel,) = lower(parse(text), card, selector=selector).program.kernels
    return kernel


def emitted(text: str) -> KernelSource:
    return emit_kernel(lowered(text), CARD)


def norm(dtype: str, rows: int, columns: int) -> str:
    shape = f"{dtype}[{rows}, {columns}]"
    return f"""graph @n(%x: {shape}, %r: {shape}, %w: {dtype}[{columns}]) {{
  %h = add(%x, %r) : {shape}
  %n = layer_norm(%h) {{axes=[1], eps=1e-5}} : {shape}
  %y = mul(%n, %w) : {shape}
  return %y
}}"""


def test_a_row_is_brought_to_shared_memory_once() -> None:
    source = emitted(softmax("bf16", 100, 128256))
    assert source.cluster == (4, 1, 1)
    assert source.grid == (400, 1, 1)
    assert source.shared == 32064 * 2
    text = source.text
    assert text.count("load_bytes(x_part, x + (") == 1
    assert text.count("load<VECTOR>(x_part + at)") == 3
    assert text.count("load<VECTOR>(x +") == 0
    assert text.count("reduce_cluster<CLUSTER>(") == 2
    assert text.index("cluster_arrive()") < text.index("arrived.wait(0)") < text.index("wait_for_cluster()")
    assert text.index("wait_for_cluster()") < text.index("reduce_cluster<CLUSTER>(")


def test_what_one_statement_reads_is_not_kept() -> None:
    text = emitted(norm("bf16", 100, 65536)).text
    assert "load_bytes(x_part," in text
    assert "load_bytes(r_part," in text
    assert "w_part" not in text


def test_addresses_of_any_kind() -> None:
    source = emitted(softmax("bf16", 100, 128256))
    assert source.unaligned is not None
    assert "load_bytes" not in source.unaligned.text
    assert "x_part[at] = x[" in source.unaligned.text
    odd = emitted(softmax("f32", 100, 70001))
    assert odd.unaligned is None
    assert "load_bytes" not in odd.text
    assert odd.text.index("__syncthreads();") < odd.text.index("float y_max;")


def test_which_rows() -> None:
    assert lowered(softmax("bf16", 100, 32768)).cluster == 1
    assert lowered(softmax("f32", 100, 128256)).cluster == 7
    assert lowered(softmax("bf16", 100, 2 * 10**6)).cluster == 1  # more than eight blocks hold
    assert lowered(softmax("bf16", 100, 128256), "cuda:sm_80").cluster == 1
    total = "graph @t(%x: f32[300, 100000]) {\n  %y = reduce_sum(%x) {axes=[1]} : f32[300]\n  return %y\n}"
    assert lowered(total).cluster == 1  # one pass reads it once, whoever makes it


def test_what_a_cluster_is_not_for() -> None:
    kernel = lowered(softmax("bf16", 100, 1000))
    with pytest.raises(LoweringError, match="a cluster of blocks"):
        emit_kernel(replace(kernel, cluster=2, language="cuda"), CARD)
