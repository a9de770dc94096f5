"""What the GPU table measures: plain PyTorch code, its arguments, and the libraries' own kernels for the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.workloads import eight_bits, experts, packed, scans, scores

Function = Callable[..., Any]
BF16 = torch.bfloat16


@dataclass(frozen=True)
class Work:
    """``function(*arguments())`` in plain code; ``amount`` is flops (``unit`` TFLOP/s) or bytes (``unit`` GB/s)."""

    name: str
    function: Function
    arguments: Callable[[], tuple[Any, ...]]
    amount: float
    unit: str
    peers: dict[str, Function] = field(default_factory=dict)
    autotuned: bool = True
    exact: bool = True


def rand(*shape: int, scale: float = 1.0) -> Any:
    return torch.randn(*shape, device="cuda", dtype=BF16) * scale


def linear_gelu(x: Any, w: Any, b: Any) -> Any:
    return F.gelu(F.linear(x, w, b), approximate="tanh")


def epilogue_gelu(x: Any, w: Any, b: Any) -> Any:
    return torch._addmm_activation(b, x, w.t(), use_gelu=True)


def relu_linear(x: Any, w: Any) -> Any:
    return F.linear(F.relu(x), w)


def norm_linear(x: Any, g: Any, w: Any) -> Any:
    return F.linear(Llama.norm(x, g), w)


def int8_linear(x: Any, w: Any, s: Any) -> Any:
    """Weights of 8 bits with a scale for each row of them."""
    return F.linear(x, w.to(x.dtype) * s)


def swiglu(x: Any, gate: Any, up: Any, down: Any) -> Any:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def attention(q: Any, k: Any, v: Any) -> Any:
    s = (q @ k.transpose(-1, -2)) * (1 / math.sqrt(q.shape[-1]))
    return torch.softmax(s, -1) @ v


def causal_attention(q: Any, k: Any, v: Any) -> Any:
    s = (q @ k.transpose(-1, -2)) * (1 / math.sqrt(q.shape[-1]))
    i = torch.arange(q.shape[-2], device=q.device)
    s = s.masked_fill(i[None, :] > i[:, None], float("-inf"))
    return torch.softmax(s, -1) @ v


def grouped_attention(q: Any, k: Any, v: Any) -> Any:
    """Query heads share keys and values, which are repeated for them, as models write it."""
    b, h, n, d = k.shape
    times = q.shape[1] // h
    k, v = (t[:, :, None].expand(b, h, times, n, d).reshape(b, h * times, n, d) for t in (k, v))
    return attention(q, k, v)


def changed_attention(q: Any, k: Any, v: Any) -> Any:
    """ALiBi, soft cap and a causal window of 1024."""
    heads, n = q.shape[1], q.shape[2]
    s = (q @ k.transpose(-1, -2)).float() * (1 / math.sqrt(q.shape[-1]))
    s = 20.0 * torch.tanh(s / 20.0)
    i = torch.arange(n, device=q.device)
    distance = i[None, :] - i[:, None]
    slope = torch.exp2(-8.0 * (torch.arange(heads, device=q.device) + 1.0) / heads)
    s = s + slope[:, None, None] * distance
    s = s.masked_fill((distance > 0) | (distance <= -1024), float("-inf"))
    return torch.softmax(s, -1).to(q.dtype) @ v


def flex_changed() -> Function:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    masks: dict[int, Any] = {}
    flex = torch.compile(flex_attention)

    def run(q: Any, k: Any, v: Any) -> Any:
        heads, n = q.shape[1], q.shape[2]

        def change(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return 20.0 * torch.tanh(score / 20.0) + torch.exp2(-8.0 * (h + 1.0) / heads) * (j - i)

        def kept(b: Any, h: Any, i: Any, j: Any) -> Any:
            return (j <= i) & (i - j < 1024)

        if n not in masks:
            masks[n] = create_block_mask(kept, None, None, n, n, device="cuda")
        return flex(q, k, v, score_mod=change, block_mask=masks[n])

    return run


def sdpa(backend: str, causal: bool) -> Function:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kind = getattr(SDPBackend, backend)

    def run(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(kind):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return run


def softmax(x: Any) -> Any:
    return torch.softmax(x, -1)


def layernorm_gelu(x: Any, w: Any, b: Any) -> Any:
    return F.gelu(F.layer_norm(x, (x.shape[-1],), w, b), approximate="tanh")


def add_rmsnorm(x: Any, r: Any, w: Any) -> Any:
    h = x + r
    f = h.float()
    return (f * torch.rsqrt((f * f).mean(-1, keepdim=True) + 1e-6)).to(h.dtype) * w, h


def silu_mul(x: Any, y: Any) -> Any:
    return F.silu(x) * y


def cross_entropy(x: Any, target: Any) -> Any:
    return F.cross_entropy(x.float() if x.dtype is BF16 else x, target)


def column_sums(x: Any) -> Any:
    return x.sum(0)


def transposed(x: Any) -> Any:
    return x.t() * 2


def small_mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return F.linear(F.relu(F.linear(x, w1, b1)), w2, b2)


class Llama:
    """One layer of an 8-billion Llama: 4096 wide, 32 query and 8 key heads of 128, 14336 hidden."""

    @staticmethod
    def arguments() -> tuple[Any, ...]:
        d, kv, hidden, n = 4096, 1024, 14336, 4096
        angle = torch.arange(n, device="cuda")[:, None] * (5e5 ** (-torch.arange(0, 64, device="cuda") / 64.0))
        weights = [rand(m, k, scale=k**-0.5) for m, k in ((d, d), (kv, d), (kv, d), (d, d))]
        mlp = [rand(hidden, d, scale=d**-0.5), rand(hidden, d, scale=d**-0.5), rand(d, hidden, scale=hidden**-0.5)]
        ones = [torch.ones(d, device="cuda", dtype=BF16) for _ in range(2)]
        return (rand(2, n, d), angle.cos().to(BF16), angle.sin().to(BF16), *weights, *mlp, *ones)

    @staticmethod
    def norm(x: Any, w: Any) -> Any:
        f = x.float()
        return (f * torch.rsqrt((f * f).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * w

    @staticmethod
    def rotate(x: Any, cos: Any, sin: Any) -> Any:
        a, b = x[..., :64], x[..., 64:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    @classmethod
    def run(cls, plain: bool) -> Function:
        def layer(x: Any, cos: Any, sin: Any, *weights: Any) -> Any:
            wq, wk, wv, wo, gate, up, down, n1, n2 = weights
            b, n, d = x.shape
            h = cls.norm(x, n1)
            q = cls.rotate(F.linear(h, wq).view(b, n, 32, 128).transpose(1, 2), cos, sin)
            k = cls.rotate(F.linear(h, wk).view(b, n, 8, 128).transpose(1, 2), cos, sin)
            v = F.linear(h, wv).view(b, n, 8, 128).transpose(1, 2)
            if plain:
                k, v = (t[:, :, None].expand(b, 8, 4, n, 128).reshape(b, 32, n, 128) for t in (k, v))
                o = causal_attention(q, k, v)
            else:
                o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + F.linear(o.transpose(1, 2).reshape(b, n, d), wo)
            return x + swiglu(cls.norm(x, n2), gate, up, down)

        return layer


def _linear(m: int, k: int, n: int, unit: str = "TFLOP/s") -> Work:
    amount = 2.0 * m * k * n if unit == "TFLOP/s" else 2.0 * (m * k + k * n + m * n)
    return Work(
        f"linear+bias+gelu {m}×{k}×{n}",
        linear_gelu,
        lambda: (rand(m, k), rand(n, k, scale=k**-0.5), rand(n)),
        amount,
        unit,
        {"cublasLt": epilogue_gelu},
    )


def _prologues() -> list[Work]:
    """Products whose operands are computed: 14336 columns of 4096."""
    k, n = 4096, 14336

    def weights() -> Any:
        return rand(n, k, scale=k**-0.5)

    def coded() -> tuple[Any, Any]:
        scales = torch.rand(n, 1, device="cuda", dtype=BF16) / k
        return torch.randint(-127, 128, (n, k), device="cuda", dtype=torch.int8), scales

    def work(name: str, function: Function, m: int, arguments: Callable[[], tuple[Any, ...]], item: int = 2) -> Work:
        large = m >= 512
        amount = 2.0 * m * k * n if large else 2.0 * (m * k + m * n) + item * k * n
        unit = "TFLOP/s" if large else "GB/s"
        return Work(f"{name} {m}×{k}×{n}", function, arguments, amount, unit, autotuned=False)

    return [
        *(work("rmsnorm+linear", norm_linear, m, lambda m=m: (rand(m, k), rand(k), weights())) for m in (1, 16, 8192)),
        *(work("relu+linear", relu_linear, m, lambda m=m: (rand(m, k), weights())) for m in (16, 8192)),
        *(work("int8 weights", int8_linear, m, lambda m=m: (rand(m, k), *coded()), 1) for m in (1, 16, 128)),
    ]


def _packed() -> list[Work]:
    """Weights of 4 bits: of few rows the bytes that are read, of many the products."""

    def work(name: str, function: Function, m: int, k: int, n: int, weights: Function, nbytes: float) -> Work:
        large = m >= 256
        amount = 2.0 * m * k * n if large else nbytes + 2.0 * (m * k + m * n)
        unit = "TFLOP/s" if large else "GB/s"
        arguments = lambda: (rand(m, k), *weights(n, k, "cuda"))  # noqa: E731
        return Work(f"{name} {m}×{k}×{n}", function, arguments, amount, unit, autotuned=False)

    found = []
    for k, n in ((4096, 14336), (14336, 4096)):
        of_int4 = packed.int4_linear, packed.int4_weights, packed.int4_bytes(n, k)
        of_nf4 = packed.nf4_linear, packed.nf4_weights, packed.nf4_bytes(n, k)
        for m in (1, 16, 64, 256):
            found.append(work("int4 weights", of_int4[0], m, k, n, *of_int4[1:]))
        for m in (1, 16):
            found.append(work("nf4 weights", of_nf4[0], m, k, n, *of_nf4[1:]))
    return found


def _swiglu(m: int, unit: str) -> Work:
    d, h = 4096, 14336
    amount = 6.0 * m * d * h if unit == "TFLOP/s" else 6.0 * d * h
    return Work(
        f"swiglu mlp {m}×{d}×{h}",
        swiglu,
        lambda: (rand(m, d), rand(h, d, scale=d**-0.5), rand(h, d, scale=d**-0.5), rand(d, h, scale=h**-0.5)),
        amount,
        unit,
        autotuned=False,
    )


def _experts() -> list[Work]:
    """All experts for every token; 32 groups of rows, and 8 with gate, up and down, whose sizes are known."""
    tokens, d, h, count = 4096, 2048, 5632, 8

    def weights(groups: int, k: int, n: int) -> Any:
        return rand(groups, k, n, scale=k**-0.5)

    def layer() -> tuple[Any, ...]:
        return weights(count, d, h), weights(count, d, h), weights(count, h, d)

    dense = lambda: (rand(tokens, d), *layer(), torch.rand(tokens, count, device="cuda").to(BF16))  # noqa: E731
    many, few = experts.sizes_of(16384, 32), experts.sizes_of(2 * tokens, count)
    work = 6.0 * tokens * d * h
    return [
        Work("dense experts 4096×2048, 8×5632", experts.dense, dense, count * work, "TFLOP/s", autotuned=False),
        Work(
            "32 groups 16384×4096×2048",
            experts.products(many),
            lambda: (rand(16384, 4096), weights(32, 4096, 2048)),
            2.0 * 16384 * 4096 * 2048,
            "TFLOP/s",
            {"grouped_mm": experts.library_products(many)},
            autotuned=False,
        ),
        Work(
            "8 experts 8192×2048×5632",
            experts.gated(few),
            lambda: (rand(2 * tokens, d), *layer()),
            2 * work,
            "TFLOP/s",
            {"grouped_mm": experts.library_gated(few)},
            autotuned=False,
        ),
        *(work for sizes in ((tokens, d, h, count, 2), (tokens, d, 1024, 64, 8)) for work in _routed(*sizes)),
    ]


def _routed(tokens: int, d: int, h: int, count: int, chosen: int) -> list[Work]:
    """Layers whose rows data chooses, as transformers writes them."""

    def arguments(halves: bool) -> tuple[Any, ...]:
        scores = torch.rand(tokens, count, device="cuda").softmax(-1)
        weights, index = torch.topk(scores, chosen)
        shapes = [(2 * h, d)] if halves else [(h, d), (h, d)]
        matrices = (rand(count, *shape, scale=d**-0.5) for shape in shapes)
        return rand(tokens, d), index, weights.to(BF16), *matrices, rand(count, d, h, scale=h**-0.5)

    name, flops = f"{count} experts top {chosen} {tokens}×{d}×{h}", 6.0 * tokens * chosen * d * h
    peers: dict[str, Function] = {"grouped_mm": experts.library_routed}
    return [
        Work(f"{name}, {what}", loop, partial(arguments, halves), flops, "TFLOP/s", peers, False)
        for what, loop, halves in (
            ("transformers 4", experts.by_where, False),
            ("transformers 5", experts.by_hits, True),
        )
    ]


def _eight_bits() -> list[Work]:
    def work(
        name: str, function: Function, arguments: Callable[[], Any], flops: float, library: Function | None
    ) -> Work:
        peers = {} if library is None else {"scaled_mm": library}
        return Work(name, function, arguments, flops, "TFLOP/s", peers, autotuned=False, exact=False)

    return eight_bits.works(work)


def _attention(b: int, h: int, n: int, d: int, causal: bool) -> Work:
    flops = 4.0 * b * h * n * n * d * (0.5 if causal else 1.0)
    peers = {"cuDNN": sdpa("CUDNN_ATTENTION", causal), "FA2": sdpa("FLASH_ATTENTION", causal)}
    function = causal_attention if causal else attention
    kind = "causal" if causal else "full"
    arguments = lambda: (rand(b, h, n, d), rand(b, h, n, d), rand(b, h, n, d))  # noqa: E731
    exact = b * h * n * n < 2**31
    return Work(f"attention {kind} B{b} H{h} N{n} D{d}", function, arguments, flops, "TFLOP/s", peers, False, exact)


def _decode(b: int, n: int) -> Work:
    """One query of 32 heads to ``n`` cached keys of 8."""
    peers = {"sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)}
    arguments = lambda: (rand(b, 32, 1, 128), rand(b, 8, n, 128), rand(b, 8, n, 128))  # noqa: E731
    return Work(
        f"decode B{b} H32/8 N{n} D128", grouped_attention, arguments, 4.0 * b * 8 * n * 128, "GB/s", peers, False
    )


def _score_spaces(b: int, h: int, n: int, d: int) -> list[Work]:
    """Scores without a softmax, and attention's backward alone."""
    points, shape = float(b * h * n * n), f"B{b} H{h} N{n} D{d}"
    three = lambda: (rand(b, h, n, d), rand(b, h, n, d), rand(b, h, n, d))  # noqa: E731
    halves = lambda: (*(rand(b, h, n, d // 2) for _ in range(4)), rand(b, h, n, d))  # noqa: E731
    again = lambda: scores.backward_arguments(rand, b, h, n, d)  # noqa: E731

    def of(name: str, function: Function, arguments: Callable[[], tuple[Any, ...]], flops: float) -> Work:
        return Work(f"{name} {shape}", function, arguments, flops, "TFLOP/s", autotuned=False, exact=False)

    forward = [
        of(name, f, three, 4 * points * d * (0.5 if causal else 1)) for name, (f, causal) in scores.FORWARD.items()
    ]
    backward = [of(name, f, again, matmuls * points * d) for name, (f, matmuls) in scores.BACKWARD.items()]
    return [*forward, of("difference of sigmoids, causal", scores.difference, halves, 2 * points * d), *backward]


def _scans() -> list[Work]:
    """Of f32; what is quantised is stored in 8 bits."""

    def of(name: str, function: Function, *shape: int) -> Work:
        moved = {scans.quantised: 5.0, scans.running_maximum: 16.0}.get(function, 8.0) * math.prod(shape)
        single = function not in (scans.running_maximum, scans.quantised)
        arguments = lambda: (torch.randn(*shape, device="cuda"),)  # noqa: E731
        return Work(name, function, arguments, moved, "GB/s", autotuned=False, exact=single)

    few = of("cumsum 1×2²⁴", scans.running_sum, 1, 1 << 24)
    return [*(of(f"{name} 4096×8192", function, 4096, 8192) for name, function in scans.ALL.items()), few]


ROWS, COLUMNS, VOCABULARY = 16384, 8192, 128256


def _rowwise() -> list[Work]:
    size = 2.0 * ROWS * COLUMNS

    def wide(count: int, weights: int) -> Callable[[], tuple[Any, ...]]:
        return lambda: (*(rand(ROWS, COLUMNS) for _ in range(count)), *(rand(COLUMNS) for _ in range(weights)))

    logits = lambda: (rand(1024, VOCABULARY),)  # noqa: E731
    picked = lambda: (rand(4096, VOCABULARY), torch.randint(0, VOCABULARY, (4096,), device="cuda"))  # noqa: E731
    return [
        Work("softmax 16384×8192", softmax, wide(1, 0), 2 * size, "GB/s", autotuned=False),
        Work("layernorm+gelu 16384×8192", layernorm_gelu, wide(1, 2), 2 * size, "GB/s", autotuned=False),
        Work("add+rmsnorm 16384×8192", add_rmsnorm, wide(2, 1), 4 * size, "GB/s", autotuned=False),
        Work("silu·mul 16384×8192", silu_mul, wide(2, 0), 3 * size, "GB/s", autotuned=False),
        Work("softmax 1024×128256", softmax, logits, 4.0 * 1024 * VOCABULARY, "GB/s", autotuned=False),
        Work("cross entropy 4096×128256", cross_entropy, picked, 2.0 * 4096 * VOCABULARY, "GB/s", autotuned=False),
        Work("column sums 16384×8192", column_sums, wide(1, 0), size, "GB/s", autotuned=False),
    ]


def works() -> list[Work]:
    window = 4.0 * 4 * 16 * 128 * sum(min(i + 1, 1024) for i in range(4096))
    mlp = lambda: (rand(32, 256), rand(256, 256), rand(256), rand(256, 256), rand(256))  # noqa: E731
    llama = 2 * 2.0 * 4096 * (4096 * (2 * 4096 + 2 * 1024 + 3 * 14336)) + 4.0 * 2 * 32 * 4096 * 4096 * 128 / 2
    return [
        _linear(8192, 4096, 14336),
        _linear(4096, 4096, 4096),
        _linear(16384, 1024, 4096),
        _linear(512, 768, 3072),
        _linear(128, 4096, 4096),
        _linear(1, 4096, 14336, "GB/s"),
        _swiglu(16, "GB/s"),
        _swiglu(8192, "TFLOP/s"),
        *_prologues(),
        *_eight_bits(),
        *_packed(),
        *_experts(),
        _attention(4, 16, 4096, 128, False),
        _attention(4, 16, 4096, 128, True),
        _attention(4, 32, 4096, 64, True),
        _attention(1, 16, 16384, 128, True),
        _decode(1, 65536),
        _decode(16, 16384),
        Work(
            "ALiBi+softcap+window 1024, N4096",
            changed_attention,
            lambda: (rand(4, 16, 4096, 128), rand(4, 16, 4096, 128), rand(4, 16, 4096, 128)),
            window,
            "TFLOP/s",
            {"FlexAttention": flex_changed()},
            autotuned=False,
        ),
        *_score_spaces(2, 16, 4096, 128),
        *_rowwise(),
        *_scans(),
        Work(
            "transpose·2 16384×8192",
            transposed,
            lambda: (rand(ROWS, COLUMNS),),
            4.0 * ROWS * COLUMNS,
            "GB/s",
            autotuned=False,
        ),
        Work(
            "Llama-8B layer 2×4096",
            Llama.run(True),
            Llama.arguments,
            llama,
            "TFLOP/s",
            {"sdpa": Llama.run(False), "sdpa compiled": torch.compile(Llama.run(False), dynamic=False)},
            False,
        ),
        Work("2-layer MLP 32×256", small_mlp, mlp, 1e6, "µs a call", autotuned=False),
    ]
