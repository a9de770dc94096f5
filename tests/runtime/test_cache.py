"""The on-disk cache: damage, many processes, killed writers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusec
from fusec.build import Options, build
from fusec.errors import CacheError
from fusec.runtime.cache import DiskCache, Entry, TuningStore, content_key, write_whole

KEY = content_key("a", "b")


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache")


def files(cache: DiskCache) -> list[Path]:
    return sorted(p for p in cache.folder.glob("programs/??/*"))


def test_what_is_stored_is_loaded(cache: DiskCache) -> None:
    assert cache.load(KEY) is None
    entry = Entry('{"a": "ä"}', b"\0code\xff")
    cache.store(KEY, entry)
    assert cache.load(KEY) == entry
    assert [(key, size > 0) for key, size, _ in cache.entries()] == [(KEY, True)]
    cache.discard(KEY)
    assert cache.load(KEY) is None


def test_keys_tell_parts_apart() -> None:
    assert len({content_key("ab", "c"), content_key("a", "bc"), content_key("abc"), content_key("a", "b", "c")}) == 4


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other"])
def test_a_damaged_entry_is_a_miss_and_goes(cache: DiskCache, damage: str) -> None:
    cache.store(KEY, Entry("{}", b"code" * 100))
    (path,) = files(cache)
    data = path.read_bytes()
    path.write_bytes(
        {"cut": data[:-5], "flip": data[:-1] + b"\0", "empty": b"", "other": b"hello, this is something else"}[damage]
    )
    assert cache.load(KEY) is None
    assert files(cache) == []


def test_a_folder_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = DiskCache(tmp_path / "file")
    cache.store(KEY, Entry("{}", b""))
    assert cache.load(KEY) is None
    with cache.lock(KEY):
        pass


def test_clear(cache: DiskCache) -> None:
    cache.store(KEY, Entry("{}", b""))
    TuningStore(cache.folder)["key"] = "choice"
    assert cache.clear() == 2
    assert cache.entries() == []
    assert cache.clear() == 0


def test_clear_says_when_it_can_not(cache: DiskCache) -> None:
    (cache.folder / "programs" / "ab" / "folder").mkdir(parents=True)
    with pytest.raises(CacheError, match="can't clear"):
        cache.clear()


def test_measured_choices(tmp_path: Path) -> None:
    store = TuningStore(tmp_path)
    assert store.get("k") is None
    store["k"] = "rows=4"
    assert dict(TuningStore(tmp_path)) == {"k": "rows=4"}
    del store["k"]
    assert len(store) == 0
    with pytest.raises(KeyError):
        del store["k"]


def test_what_killed_writers_left_goes_after_a_while(cache: DiskCache) -> None:
    cache.store(KEY, Entry("{}", b""))
    (path,) = files(cache)
    left = path.parent / ".writing-old"
    left.write_bytes(b"half")
    os.utime(left, (1, 1))
    young = path.parent / ".writing-young"
    young.write_bytes(b"half")
    write_whole(path, b"new")
    assert not left.exists()
    assert young.exists()
    assert [key for key, _, _ in cache.entries()] == [KEY]


# Through the compiler

_PROGRAM = """
import sys
sys.modules["torch"] = None  # tvm_ffi imports it where it is, which takes a second
import numpy as np, fusec
{extra}
f = fusec.jit(fallback="error")(lambda x: np.tanh(x) * 3 + x.sum(axis=1, keepdims=True))
x = np.arange(24, dtype=np.float32).reshape(4, 6)
np.testing.assert_allclose(f(x), np.tanh(x) * 3 + x.sum(axis=1, keepdims=True), rtol=1e-5)
print("compiled" if "tvm" in sys.modules else "loaded")
"""


def start(folder: Path, extra: str = "", stderr: int | None = None, **environment: str) -> subprocess.Popen[str]:
    settings = {**os.environ, "FUSEC_CACHE_DIR": str(folder), **environment}
    program = _PROGRAM.replace("{extra}", extra)
    command = [sys.executable, "-c", program]
    return subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=stderr, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return out.strip()


def test_processes_share_programs(tmp_path: Path) -> None:
    together = [finish(p) for p in [start(tmp_path) for _ in range(4)]]
    assert sorted(together) == ["compiled"] + ["loaded"] * 3
    (path,) = files(DiskCache(tmp_path))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    assert finish(start(tmp_path)) == "compiled"
    assert finish(start(tmp_path)) == "loaded"


def test_a_killed_process_leaves_a_usable_cache(tmp_path: Path) -> None:
    slow = """
import os, time
real = os.replace
def replace(a, b):
    print("writing", flush=True)
    time.sleep(60)
    real(a, b)
os.replace = replace
"""
    killed = start(tmp_path, slow)
    assert killed.stdout is not None
    assert killed.stdout.readline().strip() == "writing"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    cache = DiskCache(tmp_path)
    assert cache.entries() == []
    assert len(files(cache)) == 1  # the temporary file
    began = time.monotonic()
    assert finish(start(tmp_path)) == "compiled"
    assert time.monotonic() - began < 60
    assert finish(start(tmp_path)) == "loaded"


def test_the_default_folder_that_can_not_be_written_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "in the way").write_text("")
    settings = {"FUSEC_CACHE_DIR": "", "XDG_CACHE_HOME": str(tmp_path / "in the way"), "PYTHONWARNINGS": "always"}
    process = start(tmp_path, stderr=subprocess.PIPE, **settings)
    out, told = process.communicate(timeout=120)
    assert (process.returncode, out.strip()) == (0, "compiled")
    assert told.count("SettingWarning: programs can't be kept in") == 1


def test_a_folder_that_was_asked_for_and_can_not_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in the way").write_text("")
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "in the way"))
    for _ in range(2):
        with pytest.raises(CacheError, match=r"FUSEC_CACHE_DIR=.*a file is in its place.*cache=False"):
            fusec.jit(lambda x: x * 7.75)(np.ones(3))
    np.testing.assert_array_equal(fusec.jit(cache=False)(lambda x: x * 7.75)(np.ones(3)), np.full(3, 7.75))


def test_the_key_sees_options_and_not_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path))
    x = np.ones(7, np.float32)

    def one(x: Any) -> Any:
        return np.exp(x) * 7.25

    def moved(x: Any) -> Any:
        return np.exp(x) * 7.25

    moved.__name__ = moved.__qualname__ = "one"
    graph, other = fusec.trace(one, x), fusec.trace(moved, x)
    first = build(graph, "numpy", Options())
    second = build(other, "numpy", Options())
    assert not first.from_cache
    assert second.from_cache
    lines = [
        {o.location.line for r in b.executable.program.reports for o in r.fused if o.location} for b in (first, second)
    ]
    assert lines[0].isdisjoint(lines[1])
    assert not build(graph, "numpy", Options(target="cpu:x86-64-v3")).from_cache
    monkeypatch.setenv("FUSEC_DISABLE_PASS", "cse")
    assert not build(graph, "numpy", Options()).from_cache


def test_without_the_cache_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path))
    f = fusec.jit(fallback="error", cache=False)(lambda x: x * 9.75)
    np.testing.assert_array_equal(f(np.ones(3)), np.full(3, 9.75))
    assert list(tmp_path.iterdir()) == []


def test_dump_writes_every_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_DUMP", str(tmp_path))

    def named(x: Any) -> Any:
        return np.tanh(x) * 2

    f = fusec.jit(fallback="error")(named)
    f(np.ones(3, np.float32))
    f(np.ones(4, np.float32))
    first, second = sorted(tmp_path.iterdir())
    assert (first.name, second.name) == ("000_named", "001_named")
    names = {path.name for path in first.iterdir()}
    assert {"00_capture.ir", "program.json", "call.py", "kernels.s"} <= names
    assert ".text" in (first / "kernels.s").read_text()
    assert any(name.endswith(".tile") for name in names)
    assert any(name.endswith(".tvm.py") for name in names)
    assert "graph @named" in (first / "00_capture.ir").read_text()


def test_dump_of_programs_for_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("FUSEC_DUMP", str(tmp_path))
    spec = fusec.TensorSpec((64, 64), "float64")
    fusec.compile(lambda x, y: torch.relu(x @ y), spec, spec, target="cuda:sm_90")
    fusec.compile(lambda x: torch.softmax(x, -1), fusec.TensorSpec((64, 96)), target="cuda:sm_80")
    endings = [
        {path.name.partition(".")[2] for path in folder.iterdir()} - {"ir", "json", "tile"}
        for folder in sorted(tmp_path.iterdir())
    ]
    assert endings[1] - {"py"} == {"triton.py", "ptx"}
    if endings[0] != endings[1]:  # with NVRTC
        assert endings[0] - {"py"} == {"cu", "ptxas.txt"}
    assert [folder.name[:4] for folder in sorted(tmp_path.iterdir())] == ["000_", "001_"]
