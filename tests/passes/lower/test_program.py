"""What is written in place goes there, whoever makes it."""

from __future__ import annotations

from fusec.ir.parse import parse
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.lower.pieces import Pieces
from fusec.passes.pipeline import lower
from fusec.passes.select_gpu import GpuSelector
from fusec.runtime.program import Call, Launch
from fusec.target.gpu import gpu_target


class ByLibrary(GpuSelector):
    """Takes the library's call for each group that has one."""

    def lower(self, context: LoweringContext) -> LoweredGroup | Pieces:
        found = self._library(context)
        return found[0].lower(context) if found else super().lower(context)


def test_a_library_s_result_is_put_in_its_place() -> None:
    graph = parse("""graph @g(%x: bf16[3, 2, 64, 32], %q: bf16[1, 2, 64, 32], %k: bf16[1, 2, 64, 32]) {
        %o = sdpa(%q, %k, %k) {causal=true, scale=none, grouped=false} : bf16[1, 2, 64, 32]
        %u = update(%x, %o) {starts=[1, 0, 0, 0]} : bf16[3, 2, 64, 32]
        return %u mutates=0
    }""")
    program = lower(graph, "cuda:sm_90", check=True, selector=ByLibrary(gpu_target("cuda:sm_90"))).program
    call, copy = program.steps
    assert isinstance(call, Call)
    assert isinstance(copy, Launch)
    written = program.slots[copy.arguments[-1]]
    assert (written.kind, written.source, written.offset) == ("view", program.inputs[0], 2 * 64 * 32)
    assert call.results == copy.arguments[:1]
    assert program.outputs[0] == program.inputs[0]


def test_no_kernel_of_a_gpu_touches_memory_of_the_cpu() -> None:
    graph = parse("""graph @g(%x: f32[64]@cuda:0, %s: f32[]) {
        %t = mul(%s, f32(2.0)) : f32[]
        %u = exp(%t) : f32[]
        %y = extern(%x, %u) {target="aten.mul.Tensor", arguments="($0, $1), {}", reason="test"} : f32[64]@cuda:0
        %z = add(%y, f32(1.0)@cuda:0) : f32[64]@cuda:0
        %n = neg(%s) : f32[]
        return %z, %n
    }""")
    program = lower(graph, "cuda:sm_90", check=True).program
    launches = [step for step in program.steps if isinstance(step, Launch)]
    assert {program.slots[n].type.device for step in launches for n in step.arguments} == {"cuda:0"}
    assert len(launches) == 1
    assert [s.attributes.target for s in program.steps if isinstance(s, Call)].count("fusec.interpret") >= 1


def test_a_graph_of_the_cpu_s_arrays_stands_for_the_gpu_s() -> None:
    graph = parse("""graph @g(%x: f32[64]) {
        %y = exp(%x) : f32[64]
        return %y
    }""")
    assert [type(step) for step in lower(graph, "cuda:sm_90", check=True).program.steps] == [Launch]
