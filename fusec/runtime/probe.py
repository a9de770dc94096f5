"""Measures this machine's rates for the cost model, with kernels of fusec's own: no other compiler is needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from fusec.ir.index import Index, floordiv, mod, symbol
from fusec.ir.types import DType, bf16, contiguous_strides, f32, i8, i32
from fusec.target.cpu import CpuTarget
from fusec.target.rates import Bandwidth, Rates, usual_rates
from fusec.tile.nodes import Alloc, Dot, Grid, Iter, Kernel, Loop, Map, Reduce, RegisterTile, Statement, Store
from fusec.tile.scalar import Apply, Buffer, Const, Load, ScalarExpr

ROUNDS, REPEATS = 3, 3
"""A round measures all rates. The best round counts: other programs only make one worse."""

SECONDS = 0.002
"""About how long a run lasts."""

DEPTH_BYTES = 512
"""Of a row of k in the products measured: both operands of an AMX block fill two thirds of L1."""

VECTOR_ELEMENTS = 2048
"""Of the elementwise code measured; operand and result stay in L1."""

EXP_INSTRUCTIONS = 14
"""Vector instructions of ``exp`` on one vector of f32 with its load and its store, in AVX-512."""

STREAMS = ("read", "write", "copy", "stream")
_PRODUCT = "product_"

LARGEST = 512 << 20
"""Bytes of the largest footprint measured."""


def measure_rates(target: CpuTarget, threads: int) -> Rates:
    """This machine's rates with so many threads. Takes two or three seconds, which other programs should leave to it.

    Raises what compiling raises: LoweringError, CodegenError.
    """
    from fusec.codegen.tvm.build import compile_kernels

    products = {kernel.name: kernel for kernel in _products(target, threads)}
    streams = {_stream(what, n).name: _stream(what, n) for what in STREAMS for n in {1, threads}}
    regions = {_empty(n).name: _empty(n) for n in {1, threads}}
    module = compile_kernels([*products.values(), *streams.values(), *regions.values(), _exponentials(threads)], target)
    memory = _Memory()
    measured = [_measured(module, memory, target, threads, products) for _ in range(ROUNDS)]
    return _best(measured, usual_rates(target, threads))


def measure_products(target: CpuTarget, threads: int) -> dict[str, float]:
    """Operations a second of each core's products with operands in L1, so many at work; some 0.1 s.

    By unit, as in :class:`Rates`.

    Raises what compiling raises: LoweringError, CodegenError.
    """
    from fusec.codegen.tvm.build import compile_kernels

    products = {kernel.name: kernel for kernel in _products(target, threads)}
    module, memory = compile_kernels(list(products.values()), target), _Memory()
    rounds = [_product_rates(module, memory, products, threads) for _ in range(ROUNDS)]
    return {_unit(name): max(found[name] for found in rounds) for name in products}


def _measured(
    module: Any, memory: _Memory, target: CpuTarget, threads: int, products: Mapping[str, Kernel]
) -> dict[str, float]:
    """Rates by name, and the seconds of a region."""
    found = _product_rates(module, memory, products, threads)
    seconds = _per_repeat(module.function("exponentials"), memory.pair(threads * VECTOR_ELEMENTS * 4)[:1])
    found["vector"] = EXP_INSTRUCTIONS * VECTOR_ELEMENTS / target.lanes(32) / seconds
    found["l2"] = _stream_rate(module, memory, "read", threads, threads * target.l2 // 2) / threads
    for footprint in reversed(_footprints(target, threads)):
        for count in {1, threads}:
            for what in STREAMS:
                found[f"{what} {count} {footprint}"] = _stream_rate(module, memory, what, count, footprint)
    found["regions"] = 1 / (_region(module, threads) if threads > 1 else usual_rates(target, 1).region)
    return found


def _product_rates(module: Any, memory: _Memory, products: Mapping[str, Kernel], threads: int) -> dict[str, float]:
    """Of each core: with all at work the clock may be lower than with one."""
    address = memory.pair(threads * _LARGEST_TILE)[:1]
    return {name: k.flops / threads / _per_repeat(module.function(name), address) for name, k in products.items()}


def _unit(product: str) -> str:
    """What multiplies in a kernel of this name."""
    return product.removeprefix(_PRODUCT).replace("_", " ")


def _best(rounds: Sequence[Mapping[str, float]], usual: Rates) -> Rates:
    best = {name: max(found[name] for found in rounds) for name in rounds[0]}
    places = sorted((int(n.split()[1]), int(n.split()[2])) for n in best if n.startswith("read "))
    return Rates(
        multiply={_unit(name): best[name] for name in best if name.startswith(_PRODUCT)},
        vector=best["vector"],
        l2=best["l2"],
        bandwidth=tuple(
            Bandwidth(threads, size, *(best[f"{what} {threads} {size}"] for what in STREAMS))
            for threads, size in places
        ),
        region=1 / best["regions"],
        call=usual.call,
        measured=True,
    )


def _footprints(target: CpuTarget, threads: int) -> list[int]:
    """From what L2 no longer holds to what no cache holds."""
    sizes = {2 * threads * target.l2 << shift for shift in range(0, 16, 2)} | {target.l3 * 3 // 4, target.l3}
    return sorted({n for n in sizes if n <= LARGEST} | {min(2 * threads * target.l2, LARGEST)})


class _Memory:
    """Arrays for the kernels, made as large as they are asked for."""

    def __init__(self) -> None:
        self.arrays = [np.zeros(1 << 14, np.float32) for _ in range(2)]

    def pair(self, nbytes: int) -> list[int]:
        """The addresses of two arrays of so many bytes."""
        if self.arrays[0].nbytes < nbytes:
            self.arrays = [np.ones(nbytes // 4, np.float32) for _ in range(2)]
        return [int(a.ctypes.data) for a in self.arrays]


def _per_repeat(function: Callable[..., None], addresses: list[int], *sizes: int) -> float:
    """Seconds of one repetition of the kernel's work, the median of some runs."""
    count = 1
    while True:
        seconds = _timed(function, addresses, *sizes, count)
        if seconds > SECONDS / 4 or count >= 1 << 24:
            break
        count *= 4
    count = max(1, int(count * SECONDS / max(seconds, 1e-9)))
    return median(_timed(function, addresses, *sizes, count) for _ in range(REPEATS)) / count


def _timed(function: Callable[..., None], addresses: list[int], *sizes: int) -> float:
    start = time.perf_counter()
    function(*addresses, *sizes)
    return time.perf_counter() - start


def _stream_rate(module: Any, memory: _Memory, what: str, threads: int, footprint: int) -> float:
    """Bytes a second read and written by all threads together, each passing its share of the footprint."""
    arrays = 1 if what in ("read", "write") else 2
    share = footprint // (4 * arrays * threads)
    addresses = memory.pair(threads * share * 4)
    used = addresses[1:] if what == "write" else addresses
    seconds = _per_repeat(module.function(f"{what}{threads}"), used, share)
    return threads * share * 4 * arrays / seconds


CALLS = 200
_LARGEST_TILE = 1 << 14
"""Bytes of sums of a product, at most."""


def _region(module: Any, threads: int) -> float:
    """Seconds by which a kernel that is a loop of one point a thread takes longer than one of a single point."""
    out = np.zeros(threads * 16, np.float32)

    def seconds(points: int) -> float:
        function, address = module.function(f"empty{points}"), int(out.ctypes.data)
        start = time.perf_counter()
        for _ in range(CALLS):
            function(address)
        return (time.perf_counter() - start) / CALLS

    return max(min(seconds(threads) for _ in range(REPEATS)) - min(seconds(1) for _ in range(REPEATS)), 1e-8)


# kernels


_TIMES = symbol("times", 1, 1 << 30)
_ELEMENTS = symbol("elements", 1, LARGEST // 4)


def _repeated(*body: Statement) -> Loop:
    return Loop(symbol("again", 0, (1 << 30) - 1), 0, _TIMES, 1, body)


def _empty(points: int) -> Kernel:
    """One store a point."""
    out = Buffer("out", f32, (points, 16), (16, 1))
    p, j = symbol("p", 0, points - 1), symbol("j", 0, 0)
    store = Store((Iter(j, 1),), out, (p, j), Const(0.0, f32))
    return Kernel(f"empty{points}", "map", (out,), 1, (Grid((Iter(p, points),), (store,)),))


def _stream(what: str, threads: int) -> Kernel:
    """Each thread's share of an array is read, filled or copied, also past the caches, again and again."""
    source, out = (Buffer(name, f32, (threads, _ELEMENTS), (_ELEMENTS, 1)) for name in ("source", "out"))
    t, j = symbol("t", 0, threads - 1), symbol("j", 0, _ELEMENTS - 1)
    domain = (Iter.over(j, _ELEMENTS),)
    body: tuple[Statement, ...]
    if what == "read":
        total = Buffer("total", f32, (1,), (1,), "tile")
        one = symbol("one", 0, 0)
        zero = Map((Iter(one, 1),), total, (0,), Const(0.0, f32))
        add_up = Reduce(domain, total, (0,), "sum", Load(source, (t, j)), fresh=False)
        ends = Store((Iter(one, 1),), out, (t, one), Load(total, (0,)))
        body = (Alloc(total), zero, _repeated(add_up), ends)
        parameters: tuple[Buffer, ...] = (source, out)
    else:
        value: ScalarExpr = Const(1.0, f32) if what == "write" else Load(source, (t, j))
        body = (_repeated(Store(domain, out, (t, j), value, streams=what == "stream")),)
        parameters = (out,) if what == "write" else (source, out)
    grid = Grid((Iter(t, threads),), body)
    return Kernel(f"{what}{threads}", "map", parameters, 1, (grid,), sizes=(_ELEMENTS, _TIMES))


def _exponentials(threads: int) -> Kernel:
    """``exp`` of numbers that stay in L1, the same in each thread."""
    out = Buffer("out", f32, (threads, VECTOR_ELEMENTS), (VECTOR_ELEMENTS, 1))
    t = symbol("t", 0, threads - 1)
    scratch = [Buffer(name, f32, (VECTOR_ELEMENTS,), (1,), "tile") for name in ("x", "y")]
    j = symbol("j", 0, VECTOR_ELEMENTS - 1)
    domain = (Iter(j, VECTOR_ELEMENTS),)
    x, y = (Load(b, (j,)) for b in scratch)
    body: tuple[Statement, ...] = (
        *map(Alloc, scratch),
        Map(domain, scratch[0], (j,), Const(0.5, f32)),
        _repeated(
            Map(domain, scratch[1], (j,), Apply("exp", (x,), f32)),
            Map((Iter(symbol("one", 0, 0), 1),), scratch[0], (0,), Load(scratch[1], (0,))),
        ),
        Store(domain, out, (t, j), y),
    )
    return Kernel("exponentials", "map", (out,), 1, (Grid((Iter(t, threads),), body),), sizes=(_TIMES,))


def _products(target: CpuTarget, threads: int) -> Iterator[Kernel]:
    """A product for each unit that multiplies: register tiles as kernels have them, operands in L1."""
    lanes = target.lanes(32)
    rows = 8 if target.vector_registers >= 32 else 4
    yield _product(f"{_PRODUCT}f32", f32, f32, RegisterTile(rows, 2 * lanes), threads)
    for dtype, total in ((bf16, f32), (i8, i32)):
        if target.multiplies(dtype):
            yield _product(f"{_PRODUCT}{dtype.name}", dtype, total, RegisterTile(rows, 2 * lanes), threads)
        if target.multiplies_in_tiles(dtype):
            yield _product(f"{_PRODUCT}{dtype.name}_tiles", dtype, total, RegisterTile(32, 32, tiles=True), threads)


def _product(name: str, dtype: DType, total: DType, registers: RegisterTile, threads: int) -> Kernel:
    """A row of k of one register tile of sums, the same in each thread; ``flops`` is of one repetition."""
    group = 1 if dtype is f32 else 32 // dtype.bits
    depth = DEPTH_BYTES // dtype.itemsize
    rows, columns = registers.rows, registers.columns
    m, n, k = symbol("m", 0, rows - 1), symbol("n", 0, columns - 1), symbol("k", 0, depth - 1)
    left = Buffer("left", dtype, (rows, depth), (depth + 64 // dtype.itemsize, 1), "tile")
    shape = (depth // group, columns, group)
    right = Buffer("right", dtype, shape, contiguous_strides(shape), "tile")
    sums = Buffer("sums", total, (rows, columns), (columns, 1), "tile")
    out = Buffer("out", total, (threads, rows, columns), (rows * columns, columns, 1))
    t = symbol("t", 0, threads - 1)
    at_right: tuple[Index, ...] = (floordiv(k, group), n, mod(k, group))
    dot = Dot(
        Iter(m, rows),
        Iter(n, columns),
        Iter(k, depth),
        Load(sums, (m, n)),
        Load(left, (m, k)),
        Load(right, at_right),
        True,
        registers,
    )
    q, c, r = symbol("q", 0, depth // group - 1), symbol("c", 0, columns - 1), symbol("r", 0, group - 1)
    fills = (
        Map((Iter(m, rows), Iter(k, depth)), left, (m, k), Const(0, dtype)),
        Map((Iter(q, depth // group), Iter(c, columns), Iter(r, group)), right, (q, c, r), Const(0, dtype)),
        Map((Iter(m, rows), Iter(n, columns)), sums, (m, n), Const(0, total)),
    )
    body: tuple[Statement, ...] = (
        *map(Alloc, (left, right, sums)),
        *fills,
        _repeated(dot),
        Store((Iter(m, rows), Iter(n, columns)), out, (t, m, n), Load(sums, (m, n))),
    )
    flops = 2 * threads * rows * columns * depth
    return Kernel(name, "gemm", (out,), 1, (Grid((Iter(t, threads),), body),), flops, sizes=(_TIMES,))
