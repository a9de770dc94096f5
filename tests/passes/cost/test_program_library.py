"""What the cost model says of library calls between a program's kernels."""

from __future__ import annotations

from typing import Any

import pytest

import fusec
from fusec.passes.cost.program import launches
from fusec.passes.pipeline import lower
from fusec.runtime.program import Call
from fusec.target.cpu import cpu_target
from fusec.target.rates import usual_rates

torch = pytest.importorskip("torch")

MB = 1 << 20


@pytest.mark.parametrize("rows", [1, 2])
def test_writing_a_place_of_an_input_brings_none_of_it_near(rows: int) -> None:
    """Keys of earlier tokens: what adds some (one: a kernel) touches some rows, so the rest is as far as it was."""

    def attend(keys: Any, at: Any, new: Any, other: Any) -> Any:
        keys.index_copy_(0, at, new)
        return keys.sum(1) + other.sum()

    at = torch.tensor([3, 5][:rows])
    arguments = torch.zeros(8192, 256), at, torch.zeros(rows, 256), torch.zeros(4096, 4096)
    program = lower(fusec.trace(attend, *arguments), "cpu:znver5", threads=2).program
    keys = program.inputs[0]
    writes = [s for s in program.steps if isinstance(s, Call) and "index_copy" in s.attributes.target]
    assert len(writes) == rows - 1
    found = list(launches(program))
    seen = {slot: d for step, distances, _ in found for slot, d in zip(step.arguments, distances, strict=True)}
    contents = writes[0].results[0] if writes else keys
    assert seen[contents] > 64 * MB
    assert (keys in seen) == (rows == 1)


@pytest.mark.parametrize("where", ["place", "slice"])
def test_a_kernel_that_writes_a_place_leaves_the_rest_far(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def attend(keys: Any, at: Any, new: Any, other: Any) -> Any:
        if where == "slice":
            keys[3:4] = new * other.sum()
        else:
            keys.index_copy_(0, at, new * other.sum())
        return keys.sum(1)

    arguments = torch.zeros(8192, 256), torch.tensor([3]), torch.zeros(1, 256), torch.zeros(4096, 4096)
    program = lower(fusec.trace(attend, *arguments), "cpu:znver5", threads=2).program

    def distance() -> float:
        *_, (step, distances, _) = launches(program)
        return distances[step.arguments.index(program.inputs[0])]

    assert distance() > 64 * MB
    monkeypatch.setattr("fusec.passes.cost.program.PART", 1 << 40)
    assert distance() < 16 * MB  # as if all of it were written


def test_library_calls_take_time_and_copies_more() -> None:
    target = cpu_target("cpu:znver5")
    rates = usual_rates(target, 2)

    def seconds(rows: int, *, inside: bool) -> float:
        def write(x: Any, at: Any, new: Any) -> Any:
            changed = x.index_copy_(0, at, new) if inside else x.index_copy(0, at, new)
            return changed * 2

        arguments = torch.zeros(rows, 256), torch.tensor([3, 5]), torch.zeros(2, 256)
        program = lower(fusec.trace(write, *arguments), "cpu:znver5", threads=2).program
        calls = sum(isinstance(step, Call) for step in program.steps)
        results = sum(port.mutates is None for port in program.output_ports)
        call = rates.seconds_of_call(len(program.inputs), far=True)
        return program.overhead - (calls + results) * rates.library - call

    assert seconds(65536, inside=True) == pytest.approx(0.0, abs=1e-12)
    assert seconds(65536, inside=False) > 64 * MB / 60e9
