"""Products on a CUDA device: sums in parts, TF32, chains of kernels that start before the one ahead has ended."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import fusec  # noqa: E402
from fusec.build import compile_module  # noqa: E402
from fusec.ir.parse import parse  # noqa: E402
from fusec.passes.families.gemm import prologue  # noqa: E402
from fusec.passes.families.gemm.schedule.gpu import GpuGemmSchedule, GpuGemvSchedule  # noqa: E402
from fusec.passes.lower.context import LoweredGroup, LoweringContext  # noqa: E402
from fusec.passes.lower.pieces import Pieces  # noqa: E402
from fusec.passes.pipeline import lower  # noqa: E402
from fusec.passes.select_gpu import GpuSelector, lower_with  # noqa: E402
from fusec.runtime.executable import Executable  # noqa: E402
from fusec.target.gpu import gpu_target  # noqa: E402

pytestmark = pytest.mark.gpu


def random(*shape: int, dtype: Any = torch.bfloat16, scale: float = 1.0) -> Any:
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


def linear(x: Any, w: Any, b: Any) -> Any:
    return torch.relu(x @ w.t() + b)


def error(found: Any, wanted: Any) -> float:
    return float(((found.double() - wanted).abs() / (1 + wanted.abs())).max())


@pytest.mark.parametrize(("m", "k", "n"), [(128, 4096, 4096), (20, 16384, 64), (1, 65536, 16), (130, 5001, 72)])
def test_sums_in_parts_are_the_same_at_every_call(m: int, k: int, n: int) -> None:
    x, w, b = random(m, k), random(n, k, scale=k**-0.5), random(n)
    compiled = fusec.jit(linear, fallback="error", cache=False)
    first = compiled(x, w, b)
    assert error(first, linear(x.double(), w.double(), b.double())) < 0.02
    for _ in range(20):
        assert torch.equal(compiled(x, w, b), first)


def test_sums_in_parts_on_two_streams_do_not_meet() -> None:
    compiled = fusec.jit(linear, fallback="error", cache=False)
    given = [(random(128, 4096), random(4096, 4096, scale=2**-6), random(4096)) for _ in range(2)]
    wanted = [compiled(*g) for g in given]
    streams = [torch.cuda.Stream() for _ in given]
    torch.cuda.synchronize()
    found: list[list[Any]] = [[], []]
    for _ in range(20):
        for k, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                found[k].append(compiled(*given[k]))
    torch.cuda.synchronize()
    assert all(torch.equal(y, wanted[k]) for k in range(2) for y in found[k])


def test_tf32_rounds_and_the_default_does_not() -> None:
    x, w = random(512, 1000, dtype=torch.float32), random(1000, 300, dtype=torch.float32)
    exact = x.double() @ w.double()
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True  # PyTorch's own switch is not asked
    try:
        plain = fusec.jit(torch.matmul, fallback="error", cache=False)(x, w)
        rounded = fusec.jit(torch.matmul, precision="tf32", fallback="error", cache=False)(x, w)
        eager = torch.matmul(x, w)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    assert float((plain - exact).abs().max()) < 1e-3
    assert 2e-3 < float((rounded - exact).abs().max()) <= 2 * float((eager - exact).abs().max())


def test_a_chain_of_kernels_waits_for_each() -> None:
    """Each kernel starts early; a read that did not wait would see the NaN of fresh memory or an older result."""
    weights = [random(256, 256, scale=1 / 16) for _ in range(12)]

    def chain(x: Any) -> Any:
        for w in weights:
            x = torch.relu(x @ w) + x.mean(-1, keepdim=True)
        return x

    compiled = fusec.jit(chain, fallback="error", cache=False)
    for rows in (1, 40, 500):
        x = random(rows, 256)
        first = compiled(x)
        assert error(first, chain(x).double()) < 0.1
        for _ in range(50):
            junk = torch.full((4096, 512), float("nan"), device="cuda", dtype=torch.bfloat16)
            del junk
            assert torch.equal(compiled(x), first)


def test_more_products_than_a_grid_has_rows() -> None:
    x, w = random(70000, 3, 17, dtype=torch.float16), random(70000, 17, 5, dtype=torch.float16)
    found = fusec.jit(torch.matmul, fallback="error", cache=False)(x, w)
    assert error(found, x.double() @ w.double()) < 4e-3


@pytest.mark.parametrize("layout", ["transposed", "strided", "offset", "broadcast"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_operands_as_they_lie(layout: str, dtype: Any) -> None:
    x, w = {
        "transposed": lambda: (random(300, 140, dtype=dtype).t(), random(90, 300, dtype=dtype).t()),
        "strided": lambda: (random(140, 600, dtype=dtype)[:, ::2], random(300, 180, dtype=dtype)[:, ::2]),
        "offset": lambda: (random(140, 301, dtype=dtype)[:, 1:], random(301, 90, dtype=dtype)[1:]),
        "broadcast": lambda: (random(1, 300, dtype=dtype).expand(140, 300), random(300, 90, dtype=dtype)),
    }[layout]()
    found = fusec.jit(torch.matmul, fallback="error", cache=False)(x, w)
    wanted = x.double() @ w.double()
    assert error(found, wanted) <= max(2 * error(torch.matmul(x, w), wanted), 1e-6)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 4, 5), (3, 0, 5), (3, 4, 0)])
def test_nothing_to_multiply(m: int, k: int, n: int) -> None:
    x, w = random(m, k), random(k, n)
    found = fusec.jit(torch.matmul, fallback="error", cache=False)(x, w)
    assert torch.equal(found, torch.matmul(x, w))


def dequantised(x: Any, w: Any, s: Any) -> Any:
    return torch.nn.functional.linear(x, w.to(x.dtype) * s)


def activated(x: Any, w: Any) -> Any:
    return torch.relu(x) @ w


def narrowed(x: Any, w: Any) -> Any:
    return (x * 0.5).to(w.dtype) @ w


def divided(x: Any, w: Any) -> Any:
    """Neither operand is zero where what it is made from is."""
    return (3 / (x * x + 1)) @ (2 + torch.tanh(w))


def accurate(function: Any, *args: Any) -> None:
    wanted = function(*(a.double() if a.is_floating_point() else a for a in args))
    found = fusec.jit(function, fallback="error", cache=False)(*args)
    assert found.isfinite().equal(wanted.isfinite())
    kept = wanted.isfinite()
    mine, eager = error(found[kept], wanted[kept]), error(function(*args)[kept], wanted[kept])
    assert mine <= 2 * eager + 1e-6, (mine, eager)


@pytest.mark.parametrize("m", [1, 3, 16, 130, 500])
@pytest.mark.parametrize(("k", "n"), [(4096, 1024), (333, 257)])
def test_weights_of_eight_bits(m: int, k: int, n: int) -> None:
    w = torch.randint(-128, 128, (n, k), device="cuda", dtype=torch.int8)
    accurate(dequantised, random(m, k), w, random(n, 1, scale=1e-2))
    half, transposed = random(m, k, dtype=torch.float16), w.t().contiguous().t()
    accurate(dequantised, half, transposed, random(n, 1, dtype=torch.float16, scale=0.1))
    accurate(dequantised, random(m, k)[:, 1:], w[:, 1:], random(n, 1))


@pytest.mark.parametrize("m", [1, 5, 257])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("k", "n"), [(256, 512), (77, 131)])
def test_operands_made_on_their_way(m: int, k: int, n: int, dtype: Any) -> None:
    x, w = random(m, k, dtype=dtype), random(k, n, dtype=dtype, scale=k**-0.5)
    accurate(activated, x, w)
    accurate(divided, x, w)
    if dtype != torch.float32:
        accurate(narrowed, random(m, k, dtype=torch.float32), w)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_no_numbers_pass_through_what_makes_an_operand(value: float) -> None:
    x, w = random(20, 200), random(200, 96)
    x[3, 7] = value
    accurate(activated, x, w)


class Each(GpuSelector):
    """Lowers products with the schedule of a number."""

    number = 0

    def lower(self, context: LoweringContext) -> LoweredGroup | Pieces:
        if not context.anchors("dot"):
            return super().lower(context)
        found = [s for s in self.candidates(context) if isinstance(s, GpuGemmSchedule | GpuGemvSchedule)]
        if self.number >= len(found):
            raise IndexError(self.number)
        return lower_with(context, found[self.number])


@pytest.mark.parametrize(("m", "k", "n"), [(300, 1024, 512), (16, 1000, 1024), (1, 512, 640)])
def test_every_schedule_makes_operands_right(m: int, k: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6 overwrites some operands in registers that are still being multiplied: no such tile is used."""
    graph = parse(f"""graph @g(%x: bf16[{m}, {k}]@cuda:0, %w: i8[{n}, {k}]@cuda:0, %s: bf16[{n}, 1]@cuda:0) {{
      %a = relu(%x) : bf16[{m}, {k}]@cuda:0
      %c = cast(%w) : bf16[{n}, {k}]@cuda:0
      %b = mul(%c, %s) : bf16[{n}, {k}]@cuda:0
      %y = linear(%a, %b) : bf16[{m}, {n}]@cuda:0
      return %y
    }}""")
    w = torch.randint(-128, 128, (n, k), device="cuda", dtype=torch.int8)
    x, s = random(m, k), random(n, 1, scale=1e-2)
    wanted = torch.relu(x).double() @ (w.double() * s.double()).t()
    eager = error(torch.nn.functional.linear(torch.relu(x), w.to(x.dtype) * s), wanted)
    monkeypatch.setattr(prologue, "_FLOPS_A_BYTE", 1e9)  # whether it pays or not
    target, tried = gpu_target("cuda:0"), 0
    for number in range(100):
        selector = Each(target)
        selector.number = number
        try:
            program = lower(graph, "cuda:0", selector=selector).program
        except IndexError:
            break
        (found,) = Executable(program, compile_module(program), "torch").runner()(x, w, s)
        assert error(found, wanted) <= 2 * eager, program.reports[0].schedule
        tried += 1
    assert tried > 2


def normed(x: Any, g: Any, w: Any) -> Any:
    f = x.float() if x.dtype != torch.float64 else x
    return (f * torch.rsqrt((f * f).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * g @ w.t()


@pytest.mark.parametrize("rows", [1, 2, 40])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("k", "n"), [(4096, 512), (1000, 77), (20000, 96)])
def test_norms_before_products(rows: int, dtype: Any, k: int, n: int) -> None:
    x, g, w = random(rows, k, dtype=dtype), random(k, dtype=dtype), random(n, k, dtype=dtype, scale=k**-0.5)
    accurate(normed, x, g, w)
    x[0, 3] = float("inf")
    assert fusec.jit(normed, fallback="error", cache=False)(x, g, w)[0].isnan().all()
