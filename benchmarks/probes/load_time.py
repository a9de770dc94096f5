"""In a fresh process: the time from a MiniLM file to its first result.

    python -m benchmarks.probes.load_time FILE

Prints JSON, in seconds: ``import``, importing fusec; ``load``, loading the file; ``first``, the first call; ``second``,
the fastest of the next calls. PyTorch is imported before, as the user's process does anyway.
"""

from __future__ import annotations

import json
import sys
import time

CALLS = 20


def main(path: str) -> dict[str, float]:
    import torch

    torch.set_num_threads(2)
    ids = torch.randint(0, 30522, (1, 16))
    mask = torch.ones_like(ids)
    marks = [time.perf_counter()]

    def mark() -> None:
        marks.append(time.perf_counter())

    from fusec import load

    mark()
    encode = load(path)
    mark()
    with torch.inference_mode():
        encode(ids, mask)
        mark()
        calls = []
        for _ in range(CALLS):
            start = time.perf_counter()
            encode(ids, mask)
            calls.append(time.perf_counter() - start)
    if "tvm" in sys.modules or "fusec.passes.pipeline" in sys.modules:
        raise RuntimeError("a compiler was imported")
    found = {what: b - a for what, a, b in zip(("import", "load", "first"), marks, marks[1:], strict=False)}
    return {**found, "second": min(calls)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
