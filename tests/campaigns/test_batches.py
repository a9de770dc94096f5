"""Seeds in processes of their own: what is found, what crashes, and what is known."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from importlib import import_module

import pytest

import fusec
from tests.campaigns import batches
from tests.campaigns.batches import Campaign, Finding, in_batches


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _trial(seed: int) -> Finding | None:
    match seed:
        case 3:
            fusec.jit(_crash)
        case 4:
            _crash()
        case 5:
            raise ValueError("not a finding of the trial's own")
        case 7:
            return Finding("other numbers", "f(7)")
        case 8:
            return Finding("other numbers", "f(8)", "eights")
    return None


def campaign(*known: tuple[str, str]) -> Campaign:
    return Campaign("some", lambda seed: f"source({seed})", _trial, known)


@pytest.mark.parametrize("name", ["attention", "nnsmith_models", "numpy_statements", "state_machine", "views"])
def test_each_campaign_is_one(name: str) -> None:
    if name == "nnsmith_models":
        pytest.importorskip("nnsmith")
    found = import_module(f"tests.campaigns.{name}").CAMPAIGN
    assert isinstance(found, Campaign)
    assert found.name == name
    compile(found.source(0), name, "exec")


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH", 4)
    monkeypatch.setattr(batches, "ENOUGH", 10)


def test_crashes_are_findings_among_others(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusec, "jit", lambda function: function())
    assert in_batches(campaign(), 0, 10) == 1
    told = capfd.readouterr().out
    assert "# seed 3: the process ended with status 11\nsource(3)\n" in told or "status 139" in told
    assert "# seed 4: the process ended with status 11, and so it does where all runs as written\nsource(4)\n" in told
    assert "# seed 5: the process ended with status 256\nsource(5)\n" in told
    assert "# seed 7: other numbers\nf(7)\n" in told
    assert "10 of 10 programs, 3 findings" in told
    assert "f(8)" not in told


def test_no_findings_no_failure() -> None:
    assert in_batches(campaign(), 8, 30) == 0
    assert in_batches(campaign(), 0, 3) == 0


def test_a_crash_as_written_is_no_finding() -> None:
    assert in_batches(campaign(), 4, 1) == 0


def test_what_is_known_and_not_seen_fails(capfd: pytest.CaptureFixture[str]) -> None:
    assert in_batches(campaign(("eights", "they are odd")), 8, 12) == 0
    assert in_batches(campaign(("nines", "they are even")), 9, 2) == 0
    assert in_batches(campaign(("nines", "they are even")), 9, 12) == 1
    assert "nines (they are even)" in capfd.readouterr().out


def test_it_stops_when_the_time_is_over(capfd: pytest.CaptureFixture[str]) -> None:
    assert in_batches(campaign(), 0, 10, seconds=-1) == 0
    assert not capfd.readouterr().out


def test_a_program_that_does_not_end_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "SECONDS", 1)

    def endless(seed: int) -> Finding | None:
        while True:
            pass

    assert in_batches(Campaign("endless", str, endless), 0, 1) == 1


def test_a_program_that_waits_for_ever_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "WAITING", 1)

    def stuck(seed: int) -> Finding | None:
        threading.Event().wait()
        return None

    assert in_batches(Campaign("stuck", str, stuck), 0, 1) == 1


def test_several_at_a_time_find_the_same(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusec, "jit", lambda function: function())
    assert in_batches(campaign(), 0, 10, workers=3) == 1
    told = capfd.readouterr().out
    assert "10 of 10 programs, 3 findings" in told
    assert "# seed 7: other numbers\nf(7)\n" in told
    assert "not tried" not in told


def test_what_was_not_tried_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    def slow(seed: int) -> Finding | None:
        time.sleep(0.3)
        return None

    assert in_batches(Campaign("slow", str, slow), 10, 90, seconds=0.5, workers=2) == 0
    assert re.search(r"not tried: 1\d to 13, 1\d to 17, 18 to 21, .*, 98 to 99\n", capfd.readouterr().out)
