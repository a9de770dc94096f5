"""Seeds tried in batches, each in a process of its own: a crash, or a program that does not end, is one finding.

A crash that comes as well where all runs as written is PyTorch's or NumPy's: it is printed, and no finding.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import fusec

BATCH = 50
SECONDS = 180
"""What one program may take."""
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
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no batch after so long")
    given = parser.parse_args(arguments)
    return in_batches(campaign, given.seed, given.count, given.seconds)


def in_batches(campaign: Campaign, first: int, count: int, seconds: float = float("inf")) -> int:
    """Tries ``count`` seeds and prints what is found; 1 if some of that is not known, or what is known was not seen."""
    started = time.monotonic()
    last, findings = first + count, 0
    shown: set[str] = set()
    seed = first
    while seed < last and time.monotonic() - started <= seconds:
        seed, found, known = _batch(campaign, seed, min(last, seed + BATCH))
        findings += found
        shown |= known
        spent = time.monotonic() - started
        print(f"{seed - first} of {count} programs, {findings} findings, {spent:.0f} s", flush=True)
    if seed - first >= ENOUGH:
        for name, reason in campaign.known:
            if name not in shown:
                findings += 1
                print(f"known, and not seen any more: {name} ({reason})", flush=True)
    return int(findings > 0)


def _batch(campaign: Campaign, first: int, last: int) -> tuple[int, int, set[str]]:
    """The seed to go on with, how many findings there were, and which known differences."""
    receive, send = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(receive)
        _try_all(campaign, first, last, send)
    os.close(send)
    reached, found = first, 0
    known: set[str] = set()
    with os.fdopen(receive) as lines:
        for line in lines:
            reached, finding = json.loads(line)
            if finding and finding[2]:
                known.add(finding[2])
            elif finding:
                found += 1
                print(f"\n# seed {reached}: {finding[0]}\n{finding[1]}", flush=True)
    _, status = os.waitpid(child, 0)
    if not status:
        return last, found, known
    ended = f"\n# seed {reached}: the process ended with status {status}"
    if _crashes_as_written(campaign, first, reached):
        print(f"{ended}, and so it does where all runs as written\n{campaign.source(reached)}", flush=True)
    else:
        found += 1
        print(f"{ended}\n{campaign.source(reached)}", flush=True)
    return reached + 1, found, known


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
        _try_all(campaign, first, last + 1, os.open(os.devnull, os.O_WRONLY))
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGALRM


def _unchanged(function: Any, **_: Any) -> Any:
    return function


def _try_all(campaign: Campaign, first: int, last: int, pipe: int) -> None:
    """Does not return: a child must not go on with what its parent does."""
    status = 1
    try:
        with os.fdopen(pipe, "w") as lines:
            for seed in range(first, last):
                print(json.dumps((seed, None)), file=lines, flush=True)
                signal.alarm(SECONDS)
                finding = campaign.trial(seed)
                signal.alarm(0)
                if finding is not None:
                    print(json.dumps((seed, astuple(finding))), file=lines, flush=True)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
