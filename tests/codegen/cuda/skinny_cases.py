"""Matmuls of few rows with weights of few bits, packed in the ways that code unpacks: each a function, its arguments'
types and a schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fixed
import ml_dtypes
import numpy as np
import torch
from torch.nn import functional as F

import fusec
from fusec.ir.graph import Graph
from fusec.passes.families.gemm.schedule.skinny import SkinnyGemmSchedule
from fusec.tile.kernel import Kernel
from fusec.tile.templates import WarpShares

Case = tuple[Callable[..., Any], tuple[tuple[tuple[int, ...], str], ...], SkinnyGemmSchedule]


def nibbles(w: Any) -> Any:
    """Two of a byte, the low one first."""
    return torch.stack([w & 15, w >> 4], -1).reshape(*w.shape[:-1], -1)


def groups(x: Any, w: Any, s: Any) -> Any:
    q = nibbles(w).to(torch.int8) - 8
    return F.linear(x, (q.reshape(*s.shape, -1).to(x.dtype) * s[..., None]).reshape(w.shape[0], -1))


def zero_points(x: Any, w: Any, s: Any, z: Any) -> Any:
    q = nibbles(w).reshape(*s.shape, -1).to(torch.int8) - nibbles(z)[..., None].to(torch.int8)
    return F.linear(x, (q.to(x.dtype) * s[..., None]).reshape(w.shape[0], -1))


def blocks(x: Any, w: Any, s: Any) -> Any:
    """32 numbers in 16 bytes, the low nibbles first."""
    b = w.reshape(w.shape[0], -1, 16)
    q = torch.cat([b & 15, b >> 4], -1).to(x.dtype) - 8
    return F.linear(x, (q * s[..., None]).reshape(w.shape[0], -1))


def halves_of_rows(x: Any, w: Any, s: Any) -> Any:
    return F.linear(x, (torch.cat([w & 15, w >> 4], -1).to(x.dtype) - 8) * s)


def wrapping(x: Any, w: Any, s: Any) -> Any:
    """Bytes below 8 become large ones."""
    return F.linear(x, (nibbles(w) - 8).to(x.dtype) * s)


def signed(x: Any, w: Any, s: Any) -> Any:
    q = torch.stack([(w << 4) >> 4, w >> 4], -1).reshape(w.shape[0], -1)
    return F.linear(x, q.to(x.dtype) * s)


def two_bits(x: Any, w: Any, s: Any) -> Any:
    q = torch.stack([(w >> (2 * i)) & 3 for i in range(4)], -1).reshape(w.shape[0], -1)
    return F.linear(x, (q.to(x.dtype) - 1.5) * s)


def divided(x: Any, w: Any, s: Any) -> Any:
    q = torch.stack([w % 16, w // 16], -1).reshape(w.shape[0], -1)
    return F.linear(x, (q.to(x.dtype) - 7) * s)


def words(x: Any, w: Any, s: Any) -> Any:
    """Eight in a word, in an order of their own."""
    q = torch.stack([(w >> (4 * i)) & 15 for i in (0, 2, 4, 6, 1, 3, 5, 7)], -1).reshape(w.shape[0], -1)
    return F.linear(x, (q.to(x.dtype) - 8) * s)


def five_bits(x: Any, w: Any, high: Any, s: Any) -> Any:
    """The fifth bits lie apart from the others."""
    bits = torch.stack([(high >> i) & 1 for i in range(8)], -1).reshape(w.shape[0], -1)
    q = (nibbles(w) | (bits << 4)).to(torch.int8) - 16
    return F.linear(x, q.to(x.dtype) * s)


def table(x: Any, w: Any, numbers: Any, s: Any) -> Any:
    q = torch.stack([w >> 4, w & 15], -1).reshape(-1).to(torch.int32)
    return F.linear(x, (numbers[q].reshape(-1, 64) * s[:, None]).reshape(w.shape[0], -1).to(x.dtype))


def affine(x: Any, w: Any, s: Any, m: Any) -> Any:
    q = nibbles(w).reshape(*s.shape, -1).to(x.dtype)
    return F.linear(x, (q * s[..., None] + m[..., None]).reshape(w.shape[0], -1))


def scaled(x: Any, w: Any, s: Any) -> Any:
    return F.linear(x, w.to(x.dtype) * s)


def less_128(x: Any, w: Any, s: Any) -> Any:
    return F.linear(x, (w.to(x.dtype) - 128) * s)


def scaled_in_f32(x: Any, w: Any, s: Any) -> Any:
    return F.linear(x, (w.float() * s).to(x.dtype))


def of_zero(x: Any, w: Any, s: Any, z: Any) -> Any:
    return F.linear(x, (w.to(torch.int16) - z.to(torch.int16)).to(x.dtype) * s)


def with_epilogue(x: Any, w: Any, s: Any, b: Any, r: Any) -> Any:
    return torch.relu(F.linear(x, w.to(x.dtype) * s, b)) + r


def gate_and_up(x: Any, g: Any, u: Any, s: Any, t: Any) -> Any:
    return torch.relu(F.linear(x, g.to(x.dtype) * s)) * F.linear(x, u.to(x.dtype) * t)


def on_the_left(w: Any, x: Any, s: Any) -> Any:
    return (w.to(x.dtype) * s) @ x


def computed_vectors(x: Any, w: Any, s: Any) -> Any:
    return F.linear(torch.relu(x) * 2, w.to(x.dtype) * s)


def batches(x: Any, w: Any, s: Any) -> Any:
    return torch.einsum("bmk,bnk->bmn", x, w.to(x.dtype) * s)


def plain(x: Any, w: Any) -> Any:
    return F.linear(x, w)


ONE = SkinnyGemmSchedule(WarpShares(16, 8, 1, 2, 1, 32, 1))
PIECES = SkinnyGemmSchedule(WarpShares(16, 8, 1, 4, 1, 8, 2))
FOUR = SkinnyGemmSchedule(WarpShares(32, 16, 2, 2, 1, 16, 2))
SPLIT = SkinnyGemmSchedule(WarpShares(64, 16, 1, 2, 2, 32, 1))
WIDE = SkinnyGemmSchedule(WarpShares(32, 64, 2, 2, 1, 16, 1))
RING = SkinnyGemmSchedule(WarpShares(64, 16, 1, 2, 2, 32, 2, 3, 1))
SHARED_RING = SkinnyGemmSchedule(WarpShares(32, 32, 2, 2, 1, 64, 1, 2, 1))


def _case(function: Callable[..., Any], schedule: SkinnyGemmSchedule, *types: str) -> Case:
    """Types as ``bf16[3, 512]``."""
    parts = [t.removesuffix("]").split("[") for t in types]
    return function, tuple((tuple(map(int, shape.split(", "))), dtype) for dtype, shape in parts), schedule


CASES: dict[str, Case] = {
    "groups": _case(groups, ONE, "bf16[3, 512]", "u8[40, 256]", "bf16[40, 4]"),
    "groups_split": _case(groups, SPLIT, "bf16[16, 1024]", "u8[128, 512]", "bf16[128, 8]"),
    "groups_f16": _case(groups, FOUR, "f16[19, 1024]", "u8[130, 512]", "f16[130, 8]"),
    "groups_ring": _case(groups, RING, "bf16[16, 1152]", "u8[128, 576]", "bf16[128, 9]"),
    "groups_shared_ring": _case(groups, SHARED_RING, "bf16[29, 1088]", "u8[130, 544]", "bf16[130, 17]"),
    "computed_ring": _case(computed_vectors, SHARED_RING, "bf16[29, 320]", "i8[34, 320]", "bf16[34, 1]"),
    "batches_ring": _case(batches, RING, "bf16[2, 5, 256]", "i8[2, 34, 256]", "bf16[2, 34, 1]"),
    "left_ring": _case(on_the_left, RING, "i8[140, 256]", "bf16[256, 13]", "bf16[140, 1]"),
    "zero_points": _case(zero_points, ONE, "bf16[3, 512]", "u8[40, 256]", "bf16[40, 8]", "u8[40, 4]"),
    "blocks": _case(blocks, SPLIT, "bf16[9, 512]", "u8[40, 256]", "bf16[40, 16]"),
    "halves_of_rows": _case(halves_of_rows, ONE, "bf16[3, 512]", "u8[40, 256]", "bf16[40, 1]"),
    "wrapping": _case(wrapping, ONE, "bf16[3, 256]", "u8[40, 128]", "bf16[40, 1]"),
    "signed": _case(signed, ONE, "bf16[1, 256]", "i8[40, 128]", "bf16[40, 1]"),
    "two_bits": _case(two_bits, FOUR, "bf16[3, 256]", "u8[40, 64]", "bf16[40, 1]"),
    "divided": _case(divided, ONE, "bf16[3, 256]", "u8[33, 128]", "bf16[33, 1]"),
    "words": _case(words, ONE, "bf16[3, 256]", "i32[33, 32]", "bf16[33, 1]"),
    "five_bits": _case(five_bits, ONE, "bf16[3, 256]", "u8[33, 128]", "u8[33, 32]", "bf16[33, 1]"),
    "five_bits_f16": _case(five_bits, ONE, "f16[3, 256]", "u8[33, 128]", "u8[33, 32]", "f16[33, 1]"),
    "table": _case(table, ONE, "bf16[5, 512]", "u8[48, 256]", "f32[16]", "f32[384]"),
    "table_wide": _case(table, WIDE, "bf16[70, 512]", "u8[48, 256]", "f32[16]", "f32[384]"),
    "affine": _case(affine, ONE, "bf16[5, 256]", "u8[34, 128]", "bf16[34, 8]", "bf16[34, 8]"),
    "bytes": _case(scaled, PIECES, "bf16[1, 328]", "i8[33, 328]", "bf16[33, 1]"),
    "bytes_f16": _case(scaled, FOUR, "f16[9, 320]", "i8[72, 320]", "f16[72, 1]"),
    "less_128": _case(less_128, ONE, "bf16[3, 256]", "u8[33, 256]", "bf16[33, 1]"),
    "less_128_f16": _case(less_128, ONE, "f16[3, 256]", "u8[33, 256]", "f16[33, 1]"),
    "scaled_in_f32": _case(scaled_in_f32, ONE, "bf16[3, 256]", "i8[33, 256]", "f32[33, 1]"),
    "of_zero": _case(of_zero, ONE, "bf16[3, 256]", "u8[33, 256]", "bf16[33, 1]", "u8[33, 1]"),
    "words_of_16": _case(scaled, ONE, "bf16[3, 256]", "i16[33, 256]", "bf16[33, 1]"),
    "with_epilogue": _case(
        with_epilogue, FOUR, "bf16[5, 256]", "i8[34, 256]", "bf16[34, 1]", "bf16[34]", "bf16[5, 34]"
    ),
    "gate_and_up": _case(gate_and_up, ONE, "bf16[5, 256]", "i8[34, 256]", "i8[34, 256]", "bf16[34, 1]", "bf16[34, 1]"),
    "on_the_left": _case(on_the_left, ONE, "i8[40, 256]", "bf16[256, 5]", "bf16[40, 1]"),
    "computed_vectors": _case(computed_vectors, ONE, "bf16[5, 256]", "i8[34, 256]", "bf16[34, 1]"),
    "batches": _case(batches, ONE, "bf16[2, 5, 256]", "i8[2, 34, 256]", "bf16[2, 34, 1]"),
    "plain": _case(plain, PIECES, "bf16[5, 264]", "bf16[34, 264]"),
}


_TORCH = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "u8": "uint8",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
}


def graph_of(name: str) -> Graph:
    function, types, _ = CASES[name]
    given = (torch.empty(shape, dtype=getattr(torch, _TORCH[dtype])) for shape, dtype in types)
    return fusec.trace(function, *given, target="cuda:sm_90")


def kernel_of(name: str, target: str = "cuda:sm_90") -> Kernel:
    return fixed.lowered(graph_of(name), CASES[name][2], target)


def arrays_of(name: str, *, special: bool = False) -> list[np.ndarray[Any, Any]]:
    """Random data. special: among the floats are infinities, NaN, zeros and numbers below the normal ones."""
    rng = np.random.default_rng(0)
    made = []
    for shape, dtype in CASES[name][1]:
        kind = ml_dtypes.bfloat16 if dtype == "bf16" else np.dtype(_TORCH[dtype])
        if dtype[0] in "ui":
            info = np.iinfo(kind)
            made.append(rng.integers(info.min, info.max, shape, kind, endpoint=True))
            continue
        data = rng.standard_normal(shape).astype(kind)
        if special:
            data.reshape(-1)[:5] = np.array([0, np.inf, np.nan, -np.inf, 1e-40]).astype(kind)
        made.append(data)
    return made
