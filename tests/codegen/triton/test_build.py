"""Compiling ahead for cards that are not here, saved modules, and the schedules' limits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))
from float8_cases import CASES as FLOAT8
from scan_cases import CASES as SCANS
from scan_cases import CUT, plain
from triton_cases import CASES, linear, sdpa, windows

from fusec.codegen.triton.build import compile_kernels, module_source
from fusec.codegen.triton.module import TritonModule
from fusec.errors import ArtifactError, TargetError
from fusec.ir.parse import parse
from fusec.ir.types import contiguous_strides
from fusec.passes.families.scan.schedule.gpu import GpuScanSchedule
from fusec.passes.lower.context import LoweringContext
from fusec.passes.pipeline import lower
from fusec.passes.schedule.launch import Launch
from fusec.passes.select_gpu import GpuSelector, lower_with
from fusec.target.gpu import gpu_target

TARGETS = ["cuda:sm_80", "cuda:sm_90", "cuda:sm_100", "hip:gfx942"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["softmax_bf16", "linear_bf16", "attention_causal"])
def test_compiles_without_the_card(name: str, target: str) -> None:
    module = compile_kernels(lower(parse(CASES[name]), target).program.kernels, gpu_target(target))
    (binary,) = module.binaries.values()
    assert binary.code.startswith(b"\x7fELF")
    assert binary.metadata["shared"] <= module.target.shared_memory


@pytest.mark.parametrize("tries", [1, 3])
def test_threads_that_parse_at_a_time(tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython's parser counts its depth for all threads at once, and may raise for it."""
    import triton

    real, calls = triton.compile, []

    def raced(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) <= tries:
            raise SystemError("AST constructor recursion depth mismatch (before=39, after=28)")
        return real(*args, **options)

    monkeypatch.setattr(triton, "compile", raced)
    target = gpu_target("cuda:sm_90")
    (binary,) = compile_kernels(
        lower(parse(CASES["softmax_bf16"]), target.name).program.kernels, target
    ).binaries.values()
    assert binary.code.startswith(b"\x7fELF")
    assert len(calls) == tries + 1


def test_a_mask_of_keys_leaves_scores_in_the_layout_of_tensor_cores() -> None:
    text = """graph @masked(%q: bf16[96, 512, 64], %k: bf16[96, 512, 64], %v: bf16[96, 512, 64], %m: bool[1, 512]) {
        %b = broadcast(%m) : bool[96, 512, 512]
        %s = dot(%q, %k) {contract=[2]x[2], batch=[0]x[0]} : bf16[96, 512, 512]
        %t = select(%b, %s, bf16(-inf)) : bf16[96, 512, 512]
        %w = softmax(%t) {axis=2} : bf16[96, 512, 512]
        %o = dot(%w, %v) {contract=[2]x[1], batch=[0]x[0]} : bf16[96, 512, 64]
        return %o
    }"""
    target = gpu_target("cuda:sm_90")
    (binary,) = compile_kernels(lower(parse(text), target.name).program.kernels, target).binaries.values()
    assert "wgmma" in binary.assembly
    assert binary.assembly.count("shfl.sync") < 50  # 656 where the mask says how threads share out the scores


@pytest.mark.parametrize(
    "name",
    [
        *("wide_softmax", "wide_norm_bf16", "long_columns", "long_columns_bools", "long_columns_integers"),
        *("search", "search_bools", "map_divisions", "map_float_divisions", "map_unsigned"),
        *("map_f64", "map_of_a_number", "map_tiles", "softmax_f64"),
    ],
)
def test_what_the_interpreter_forgives_compiles(name: str) -> None:
    kernels = lower(parse(CASES[name]), "cuda:sm_90").program.kernels
    assert compile_kernels(kernels, gpu_target("cuda:sm_90")).binaries.keys() == {k.name for k in kernels}


@pytest.mark.parametrize("target", ["cuda:sm_90", "hip:gfx942"])
@pytest.mark.parametrize(
    "name",
    ["logcumsumexp of rows", "cumsum between", "cumsum i64", "cumprod u8", "cummin of rows", "recurrence between"],
)
def test_scans_compile(name: str, target: str) -> None:
    kernels = lower(parse(SCANS[name]), target).program.kernels
    assert compile_kernels(kernels, gpu_target(target)).binaries.keys() == {k.name for k in kernels}


@pytest.mark.parametrize("name", list(FLOAT8))
def test_numbers_of_8_bits_compile(name: str) -> None:
    kernels = lower(parse(FLOAT8[name]), "cuda:sm_90").program.kernels
    assert compile_kernels(kernels, gpu_target("cuda:sm_90")).binaries.keys() == {k.name for k in kernels}


@pytest.mark.parametrize("reverse", [False, True])
def test_chunks_of_scans_that_fill_their_rows_compile(reverse: bool) -> None:
    """Triton's own pass over reductions across iterations breaks at a carry that has two readers."""
    schedule = GpuScanSchedule(1, 4096, Launch(8, 1))
    for text in (plain("cumsum", (16, 8192), 1, "f32", reverse=reverse), CUT["logcumsumexp in parts"][0]):
        op = lower(parse(text), "cuda:sm_90").graph.ops[0]
        strides = {v: contiguous_strides(v.type.shape) for v in (*op.operands, *op.results)}
        lowered = lower_with(LoweringContext(op, strides, "scan"), schedule)
        assert compile_kernels([lowered.kernel], gpu_target("cuda:sm_90")).binaries


def test_lanes_with_several_results_load_what_they_share_once() -> None:
    """Padding is not loaded, and addresses of neighbours are one with a number behind."""
    program = lower(parse(windows("f32", 8, 56, 56, 64, (3, 3), 1, "max")), "cuda:sm_90").program
    text = module_source(program.kernels, gpu_target("cuda:sm_90")).text.partition("def map_")[2]
    assert text.count("tl.store") == 8
    assert text.count("tl.load") == 9 + 7 * 3
    assert "mask=logical_and" in text
    assert "tl.where" not in text
    assert "_start + 64" in text


def test_descriptors_of_more_than_2_31_elements_take_coordinates_of_32_bits() -> None:
    """Offsets of pointers need 64 there; the compiler refuses them where a descriptor's block is named."""
    target = gpu_target("cuda:sm_90")
    graph = parse(linear(65536, 64, 65536, "bf16"))
    kernels = lower(graph, "cuda:sm_90", selector=GpuSelector(target, cuda=False, triton=True)).program.kernels
    text = module_source(kernels, target).text
    assert "_desc.load([(" in text
    assert ".to(tl.int32)" in text
    assert compile_kernels(kernels, target).binaries


def test_a_saved_module_is_the_same() -> None:
    target = gpu_target("cuda:sm_90")
    module = compile_kernels(lower(parse(linear(256, 64, 128, "bf16")), "cuda:sm_90").program.kernels, target)
    again = TritonModule.from_bytes(module.to_bytes())
    assert again.text == module.text
    assert again.binaries.keys() == module.binaries.keys()
    assert again.to_bytes() == module.to_bytes()
    with pytest.raises(ArtifactError):
        TritonModule.from_bytes(module.to_bytes()[:-20])


def test_a_kernel_runs_on_a_card_only() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    target = gpu_target("cuda:sm_90")
    module = compile_kernels(lower(parse(CASES["map"]), "cuda:sm_90").program.kernels, target)
    with pytest.raises(TargetError, match="no GPU here"):
        module.function(next(iter(module.binaries)))


def test_operands_and_result_go_through_descriptors_on_hopper_alone() -> None:
    text = linear(256, 64, 128, "bf16")
    for target, count in (("cuda:sm_90", 3), ("cuda:sm_80", 0), ("hip:gfx942", 0)):
        (kernel,) = module_source(lower(parse(text), target).program.kernels, gpu_target(target)).kernels
        assert len(kernel.descriptors) == count
        assert (kernel.unaligned is not None) == bool(count)


def test_no_descriptor_for_rows_off_sixteen_bytes() -> None:
    text = linear(256, 65, 128, "bf16")
    (kernel,) = module_source(lower(parse(text), "cuda:sm_90").program.kernels, gpu_target("cuda:sm_90")).kernels
    assert [d.parameter for d in kernel.descriptors] == [3]  # the result's rows alone are


def test_f32_within_blocks_of_scores_is_cut_in_parts() -> None:
    """Where there is TF32; a matmul alone is not."""
    text = """graph @g(%q: f32[64, 2048, 64], %k: f32[64, 2048, 64], %v: f32[64, 2048, 64]) {
      %s = dot(%q, %k) {contract=[2]x[2], batch=[0]x[0]} : f32[64, 2048, 2048]
      %p = sigmoid(%s) : f32[64, 2048, 2048]
      %o = dot(%p, %v) {contract=[2]x[1], batch=[0]x[0]} : f32[64, 2048, 64]
      return %o
    }"""
    target = gpu_target("cuda:sm_90")
    kernels = lower(parse(text), "cuda:sm_90").program.kernels
    source = module_source(kernels, target)
    assert "input_precision=_F32" in source.kernels[0].text
    assert 'tl.constexpr("tf32x3")' in source.header
    assert 'tl.constexpr("ieee")' in module_source(kernels, gpu_target("hip:gfx942")).header
    assert ".tf32" in compile_kernels(kernels, target).assembly()


def test_tf32_is_for_those_who_ask() -> None:
    graph = parse(linear(256, 64, 128, "f32"))
    plain, rounded = (
        lower(graph, "cuda:sm_90", precision="tf32" if t else "ieee").program.kernels for t in (False, True)
    )
    target = gpu_target("cuda:sm_90")
    (exact,), (fast,) = module_source(plain, target).kernels, module_source(rounded, target).kernels
    assert '"ieee"' in exact.text
    assert "tf32" not in exact.text
    assert '"tf32"' in fast.text
    assert len(fast.descriptors) == 3
    assert ".tf32" in compile_kernels(rounded, target).assembly()


def test_whole_blocks_of_keys_have_no_mask() -> None:
    text = sdpa((1, 2, 1024, 64), (1, 2, 1024, 64), "bf16", causal=True)
    (kernel,) = module_source(lower(parse(text), "cuda:sm_90").program.kernels, gpu_target("cuda:sm_90")).kernels
    loops = kernel.text.split("for ")[1:]
    assert [("<=" in loop) for loop in loops] == [False, True]
