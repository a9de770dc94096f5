"""Bars of progress: on terminals only, after a while, one at a time."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

_WORK = """
import time
from fusec import progress

progress.PATIENCE = {patience}
with progress.bar("outer", 4) as done:
    for _ in range(4):
        with progress.bar("inner", 1) as inner:
            inner()
        time.sleep(0.3)
        done()
print("over")
"""


def _on_terminal(script: str) -> str:
    """What a process writes to a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen([sys.executable, "-c", script], stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # Linux's way to say that the other end is closed
            break
        if not part:
            break
        seen += part
    os.close(ours)
    assert process.wait(60) == 0, seen
    return seen.decode()


def test_a_bar_is_shown_with_what_is_done_and_left() -> None:
    seen = _on_terminal(_WORK.format(patience=0.1))
    assert "fusec: outer" in seen
    assert "/4" in seen
    assert "left" in seen
    assert "inner" not in seen
    assert "over" in seen


def test_short_work_shows_nothing() -> None:
    assert _on_terminal(_WORK.format(patience=60)).split() == ["over"]


def test_no_terminal_no_bar() -> None:
    done = subprocess.run([sys.executable, "-c", _WORK.format(patience=0)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
