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
