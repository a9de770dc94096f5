"""Which calls are the library's on CPUs alone."""

from __future__ import annotations

import pytest

from fusec.ir.chosen_calls import is_for_cpus, why_whole
from fusec.ir.library_calls import MOST_WEIGHTED_TAPS, LibraryConvolution, convolution_to_text
from fusec.ir.nodes import Op
from fusec.ir.parse import parse
from fusec.ir.text import spell_string
from fusec.ir.types import DType, bf16, f32


@pytest.mark.parametrize("on_cpu", [True, False])
def test_convolutions_of_one_channel(on_cpu: bool) -> None:
    most = MOST_WEIGHTED_TAPS
    assert not why_whole(f32, 8, (8, 1, most), 8, False, on_cpu=on_cpu)
    assert "positions of one channel" in why_whole(f32, 8, (8, 1, most + 1), 8, False, on_cpu=on_cpu)


def test_bfloat16_is_the_library_s_on_a_cpu() -> None:
    assert "bfloat16" in why_whole(bf16, 8, (4, 8, 3, 3), 1, False, on_cpu=True)
    assert not why_whole(bf16, 8, (4, 8, 3, 3), 1, False, on_cpu=False)
    assert not why_whole(bf16, 8, (4, 8, 1, 1), 1, False, on_cpu=True)


def convolution(dtype: str, weight: tuple[int, ...], groups: int, device: str = "", transposed: bool = False) -> Op:
    call = LibraryConvolution(None, None, (1, 1), (0, 0), (1, 1), (2, 7, 7, 4), groups, transposed)
    text = spell_string(convolution_to_text(call))
    graph = parse(f"""graph @f(%x: {dtype}[2, 9, 9, 8]{device}, %w: {dtype}{list(weight)}{device}) {{
  %y = extern(%x, %w) {{target="fusec.convolution", arguments={text}}} : {dtype}[2, 7, 7, 4]{device}
  return %y
}}""")
    return graph.ops[0]


def test_a_convolution_that_is_captured_for_a_cpu() -> None:
    assert is_for_cpus(convolution("bf16", (4, 8, 3, 3), 1))
    assert not is_for_cpus(convolution("f32", (8, 1, 9, 9), 8))
    assert not is_for_cpus(convolution("bf16", (4, 8, 3, 3), 1, "@cuda:0"))
    assert not is_for_cpus(convolution("f32", (8, 1, 9, 9), 8))
    assert is_for_cpus(convolution("f32", (4, 4, 3, 3), 2))
    assert is_for_cpus(convolution("bf16", (8, 4, 1, 1), 1, transposed=True))
    assert not is_for_cpus(convolution("bf16", (8, 4, 3, 3), 1, transposed=True))
    assert not is_for_cpus(convolution("f32", (8, 4, 3, 3), 1, transposed=True))


def test_transposed_convolutions() -> None:
    def why(groups: int, *steps: tuple[int, int], on_cpu: bool = True, dtype: DType = f32, size: int = 3) -> str:
        return why_whole(dtype, 8, (8, 4, size, size), groups, True, steps=steps, on_cpu=on_cpu)

    assert not why(1, (2, 1), (1, 3))
    assert "dilated" in why(1, (2, 3), (1, 1))
    assert "in groups" in why(2, (1, 1), (1, 1))
    assert "one channel" in why(8, (2, 1), (1, 1))
    assert not why(8, (1, 1), (1, 1))
    assert not why(1, (2, 1), (2, 1), on_cpu=False, dtype=bf16, size=2)
    assert "overlaps" in why(1, (2, 1), (2, 1), on_cpu=False, dtype=bf16)
    assert "TF32" in why(1, (2, 1), (2, 1), on_cpu=False, size=2)


def test_other_calls() -> None:
    def called(target: str, device: str = "") -> Op:
        return parse(f"""graph @f(%x: f32[2, 8, 9]{device}) {{
  %y = extern(%x) {{target="{target}", arguments="(($0,), {{}})"}} : f32[2, 8, 18]{device}
  return %y
}}""").ops[0]

    assert is_for_cpus(called("aten.upsample_linear1d.vec"))
    assert not is_for_cpus(called("aten.upsample_linear1d.vec", "@cuda:0"))
    assert not is_for_cpus(called("aten.sort.stable"))
    assert not is_for_cpus(called("numpy.sort"))
    assert not is_for_cpus(parse("graph @f(%x: f32[2]) {\n  %y = neg(%x) : f32[2]\n  return %y\n}").ops[0])
