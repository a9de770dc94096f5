"""Measured schedules: a wrong candidate is never chosen, choices are remembered, inputs are left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fusec
from fusec.ir.nodes import Op
from fusec.ir.parse import parse
from fusec.passes.lower.context import LoweredGroup
from fusec.passes.pipeline import lower
from fusec.passes.tune import Done, Measured, TuningSelector
from fusec.runtime.cache import DiskCache, TuningStore
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Grid
from fusec.tile.scalar import Const
from fusec.tuning.measure import CpuMeasure, Run

PRODUCT = """graph @f(%x: f32[33, 70], %w: f32[50, 70], %b: f32[50]) {
  %h = linear(%x, %w, %b) : f32[33, 50]
  %y = relu(%h) : f32[33, 50]
  return %y
}"""


def _selector(**changes: object) -> TuningSelector:
    target = cpu_target("cpu")
    return TuningSelector(target, 2, measure=CpuMeasure(target), **changes)  # type: ignore[arg-type]


def test_a_choice_is_measured_once_and_remembered() -> None:
    calls: list[int] = []
    selector = _selector()
    measure = selector.measure
    assert measure is not None

    def counted(op: Op, candidates: Sequence[LoweredGroup], budget: float, done: Done) -> list[Measured]:
        calls.append(len(candidates))
        return measure(op, candidates, budget, done)

    selector.measure = counted
    first = lower(parse(PRODUCT), selector=selector).program.reports[0].schedule
    again = lower(parse(PRODUCT), selector=selector).program.reports[0].schedule
    assert calls == [6]
    assert first == again
    assert not selector.rejected


def test_the_fastest_candidate_wins() -> None:
    def third_is_fastest(op: Op, candidates: Sequence[LoweredGroup], budget: float, done: Done) -> list[Measured]:
        return [Measured(0.5 if k == 2 else 1.0) for k in range(len(candidates))]

    selector = _selector()
    seen = selector.candidates
    selector.measure = third_is_fastest
    program = lower(parse(PRODUCT), selector=selector).program
    frames: list[object] = []
    selector.candidates = lambda frame: frames.append(frame) or seen(frame)  # type: ignore[func-returns-value, method-assign]
    lower(parse(PRODUCT), selector=selector)
    assert program.reports[0].schedule == seen(frames[0])[2].describe()  # type: ignore[arg-type, union-attr]


def test_a_wrong_candidate_is_found_out() -> None:
    selector = _selector()
    program_of: list[tuple[Op, LoweredGroup]] = []
    original = selector.measure
    assert original is not None

    def spoil(op: Op, candidates: Sequence[LoweredGroup], budget: float, done: Done) -> list[Measured]:
        (grid,) = candidates[0].kernel.body
        assert isinstance(grid, Grid)
        spoiled = replace(candidates[0], kernel=replace(candidates[0].kernel, body=(_zeroed(grid),)))
        program_of.append((op, spoiled))
        return original(op, [spoiled, *candidates[1:]], budget, done)

    selector.measure = spoil
    lower(parse(PRODUCT), selector=selector)
    assert len(selector.rejected) == 1
    assert "differs from the oracle" in selector.rejected[0]


def _zeroed(grid: Grid) -> Grid:
    """The grid with every stored value replaced by 0."""
    from fusec.tile.nodes import Loop, Store

    def change(statement: object) -> object:
        if isinstance(statement, Store):
            return replace(statement, value=Const(0.0, statement.target.dtype))
        if isinstance(statement, Loop | Grid):
            return replace(statement, body=tuple(map(change, statement.body)))  # type: ignore[arg-type]
        return statement

    changed = change(grid)
    assert isinstance(changed, Grid)
    return changed


@pytest.mark.parametrize("effort", ["quick", "full"])
def test_tuned_functions_are_right_and_leave_inputs_alone(effort: str) -> None:
    @fusec.jit(tune=effort, cache=False)
    def f(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return np.maximum(x @ w, 0)

    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((40, 30), np.float32), rng.standard_normal((30, 20), np.float32)
    before = x.copy(), w.copy()
    np.testing.assert_allclose(f(x, w), np.maximum(x @ w, 0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(w, before[1])


_SCRIPT = """
import numpy as np
import fusec

@fusec.jit(tune="quick")
def layers(x, v, w):
    return np.sqrt(np.maximum(x @ v, 0) @ w)

x, v, w = (np.random.default_rng(k).random((512, n), np.float32) for k, n in enumerate((512, 512, 4096)))
print(np.allclose(layers(x, v, w), np.sqrt(np.maximum(x @ v, 0) @ w), rtol=1e-3), flush=True)
"""

_WAITING = """
import signal
import sys
import time
from fusec.tuning.measure import CpuMeasure

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it, and so do its children
bodies, measure = [], CpuMeasure._measure

def waits(self, body, *rest):
    bodies.append(body)
    if body is not bodies[0] and bodies.count(body) == 2:
        print("waiting", file=sys.stderr, flush=True)
        time.sleep(100)
    return measure(self, body, *rest)

CpuMeasure._measure = waits
"""
"""At the second group's second candidate the process waits for Ctrl-C."""


def test_ctrl_c_keeps_the_best_so_far(tmp_path: Path) -> None:
    """The first group is measured whole, Ctrl-C comes in the second; the next process measures the second anew."""
    environment = {**os.environ, "FUSEC_CACHE_DIR": str(tmp_path), "FUSEC_LOGS": "tune"}
    command = [sys.executable, "-c", _SCRIPT]
    stopped = [sys.executable, "-c", _WAITING + _SCRIPT]
    process = subprocess.Popen(stopped, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        if line == "waiting\n":
            process.send_signal(signal.SIGINT)
            break
        if "measuring" in line:
            seen.append(line)
    assert len(seen) == 2
    out, rest = process.communicate(timeout=120)
    assert process.returncode == 0, rest
    assert out == "True\n"
    second = seen[-1].split()[1]
    assert f"tuning stopped at {second} the best so far is used" in rest
    assert len(TuningStore(tmp_path)) == 1
    assert not DiskCache(tmp_path).entries()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("measuring") == 1
    assert second in again.stderr
    assert len(DiskCache(tmp_path).entries()) == 1


def test_what_was_measured_is_in_the_program_and_remembered() -> None:
    remembered: dict[str, str] = {}
    graph = parse(PRODUCT)

    def measure(op: Op, lowered: Sequence[LoweredGroup], budget: float, done: Done) -> list[Measured]:
        return [Measured(None, "too slow"), *(Measured(1.0 / k) for k in range(1, len(lowered)))]

    for _ in range(2):
        chooser = TuningSelector(cpu_target("cpu"), 1, measure=measure, remembered=remembered)
        program = lower(graph, "cpu", selector=chooser).program
        (choice,) = program.choices
        (report,) = (r for r in program.reports if r.kernel == choice.group)
        assert choice.chosen == " ".join(f"{name}={size}" for name, size in report.schedule)
        assert choice.measured[0][1:] == (None, "too slow")
        assert choice.chosen == choice.measured[-1][0]
        measure = pytest.fail  # the second time nothing is measured


def test_choices_of_another_machine_count_for_nothing() -> None:
    remembered: dict[str, str] = {}
    graph, measured = parse(PRODUCT), []

    def measure(op: Op, lowered: Sequence[LoweredGroup], budget: float, done: Done) -> list[Measured]:
        measured.append(len(lowered))
        return [Measured(1.0) for _ in lowered]

    target = cpu_target("cpu")
    others = (replace(target, l2=2 * target.l2), replace(target, matmul_features=("amx_bf16",)))
    for machine, facts in ((target, "one CPU"), (target, "another CPU"), *((t, "one CPU") for t in others)):
        count = len(measured)
        for _ in range(2):
            chooser = TuningSelector(machine, 1, measure=measure, facts=(facts,), remembered=remembered)
            lower(graph, "cpu", selector=chooser)
        assert len(measured) == count + 1
    assert len(remembered) == 4


def test_what_a_run_packs_into_lives_as_long_as_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packings know their memory by address alone: it was once given back before the runs that are timed."""
    packed: list[bool] = []
    time = Run.time

    def timed(run: Run, stop: float) -> float:
        held = {array.ctypes.data for array in run.memory}
        packed.extend(addresses[-1] in held for _, addresses in run.packings)
        return time(run, stop)

    every = TuningSelector.candidates
    monkeypatch.setattr(TuningSelector, "candidates", lambda self, frame: every(self, frame)[8:12])  # that pack
    monkeypatch.setattr(Run, "time", timed)
    lower(parse(PRODUCT), selector=_selector())
    assert packed
    assert all(packed)
