"""Tile IR to Triton source: one traversal that prints, a block variable for every tile buffer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import assert_never

from fusec.codegen.triton.describe import Descriptor
from fusec.codegen.triton.spelling import (
    COARSE,
    DOUBLE,
    EXACT,
    FAST,
    FLOAT_HELPERS,
    INT_HELPERS,
    LIBDEVICE,
    SHARED,
    float_literal,
    type_name,
)
from fusec.errors import LoweringError
from fusec.ir.index import (
    Expr,
    Extremum,
    FloorDiv,
    Index,
    Mod,
    Product,
    Sum,
    Symbol,
    bounds,
    most,
    mul,
    needs_int64,
    product,
    symbols_of,
)
from fusec.ir.types import DType
from fusec.tile.fetch import Fetch, fetch_of
from fusec.tile.nodes import Alloc, Block, Dot, Grid, If, Iter, Kernel, Loop, Map, Reduce, Statement, Store
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr, loads

_REDUCE = {
    "sum": "tl.sum({0}, {1})",
    "prod": "tl.reduce({0}, {1}, _product)",
    "max": "tl.max({0}, {1})",
    "min": "tl.min({0}, {1})",
    "any": "tl.max({0}, {1})",
    "all": "tl.min({0}, {1})",
}
_NAN_REDUCE = {"max": "tl.reduce({0}, {1}, _nan_maximum)", "min": "tl.reduce({0}, {1}, _nan_minimum)"}
_COMBINE = {
    "sum": "{0} + {1}",
    "prod": "{0} * {1}",
    "max": "tl.maximum({0}, {1})",
    "min": "tl.minimum({0}, {1})",
    "any": "tl.maximum({0}, {1})",
    "all": "tl.minimum({0}, {1})",
}
_NAN_COMBINE = {
    "max": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "min": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
}
_BOOL_COMBINE = {"any": "{0} | {1}", "all": "{0} & {1}"}
_IDENTITY = {"sum": "0", "prod": "1", "max": "float('-inf')", "min": "float('inf')", "any": "0", "all": "1"}

_PASSING = ', eviction_policy="evict_first"'
"""Of what is read for the last time, and of what is written then: cache is for rows that are still to be read again."""

LaunchGrid = tuple[Index, Index, Index]

MAX_OUTER = 65535
"""Blocks on the second axis of a launch."""

HEADER = """import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _product(a, b):
    return a * b


@triton.jit
def _nan_maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _nan_minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _tf32(x):
    # Tensor cores cut digits off: round to the nearest number of 10 digits before.
    rounded = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    return tl.where(x == x, rounded.to(tl.float32, bitcast=True), x)
"""


@dataclass(frozen=True)
class TritonKernel:
    """One kernel's source: ``text`` defines ``name``; ``grid`` is the number of blocks on each launch axis.

    ``sizes`` are parameters after the pointers, integers of 64 bits if ``wide``, else of 32.
    """

    name: str
    text: str
    grid: LaunchGrid
    descriptors: tuple[Descriptor, ...] = ()
    sizes: tuple[Symbol, ...] = ()
    wide: bool = False


def emit_kernel(kernel: Kernel, *, descriptors: bool = False, overlaps: bool = False) -> TritonKernel:
    """The kernel as Triton source, without the imports in :data:`HEADER`. LoweringError for what Triton can't say.

    With ``descriptors`` blocks of products' operands come through tensor descriptors where their layout allows, which
    are parameters after the pointers; every address must then be a multiple of 16 bytes. With ``overlaps`` the kernel
    may be started before the one ahead of it has ended, for which it waits itself.
    """
    return _Emitter(kernel, descriptors, overlaps).emit()


class _Emitter:
    def __init__(self, kernel: Kernel, describes: bool, overlaps: bool) -> None:
        self.kernel = kernel
        self.describes, self.overlaps = describes, overlaps
        self.descriptors: dict[Descriptor, str] = {}
        outputs = [b.dtype for b in kernel.parameters[len(kernel.parameters) - kernel.outputs :]]
        results = outputs if kernel.final is None else [kernel.final]
        self.fast = all(not d.is_float or d.bits < 32 for d in results)
        self.coarse = all(not d.is_float or d.name == "bf16" for d in results)
        self.lines: list[str] = []
        self.depth = 1
        self.names: dict[Buffer, str] = {}
        self.symbols: dict[Symbol, str] = {}
        self.taken = {"tl", "triton", "libdevice", "float", "range", "block"}
        self.wide = any(needs_int64(b.extent) for b in kernel.parameters)
        self.made: dict[str, str] = {}
        self.domain: tuple[Iter, ...] = ()
        self.outer: set[Symbol] = set()
        self.passing = False
        self.fetches = False

    # Text

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def unique(self, name: str) -> str:
        base = re.sub(r"\W", "_", name)
        candidate, count = base, 0
        while candidate in self.taken:
            count += 1
            candidate = f"{base}_{count}"
        self.taken.add(candidate)
        return candidate

    def once(self, text: str, prefix: str) -> str:
        """A variable that holds ``text``, made at its first use in the enclosing blocks."""
        if text not in self.made:
            name = self.unique(prefix)
            self.line(f"{name} = {text}")
            self.made[text] = name
        return self.made[text]

    @contextmanager
    def indented(self) -> Iterator[None]:
        outer = dict(self.made)
        self.depth += 1
        yield
        self.depth -= 1
        self.made = outer

    # Statements

    def emit(self) -> TritonKernel:
        (grid,) = self.kernel.body
        if not isinstance(grid, Grid):
            raise LoweringError(f"{self.kernel.name} does not start with a grid")
        for buffer in self.kernel.parameters:
            self.names[buffer] = self.unique(f"{buffer.name}_ptr")
        for size in self.kernel.sizes:
            self.symbols[size] = self.unique(size.name)
        if self.overlaps:
            self.line("_begin()")
        sizes = self._grid(grid)
        if self.kernel.kind == "row":
            self._read_ahead(grid.body)
        self.block(grid.body)
        extents = self.kernel.sizes
        names = [self.names[b] for b in self.kernel.parameters]
        names += [*(self.symbols[s] for s in extents), *self.descriptors.values()]
        head = f"@triton.jit\ndef {self.kernel.name}({', '.join(names)}):"
        text = "\n".join([head, *self.lines]) + "\n"
        return TritonKernel(self.kernel.name, text, sizes, tuple(self.descriptors), extents, self.wide)

    def _read_ahead(self, block: Block) -> None:
        """Starts the loads of a block before its first reduction, whose barrier none of them would cross.

        What every block reads for its stores alone (weights along a row) is in cache, and would only take registers.
        """
        for s in block:
            if not isinstance(s, Map | Store | Reduce):
                continue
            self.domain = s.domain
            for load in loads(s.value):
                plain = load.buffer.space == "parameter" and all(isinstance(i, int | Expr) for i in load.index)
                if plain and (self._is_own(load) or not isinstance(s, Store)):
                    self._read(load)

    def _is_own(self, load: Load) -> bool:
        """Whether a load differs from one block of the grid to the next."""
        return any(s in self.outer for i in load.index if isinstance(i, int | Expr) for s in symbols_of(i))

    def _grid(self, grid: Grid) -> LaunchGrid:
        """The last iterator on the fastest axis; the others together on the second, or, if too many, behind it.

        A symbolic extent is launched as it is at the call.
        """
        iters = grid.iters
        self.outer = {i.var for i in iters}
        for i in iters:
            if i.extent == 1:
                self.symbols[i.var] = "0"
        live = [i for i in iters if i.extent != 1]
        count = {i.var: i.extent if i.limit is None else i.limit for i in live}
        if self.kernel.kind == "gemm":
            live = live[::-1]
        wide = ".to(tl.int64)" if self.wide else ""
        if not live:
            return (1 if all(i.extent for i in iters) else 0, 1, 1)
        fast, rest = live[-1], live[:-1]
        self.symbols[fast.var] = self.unique(fast.var.name)
        outer = product(count[i.var] for i in rest)
        flat = most(outer) > MAX_OUTER
        width = self.index(count[fast.var])
        if flat:
            self.line(f"block = tl.program_id(0){wide}")
            self.line(f"{self.symbols[fast.var]} = block % {width}")
        else:
            self.line(f"{self.symbols[fast.var]} = tl.program_id(0){wide}")
        if rest:
            other = self.unique("outer")
            self.line(f"{other} = block // {width}" if flat else f"{other} = tl.program_id(1){wide}")
            step: Index = 1
            for i in reversed(rest):
                name = self.symbols[i.var] = self.unique(i.var.name)
                quotient = other if step == 1 else f"({other} // {self.index(step)})"
                last = i is rest[0]
                self.line(f"{name} = {quotient}" if last else f"{name} = {quotient} % {self.index(count[i.var])}")
                step = mul(step, count[i.var])
        return (mul(count[fast.var], outer), 1, 1) if flat else (count[fast.var], outer, 1)

    def block(self, block: Block) -> None:
        for statement in block:
            self.statement(statement)

    def statement(self, statement: Statement) -> None:
        match statement:
            case Alloc():
                self.names[statement.buffer] = self.unique(statement.buffer.name)
            case Map():
                self._map(statement)
            case Store():
                self._store(statement)
            case Reduce():
                self._reduce(statement)
            case Dot():
                self._dot(statement)
            case Loop():
                self._loop(statement)
            case If():
                raise LoweringError("branches inside a block")
            case Grid():
                raise LoweringError("a grid inside a grid")
            case _:
                assert_never(statement)

    def _loop(self, loop: Loop) -> None:
        name = self.symbols[loop.var] = self.unique(loop.var.name)
        for changed in _changed(loop.body):
            if changed in self.names:
                self._forget(self.names[changed])
        self.domain = ()
        start, stop = self.index(loop.start), self.index(loop.stop)
        if loop.within is not None:
            first, past = (self.names[x.buffer] for x in loop.within)
            start, stop = f"tl.maximum({start}, {first})", f"tl.minimum({stop}, {past})"
        inner = [s for s in loop.body if isinstance(s, Loop)]
        # A walk over tiles is flattened, so that the next tile's loads run under a tile's stores; of two products side
        # by side Triton then no longer pipelines the loads.
        flat = any(sum(isinstance(s, Dot) for s in x.body) == 1 for x in inner)
        spelled = "tl.range" if flat else "range"
        options = ", flatten=True" if flat else ""
        self.line(f"for {name} in {spelled}({start}, {stop}, {loop.step}{options}):")
        with self.indented():
            if self.kernel.kind == "row":
                self.passing = all(isinstance(s, Store) for s in loop.body)
                self._read_ahead(loop.body)
            self.block(loop.body)
            self.passing = False

    def _map(self, s: Map) -> None:
        self.domain = s.domain
        if tuple(s.index) != tuple(i.var for i in s.domain):
            raise LoweringError("a tile written at other subscripts than its domain's")
        name = self.names[s.target]
        shape = ", ".join(str(i.extent) for i in s.domain)
        dtype = type_name(s.target.dtype)
        copied = isinstance(s.value, Load) and s.value.buffer.space == "parameter" and s.value.dtype is s.target.dtype
        self.fetches = self.kernel.kind == "gemm" and len(s.domain) == 2
        text = self._read(s.value) if isinstance(s.value, Load) and copied else self.scalar(s.value)
        if self._is_number(s.value):
            self.line(f"{name} = tl.full([{shape}], {text}, {dtype})")
        elif copied:
            self.line(f"{name} = tl.broadcast_to({text}, [{shape}])")
        else:
            self.line(f"{name} = tl.broadcast_to({text}, [{shape}]).to({dtype})")
        self.fetches = False
        self._forget(name)

    def _forget(self, name: str) -> None:
        """Drops remembered texts that read a variable which has a new value now."""
        word = re.compile(rf"\b{re.escape(name)}\b")
        stale = {text for text in self.made if word.search(text)}
        while stale:
            gone = {self.made.pop(text) for text in stale}
            words = [re.compile(rf"\b{re.escape(g)}\b") for g in gone]
            stale = {text for text in self.made if any(w.search(text) for w in words)}

    def _store(self, s: Store) -> None:
        self.domain = s.domain
        value = self.scalar(s.value)
        if s.target.dtype.name == "bool":
            value = f"({value} != 0)"
        shape = ", ".join(str(i.extent) for i in s.domain)
        dtype = type_name(s.target.dtype)
        if self._is_number(s.value):
            value = f"tl.full([{shape}], {value}, {dtype})"
        else:
            value = f"tl.broadcast_to({value}, [{shape}]).to({dtype})"
        if self._put(s, value):
            return
        where = self.pointer(s.target, s.index)
        mask = self.mask()
        tail = f", mask={mask}" if mask else ""
        tail += _PASSING if self.passing else ""
        self.line(f"tl.store(tl.broadcast_to({where}, [{shape}]), {value}{tail})")

    def _reduce(self, s: Reduce) -> None:
        self.domain = s.domain
        kept = [i.var for i in s.domain if i.var in s.index]
        if tuple(kept) != tuple(s.index):
            raise LoweringError("a reduction whose result is laid out in another order than its domain")
        lanes = len(kept) == len(s.domain)
        value = self.scalar(s.value)
        shape = ", ".join(str(i.extent) for i in s.domain)
        wide = "tl.int32" if s.target.dtype.name == "bool" and not lanes else type_name(s.target.dtype)
        text = f"tl.broadcast_to({value}, [{shape}]).to({wide})"
        mask = self.mask(tuple(i for i in s.domain if lanes or i.var not in s.index))
        if mask:
            text = f"tl.where({mask}, {text}, {self._identity(s.op, s.target.dtype)})"
        propagates = s.op in _NAN_REDUCE and s.target.dtype.is_float and self.kernel.kind != "attention"
        spelling = _NAN_REDUCE[s.op] if propagates else _REDUCE[s.op]
        for axis in reversed(range(len(s.domain))):
            if s.domain[axis].var not in s.index:
                text = spelling.format(text, axis)
        name = self.names[s.target]
        if not s.fresh:
            table = _NAN_COMBINE if propagates else _BOOL_COMBINE if s.target.dtype.name == "bool" else _COMBINE
            text = table[s.op].format(name, text)
        self.line(f"{name} = {text}")
        self._forget(name)

    def _identity(self, op: str, dtype: DType) -> str:
        if dtype.name == "bool":
            return str(op == "all")
        if dtype.is_float or op not in ("max", "min"):
            return _IDENTITY[op]
        low, high = (
            (0, 2**dtype.bits - 1) if dtype.kind == "uint" else (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1)
        )
        return str(low if op == "max" else high)

    def _dot(self, s: Dot) -> None:
        half = [x.dtype for x in (s.a, s.b) if x.dtype.is_float and x.dtype.bits < 32]
        exact = not half and not s.tf32
        a = self._operand(s.a, (s.m, s.k), half, exact)
        b = self._operand(s.b, (s.k, s.n), half, exact)
        name = self.names[s.accumulator.buffer]
        kind = "ieee" if exact else "tf32"
        precision = "" if half else f', input_precision="{kind}"'
        if not half and not exact:
            a, b = f"_tf32({a})", f"_tf32({b})"
        if s.fresh:
            self.line(f"{name} = tl.dot({a}, {b}{precision})")
        else:
            self.line(f"{name} = tl.dot({a}, {b}, {name}{precision})")
        self._forget(name)

    def _operand(self, load: Load, domain: tuple[Iter, Iter], half: list[DType], exact: bool) -> str:
        """A block of a product. One of plain f32 arithmetic is read through pointers, as threads share it out."""
        self.domain = domain
        if load.buffer.space == "tile":
            name = self.names[load.buffer]
            if tuple(load.index) == tuple(i.var for i in reversed(domain)):
                name = f"tl.trans({name})"
            elif tuple(load.index) != tuple(i.var for i in domain):
                raise LoweringError("a product of a tile at other subscripts than its own")
            text = name
        else:
            text = (None if exact else self._fetch(load, domain)) or self._read(load, whole=True)
        if half and load.dtype is not half[0]:
            text = f"{text}.to({type_name(half[0])})"
        return text

    def _fetch(self, load: Load, domain: tuple[Iter, Iter]) -> str | None:
        """The block through a tensor descriptor; None where its layout does not allow one."""
        found = self._describe(load, domain)
        if found is None:
            return None
        name, where, fetch = found
        text = f"{name}.load([{where}])"
        if len(fetch.block) > 2:
            text = f"tl.reshape({text}, [{fetch.block[-2]}, {fetch.block[-1]}])"
        if fetch.turned:
            text = f"tl.trans({text})"
        return self.once(text, load.buffer.name)

    def _put(self, s: Store, value: str) -> bool:
        """Stores a product's block through a tensor descriptor; False where it can't be."""
        if self.kernel.kind not in ("gemm", "attention") or len(s.domain) != 2:
            return False
        found = self._describe(Load(s.target, s.index), (s.domain[0], s.domain[1]))
        if found is None or found[2].turned:
            return False
        name, where, fetch = found
        if len(fetch.block) > 2:
            value = f"tl.reshape({value}, [{', '.join(map(str, fetch.block))}])"
        self.line(f"{name}.store([{where}], {value})")
        return True

    def _describe(self, load: Load, domain: tuple[Iter, Iter]) -> tuple[str, str, Fetch] | None:
        """The descriptor's name, the coordinates of the block, and how it lies there."""
        if not self.describes or load.dtype.bits > 32 or load.dtype.name == "bool":
            return None
        fetch = fetch_of(load, domain)
        if fetch is None:
            return None
        parameter = self.kernel.parameters.index(load.buffer)
        key = Descriptor(parameter, fetch.shape, fetch.strides, fetch.block, load.dtype.name)
        if key not in self.descriptors:
            self.descriptors[key] = self.unique(f"{load.buffer.name}_desc")
        self.domain = ()
        where = ", ".join(map(self.index, fetch.coordinates))
        self.domain = domain
        return self.descriptors[key], where, fetch

    # Expressions

    def mask(self, iters: tuple[Iter, ...] | None = None) -> str:
        """The condition that a point of the domain is live; empty when all are."""
        parts = [
            f"({self.axis(i.var)} < {self.index(i.limit)})"
            for i in (self.domain if iters is None else iters)
            if i.limit is not None
        ]
        return self.once(" & ".join(parts), "live") if parts else ""

    def axis(self, s: Symbol) -> str:
        """A domain iterator as a block along its own axis; a loop or grid variable as a scalar."""
        place = next((k for k, i in enumerate(self.domain) if i.var is s), None)
        if place is None:
            return self.symbols[s]
        extent = self.domain[place].extent
        wide = ".to(tl.int64)" if self.wide else ""
        arange = self.once(f"tl.arange(0, {extent}){wide}", s.name)
        rank = len(self.domain)
        if rank == 1:
            return arange
        selector = ", ".join(":" if k == place else "None" for k in range(rank))
        return f"{arange}[{selector}]"

    def index(self, e: Index) -> str:
        match e:
            case int():
                return str(e)
            case Symbol():
                return self.axis(e)
            case Sum():
                terms = [self.index(a) if k == 1 else f"{self.index(a)} * {k}" for a, k in e.terms]
                return f"({' + '.join([*terms, *([str(e.constant)] if e.constant else [])])})"
            case FloorDiv():
                return self._divide(e.value, e.divisor, "//")
            case Mod():
                return self._divide(e.value, e.divisor, "%")
            case Extremum():
                function = "tl.maximum" if e.largest else "tl.minimum"
                return f"{function}({self.index(e.a)}, {self.index(e.b)})"
            case Product():
                return f"({' * '.join(map(self.index, e.factors))})"
            case Expr():
                raise AssertionError(type(e))
            case _:
                assert_never(e)

    def _divide(self, value: Expr, divisor: Index, sign: str) -> str:
        """Triton divides towards zero: a value that may be negative is moved up by a multiple of the divisor first."""
        low = bounds(value)[0]
        a, b = self.index(value), self.index(divisor)
        if low is not None and low >= 0:
            return f"({a} {sign} {b})"
        if low is None or not isinstance(divisor, int):
            raise LoweringError("a division of an index that may be negative")
        up = -(low // divisor)
        moved = f"(({a} + {up * divisor}) {sign} {b})"
        return moved if sign == "%" else f"({moved} - {up})"

    def pointer(self, buffer: Buffer, index: Iterable[object]) -> str:
        offset = []
        flat: Index = 0
        for i, stride in zip(index, buffer.strides, strict=True):
            if isinstance(i, int | Expr):
                flat = flat + i * stride
            else:
                offset.append(f"{self.scalar(i)}.to(tl.int64) * {stride}")  # type: ignore[arg-type]
        if flat != 0 or not offset:
            offset.insert(0, self.index(flat))
        return f"{self.names[buffer]} + {' + '.join(offset)}"

    def _read(self, load: Load, *, whole: bool = False) -> str:
        """A load. ``whole``: at every point of the domain, with zeros beyond its limits."""
        if load.buffer.space == "tile":
            return self._tile(load)
        if self.fetches:
            fetched = self._fetch(load, (self.domain[0], self.domain[1]))
            if fetched is not None:
                return fetched
        pointer = self.pointer(load.buffer, load.index)
        used = {s for i in load.index if isinstance(i, int | Expr) for s in symbols_of(i)}
        gathers = any(not isinstance(i, int | Expr) for i in load.index)
        limited = tuple(i for i in self.domain if i.limit is not None and (whole or gathers or i.var in used))
        if (gathers and limited) or (whole and not all(i.var in used for i in self.domain)):
            pointer = f"tl.broadcast_to({pointer}, [{', '.join(str(i.extent) for i in self.domain)}])"
        mask = f", mask={self.mask(limited)}, other=0" if limited else ""
        hint = _PASSING if self.passing and self._is_own(load) else ""
        return self.once(f"tl.load({pointer}{mask}{hint})", load.buffer.name)

    def _tile(self, load: Load) -> str:
        name = self._slice(load) or self.names[load.buffer]
        if not load.index:
            return name
        places = []
        for i in load.index:
            place = next(
                (k for k, it in enumerate(self.domain) if isinstance(i, Expr) and it.var in symbols_of(i)), None
            )
            if place is None or not (load.index[-1] is i or self.domain[place].var is i):
                raise LoweringError(f"a tile read at {i}, which is no iterator of its statement")
            places.append(place)
        if places != sorted(places):
            raise LoweringError("a tile read in another order of axes")
        rank = len(self.domain)
        if len(places) == rank:
            return name
        selector = ", ".join(":" if k in places else "None" for k in range(rank))
        return f"{name}[{selector}]"

    def _slice(self, load: Load) -> str | None:
        """The variable of a slice of the tile's columns: halves of halves; None for a read of all of them."""
        if len(load.index) != 2 or not isinstance(load.index[1], Expr):
            return None
        (rows, columns), last = load.buffer.shape, load.index[1]
        inside = next((i for i in self.domain if i.var in symbols_of(last)), None)
        if inside is None or inside.extent == columns:
            return None
        start = last - inside.var
        if not isinstance(start, int) or start % inside.extent:
            raise LoweringError(f"a tile read at {last}, which is no slice of its columns")
        assert isinstance(rows, int)
        assert isinstance(columns, int)
        name = self.names[load.buffer]
        while columns > inside.extent:
            columns //= 2
            high, start = start >= columns, start % columns
            name = self._halves(name, rows, columns)[high]
        return name

    def _halves(self, name: str, rows: int, columns: int) -> tuple[str, str]:
        text = f"tl.split(tl.permute(tl.reshape({name}, [{rows}, 2, {columns}]), [0, 2, 1]))"
        keys = f"{text}[0]", f"{text}[1]"
        if keys[0] not in self.made:
            low, high = (self.unique(f"{name}_{half}") for half in ("low", "high"))
            self.line(f"{low}, {high} = {text}")
            self.made.update(zip(keys, (low, high), strict=True))
        return self.made[keys[0]], self.made[keys[1]]

    def scalar(self, e: ScalarExpr) -> str:
        match e:
            case Const():
                return self._constant(e)
            case IndexValue():
                return self.index(e.index)
            case Load():
                text = self._read(e)
                if e.buffer.space == "parameter" and e.dtype.is_float and e.dtype.bits < 32:
                    pairs = e.dtype.name == "bf16" and self.kernel.kind in ("map", "row") and self._is_block(e)
                    return self.once(f"_widen({text})", "wide") if pairs else f"{text}.to(tl.float32)"
                return text
            case Apply(op="cast"):
                return self._cast(e)
            case Apply():
                return self.once(self._apply(e), e.op)
            case _:
                assert_never(e)

    def _is_block(self, load: Load) -> bool:
        """Whether a load reads more than one place."""
        used = {s for i in load.index if isinstance(i, int | Expr) for s in symbols_of(i)}
        return any(i.var in used and i.extent > 1 for i in self.domain)

    def _is_number(self, e: ScalarExpr) -> bool:
        """Whether the expression's text is one number for the block, not a tensor."""
        match e:
            case Const():
                return True
            case IndexValue():
                return not any(i.var in symbols_of(e.index) for i in self.domain)
            case Apply(op="cast"):
                return self._is_number(e.args[0])
        return False

    def _constant(self, e: Const) -> str:
        if e.dtype.name == "f64":
            return f"tl.full((), {float_literal(float(e.value.real))}, tl.float64)"
        if e.dtype.is_float:
            return float_literal(float(e.value.real))
        return str(e.value) if e.dtype.name == "bool" else str(int(e.value.real))

    def _cast(self, e: Apply) -> str:
        argument = self.scalar(e.args[0])
        if isinstance(e.args[0], Const):
            return self._constant(Const(e.args[0].value, e.dtype))
        if isinstance(e.args[0], IndexValue) and not symbols_of(e.args[0].index):
            return argument
        if e.dtype.name == "bool":
            return f"({argument} != 0)"
        text = f"({argument}).to({type_name(e.dtype)})"
        if isinstance(e.args[0], IndexValue):
            text = f"tl.cast({argument}, {type_name(e.dtype)})"  # a loop's variable is no tensor in the interpreter
        half = e.dtype.is_float and e.dtype.bits < 32
        source = e.args[0].dtype
        if half and not source.is_float:  # eight bits are exact in any float type; others are rounded twice, as eager's
            wide = f"({argument}).to(tl.float32)"
            return wide if source.bits <= 8 else f"{wide}.to({type_name(e.dtype)}).to(tl.float32)"
        return f"{text}.to(tl.float32)" if half else text

    def _apply(self, e: Apply) -> str:
        args = [self.scalar(a) for a in e.args]
        table = COARSE if self.coarse and e.op in COARSE else FAST if self.fast else EXACT
        if e.dtype.name == "f64" and e.op in DOUBLE:
            table = DOUBLE
        if e.op in table:
            return table[e.op].format(*args)
        if e.op in SHARED:
            return SHARED[e.op].format(*args)
        helper = (FLOAT_HELPERS if e.dtype.is_float else INT_HELPERS).get(e.op)
        if helper is not None:
            typed = [self._typed(a, text) for a, text in zip(e.args, args, strict=True)]
            bits = [str(e.dtype.bits - (e.dtype.kind == "int"))] if e.op == "pow" else []
            return f"{helper}({', '.join([*typed, *bits])})"
        if e.op in LIBDEVICE and e.dtype.is_float:
            return f"libdevice.{LIBDEVICE[e.op]}({', '.join(args)})"
        if e.op == "sign":
            return f"tl.where({args[0]} > 0, 1.0, tl.where({args[0]} < 0, -1.0, {args[0]}))"
        raise LoweringError(f"{e.op} of {e.dtype} in a Triton kernel")

    def _typed(self, e: ScalarExpr, text: str) -> str:
        """The text as a tensor of the expression's own type, which numbers and loop variables are not."""
        if not isinstance(e, Const | IndexValue):
            return text
        half = e.dtype.is_float and e.dtype.bits < 32
        return f"tl.cast({text}, {'tl.float32' if half else type_name(e.dtype)})"


def _changed(block: Block) -> Iterator[Buffer]:
    """The tiles that a block gives new values."""
    for s in block:
        match s:
            case Map() | Reduce():
                yield s.target
            case Dot():
                yield s.accumulator.buffer
            case Loop():
                yield from _changed(s.body)
