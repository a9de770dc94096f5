"""File locks between threads and processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fusec.runtime.locks import locked

HOLDER = """
import sys, time
from pathlib import Path
from fusec.runtime.locks import locked
with locked(Path(sys.argv[1]), 1):
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_thread_at_a_time(tmp_path: Path) -> None:
    inside, most = [], []

    def work() -> None:
        for _ in range(3):
            with locked(tmp_path / "lock", 20):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.002)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 9


def test_a_failure_inside_frees_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "lock", 0):
        _ = 1 // 0
    with locked(tmp_path / "lock", 0):
        pass


def test_another_process_holds_it_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(TimeoutError, match="others hold"), locked(path, 0.06):
            pass
        holder.send_signal(signal.SIGKILL)
    with locked(path, 0):
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_child_that_was_forked_meanwhile_does_not_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path, 0):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        with locked(path, 0):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_place_where_no_file_can_be(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), locked(tmp_path / "missing" / "lock", 5):
        pass
