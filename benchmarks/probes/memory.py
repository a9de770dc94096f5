"""In a fresh process: the memory that one call of attention needs beyond its inputs and its output.

    python -m benchmarks.probes.memory PEER HEADS N DEPTH

Prints JSON: bytes that the process grew at most during a call that follows others, less the output's (memory that
is kept for later calls is given back before; median of five), and bytes of stack that all threads have touched.
The kernel counts both (VmHWM after a reset through clear_refs, Rss of each stack in smaps), so nothing is hidden
from it: native allocations, scratch, and stacks of worker threads are in.
"""

from __future__ import annotations

import ctypes
import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

from benchmarks.kernels import refuse_eager
from benchmarks.peers import limit_threads
from benchmarks.workloads.attention import full

_GUARD = 4096
"""Bytes of the page below a thread's stack that can't be touched."""


def resident() -> int:
    return _status("VmRSS")


def peak() -> int:
    return _status("VmHWM")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _status(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    assert found, field
    return int(found.group(1)) * 1024


def stacks() -> int:
    """Resident bytes of all stacks: the main one, and anonymous mappings right above a guard page."""
    total, end_of_guard, counted = 0, -1, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+ *(.*)", line)
        if head:
            start, end = int(head[1], 16), int(head[2], 16)
            counted = head[4] == "[stack]" or (not head[4] and head[3].startswith("rw") and start == end_of_guard)
            end_of_guard = end if head[3].startswith("---") and end - start == _GUARD else -1
        elif counted and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def peer(name: str) -> Callable[..., torch.Tensor]:
    if name == "eager":
        return full
    if name == "compile":
        compiled: Callable[..., torch.Tensor] = torch.compile(full)
        return compiled
    if name == "SDPA":
        return F.scaled_dot_product_attention
    import fusec

    return fusec.jit(full)


def give_back(name: str) -> None:
    """Returns what the allocators keep, so that the next call has to take it again."""
    if name == "fusec":
        import fusec

        fusec.release_memory()
    ctypes.CDLL(None).malloc_trim(0)


def main(name: str, heads: int, n: int, depth: int) -> dict[str, int]:
    limit_threads()
    function = peer(name)
    inputs = [torch.randn(1, heads, n, depth) for _ in range(3)]
    with torch.no_grad():
        function(*inputs)
        function(*inputs)
        grown = [growth(name, function, inputs) for _ in range(5)]
    if name == "fusec":
        refuse_eager(function)
    return {"grown": int(statistics.median(grown)), "stacks": stacks()}


def growth(name: str, function: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> int:
    """Bytes that a call adds at most, less its output's."""
    give_back(name)
    before = resident()
    reset_peak()
    result = function(*inputs)
    return peak() - before - result.numel() * result.element_size()


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *map(int, sys.argv[2:5]))))
