# SPDX-License-Identifier: Apache-2.0
"""Scalar expressions of a kernel in Triton, and how it reads memory and tiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

from fusec.codegen.exponentials import below_maximum
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
from fusec.codegen.triton.text import Text
from fusec.errors import LoweringError
from fusec.ir.index import Expr, Index, Symbol, sub, symbols_of, terms_of
from fusec.ir.indexing import needs_int64
from fusec.ir.types import DType
from fusec.tile.fetch import Fetch, fetch_of
from fusec.tile.kernel import Kernel
from fusec.tile.nodes import Iter
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr, symbols_in

PASSING = ', eviction_policy="evict_first"'
"""Of what is read for the last time, and of what is written then: cache is for rows that are still to be read again."""


class Scalars(Text):
    """Expressions over the domain at hand.

    With ``describes`` blocks come through tensor descriptors where their layout allows. ``outer`` are the grid's
    iterators; ``passing``: what is read is not read again; ``fetches``: blocks that are read go into a matmul;
    ``eight``: results of 8 bits are stored; ``shares``: several results are computed together; ``texts``: of their
    parts that were spelled, by identity; ``below``: see :func:`below_maximum`;
    ``spreads``: values meet a matmul's block, see :meth:`_along`.
    """

    def __init__(self, kernel: Kernel, describes: bool) -> None:
        super().__init__(any(needs_int64(b.extent) for b in kernel.parameters))
        self.kernel, self.describes = kernel, describes
        self.descriptors: dict[Descriptor, str] = {}
        outputs = [b.dtype for b in kernel.parameters[len(kernel.parameters) - kernel.outputs :]]
        results = outputs if kernel.final is None else [kernel.final]
        self.eight = any(d.kind == "float8" for d in results)
        self.fast = all((not d.is_float or d.bits < 32) and d.kind != "float8" for d in results)
        self.coarse = all((not d.is_float or d.name == "bf16") and d.kind != "float8" for d in results)
        self.below = frozenset() if self.fast else below_maximum(kernel)
        self.names: dict[Buffer, str] = {}
        self.outer: set[Symbol] = set()
        self.passing = False
        self.fetches = False
        self.shares = False
        self.spreads = False
        self.texts: dict[int, str] = {}

    def together(self, values: Sequence[ScalarExpr]) -> None:
        """Spells expressions of one form, operand by operand of all of them."""
        first = values[0]
        alike = isinstance(first, Apply) and all(isinstance(v, Apply) and v.op == first.op for v in values)
        if alike and not any(self._guarded(v) for v in values):
            for operands in zip(*(v.args for v in values if isinstance(v, Apply)), strict=True):
                self.together(operands)
        for v in values:
            if id(v) not in self.texts:
                self.texts[id(v)] = self._spelled(v)

    def scalar(self, e: ScalarExpr) -> str:
        return self.texts.get(id(e)) or self._spelled(e)

    def _spelled(self, e: ScalarExpr) -> str:
        match e:
            case Const():
                return self._constant(e)
            case IndexValue():
                return self.index(e.index)
            case Load():
                return self._widened(e, self._read(e))
            case Apply(op="cast"):
                return self._cast(e)
            case Apply():
                return self.once(self._apply(e), e.op)
            case _:
                assert_never(e)

    def _widened(self, load: Load, text: str) -> str:
        """What was loaded, halves in f32."""
        if load.buffer.space == "parameter" and load.dtype.is_half:
            pairs = load.dtype.name == "bf16" and self.kernel.traits.pairs and self._is_block(load)
            return self.once(f"_widen({text})", "wide") if pairs else f"{text}.to(tl.float32)"
        if load.buffer.space == "parameter" and load.dtype.kind == "float8":
            return self.once(f"_from_{load.dtype}({text})", "wide")
        return text

    def _guarded(self, e: ScalarExpr) -> tuple[ScalarExpr, Load, Const] | None:
        """The condition, load and other value of a load that can be left out where a condition does not hold."""
        match e:
            case Apply("select", (condition, Load() as load, Const() as other)) if load.buffer.space == "parameter":
                able = self.shares and load.dtype.name != "bool" and not self._is_number(condition)
                return (condition, load, other) if able else None
        return None

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
        if e.dtype.is_float or e.dtype.kind == "float8":
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
        if e.dtype.kind == "float8":
            bits = self.once(f"_to_{e.dtype}(({argument}).to(tl.float32))", "bits")
            return self.once(f"_from_{e.dtype}({bits})", "rounded")
        text = f"({argument}).to({type_name(e.dtype)})"
        if isinstance(e.args[0], IndexValue):
            text = f"tl.cast({argument}, {type_name(e.dtype)})"  # a loop's variable is no tensor in the interpreter
        half = e.dtype.is_half
        source = e.args[0].dtype
        if half and not source.is_float:  # eight bits are exact in any float type; others are rounded twice, as eager's
            wide = f"({argument}).to(tl.float32)"
            return wide if source.bits <= 8 else f"{wide}.to({type_name(e.dtype)}).to(tl.float32)"
        return f"{text}.to(tl.float32)" if half else text

    def eight_bits(self, e: ScalarExpr, dtype: DType) -> str:
        """The bits of a number of 8 bits: what is moved keeps those that it has."""
        match e:
            case Load() if e.dtype is dtype and e.buffer.space == "parameter":
                return self._read(e)
            case Apply("select", (condition, a, b)):
                return f"tl.where({self.scalar(condition)}, {self.eight_bits(a, dtype)}, {self.eight_bits(b, dtype)})"
            case Apply("cast", (inner,)) if e.dtype is dtype:
                return f"_to_{dtype}(tl.cast({self.scalar(inner)}, tl.float32))"
        return f"_to_{dtype}(tl.cast({self.scalar(e)}, tl.float32))"

    def _is_shared_divisor(self, e: Apply) -> bool:
        """Whether all of a row is divided by one number, by the rounding of eight bits."""
        if e.op != "div" or not self.eight or e.dtype.name == "f64" or not self.domain:
            return False
        along = self.domain[-1].var
        a, b = e.args
        return along in symbols_in(a) and along not in symbols_in(b) and not self._is_number(b)

    def _apply(self, e: Apply) -> str:
        guarded = self._guarded(e)
        if guarded is not None:
            condition, load, other = guarded
            return self._widened(load, self._read(load, where=self.scalar(condition), other=self._constant(other)))
        args = [self.scalar(a) for a in e.args]
        if self._is_shared_divisor(e):
            parts = self.once(f"_reciprocal({args[1]})", "reciprocal")
            return f"_quotient({args[0]}, {parts}[0], {parts}[1], {parts}[2])"
        table = COARSE if self.coarse and e.op in COARSE else FAST if self.fast else EXACT
        if e.op == "exp" and e in self.below:
            return f"_exp_below({args[0]})"
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
        half = e.dtype.is_half
        return f"tl.cast({text}, {'tl.float32' if half else type_name(e.dtype)})"

    def pointer(self, buffer: Buffer, index: Iterable[object]) -> str:
        offset = []
        flat: Index = 0
        for i, stride in zip(index, buffer.strides, strict=True):
            if isinstance(i, int | Expr):
                flat = flat + i * stride
            else:
                offset.append(f"{self.scalar(i)}.to(tl.int64) * {stride}")  # type: ignore[arg-type]
        if self.shares and not offset:
            return self._apart(buffer, flat)
        if flat != 0 or not offset:
            offset.insert(0, self.index(flat))
        return f"{self.names[buffer]} + {' + '.join(offset)}"

    def _apart(self, buffer: Buffer, flat: Index) -> str:
        """An address as one that neighbours share and a number, which an instruction that loads adds by itself."""
        number = terms_of(flat)[0]
        start = self.once(f"{self.names[buffer]} + {self.index(sub(flat, number))}", f"{buffer.name}_start")
        return f"{start} + {number}" if number else start

    def _read(self, load: Load, *, whole: bool = False, where: str = "", other: str = "0") -> str:
        """A load. ``whole``: at every point of the domain, with zeros beyond its limits. ``where``: of those points
        alone, with ``other`` elsewhere."""
        if load.buffer.space == "tile":
            return self._tile(load)
        if self.fetches and len(self.domain) == 2:
            fetched = self._fetch(load, (self.domain[0], self.domain[1]))
            if fetched is not None:
                return fetched
        if self.spreads and not whole and not where and (along := self._along(load)) is not None:
            return along
        pointer = self.pointer(load.buffer, load.index)
        used, gathers = load.symbols, load.gathers
        limited = tuple(i for i in self.domain if i.limit is not None and (whole or gathers or i.var in used))
        if (gathers and limited) or (whole and not all(i.var in used for i in self.domain)):
            pointer = f"tl.broadcast_to({pointer}, [{', '.join(str(i.extent) for i in self.domain)}])"
        live = self.mask(limited) if limited else ""
        points = f"({live}) & ({where})" if live and where else live or where
        mask = f", mask={points}, other={other}" if points else ""
        hint = PASSING if self.passing and self._is_own(load) else ""
        return self.once(f"tl.load({pointer}{mask}{hint})", load.buffer.name)

    def _along(self, load: Load) -> str | None:
        """A vector along the one axis of the domain that the load depends on, spread over the others; else None.

        Triton takes the layout of a load of a row or a column for all that meets it. Scores beside a mask of keys left
        the layout of tensor cores: 1152 bytes of spills a thread, and 656 shuffles where there are 12. Vectors of 64
        bits (documents' ids) take twice the registers: the gradients of keys and values spilled 720 bytes, else 64.
        """
        domain = self.domain
        if load.dtype.bits > 32:
            return None
        used = [k for k, i in enumerate(domain) if i.var in load.symbols]
        if len(domain) < 2 or len(used) != 1 or load.gathers:  # a loaded subscript may depend on any of them
            return None
        self.domain = (domain[used[0]],)
        text = self._read(load)
        self.domain = domain
        return f"{text}[{', '.join(':' if k == used[0] else 'None' for k in range(len(domain)))}]"

    def _is_own(self, load: Load) -> bool:
        """Whether a load differs from one block of the grid to the next."""
        return not self.outer.isdisjoint(load.symbols)

    def _tile(self, load: Load) -> str:
        name = self._slice(load) or self.names[load.buffer]
        if not load.index:
            return name
        axes = []
        for i in load.index:
            axis = next(
                (k for k, it in enumerate(self.domain) if isinstance(i, Expr) and it.var in symbols_of(i)), None
            )
            if axis is None or not (load.index[-1] is i or self.domain[axis].var is i):
                raise LoweringError(f"a tile read at {i}, which is no iterator of its statement")
            axes.append(axis)
        if axes != sorted(axes):
            raise LoweringError("a tile read in another order of axes")
        rank = len(self.domain)
        if len(axes) == rank:
            return name
        selector = ", ".join(":" if k in axes else "None" for k in range(rank))
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

    def _fetch(self, load: Load, domain: tuple[Iter, Iter]) -> str | None:
        """The block through a tensor descriptor; None where its layout does not allow one."""
        found = self._describe(load, domain)
        if found is None:
            return None
        name, where, fetch = found
        text = f"{name}.load([{where}])"
        if len(fetch.block) > 2:
            text = f"tl.reshape({text}, [{fetch.block[-2]}, {fetch.block[-1]}])"
        if fetch.transposed:
            text = f"tl.trans({text})"
        return self.once(text, load.buffer.name)

    def _describe(self, load: Load, domain: tuple[Iter, Iter]) -> tuple[str, str, Fetch] | None:
        """The descriptor's name, the coordinates of the block, and how it lies there."""
        if not self.describes or load.dtype.bits > 32 or load.dtype.name == "bool":
            return None
        if load.buffer not in self.kernel.parameters:
            return None  # one of several, known in the kernel alone
        fetch = fetch_of(load, domain)
        if fetch is None:
            return None
        parameter = self.kernel.parameters.index(load.buffer)
        key = Descriptor(parameter, fetch.shape, fetch.strides, fetch.block, load.dtype.name)
        if key not in self.descriptors:
            self.descriptors[key] = self.unique(f"{load.buffer.name}_desc")
        self.domain = ()
        where = ", ".join(self._coordinate(c) for c in fetch.coordinates)
        self.domain = domain
        return self.descriptors[key], where, fetch

    def _coordinate(self, coordinate: Index) -> str:
        """A descriptor's axes are of 32 bits, however many bytes it describes."""
        text = self.index(coordinate)
        return text if not self.wide or isinstance(coordinate, int) else f"({text}).to(tl.int32)"

    def _is_block(self, load: Load) -> bool:
        """Whether a load reads more than one position."""
        return any(i.var in load.symbols and i.extent > 1 for i in self.domain)
