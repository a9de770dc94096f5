# SPDX-License-Identifier: Apache-2.0
"""Groups that differ in names alone are lowered once."""

from __future__ import annotations

import pytest
from programs import check

from fusec.ir.parse import parse
from fusec.passes.lower.context import LoweredGroup, LoweringContext
from fusec.passes.lower.pieces import Pieces
from fusec.passes.pipeline import lower
from fusec.passes.select import Selector
from fusec.passes.select_gpu import GpuSelector
from fusec.runtime.program import Launch
from fusec.target.cpu import cpu_target
from fusec.target.gpu import gpu_target

TARGET = "cpu:x86-64-v3"


def layers(count: int, *, constants: tuple[str, ...] = (), swap: int = -1) -> str:
    """Layers of a norm, a matmul and a residual; layer ``swap`` subtracts the other way round."""
    lines, parameters = [], []
    for k in range(count):
        parameters.append(f"%w{k}: f32[32, 32]")
        operands = f"%x{k}, %p{k}" if k == swap else f"%p{k}, %x{k}"
        lines += [
            f"%n{k} = layer_norm(%x{k}) {{axes=[1], eps={constants[k] if constants else '1e-5'}}} : f32[70, 32]",
            f"%p{k} = linear(%n{k}, %w{k}) : f32[70, 32]",
            f"%x{k + 1} = sub({operands}) : f32[70, 32]",
        ]
    return "\n".join([f"graph @layers(%x0: f32[70, 32], {', '.join(parameters)}) {{", *lines, f"return %x{count}", "}"])


class Counting(Selector):
    """Notes the groups that it is asked for."""

    def lower(self, context: LoweringContext) -> LoweredGroup:
        asked.append(context.name)
        return super().lower(context)


asked: list[str] = []


def lowered_groups(text: str) -> list[str]:
    asked.clear()
    target = cpu_target(TARGET)
    lower(parse(text), TARGET, selector=Counting(target, target.cores))
    return list(asked)


@pytest.mark.parametrize("count", [3, 6])
def test_each_structure_is_lowered_once(count: int) -> None:
    # The first layer's groups have their operands in another order.
    assert len(lowered_groups(layers(count))) == len(lowered_groups(layers(2))) == 4


class CountingGpu(GpuSelector):
    def lower(self, context: LoweringContext) -> LoweredGroup | Pieces:
        asked.append(context.name)
        return super().lower(context)


def test_each_structure_is_lowered_once_for_a_gpu() -> None:
    def groups(count: int) -> tuple[int, int]:
        asked.clear()
        graph = parse(
            layers(count).replace("f32[", "bf16[").replace("70", "256").replace("32]", "512]").replace("[32,", "[512,")
        )
        program = lower(graph, "cuda:sm_90", selector=CountingGpu(gpu_target("cuda:sm_90"))).program
        launches = [step for step in program.steps if isinstance(step, Launch)]
        assert len({step.arguments for step in launches}) == len(launches) == len(program.reports)
        return len(asked), len(program.kernels)

    assert groups(3) == groups(6)


def test_other_constants_and_operands_are_other_structures() -> None:
    same = len(lowered_groups(layers(3)))
    assert len(lowered_groups(layers(3, constants=("1e-5", "1e-5", "1e-3")))) == same + 1
    assert len(lowered_groups(layers(3, swap=1))) == same + 1


@pytest.mark.parametrize("zeros", ["0.0", "-0.0"])
def test_zeros_of_two_signs_are_two_constants(zeros: str) -> None:
    text = f"""graph @g(%a: f32[64, 32], %b: f32[32, 64]) {{
        %s = mul(%a, f32(0.0)) : f32[64, 32]
        %t = add(%b, f32({zeros})) : f32[32, 64]
        %u = mul(%b, f32({zeros})) : f32[32, 64]
        return %s, %t, %u
    }}"""
    check(text, target=TARGET)


def test_launches_and_reports_are_each_groups_own() -> None:
    program = check(layers(4), target=TARGET, slack=6).lowered.program
    groups = [step.group for step in program.steps if isinstance(step, Launch) and step.group]
    assert len(set(groups)) == len(groups) == len(program.reports)
    assert [report.kernel for report in program.reports] == groups
    assert len(program.kernels) < len(groups)
    assert len({step.arguments for step in program.steps if isinstance(step, Launch)}) == len(program.steps)


def test_copies_have_the_names_of_their_own_sources() -> None:
    text = layers(4).replace("70", "700").replace("[32, 32]", "[64, 32]").replace("[700, 32]", "[700, 64]")
    text = text.replace("[64, 32]", "[64, 64]")
    program = lower(parse(text), TARGET, threads=2).program
    assert [s.name for s in program.slots if s.name.endswith("_packed")] == [f"w{k}_packed" for k in range(4)]
