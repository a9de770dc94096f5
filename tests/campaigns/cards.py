"""Every case of CUDA C++ compiled for every card, and for any address: ``python -m tests.campaigns.cards``.

No card is needed. The tests under ``tests/codegen/cuda`` compile a slice: each text for one card.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

CUDA = Path(__file__).resolve().parents[1] / "codegen" / "cuda"
sys.path[:0] = [str(CUDA), str(CUDA.parent / "triton"), str(CUDA.parents[1])]

import cuda_cases  # noqa: E402
import hopper_attention_cases  # noqa: E402
import hopper_cases  # noqa: E402
import mma_attention_cases  # noqa: E402
import mma_cases  # noqa: E402
import triton_cases  # noqa: E402
from cubins import cubins  # noqa: E402

from fusec.errors import FusecError  # noqa: E402
from fusec.ir.parse import parse  # noqa: E402
from fusec.passes.pipeline import lower  # noqa: E402
from fusec.passes.select_gpu import GpuSelector  # noqa: E402
from fusec.target.gpu import gpu_target  # noqa: E402
from fusec.tile.kernel import Kernel  # noqa: E402

CARDS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
Kernels = Callable[[], Sequence[Kernel]]


def cases(target: str) -> Iterator[tuple[str, Kernels]]:
    """The name of each case, and what lowers it."""
    for name, text in (triton_cases.CASES | cuda_cases.POINTWISE | cuda_cases.PRODUCTS).items():
        yield name, lambda text=text: _all(text, target)  # type: ignore[misc]
    for name, (text, s) in mma_cases.CASES.items():
        yield f"mma {name}", lambda text=text, s=s: [mma_cases.lowered(parse(text), s, target)]  # type: ignore[misc]
    for name, case in mma_attention_cases.CASES.items():
        yield (
            f"mma attention {name}",
            lambda case=case: [mma_attention_cases.lowered(*case, torch.bfloat16, target)],  # type: ignore[misc]
        )
    if target == "cuda:sm_90":
        for name, (text, plan) in hopper_cases.CASES.items():
            yield f"hopper {name}", lambda text=text, s=plan: [hopper_cases.lowered(parse(text), s)]  # type: ignore[misc]
        for name, long in hopper_attention_cases.CASES.items():
            yield (
                f"hopper attention {name}",
                lambda case=long: [hopper_attention_cases.lowered(*case, torch.bfloat16)],  # type: ignore[misc]
            )


def _all(text: str, target: str) -> Sequence[Kernel]:
    selector = GpuSelector(gpu_target(target), cuda=True, triton=False)
    return list(lower(parse(text), target, selector=selector).program.kernels)


def compiled(name: str, kernels: Kernels, target: str) -> bool:
    """Compiles a case and prints what spills; False where it does not compile."""
    try:
        for kernel in kernels():
            for part, cubin in cubins(kernel, target, unaligned=True).items():
                if cubin.spills:
                    print(f"{target} {name}: {part} spills {cubin.spills} bytes of {cubin.registers} registers")
    except FusecError as error:
        print(f"FAILED {target} {name}: {error}", flush=True)
        return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.cards", description=__doc__)
    parser.add_argument("--cards", nargs="+", choices=CARDS, default=list(CARDS))
    parser.add_argument("--only", default="", help="cases whose name has this")
    options = parser.parse_args(arguments)
    targets = [f"cuda:{card}" for card in options.cards]
    done = [compiled(name, k, t) for t in targets for name, k in cases(t) if options.only in name]
    print(f"{done.count(False)} of {len(done)} do not compile")
    return 1 if not all(done) else 0


if __name__ == "__main__":
    sys.exit(main())
