"""One program for ranges of named dimensions: every extent against PyTorch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import fusec  # noqa: E402
from fusec.errors import SignatureError  # noqa: E402

pytestmark = pytest.mark.gpu
Function = Callable[..., Any]
F = torch.nn.functional


def scaled(x: Any) -> Any:
    return torch.relu(x * 2 + 1)


def both(x: Any) -> Any:
    return torch.cat([x * 2, x + 1], -1).transpose(0, 1)


def soft(x: Any) -> Any:
    return torch.softmax(x * 2, -1)


def normed(x: Any, w: Any, b: Any) -> Any:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def mlp(x: Any, w: Any, b: Any) -> Any:
    return F.gelu(F.linear(x, w, b))


def gated(x: Any, a: Any, b: Any) -> Any:
    return F.silu(x @ a) * (x @ b) + x[..., :1]


def scores(x: Any) -> Any:
    return x @ x.transpose(-1, -2) / x.shape[-2]


def full(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


def causal(q: Any, k: Any, v: Any) -> Any:
    i = torch.arange(q.shape[-2], device=q.device)
    s = (q @ k.transpose(-1, -2) * 0.125).masked_fill(i[None, :] > i[:, None], float("-inf"))
    return torch.softmax(s, -1) @ v


QKV = (("B", 4, "S", 64),) * 3
CASES: dict[str, tuple[Function, tuple[tuple[int | str, ...], ...]]] = {
    "map": (scaled, (("B", "S", 24),)),
    "joined": (both, (("B", "S", 24),)),
    "softmax": (soft, (("B", "S", 100),)),
    "softmax of any length": (soft, (("B", "S"),)),
    "sum of any length": (lambda x: x.float().sum((0, 1)), (("B", "S", 40),)),
    "variance": (lambda x: x.float().var(1), (("B", "S"),)),
    "layer norm": (normed, (("B", "S", 96), (96,), (96,))),
    "linear and gelu": (mlp, (("B", "S", 96), (320, 96), (320,))),
    "gated": (gated, (("B", "S", 64), (64, 128), (64, 128))),
    "product along a symbol": (scores, (("B", "S", 64),)),
    "sum along a symbol": (lambda x, y: x.transpose(-1, -2) @ y, (("B", "S", 64), ("B", "S", 48))),
    "attention": (full, QKV),
    "causal attention": (causal, QKV),
    "few queries": (full, (("B", 4, 1, 64), ("B", 4, "S", 64), ("B", 4, "S", 64))),
}
EXTENTS = ((1, 2), (1, 300), (2, 3), (3, 65), (5, 128), (8, 301), (7, 2))


def tensors(shapes: tuple[tuple[int | str, ...], ...], b: int, s: int) -> list[Any]:
    known = {"B": b, "S": s}
    sizes = [[known.get(n, n) for n in shape] for shape in shapes]  # type: ignore[call-overload]
    return [torch.randn(size, device="cuda", dtype=torch.float32).to(torch.bfloat16) for size in sizes]


def check(f: Function, compiled: Function, given: list[Any]) -> None:
    exact = f(*(t.double() for t in given))
    wanted, found = f(*given), compiled(*given)
    assert (found.shape, found.stride(), found.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)
    theirs, ours = ((r.double() - exact).abs().max().item() for r in (wanted, found))
    assert ours <= 2 * theirs + 2e-2 * exact.abs().max().item() * 2**-6, (ours, theirs)


@pytest.mark.parametrize("name", list(CASES))
def test_every_extent(name: str) -> None:
    f, shapes = CASES[name]
    torch.manual_seed(0)
    specs = [fusec.TensorSpec(shape, "bfloat16", device="cuda:0") for shape in shapes]
    compiled = fusec.compile(f, *specs, dims={"B": (1, 8), "S": (2, 301)}, fallback="error")
    for b, s in EXTENTS:
        check(f, compiled, tensors(shapes, b, s))
    with pytest.raises(SignatureError):
        compiled(*tensors(shapes, 9, 4))


def test_addresses_that_are_not_aligned() -> None:
    specs = (
        fusec.TensorSpec(("B", 70), "bfloat16", device="cuda:0"),
        fusec.TensorSpec((70, 32), "bfloat16", device="cuda:0"),
    )
    compiled = fusec.compile(torch.matmul, *specs, dims={"B": (2, 64)})
    x, w = torch.randn(65, 70, device="cuda").bfloat16(), torch.randn(70, 32, device="cuda").bfloat16()
    base = torch.empty(1 + 64 * 70, device="cuda", dtype=torch.bfloat16)
    shifted = base[1 : 1 + 9 * 70].view(9, 70).copy_(x[:9])
    check(torch.matmul, compiled, [shifted, w])
    check(torch.matmul, compiled, [x[:64], w])


def test_as_a_graph() -> None:
    f, shapes = CASES["linear and gelu"]
    specs = [fusec.TensorSpec(shape, "bfloat16", device="cuda:0") for shape in shapes]
    compiled = fusec.compile(lambda *a: torch.softmax(f(*a), -1), *specs, dims={"B": (2, 8), "S": (2, 301)}, graph=True)
    for b, s in ((2, 5), (2, 5), (8, 300), (3, 64)):
        check(lambda *a: torch.softmax(f(*a), -1), compiled, tensors(shapes, b, s))


RUN = """
import sys
sys.modules["triton"] = None
import torch, fusec
loaded, cases = fusec.load(sys.argv[1]), torch.load(sys.argv[2])
for given, wanted in cases:
    torch.testing.assert_close(loaded(*[t.cuda() for t in given]).cpu(), wanted, atol=0.02, rtol=0.02)
"""


def test_a_file_serves_the_range(tmp_path: Path) -> None:
    f, shapes = CASES["causal attention"]
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    specs = [fusec.TensorSpec(shape, "bfloat16") for shape in shapes]
    fusec.compile(f, *specs, dims={"B": (1, 8), "S": (2, 301)}, target=f"cuda:{arch}").save(tmp_path / "f.fusec")
    cases = [(given := tensors(shapes, b, s), f(*given).cpu()) for b, s in EXTENTS]
    torch.save([([t.cpu() for t in given], wanted) for given, wanted in cases], tmp_path / "data.pt")
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "f.fusec"), str(tmp_path / "data.pt")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
