"""One program for ranges of named dimensions: every extent against PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import fusec  # noqa: E402
from fusec.errors import SignatureError  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "codegen" / "triton"))
from range_cases import CASES, DIMS, EXTENTS, Function, Shapes, product, sizes  # noqa: E402

pytestmark = pytest.mark.gpu
F = torch.nn.functional


def tensors(shapes: Shapes, b: int, s: int) -> list[Any]:
    return [torch.randn(size, device="cuda").to(torch.bfloat16) for size in sizes(shapes, b, s)]


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
    compiled = fusec.compile(f, *specs, dims=DIMS, fallback="error")
    for b, s in EXTENTS:
        check(f, compiled, tensors(shapes, b, s))
    with pytest.raises(SignatureError):
        compiled(*tensors(shapes, 9, 4))


def test_addresses_that_are_not_aligned() -> None:
    specs = (
        fusec.TensorSpec(("B", 70), "bfloat16", device="cuda:0"),
        fusec.TensorSpec((70, 32), "bfloat16", device="cuda:0"),
    )
    compiled = fusec.compile(product, *specs, dims={"B": (2, 64)})
    x, w = torch.randn(65, 70, device="cuda").bfloat16(), torch.randn(70, 32, device="cuda").bfloat16()
    base = torch.empty(1 + 64 * 70, device="cuda", dtype=torch.bfloat16)
    shifted = base[1 : 1 + 9 * 70].view(9, 70).copy_(x[:9])
    check(product, compiled, [shifted, w])
    check(product, compiled, [x[:64], w])


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
    fusec.compile(f, *specs, dims=DIMS, target=f"cuda:{arch}").save(tmp_path / "f.fusec")
    cases = [(given := tensors(shapes, b, s), f(*given).cpu()) for b, s in EXTENTS]
    torch.save([([t.cpu() for t in given], wanted) for given, wanted in cases], tmp_path / "data.pt")
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "f.fusec"), str(tmp_path / "data.pt")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def linear_residual(x: Any, r: Any, w: Any) -> Any:
    return r + F.linear(x, w)


def self_attention(x: Any) -> Any:
    q, k, v = x.view(*x.shape[:2], 3, 4, 64).permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(*x.shape[:2], 256)


BY_JIT: dict[str, tuple[Function, Shapes, str]] = {
    "residual": (linear_residual, (("B", "S", 512), ("B", "S", 768), (768, 512)), "bfloat16"),
    "f32": (linear_residual, (("B", "S", 96), ("B", "S", 200), (200, 96)), "float32"),
    "attention": (CASES["attention"][0], (("B", 12, "S", 64),) * 3, "bfloat16"),
    "causal attention": (CASES["causal attention"][0], (("B", 12, "S", 128),) * 3, "bfloat16"),
    "packed": (self_attention, (("B", "S", 768),), "bfloat16"),
}


@pytest.mark.parametrize("name", list(BY_JIT))
def test_no_length_compiles_after_the_second(name: str) -> None:
    """Sizes from few rows to many run one program, and then those of their own sizes."""
    f, shapes, dtype = BY_JIT[name]
    torch.manual_seed(0)
    jitted = fusec.jit(f, fallback="error")

    def call(b: int, s: int) -> None:
        given = [torch.randn(size, device="cuda").to(getattr(torch, dtype)) for size in sizes(shapes, b, s)]
        check(f, jitted, given)

    call(3, 200)
    call(7, 511)
    assert len(jitted.dispatcher.plans) == 2
    for b, s in ((2, 2), (5, 129), (9, 640), (16, 1000), (2, 2000)):
        call(b, s)
    for s in range(2, 20):
        call(2, s)
    for s in range(1500, 1518):
        call(7, s)
    assert len(jitted.dispatcher.plans) == 2
