"""Functions with functional collectives, eager and compiled, as one of several processes: ``BACKEND RANK WORLD FILE``.

Ends with an assertion where they differ. Tests start one process for each rank.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def run(backend: str, world: int, folder: Path) -> None:
    """Starts all ranks and waits for them; AssertionError with what one said that failed."""
    call = [sys.executable, "-m", "tests.collectives", backend]
    ranks = [
        subprocess.Popen(
            [*call, str(rank), str(world), str(folder / "store")],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        said = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(said)


def functions() -> dict[str, tuple[Any, bool]]:
    """By name: a function of a tensor of [4, 6], and whether it is captured."""
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as fc

    group = dist.group.WORLD

    def in_place(x: Any) -> Any:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    return {
        "gather": (lambda x: fc.all_gather_tensor(torch.relu(x) * 2, 0, group) + 1, True),
        "gather columns": (lambda x: fc.all_gather_tensor(torch.relu(x).mT.contiguous(), 1, group) + 1, True),
        "scatter": (lambda x: fc.reduce_scatter_tensor(x * 2, "sum", 0, group).sin(), True),
        "scatter columns": (lambda x: fc.reduce_scatter_tensor((x.mT + 1).contiguous(), "sum", 1, group).sin(), True),
        "reduce": (lambda x: fc.all_reduce(x * 2, "max", group) * 3, True),
        "waited for": (lambda x: fc.wait_tensor(fc.all_reduce(x * 2, "sum", group)) * 3, True),
        "to all": (lambda x: fc.all_to_all_single(x * 2, None, None, group) * 3, True),
        "read twice": (lambda x: (lambda y: (y + 1, y * 2, y))(fc.all_reduce(x * 2, "sum", group)), True),
        "viewed": (lambda x: fc.all_reduce(x + 1, "sum", group).view(-1)[3:] * 2, True),
        "returned": (lambda x: fc.all_gather_tensor(x, 0, group), True),
        "several": (
            lambda x: fc.all_gather_tensor(x, 0, group).sum(0) @ x.mT + fc.all_reduce(x.sum(1), "sum", group),
            True,
        ),
        "of a product": (
            lambda x: torch.softmax(
                fc.reduce_scatter_tensor(fc.all_gather_tensor(x, 0, group) @ x.mT, "sum", 0, group), -1
            ),
            True,
        ),
        "not read": (lambda x: (fc.all_reduce(x * 2, "sum", group), x + 1)[1], True),
        "in place": (in_place, False),
    }


def main(backend: str, rank: int, world: int, store: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.utils._pytree import tree_leaves

    import fusec

    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world)
    with torch.no_grad():
        for name, (function, is_captured) in functions().items():
            jitted: Any = fusec.jit(function)
            for step in range(3):
                x = torch.linspace(-1, 1, 24, device=device).reshape(4, 6) * (rank + 1) + step
                found, expected = tree_leaves(jitted(x)), tree_leaves(function(x))
                for a, b in zip(found, expected, strict=True):
                    torch.testing.assert_close(a + 0, b + 0, msg=lambda text: f"{name}: {text}")  # noqa: B023
                    assert a.stride() == b.stride(), name
            assert bool(jitted.dispatcher.eager_calls) != is_captured, (name, jitted.dispatcher.eager_calls)
        compiled = torch.compile(functions()["gather"][0], backend="fusec")
        torch.testing.assert_close(compiled(x), functions()["gather"][0](x) + 0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
