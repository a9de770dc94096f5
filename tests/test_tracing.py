"""Chrome traces: what is in them, with threads, processes and killed writers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import fusec
from fusec import tracing
from fusec.errors import FusecError

_SCRIPT = """
import multiprocessing, sys
import numpy as np
import fusec

@fusec.jit
def scaled(x):
    return np.exp(x) * 2

def work(n):
    scaled(np.ones(n, np.float32))

if __name__ == "__main__":
    work(8)
    for method in sys.argv[1:]:
        process = multiprocessing.get_context(method).Process(target=work, args=(8,))
        process.start()
        process.join()
        assert process.exitcode == 0
"""


def scaled(x):
    return np.exp(x) * 2


def _trace(path: Path) -> list[dict]:
    return json.loads(path.read_text())


def _names(events: list[dict], category: str) -> list[str]:
    return [event["name"] for event in events if event.get("cat") == category]


def _run(folder: Path, trace: Path, *methods: str, check: bool = True) -> subprocess.CompletedProcess:
    script = folder / "script.py"
    script.write_text(_SCRIPT)
    environment = {**os.environ, "FUSEC_TRACE": str(trace), "FUSEC_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, str(script), *methods]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=check)


def test_profile_has_each_phase_and_each_call(tmp_path):
    path, x = tmp_path / "trace.json", np.linspace(0, 1, 6, dtype=np.float32)
    function = fusec.jit(cache=False)(scaled)
    with fusec.profile(path):
        function(x)
        found = function(x)
    np.testing.assert_allclose(found, np.exp(x) * 2, rtol=1e-6)
    events = _trace(path)
    phases = _names(events, "compile")
    assert phases[0] == "capture scaled"
    assert phases[-1] == "compile scaled"
    for phase in ("pass canonicalize", "pass fuse", "build kernels"):
        assert phases.count(phase) == 1
    assert sum(name.startswith("schedule ") for name in phases) == 1
    assert sum(name.startswith("emit ") for name in phases) == 1
    assert _names(events, "call") == ["fusec scaled"] * 2
    first, second = (event for event in events if event.get("cat") == "kernel")
    line = scaled.__code__.co_firstlineno + 1
    assert first["name"].endswith(f"[test_tracing.py:{line}]")
    assert first["args"]["bytes"] == 48
    assert first["args"]["flops"] > 0
    assert second["args"] == first["args"]
    calls = [event for event in events if event.get("cat") == "call"]
    for call, kernel in zip(calls, (first, second), strict=True):  # a kernel lies within its call
        assert call["ts"] <= kernel["ts"]
        assert kernel["ts"] + kernel["dur"] <= call["ts"] + call["dur"]
        assert (call["pid"], call["tid"]) == (kernel["pid"], kernel["tid"])


def test_nothing_is_recorded_outside_of_the_block(tmp_path):
    path, x = tmp_path / "trace.json", np.ones(4, np.float32)
    function = fusec.jit(scaled)
    function(x)
    with fusec.profile(path):
        pass
    function(x)
    assert _trace(path) == []
    assert not tracing.on
    assert not tracing.watched


def test_spans_of_an_error_end_and_name_it(tmp_path):
    path = tmp_path / "trace.json"
    with fusec.profile(path), pytest.raises(ZeroDivisionError), tracing.span("work", "compile"):
        raise ZeroDivisionError
    (event,) = (event for event in _trace(path) if event["ph"] == "X")
    assert event["args"] == {"error": "ZeroDivisionError"}


def test_each_thread_has_a_row_with_its_name(tmp_path):
    path, x = tmp_path / "trace.json", np.ones(4, np.float32)
    function = fusec.jit(scaled)
    function(x)
    with fusec.profile(path):
        threads = [threading.Thread(target=function, args=(x,), name=f"worker {k}") for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = _trace(path)
    rows = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    # Threads one after another may have the same number, and then share a row.
    assert set(rows) <= {"worker 0", "worker 1", "worker 2"}
    assert {e["tid"] for e in events if e.get("cat") == "call"} == set(rows.values())
    assert len(_names(events, "call")) == 3


def test_events_of_a_row_nest(tmp_path):
    """Viewers draw a row as a stack: each event lies within the one around it, or after the one before it."""
    path = tmp_path / "trace.json"
    functions = [
        fusec.jit(cache=False)(lambda x, k=k: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) + k) for k in range(3)
    ]
    with fusec.profile(path):
        threads = [threading.Thread(target=f, args=(np.ones((4, 8), np.float32),)) for f in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows: dict[int, list[tuple[float, float]]] = {}
    for event in _trace(path):
        if event["ph"] == "X":
            rows.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    assert sum(map(len, rows.values())) > 30
    for spans in rows.values():
        around: list[float] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while around and around[-1] <= start:
                around.pop()
            assert not around or end <= around[-1] + 1e-3
            around.append(end)


def test_blocks_may_overlap(tmp_path):
    with fusec.profile(tmp_path / "outer.json"):
        with fusec.profile(tmp_path / "inner.json"), tracing.span("both", "compile"):
            pass
        with tracing.span("outer alone", "compile"):
            pass
    assert _names(_trace(tmp_path / "inner.json"), "compile") == ["both"]
    assert _names(_trace(tmp_path / "outer.json"), "compile") == ["both", "outer alone"]


def test_a_file_that_cant_be_written_is_said(tmp_path):
    with pytest.raises(FusecError, match="the trace can't be written"), fusec.profile(tmp_path / "none" / "t.json"):
        pytest.fail("the work began")


@pytest.mark.nightly
def test_processes_write_one_file(tmp_path):
    trace = tmp_path / "trace.json"
    _run(tmp_path, trace, "fork", "spawn", "forkserver")
    events = _trace(trace)
    calls = [event for event in events if event.get("cat") == "call"]
    assert [event["name"] for event in calls] == ["fusec scaled"] * 4
    assert len({event["pid"] for event in calls}) == 4
    lookups = sorted((e for e in events if e["name"] == "cache lookup"), key=lambda e: e["ts"])
    parent = lookups[0]["pid"]
    assert [e["args"]["found"] for e in lookups if e["pid"] == parent] == [False, False]  # before and under the lock
    assert [e["args"]["found"] for e in lookups if e["pid"] != parent].count(True) >= 2
    _run(tmp_path, trace)
    assert len(_names(_trace(trace), "call")) == 5


def test_a_file_that_is_no_trace_is_left_as_it_is(tmp_path):
    trace = tmp_path / "notes.json"
    trace.write_text('{"mine": 1}')
    done = _run(tmp_path, trace, check=False)
    assert done.returncode != 0
    assert "notes.json exists and is no trace of fusec" in done.stderr
    assert trace.read_text() == '{"mine": 1}'


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 20])
def test_what_a_killed_writer_left_is_mended(tmp_path, cut):
    path = tmp_path / "trace.json"
    tracing.append_events(path, [{"name": "one", "args": {"a": {}}}, {"name": "two", "args": {"a": {}}}])
    os.truncate(path, path.stat().st_size - cut)
    tracing.append_events(path, [{"name": "three"}])
    names = [event["name"] for event in _trace(path)]
    assert names == (["one", "two", "three"] if cut <= 2 else ["one", "three"])


def test_events_go_to_the_file_before_there_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(tracing, "_FLUSH", 10)
    recorder = tracing.Recorder(tmp_path / "trace.json", streaming=True)
    waits = []
    recorder.later(lambda wait: waits.append(wait))
    for number in range(25):
        recorder.add({"name": f"event {number}", "tid": 1, "cat": "compile"})
    assert len(_names(_trace(recorder.path), "compile")) == 18  # and two rows' names
    recorder.flush(wait=True)
    assert _names(_trace(recorder.path), "compile") == [f"event {n}" for n in range(25)]
    assert waits == [False, False, True]  # nobody waits for a device while calls run
