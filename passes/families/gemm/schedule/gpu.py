# SPDX-License-Identifier: Apache-2.0
"""Candidates for matmuls on a GPU, in the order of a cost model.

The model's constants were fitted to some 600 measured candidates of 22 shapes on one H200; its first choice was within
4 % of the best of each. What a launch, memory and the units take is in the target's rates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from typing import ClassVar

from fusec.ir.indexing import pow2
from fusec.passes.schedule.base import by_seconds
from fusec.passes.schedule.launch import Launch
from fusec.target.gpu import GpuTarget
from fusec.tile.kernel import Language


@dataclass(frozen=True)
class GpuGemmSchedule:
    """A block computes ``m`` by ``n`` of the result in steps of ``k``.

    group: row blocks whose column blocks run side by side, so that L2 serves both operands.
    split: parts of K that different blocks add up (1: none). persistent: CTAs in flight, each of which computes tile
    after tile (0: a block for each tile). slices: stores that a tile's columns go out in.
    transposed: the tile is computed transposed, because the matrix units want at least 64 rows.
    """

    language: ClassVar[Language] = "triton"
    m: int
    n: int
    k: int
    group: int
    split: int
    persistent: int
    launch: Launch
    slices: int = 1
    transposed: bool = False
    seconds: float = field(default=0.0, compare=False)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("block", f"{self.m}x{self.n}x{self.k}" + (" transposed" if self.transposed else "")),
            ("group", self.group),
            ("split", self.split),
            ("persistent", self.persistent),
            ("slices", self.slices),
            ("warps", self.launch.warps),
            ("stages", self.launch.stages),
        )


@dataclass(frozen=True)
class GpuGemvSchedule:
    """A block reads ``lines`` of the matrix, ``unroll`` times ``depth`` of K at once; ``split`` as in a gemm."""

    language: ClassVar[Language] = "triton"
    lines: int
    depth: int
    unroll: int
    split: int
    launch: Launch
    seconds: float = field(default=0.0, compare=False)

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("lines", self.lines),
            ("depth", f"{self.unroll}x{self.depth}"),
            ("split", self.split),
            ("warps", self.launch.warps),
        )


Candidate = GpuGemmSchedule | GpuGemvSchedule


@dataclass(frozen=True)
class Making:
    """An operand that is computed in the prologue: ``bytes`` read and ``flops`` done for each of its elements.

    uneven: how many of the arrays that it is made from are read at quotients of the position along K (a byte of two
    numbers, the scale of a group).
    """

    bytes: float
    flops: int
    uneven: int = 0


Computed = tuple[Making | None, ...]
"""Of the left operand, and of the right ones; nothing where both are read."""

_BY_ELEMENT = 20
"""Instructions besides its own that an element takes which is computed, and stored by itself: its position, its
limits."""


def made_by_element(rows: int, columns: int, computed: Computed) -> float:
    """Instructions of a tile's computed operands, for one step along K, of kernels that do so element by element."""
    of_both = zip((rows, columns), computed, strict=False)
    return sum(lines * (making.flops + _BY_ELEMENT) for lines, making in of_both if making is not None)


@dataclass(frozen=True)
class Problem:
    """``dots`` of one left operand (``m`` by ``k``) with right operands of ``n`` columns each; ``bits`` an element.

    persistent: the stores need no memory but the matmul's own, so that blocks may go from tile to tile.
    exact: f32 multiplied by SIMT arithmetic, no matrix units. across: of the longer operand, neighbours in memory
    are of different rows or columns of the result, not of K. left, right: what it takes to have the operands' elements.
    reduces: every block reduces the vector first. copy: bytes that a thread can copy at once. reads: tensors of the
    result's size that the epilogue reads. vectors: of others.
    """

    batches: int
    m: int
    n: int
    k: int
    bits: int
    dots: int = 1
    persistent: bool = True
    exact: bool = False
    across: bool = False
    left: Making | None = None
    right: Making | None = None
    reduces: bool = False
    copy: int = 16
    reads: int = 0
    vectors: int = 0

    @property
    def item(self) -> int:
        return self.bits // 8

    def read(self, left: float, right: float) -> float:
        """Bytes of memory for so many elements of the left operand, and of each right one."""
        of_left, of_right = (self.item if m is None else m.bytes for m in (self.left, self.right))
        return left * of_left + right * of_right * self.dots

    def made(self, left: float, right: float, besides: int) -> float:
        """Operations that compute so many elements of the left operand and of each right one, ``besides`` their own."""
        each = _UNEVEN if besides == _MAKING else _UNEVEN_ALONG_VECTORS
        of_left, of_right = (0 if m is None else m.flops + besides + m.uneven * each for m in (self.left, self.right))
        return left * of_left + right * of_right * self.dots

    def shared_bytes(self, m: int, n: int, k: int, stages: int) -> float:
        """Bytes of shared memory for a block's operands: of computed ones a tile of their own, too."""
        made = sum(size for size, x in ((m, self.left), (n * self.dots, self.right)) if x is not None)
        return k * (self.read(m, n) * stages + made * self.item)


@dataclass(frozen=True)
class _Block:
    """A tile of half types: rows, columns, depth, warps, stages.

    rate: the share of the GPU's rate of matmuls that full SMs of such blocks reach. slices: of a tile's stores.
    persistent: CTAs an SM that go from tile to tile (0: a block for each tile).
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    rate: float
    slices: int = 1
    persistent: int = 0
    transposed: bool = False


_BLOCKS = (
    _Block(128, 256, 64, 8, 4, 0.939, slices=2, persistent=1),
    _Block(128, 128, 64, 4, 3, 0.885, slices=2, persistent=2),
    _Block(128, 128, 64, 8, 4, 0.89, persistent=1),
    _Block(128, 64, 64, 4, 3, 0.871, persistent=2),
    _Block(128, 256, 64, 8, 4, 0.876),
    _Block(256, 128, 64, 8, 4, 0.871),
    _Block(128, 128, 64, 4, 3, 0.876),
    _Block(128, 128, 64, 8, 4, 0.774),
    _Block(128, 64, 64, 4, 4, 0.755),
    _Block(64, 128, 64, 4, 4, 0.794),
    _Block(64, 256, 64, 4, 4, 0.919),
    _Block(64, 128, 128, 4, 4, 0.89),
    _Block(128, 64, 128, 4, 4, 0.803),
    _Block(64, 64, 64, 4, 5, 0.542),
    _Block(64, 64, 128, 4, 4, 0.59),
    _Block(64, 32, 128, 4, 6, 0.397),
    _Block(32, 64, 128, 4, 6, 0.397, transposed=True),
    _Block(32, 128, 64, 4, 6, 0.494, transposed=True),
    _Block(16, 64, 128, 4, 3, 0.203, transposed=True),
    _Block(16, 64, 128, 4, 6, 0.203, transposed=True),
    _Block(16, 64, 128, 4, 8, 0.203, transposed=True),
    _Block(16, 128, 64, 4, 4, 0.242, transposed=True),
    _Block(32, 32, 64, 4, 4, 0.194),
    _Block(16, 32, 64, 4, 4, 0.097),
)

_MAKING_BLOCKS = (
    _Block(16, 64, 128, 4, 4, 0.203),
    _Block(16, 64, 256, 4, 3, 0.203),
    _Block(16, 128, 64, 4, 4, 0.242),
    _Block(16, 128, 128, 4, 4, 0.242),
    _Block(16, 128, 128, 8, 4, 0.242),
    _Block(32, 64, 128, 4, 4, 0.397),
    _Block(32, 128, 64, 4, 4, 0.494),
    _Block(32, 128, 128, 8, 4, 0.494),
)
"""More of them for few rows where operands are computed in the prologue."""

_EXACT_BLOCKS = (
    _Block(64, 64, 32, 8, 2, 0.12),
    _Block(64, 64, 32, 4, 2, 0.22),
    _Block(32, 64, 32, 4, 2, 0.13),
    _Block(64, 32, 32, 4, 2, 0.12),
    _Block(32, 32, 32, 4, 2, 0.10),
    _Block(16, 32, 32, 4, 2, 0.08),
)
"""f32 through SIMT arithmetic; ``rate`` is of its own peak."""

_ALONG = ((1, 1024, 4, 1), (2, 2048, 2, 4), (2, 2048, 1, 4), (4, 2048, 2, 4), (8, 512, 2, 4))
_MAKING_ALONG = ((4, 2048, 2, 8), (8, 1024, 2, 8), (16, 512, 2, 8))
_ACROSS = ((64, 32, 4, 4), (64, 64, 2, 4), (128, 16, 4, 4), (128, 32, 2, 4), (32, 64, 2, 4))
"""Lines, depth, unrolled steps and warps of a matrix times a few vectors, where neighbours in memory are of one line,
more of them where operands are computed in the prologue, and where neighbours are of different lines."""


def most_vectors(p: Problem) -> int:
    """Vectors that a matrix is multiplied with by SIMT arithmetic; more go to the matrix units, or to blocks of f32.

    Of half types the matrix units are as fast from two vectors on, and faster where neighbours in memory are of
    different lines (H200). There Triton 3.6 aborts on two vectors of f32 (in LLVM's SLP vectorizer).
    """
    if p.across:
        return 1 if p.exact else 0
    return 4 if p.exact else 2


MAX_ACCUMULATORS = 128 * 256
"""Elements of the results that a block of eight warps keeps in registers."""

_GROUP_ROWS = 64
"""Rows that four warps multiply at once on Hopper. Triton 3.6 starts to compute the next step's rows in registers
while the units may still read the last one's (up to 7 groups of MMAs are under way): results are wrong at times."""

_RESERVED = 1024
"""Bytes of shared memory for barriers, and what the driver keeps of every block's."""

_REGISTERS = 65536
_THREADS = 2048
_TILE = 0.7e-6
"""Seconds a tile until its first loads have arrived and after its last MMA, where nothing runs beside it."""
_EPILOGUE = 0.4e-6
"""The part of it that the loads of the next tile don't hide."""
_READ, _READ_AREA = 2e-6, 128 * 256
"""Seconds that each tensor adds to an epilogue of so many results which reads it, where nothing runs beside it."""
_VECTOR = 1.9e-6
"""The same of each vector but the first. 12544×896×896 with a batch norm, which reads four, took 55 µs on an H200 in
three rounds of such tiles, where the matmuls take 36."""
_STEP = 0.04e-6
"""The least a step along K takes."""
_SOLO = 0.82
"""The share of its rate that one block of four warps reaches alone on an SM."""
_MMA_SYNC = 0.8
"""The part of a share that is left where the fastest instructions are those of a warp: the shares are of Hopper's.
Compiled for sm_80 and run on an H200, 4096³ in bf16: 394 TFLOP/s at best, where ``mma_gemm.cuh`` has 503."""
_COPIES = {16: 1.0, 8: 0.46, 4: 0.39, 2: 0.28, 1: 0.2}
"""What is left of the rate where rows start at multiples of so many bytes, which descriptors don't take: 4096×4096×K on
an H200, 346, 295 and 211 TFLOP/s (decision 15)."""
_IN_FLIGHT = 6.7e6
"""Bytes under way that keep the memory busy."""
_DEEP_TF32 = 0.65
"""What blocks of four warps keep of their rate where f32 goes through the matrix units 32 deep."""
_ELEMENT = 0.025e-6
"""Seconds for each element that a thread multiplies by itself, where few threads share an SM."""
_MAKING, _MAKING_ALONG_VECTORS = 10, 5
"""Operations that an element of an operand that is computed takes besides its own: for the matrix units, where it also
goes through registers and shared memory, and beside SIMT arithmetic."""
_UNEVEN, _UNEVEN_ALONG_VECTORS = 70, 5
"""Operations more of an array that is read at quotients of positions: 4096×14336 numbers of 4 bits with a scale for
each 128 took 301 µs for the matrix units, and 35 µs beside SIMT arithmetic (H200)."""
_OF_COMPUTED = 0.74
"""The share of memory's rate at which a matrix is read that is computed beside SIMT arithmetic (H200, H100)."""
_BUSY = 16
"""Warps on an SM that compute operands at the full rate."""
_BOTH = 0.3
"""The part of computing operands, or of multiplying them, that other blocks' other work does not hide."""
_JOIN = 0.4e-6
"""Seconds until the kernel that adds up has its first parts, and from its last sum on."""
_PARTS = 1.4
"""Times a copy's, the time in which the parts of a sum are written and read."""
_SPLITS = (1, 2, 3, 4, 6, 8, 16)


def gemm_candidates(p: Problem, target: GpuTarget) -> list[Candidate]:
    """Schedules that fit shared memory and registers, best predicted first."""
    schedules: list[Candidate] = [*_gemms(p, target), *_gemvs(p)]
    return sorted((replace(s, seconds=predict(p, s, target)) for s in dict.fromkeys(schedules)), key=by_seconds)


def predict(p: Problem, s: Candidate, target: GpuTarget) -> float:
    """Seconds."""
    return _predict_gemv(p, s, target) if isinstance(s, GpuGemvSchedule) else _predict_gemm(p, s, target)


def _gemms(p: Problem, target: GpuTarget) -> Iterator[GpuGemmSchedule]:
    for b in _blocks(p):
        s = _fitted(p, b, target)
        if s is None:
            continue
        tiles = p.batches * ceil(p.m / s.m) * ceil(p.n / s.n)
        slots = b.persistent * target.sms
        if slots:
            if p.persistent and p.batches == 1 and tiles > slots and not (p.left or p.right):
                even = ceil(tiles / ceil(tiles / slots))
                for persistent in dict.fromkeys((even, slots)):
                    yield _with(s, persistent=persistent)
            continue
        for split in _SPLITS:
            many = 8 if p.left or p.right else 2  # what makes operands hides behind the loads of other blocks
            if split == 1 or (tiles * split <= many * target.sms and p.k // split >= 4 * s.k):
                yield _with(s, split=split)


def _blocks(p: Problem) -> tuple[_Block, ...]:
    if p.exact:
        return _EXACT_BLOCKS
    return (*_BLOCKS, *_MAKING_BLOCKS) if p.left or p.right else _BLOCKS


def _with(s: GpuGemmSchedule, *, persistent: int = 0, split: int = 1) -> GpuGemmSchedule:
    return GpuGemmSchedule(s.m, s.n, s.k, s.group, split, persistent, s.launch, s.slices, s.transposed)


def _fitted(p: Problem, b: _Block, target: GpuTarget) -> GpuGemmSchedule | None:
    """The block for this problem; None where it is too large for it, or for the target."""
    m, n, k, stages = b.m, b.n, b.k, b.stages
    if (m > 16 and m >= 2 * pow2(p.m)) or (n > 32 and n >= 2 * pow2(p.n)):
        return None
    if m * n * p.dots > MAX_ACCUMULATORS * b.warps // 8:
        return None
    first, rows = (p.right, n) if b.transposed else (p.left, m)
    if first is not None and rows >= _GROUP_ROWS and target.has_tma and not p.exact:
        return None
    if not p.exact:
        k = k * 2 // p.item
    k = min(k, max(16, pow2(p.k)))
    room = target.shared_memory // max(b.persistent, 1) - _RESERVED - (m * n // b.slices * 2 if b.slices > 1 else 0)
    while stages > 1 and p.shared_bytes(m, n, k, stages) > room:
        stages -= 1
    if p.shared_bytes(m, n, k, stages) > room:
        return None
    return GpuGemmSchedule(m, n, k, 8, 1, 0, Launch(b.warps, stages), b.slices, b.transposed)


def _gemvs(p: Problem) -> Iterator[GpuGemvSchedule]:
    vectors, lines = min(p.m, p.n), max(p.m, p.n)
    if vectors > most_vectors(p):
        return
    along = (*_MAKING_ALONG, *_ALONG) if p.reduces else (*_ALONG, *_MAKING_ALONG) if p.left or p.right else _ALONG
    for block, depth, unroll, warps in _ACROSS if p.across else along:
        while unroll > 1 and depth * unroll >= 2 * pow2(p.k):
            unroll //= 2
        block, depth = min(block, pow2(lines)), min(depth, max(16, pow2(p.k)))
        if block * depth * vectors * p.dots > 64 * 32 * warps:
            continue
        for split in _SPLITS:
            if split == 1 or (p.batches * lines // block * split <= 1024 and p.k // split >= 2 * depth * unroll):
                yield GpuGemvSchedule(block, depth, unroll, split, Launch(warps, 2))


def _resident(p: Problem, s: GpuGemmSchedule, target: GpuTarget) -> int:
    """Blocks that an SM holds at once."""
    threads = 32 * s.launch.warps
    memory = int(p.shared_bytes(s.m, s.n, s.k, s.launch.stages)) + _RESERVED
    registers = min(255, s.m * s.n * p.dots // threads + 48) * threads
    return max(1, min(target.shared_memory // memory, _REGISTERS // registers, _THREADS // threads))


def _rate(p: Problem, s: GpuGemmSchedule) -> float:
    alike = [
        b
        for b in _blocks(p)
        if (b.m, b.n, b.warps, b.transposed, b.persistent > 0)
        == (s.m, s.n, s.launch.warps, s.transposed, s.persistent > 0)
    ]
    rate = next((b.rate for b in alike if b.k * 2 == s.k * p.item), alike[0].rate if alike else 0.5)
    return rate * _DEEP_TF32 if p.item == 4 and not p.exact and s.launch.warps == 4 and s.k <= 32 else rate


def _predict_gemm(p: Problem, s: GpuGemmSchedule, target: GpuTarget) -> float:
    """Each SM works through its tiles, some at a time; or the traffic, whichever takes longer."""
    tiles = p.batches * ceil(p.m / s.m) * ceil(p.n / s.n) * s.split
    resident = _resident(p, s, target)
    steps = ceil(p.k / s.split / s.k)
    depth = steps * s.k
    read = (p.reads * _READ + max(0, p.vectors - 1) * _VECTOR) * s.m * s.n / _READ_AREA if s.split == 1 else 0.0
    if s.persistent:
        rounds = ceil(tiles / s.persistent)
        share = rounds * ceil(s.persistent / target.sms)
        idle = _TILE - _EPILOGUE + rounds * _EPILOGUE * (0.3 if s.persistent > target.sms else 1.0)
        idle += share * read * (_BOTH if s.persistent > target.sms else 1.0)
    else:
        share = ceil(tiles / target.sms)
        rounds = ceil(tiles / (target.sms * resident))
        # Blocks of one wave read at the same time.
        together = min(share, resident) if rounds == 1 else 1.0 if resident < 2 else resident * _BOTH
        idle = rounds * (_TILE + read * together)
    beside = min(share, resident)
    peak = (target.rates.simt if p.exact else _tensor_rate(s, target) * 2 / p.item) / target.sms
    peak *= _rate(p, s) * (1.0 if p.exact else _COPIES[p.copy]) * (1.0 if beside > 1 or s.launch.warps > 4 else _SOLO)
    compute = share * max(2.0 * s.m * s.n * p.dots * depth / peak, steps * _STEP / beside) + idle
    compute = _beside(compute, share * depth * _making(p, s, beside, target), beside)
    loaded = tiles * depth * p.read(s.m, s.n)
    moved = p.batches * (p.read(p.m * p.k, p.n * p.k) + p.m * p.n * p.item * (1 + p.reads))
    in_flight = min(tiles, resident * target.sms) * s.k * p.read(s.m, s.n)
    fetched = in_flight * min(steps, max(1, s.launch.stages - 1))
    supply = min(1.0, sqrt(fetched / _IN_FLIGHT)) if fetched else 1.0  # operands that are computed are not fetched
    traffic = max(moved / target.rates.read, loaded / target.rates.l2) / supply
    arrival = traffic + _TILE - _EPILOGUE
    return target.rates.launch + max(compute, arrival) + 0.05 * min(compute, arrival) + _finish(p, s.split, target)


def _tensor_rate(s: GpuGemmSchedule, target: GpuTarget) -> float:
    """Of the instructions that Triton's compiler takes for such a block, were its share 1. Few rows wait for what feeds
    the units, whichever those are."""
    by_mma_sync = target.backend == "cuda" and not target.has_faster_matmuls and min(s.m, s.n) >= _GROUP_ROWS
    return target.rates.tensor * (_MMA_SYNC if by_mma_sync else 1.0)


def _making(p: Problem, s: GpuGemmSchedule, beside: int, target: GpuTarget) -> float:
    """Seconds to compute the operands of a tile, one element deep, where so many blocks share an SM."""
    busy = sqrt(sqrt(min(1.0, beside * s.launch.warps / _BUSY)))
    return p.made(s.m, s.n, _MAKING) * target.sms / target.rates.issue / busy


def _beside(a: float, b: float, blocks: int) -> float:
    """Both works on an SM: one after the other in a block; among more of them the longer hides most of the other."""
    return a + b if blocks < 2 else max(a, b) + _BOTH * min(a, b)


def _predict_gemv(p: Problem, s: GpuGemvSchedule, target: GpuTarget) -> float:
    """The matrix's way in, slower where a block has little under way; or the arithmetic of few blocks."""
    vectors, lines = min(p.m, p.n), max(p.m, p.n)
    blocks = p.batches * ceil(lines / s.lines) * s.split
    matrix, vector = ((0, 1), (1, 0)) if p.n >= p.m else ((1, 0), (0, 1))
    moved = p.batches * lines * p.k * p.read(*matrix)
    in_flight = s.lines * s.depth * s.unroll * p.read(*matrix)
    resident = max(1, min(_THREADS // (32 * s.launch.warps), 16))
    fetched = min(blocks, resident * target.sms) * in_flight
    supply = min(1.0, sqrt(fetched / _IN_FLIGHT)) if fetched else 1.0  # a matrix that is computed is not fetched
    supply *= _OF_COMPUTED if (p.right if p.n >= p.m else p.left) is not None else 1.0
    traffic = moved / target.rates.read / supply * (1.0 + 0.1 * max(0.0, 1.0 - in_flight / 8192))
    elements = p.batches * p.dots * lines * p.k
    making = p.made(*matrix, _MAKING_ALONG_VECTORS) + p.made(*vector, _MAKING_ALONG_VECTORS) * vectors / s.lines
    rate = target.rates.simt / max(1.0, target.sms / blocks)
    arithmetic = 2.0 * elements / p.dots * (p.dots * (vectors + 1) + making) / rate
    alone = _ELEMENT * s.lines * ceil(p.k / s.split) / (32 * s.launch.warps)
    return target.rates.launch + max(traffic, arithmetic, alone) + _finish(p, s.split, target)


def _finish(p: Problem, split: int, target: GpuTarget) -> float:
    """The second kernel of a sum in parts."""
    if split == 1:
        return 0.0
    parts = 4.0 * p.batches * p.m * p.n * p.dots * (split + 1)
    return target.rates.follow + _JOIN + _PARTS * parts / target.rates.copy
