"""What ``import fusec`` costs, and what the environment turns on."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fusec
from fusec import config


def test_importing_brings_nothing_along() -> None:
    program = """
import sys, numpy, time
start = time.perf_counter()
import fusec
seconds = time.perf_counter() - start
heavy = {"torch", "tvm", "tvm_ffi", "rich", "networkx", "typer"} & set(sys.modules)
assert not heavy, heavy
fusec.jit
heavy = {"torch", "tvm", "tvm_ffi"} & set(sys.modules)
assert not heavy, heavy
print(seconds)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.1


def test_a_call_leaves_no_audit_hook(tmp_path: Path) -> None:
    """Which would slow the whole process; the package filelock brings one."""
    program = """
import sys, numpy
import fusec
fusec.jit(lambda x: numpy.tanh(x) * 2)(numpy.ones(3))
assert "filelock" not in sys.modules
"""
    environment = {**os.environ, "FUSEC_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_public_names() -> None:
    for name in fusec.__all__:
        assert getattr(fusec, name) is not None
        assert name in dir(fusec)
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = fusec.nothing_such  # type: ignore[attr-defined]


def test_logs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger("fusec")
    handlers, levels = list(root.handlers), {s: config.logger(s).level for s in config.LOG_SUBJECTS}
    monkeypatch.setenv("FUSEC_LOGS", "recompile, fuse,nonsense")
    root.handlers.clear()  # another test may have turned logging on
    try:
        config.configure_logging()
        jitted = fusec.jit(fallback="error", cache=False)(lambda x: np.tanh(x) * 13.25)
        jitted(np.ones(3))
        jitted(np.ones(4))
        text = capsys.readouterr().err
        assert "no subject nonsense" in text
        assert "[fusec.recompile]" in text
        assert "new signature" in text
        assert "[fusec.fuse]" in text
        assert "[fusec.cache]" not in text
    finally:
        root.handlers[:] = handlers
        for subject, level in levels.items():
            config.logger(subject).setLevel(level)
