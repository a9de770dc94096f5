"""Traces and profiler ranges of calls on a GPU."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import fusec

pytestmark = pytest.mark.gpu
HERE = "test_watch.py"


def chain(x, w):
    y = torch.relu(x @ w)
    return torch.softmax(y, -1)


LINE = chain.__code__.co_firstlineno


def _given():
    return torch.randn(256, 512, device="cuda").half(), torch.randn(512, 1024, device="cuda").half()


def _lines(names):
    return [name.partition(" ")[2] for name in names if name.endswith("]")]


@pytest.mark.parametrize("graph", [False, True])
def test_a_trace_has_kernels_on_the_host_and_on_the_device(tmp_path, graph):
    x, w = _given()
    function = fusec.jit(graph=graph)(chain)
    expected = function(x, w)
    torch.cuda.synchronize()
    with fusec.profile(tmp_path / "trace.json"):
        found = function(x, w)
    assert torch.equal(found, expected)
    events = json.loads((tmp_path / "trace.json").read_text())
    wanted = [f"[{HERE}:{LINE + 1}]", f"[{HERE}:{LINE + 2}]"]
    host = [e for e in events if e.get("cat") == "kernel"]
    device = [e for e in events if str(e.get("cat")).startswith("cuda:")]
    assert _lines(e["name"] for e in host) == wanted
    assert _lines(e["name"] for e in device) == wanted
    call = next(e for e in events if e.get("cat") == "call")
    for event in device:
        assert 0 < event["dur"] < 1e5
        assert call["ts"] - 100 < event["ts"] < call["ts"] + 1e6  # one clock, to a tenth of a millisecond
    assert torch.equal(function(x, w), expected)


def test_tracing_does_not_wait_for_the_device(tmp_path):
    x, w = _given()
    function = fusec.jit(chain)
    function(x, w)
    with fusec.profile(tmp_path / "trace.json"):
        function(x, w)  # makes the device's clock
        torch.cuda._sleep(1_000_000_000)
        function(x, w)
        assert not torch.cuda.current_stream().query()


def test_a_captured_graph_is_traced_without_device_times(tmp_path):
    x, w = _given()
    function = fusec.jit(chain)
    expected = function(x, w)
    with fusec.profile(tmp_path / "trace.json"):
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            found = function(x, w)
        captured.replay()
        torch.cuda.synchronize()
    assert torch.equal(found, expected)
    events = json.loads((tmp_path / "trace.json").read_text())
    assert len(_lines(e["name"] for e in events if e.get("cat") == "kernel")) == 2
    assert not [e for e in events if str(e.get("cat")).startswith("cuda:")]


def test_torch_profiler_joins_ranges_and_device_kernels():
    x, w = _given()
    function = fusec.jit(chain)
    expected = function(x, w)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        found = function(x, w)
        torch.cuda.synchronize()
    assert torch.equal(found, expected)
    names = [e.name for e in sorted(seen.events(), key=lambda e: e.time_range.start) if e.device_type.name == "CPU"]
    assert _lines(names) == [f"[{HERE}:{LINE + 1}]", f"[{HERE}:{LINE + 2}]"]
    on_device = [e for e in seen.events() if e.device_type.name == "CUDA"]
    assert {f"[{HERE}:{LINE + 1}]", f"[{HERE}:{LINE + 2}]"} <= set(_lines(e.name for e in on_device))


def test_nvtx_ranges(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEC_NVTX", "1")
    seen, push = [], torch.cuda.nvtx.range_push
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: (seen.append(name), push(name)))
    x, w = _given()
    function = fusec.jit(chain)
    expected = function(x, w)
    with fusec.profile(tmp_path / "trace.json"):
        assert torch.equal(function(x, w), expected)
    assert seen[0] == "fusec chain"
    assert _lines(seen) == [f"[{HERE}:{LINE + 1}]", f"[{HERE}:{LINE + 2}]"]


def test_cupy_functions_are_traced(tmp_path):
    cp = pytest.importorskip("cupy")
    line = 0

    def standardise(x):
        return (x - cp.mean(x, axis=1, keepdims=True)) / cp.std(x, axis=1, keepdims=True)

    line = standardise.__code__.co_firstlineno + 1
    x = cp.random.rand(64, 256, dtype=cp.float32)
    function = fusec.jit(standardise)
    expected = function(x)
    with fusec.profile(tmp_path / "trace.json"):
        found = function(x)
    assert (found == expected).all()
    events = json.loads((tmp_path / "trace.json").read_text())
    device = [e for e in events if str(e.get("cat")).startswith("cuda:")]
    assert device
    assert set(_lines(e["name"] for e in device)) == {f"[{HERE}:{line}]"}


def test_numpy_functions_on_a_gpu_are_traced_chunk_by_chunk(tmp_path):
    pytest.importorskip("cupy")

    def doubled(x):
        return np.tanh(x) * 2

    x = np.random.default_rng(0).random((64, 256, 1024), np.float32)
    function = fusec.jit(target="cuda", fallback="error")(doubled)
    expected = function(x).copy()
    with fusec.profile(tmp_path / "trace.json"):
        found = function(x)
    np.testing.assert_array_equal(found, expected)
    events = json.loads((tmp_path / "trace.json").read_text())
    calls = [e for e in events if e.get("cat") == "call"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    device = [e for e in events if str(e.get("cat")).startswith("cuda:")]
    outer = max(calls, key=lambda e: e["dur"])
    assert len(calls) - 1 == len(kernels) == len(device) > 1  # one inner call and one kernel a chunk
    assert all(outer["ts"] <= e["ts"] <= outer["ts"] + outer["dur"] for e in kernels)
    assert len({e["tid"] for e in device}) > 1  # chunks are on several streams
