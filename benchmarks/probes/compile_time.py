"""In a fresh process: the time until MiniLM's first result.

    python -m benchmarks.probes.compile_time fusec|compile

Prints JSON, in seconds: ``torch``, importing PyTorch, which the user does anyway; ``load``, making the model and its
inputs; ``first``, importing the compiler and the first call, compiling included; ``second``, the next call.
The caches are where FUSEC_CACHE_DIR and TORCHINDUCTOR_CACHE_DIR say.
"""

from __future__ import annotations

import json
import sys
import time


def main(name: str) -> dict[str, float]:
    marks = [time.perf_counter()]

    def mark() -> None:
        marks.append(time.perf_counter())

    import torch

    mark()
    from benchmarks.workloads.model import example, inputs

    torch.set_num_threads(2)
    model, tokenizer = example().load()
    batch = inputs(tokenizer)
    mark()
    with torch.no_grad():
        if name == "fusec":
            import fusec

            compiled = fusec.jit(model)
        else:
            compiled = torch.compile(model)
        compiled(*batch)
        mark()
        compiled(*batch)
        mark()
    if name == "fusec":
        from benchmarks.kernels import refuse_eager

        refuse_eager(compiled)
    names = ("torch", "load", "first", "second")
    return {what: b - a for what, a, b in zip(names, marks, marks[1:], strict=False)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
