"""Table of tokens on a GPU: plain code that writes a preallocated cache in place, one token of each sequence a call.

``python -m benchmarks.decoding [--batches 1,16] [--layers N] [--rounds N] [--out FILE]``. Peers are called in turn in
one process, as a loop of tokens calls them: back to back, on the caches that they have just written. ``apart``: the
sequences whose token is not that of the same model in float32, of fusec and of eager.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fusec

from .gpu import Clock, copy_bandwidth
from .workloads.decoding import Llama, arguments

NAMES = ("fusec", "fusec, graph", "eager", "torch.compile", "reduce-overhead")
CALLS = 8


def functions(model: Llama, together: bool) -> dict[str, Callable[..., Any]]:
    def token(*args: Any) -> Any:
        return model(*args, together)

    def compiled(**options: Any) -> Callable[..., Any]:
        torch._dynamo.reset()
        return torch.compile(token, dynamic=False, **options)

    return {
        "fusec": fusec.jit(token),
        "fusec, graph": fusec.jit(token, graph=True),
        "eager": token,
        "torch.compile": compiled(),
        "reduce-overhead": compiled(mode="reduce-overhead"),
    }


def seconds(call: Callable[..., Any], args: tuple[Any, ...], rounds: int) -> float:
    """The median time of a token among several in a row, by the device's clock."""
    found = []
    for _ in range(rounds):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(CALLS):
            call(*args)
        stop.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(stop) / CALLS * 1e-3)
    return statistics.median(found)


def in_float32(model: Llama, args: tuple[Any, ...], together: bool) -> Any:
    """The tokens that the model gives where weights and caches are of float32."""
    with torch.no_grad():
        return copy.deepcopy(model).float()(*args[:2], args[2].float(), args[3].float(), together)


def row(model: Llama, batch: int, context: int, together: bool, rounds: int, copied: float) -> str:
    args = arguments(model, batch, context, 2 * context)
    times: dict[str, float] = {}
    tokens: dict[str, Any] = {}
    first: dict[str, float] = {}
    for name, call in functions(model, together).items():
        own = (*args[:2], args[2].clone(), args[3].clone())
        start = time.perf_counter()
        try:
            with torch.no_grad():
                tokens[name] = call(*own).clone()
                torch.cuda.synchronize()
                first[name] = time.perf_counter() - start
                for _ in range(3):
                    call(*own)
                times[name] = seconds(call, own, rounds)
        except Exception:
            traceback.print_exc(limit=-4)
        del own
        torch.cuda.empty_cache()
    best = min((t for name, t in times.items() if not name.startswith("fusec")), default=float("nan"))
    mine = min((t for name, t in times.items() if name.startswith("fusec")), default=float("nan"))
    cells = [f"{times[name] * 1e3:.3f}" if name in times else "–" for name in NAMES]
    reached = 100 * model.nbytes(batch, context) / mine / copied
    exact = in_float32(model, args, together)
    apart = ", ".join(str(int((tokens[n] != exact).sum())) if n in tokens else "–" for n in ("fusec", "eager"))
    how = "index_copy_" if together else "a position each"
    title = f"batch {batch}, {context} of {2 * context}, {how}"
    rest = (f"{best / mine:.2f}", f"{reached:.0f} %", apart, f"{first.get('fusec', 0):.1f}")
    return f"| {' | '.join((title, *cells, *rest))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", default="1,16,64")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    copied = copy_bandwidth(Clock())
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; copy {copied / 1e9:.0f} GB/s", file=sys.stderr)
    model = Llama(given.layers)
    others = ("best ÷ fusec", "of copy", "apart: fusec, eager", "first call, s")
    columns = ("a token", *(f"{n}, ms" for n in NAMES), *others)
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for batch in map(int, given.batches.split(",")):
        for together in (True, False):
            if batch == 1 and not together:
                continue
            lines.append(row(model, batch, given.context, together, given.rounds, copied))
            print(lines[-1], flush=True)
            if given.out is not None:
                given.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
