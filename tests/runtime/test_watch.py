"""Ranges around calls and kernels, as torch.profiler, NVTX and traces see them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import fusec
from fusec.runtime import watch

HERE = "test_watch.py"


def chain(x, w):
    y = torch.relu(x @ w)
    return torch.softmax(y, -1)


LINE = chain.__code__.co_firstlineno


def _profiled(call):
    """The ranges that torch.profiler sees, in the order of their starts, and the call's result."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        result = call()
    return [event.name for event in sorted(found.events(), key=lambda e: e.time_range.start)], result


def test_torch_profiler_sees_kernels_with_the_users_lines():
    x, w = torch.randn(8, 16), torch.randn(16, 32)
    function = fusec.jit(chain)
    expected = function(x, w)
    names, found = _profiled(lambda: function(x, w))
    assert torch.equal(found, expected)
    ranges = [name for name in names if "[" in name or name.startswith("fusec")]
    assert ranges[0] == "fusec chain"
    assert [name.partition(" ")[2] for name in ranges[1:]] == [f"[{HERE}:{LINE + 1}]", f"[{HERE}:{LINE + 2}]"]


def test_ranges_nest_in_the_call():
    x, w = torch.randn(8, 16), torch.randn(16, 32)
    function = fusec.jit(chain)
    function(x, w)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        function(x, w)
    by_name = {event.name: event for event in found.events()}
    kernel = next(event for name, event in by_name.items() if name.endswith(f"[{HERE}:{LINE + 1}]"))
    assert kernel.cpu_parent is by_name["fusec chain"]


def test_compiled_loaded_and_torch_compile_have_ranges(tmp_path):
    x, w = torch.randn(8, 16), torch.randn(16, 32)
    compiled = fusec.compile(chain, x, w)
    compiled.save(tmp_path / "chain.fusec")
    loaded = fusec.load(tmp_path / "chain.fusec")
    dynamo = torch.compile(chain, backend="fusec")
    for function in (compiled, loaded, dynamo):
        expected = function(x, w)
        names, found = _profiled(lambda function=function: function(x, w))
        assert torch.equal(found, expected)
        assert any(f"[{HERE}:{LINE + 1}]" in name for name in names), names


def test_library_calls_and_packings_have_ranges():
    layer = torch.nn.Linear(64, 64)

    def sorted_rows(x):
        return torch.sort(layer(x), -1).values

    x = torch.randn(64, 64)
    function = fusec.jit(sorted_rows)
    line = sorted_rows.__code__.co_firstlineno + 1
    with torch.no_grad():
        expected = function(x)
        names, found = _profiled(lambda: function(x))
    assert torch.equal(found, expected)
    assert any("sort" in name and name.endswith(f"[{HERE}:{line}]") for name in names), names


def test_changed_arguments_and_results_in_containers():
    def step(x, state):
        state.add_(x)
        return {"double": state * 2, "pair": (x + 1, x)}

    function = fusec.jit(step)
    x, state = torch.randn(5), torch.zeros(5)
    function(x, state)
    names, found = _profiled(lambda: function(x, state))
    assert "fusec step" in " ".join(names)
    torch.testing.assert_close(state, 2 * x)
    torch.testing.assert_close(found["double"], 4 * x)
    torch.testing.assert_close(found["pair"][0], x + 1)
    assert found["pair"][1] is x


def test_ranges_of_extents_are_watched(tmp_path):
    spec = fusec.TensorSpec(("B:1..16", 8), "float32")
    compiled = fusec.compile(lambda x: np.exp(x) - x, spec)
    for rows in (1, 5):
        x = np.random.rand(rows, 8).astype(np.float32)
        with fusec.profile(tmp_path / "trace.json"):
            found = compiled(x)
        np.testing.assert_allclose(found, np.exp(x) - x, rtol=1e-5, atol=1e-6)
        events = json.loads((tmp_path / "trace.json").read_text())
        assert [e["cat"] for e in events if e["ph"] == "X"] == ["kernel", "call"]


def test_a_failing_call_ends_its_ranges(tmp_path):
    def look_up(table, index):
        return table[index] * 2

    function = fusec.jit(look_up)
    table = torch.randn(4)
    function(table, torch.tensor([0, 3]))
    with fusec.profile(tmp_path / "trace.json"), pytest.raises(IndexError):
        function(table, torch.tensor([0, 4]))
    events = json.loads((tmp_path / "trace.json").read_text())
    call = next(e for e in events if e.get("cat") == "call")
    assert call["args"]["error"] == "IndexError"
    names, _ = _profiled(lambda: function(table, torch.tensor([1, 2])))
    assert "fusec look_up" in names


def test_nvtx_ranges_where_they_are_asked_for(monkeypatch, tmp_path):
    open_ranges, seen = [], []

    def push(name):
        open_ranges.append(name)
        seen.append(name)

    monkeypatch.setenv("FUSEC_NVTX", "1")
    monkeypatch.setattr(watch, "_nvtx", lambda library: (push, open_ranges.pop))
    function = fusec.jit(chain, static=("w",))
    x, w = torch.randn(8, 16), torch.randn(16, 32)
    expected = function(x, w)
    with fusec.profile(tmp_path / "trace.json"):  # what switches watching on in a process that has begun
        assert torch.equal(function(x, w), expected)
    assert seen[0] == "fusec chain"
    assert seen[1].startswith("pack ")
    assert [name.partition(" ")[2] for name in seen[2:]] == [f"[{HERE}:{LINE + 1}]", f"[{HERE}:{LINE + 2}]"]
    assert open_ranges == []


@pytest.mark.parametrize(
    ("given", "injected", "wanted"),
    [("", "", False), ("1", "", True), ("", "/opt/nsys.so", True), ("0", "/opt/nsys.so", False)],
)
def test_nvtx_is_on_where_asked_for_or_where_nsight_watches(monkeypatch, given, injected, wanted):
    monkeypatch.setenv("FUSEC_NVTX", given)
    monkeypatch.setenv("NVTX_INJECTION64_PATH", injected)
    assert fusec.config.nvtx() is wanted


def test_device_times_are_of_the_hosts_clock_and_nothing_waits(monkeypatch, tmp_path):
    """A device as a list of events that are over when the test says so."""
    waits = []

    class Clock:
        def capturing(self):
            return False

        def mark(self):
            return len(waits)

        def nanoseconds(self, mark, wait):
            waits.append(wait)
            return 5_000 if wait else None

        def row(self):
            return 3, "cuda:0 stream 3"

    monkeypatch.setattr(watch, "device_clock", lambda library, device: Clock())
    program = fusec.lower(fusec.trace(chain, torch.randn(8, 16), torch.randn(16, 32))).program
    watcher = watch.Watcher(program, "torch", 0)
    with fusec.profile(tmp_path / "trace.json"):
        with watcher.call(), watcher.step(1):
            pass
        assert waits == []
    assert set(waits) == {True}
    events = json.loads((tmp_path / "trace.json").read_text())
    (device,) = (e for e in events if e.get("cat") == "cuda:0 stream 3")
    host = next(e for e in events if e.get("cat") == "kernel")
    assert (device["name"], device["ts"], device["dur"]) == (host["name"], 5.0, 0.0)
    assert device["tid"] != host["tid"]
    assert {"name": "cuda:0 stream 3"} in [e["args"] for e in events if e["name"] == "thread_name"]


def test_a_group_of_several_kernels_tells_its_figures_once():
    x, w = torch.randn(8, 16), torch.randn(16, 32)
    program = fusec.lower(fusec.trace(chain, x, w), "cuda:sm_90").program
    labels = watch.step_labels(program)
    told = [label.details["flops"] for label in labels if "flops" in label.details]
    assert told == [report.flops for report in program.reports]
    assert watch.call_label(program).details["flops"] == sum(told)


def test_groups_that_share_a_kernel_keep_their_names():
    def twice(x):
        return torch.softmax(torch.sort(torch.softmax(x, -1)).values, -1)

    program = fusec.lower(fusec.trace(twice, torch.randn(64, 64))).program
    launches = [step for step in program.steps if getattr(step, "group", "")]
    assert len({step.kernel for step in launches}) < len(launches)  # both softmaxes run one kernel
    names = [label.name.partition(" ")[0] for label in watch.step_labels(program) if label.category == "kernel"]
    assert names == [step.group for step in launches]


def test_kernels_on_a_gpu_are_launched_on_the_librarys_stream_one_by_one():
    """As rows of one: a kernel's own function would take torch's stream, whatever library the arrays are of."""
    pytest.importorskip("cupy")
    from fusec.runtime.adapters import load_arrays
    from fusec.runtime.code import Scope
    from fusec.runtime.emit import Parts, ProgramWriter

    program = fusec.lower(fusec.trace(chain, torch.randn(64, 16), torch.randn(16, 32)), "cuda:sm_90").program
    rows = []

    def row(launches, arguments):
        rows.append([kernel for kernel, _ in launches])
        return print

    parts = Parts(pytest.fail, pytest.fail, pytest.fail, row=row)
    inputs = [f"i{k}" for k in range(len(program.inputs))]
    writer = ProgramWriter(program, load_arrays("cupy"), parts, Scope(), inputs, lambda k, lines: [f"# {k}", *lines])
    lines = writer.write().lines
    assert rows == [[step.kernel] for step in program.steps]
    assert [line for line in lines if line.startswith("#")] == [f"# {k}" for k in range(len(program.steps))]
