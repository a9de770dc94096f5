"""Seeds tried in batches, each in a process of its own: a crash, or a program that does not end, is one finding.

A crash that comes as well where all runs as written is PyTorch's or NumPy's: it is printed, and no finding.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from typing import Any

import fusec

BATCH = 50
SECONDS = 180
"""What one program may take of a processor's time."""
WAITING = 1800
"""What it may take in all: a busy machine takes several times the processor's time."""
ENOUGH = 10_000
"""Programs that show each difference that is known."""


@dataclass(frozen=True)
class Finding:
    """What is wrong with a program, the program as source that runs, and under which name that is known, if it is."""

    said: str
    source: str
    known: str = ""


@dataclass(frozen=True)
class Campaign:
    """A program for each seed: its source, and what is found in it.

    known: the names of the differences that stay, each with its reason. Of :data:`ENOUGH` programs one shows each.
    """

    name: str
    source: Callable[[int], str]
    trial: Callable[[int], Finding | None]
    known: tuple[tuple[str, str], ...] = ()


def command(campaign: Campaign, arguments: list[str]) -> int:
    """The campaign's command; its exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.campaigns.{campaign.name}")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no program after so long")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time")
    given = parser.parse_args(arguments)
    return in_batches(campaign, given.seed, given.count, given.seconds, given.workers)


def in_batches(campaign: Campaign, first: int, count: int, seconds: float = float("inf"), workers: int = 1) -> int:
    """Tries ``count`` seeds and prints what is found; 1 if some of that is not known, or what is known was not seen."""
    started = time.monotonic()
    size = max(1, min(BATCH, -(-count // (4 * workers)) if workers > 1 else BATCH))
    waiting = deque(range(k, min(k + size, first + count)) for k in range(first, first + count, size))
    running: dict[int, _Batch] = {}
    findings, left = 0, count
    shown: set[str] = set()
    while True:
        while waiting and len(running) < workers and time.monotonic() - started <= seconds:
            batch = _begin(campaign, waiting.popleft(), started + seconds)
            running[batch.pipe] = batch
        if not running:
            break
        for pipe in select.select(list(running), [], [])[0]:
            batch = running[pipe]
            if batch.reads():
                continue
            del running[pipe]
            rest = batch.ended(campaign)
            findings += batch.findings
            shown |= batch.known
            left -= len(batch.seeds) - len(rest)
            if rest:
                waiting.appendleft(rest)
            spent = time.monotonic() - started
            print(f"{count - left} of {count} programs, {findings} findings, {spent:.0f} s", flush=True)
    if left and left < count:
        print("not tried: " + ", ".join(f"{seeds[0]} to {seeds[-1]}" for seeds in sorted(waiting, key=min)), flush=True)
    if count - left >= ENOUGH:
        for name, reason in campaign.known:
            if name not in shown:
                findings += 1
                print(f"known, and not seen any more: {name} ({reason})", flush=True)
    return int(findings > 0)


@dataclass
class _Batch:
    """Seeds that a child tries. reached: the one that it began last. It tells by lines through its pipe."""

    seeds: range
    child: int
    pipe: int
    reached: int
    text: bytes = b""
    findings: int = 0
    known: set[str] = field(default_factory=set)

    def reads(self) -> bool:
        """Takes what the child has written; whether it may write more."""
        found = os.read(self.pipe, 1 << 16)
        *lines, self.text = (self.text + found).split(b"\n")
        for line in lines:
            self.reached, finding = json.loads(line)
            if finding and finding[2]:
                self.known.add(finding[2])
            elif finding:
                self.findings += 1
                print(f"\n# seed {self.reached}: {finding[0]}\n{finding[1]}", flush=True)
        return bool(found)

    def ended(self, campaign: Campaign) -> range:
        """The seeds that are left when the child has ended, by itself or not."""
        os.close(self.pipe)
        _, status = os.waitpid(self.child, 0)
        if status:
            reached = max(self.reached, self.seeds[0])
            ended = f"\n# seed {reached}: the process ended with status {status}"
            if _crashes_as_written(campaign, self.seeds[0], reached):
                ended += ", and so it does where all runs as written"
            else:
                self.findings += 1
            print(f"{ended}\n{campaign.source(reached)}", flush=True)
            self.reached = reached
        return range(self.reached + 1, self.seeds[-1] + 1)


def _begin(campaign: Campaign, seeds: range, end: float) -> _Batch:
    receive, send = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(receive)
        _try_all(campaign, seeds, send, end)
    os.close(send)
    return _Batch(seeds, child, receive, seeds[0] - 1)


def _crashes_as_written(campaign: Campaign, first: int, last: int) -> bool:
    """Whether a process crashes that tries the same seeds where ``fusec.jit`` and ``torch.compile`` change nothing.

    One that does not end is none: such a program is no use to the campaign.
    """
    child = os.fork()
    if child == 0:
        fusec.jit = _unchanged
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            torch.compile = _unchanged
        _try_all(campaign, range(first, last + 1), os.open(os.devnull, os.O_WRONLY))
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) not in (signal.SIGALRM, signal.SIGPROF)


def _unchanged(function: Any, **_: Any) -> Any:
    return function


def _try_all(campaign: Campaign, seeds: range, pipe: int, end: float = float("inf")) -> None:
    """Does not return: a child must not go on with what its parent does. end: when no program begins any more."""
    status = 1
    try:
        with os.fdopen(pipe, "w") as lines:
            for seed in seeds:
                if time.monotonic() > end:
                    break
                print(json.dumps((seed, None)), file=lines, flush=True)
                signal.setitimer(signal.ITIMER_PROF, SECONDS)
                signal.alarm(WAITING)
                finding = campaign.trial(seed)
                signal.alarm(0)
                signal.setitimer(signal.ITIMER_PROF, 0)
                if finding is not None:
                    print(json.dumps((seed, astuple(finding))), file=lines, flush=True)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
