# SPDX-License-Identifier: Apache-2.0
"""What the emitter knows about the kernel at hand: buffers, loop variables, index type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tvm import tirx

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.tir import Node
from fusec.errors import LoweringError
from fusec.ir import index as ix
from fusec.ir.index import Expr, Extremum, FloorDiv, Index, Mod, Product, Sum, Symbol
from fusec.target.cpu import CpuTarget
from fusec.tile.scalar import Apply, Buffer, Const, IndexValue, Load, ScalarExpr


@dataclass(frozen=True, eq=False)
class Context:
    """One kernel under emission.

    ``index_type`` is the type of all index arithmetic; ``memory`` the TIR buffer of each buffer in scope;
    ``loops`` the TIR variable of each symbol in scope; ``imports`` LLVM IR that defines functions which the kernel
    calls.
    """

    target: CpuTarget
    index_type: str
    memory: dict[Buffer, Node] = field(default_factory=dict)
    loops: dict[Symbol, Node] = field(default_factory=dict)
    imports: set[str] = field(default_factory=set)

    def integer(self, value: int | Node) -> Node:
        """A number as a node; a node is one."""
        return tir.integer(value, self.index_type) if isinstance(value, int) else value

    def bind(self, s: Symbol) -> Node:
        """A new variable that stands for a symbol from now on."""
        variable = tir.variable(s.name, self.index_type)
        self.loops[s] = variable
        return variable

    def opaque(self, count: Node) -> Node:
        """The integer, as one that LLVM knows nothing of."""
        self.imports.add(_OPAQUE_IR)
        return tirx.Cast(self.index_type, tirx.call_pure_extern("int32", "fusec_opaque", tirx.Cast("int32", count)))

    def index(self, e: Index, replaced: Mapping[Symbol, Node] | None = None, lanes: int = 1) -> Node:
        """An index expression in TIR. ``replaced`` gives vectors (of ``lanes`` lanes) for some symbols."""
        return _IndexWriter(self, replaced or {}, lanes).write(e)


_OPAQUE_IR = """
define linkonce_odr i32 @fusec_opaque(i32 %x) alwaysinline {
  %y = call i32 asm "", "=r,0"(i32 %x)
  ret i32 %y
}
"""


@dataclass(frozen=True, eq=False)
class _IndexWriter:
    context: Context
    replaced: Mapping[Symbol, Node]
    lanes: int

    def write(self, e: Index) -> Node:
        match e:
            case int():
                return self._wide(self.context.integer(e))
            case Symbol():
                if e in self.replaced:
                    return self.replaced[e]
                return self._wide(self.context.loops[e])
            case Sum():
                return self._sum(e)
            case FloorDiv():
                return self._floor(e.value, e.divisor)[0]
            case Mod():
                return self._floor(e.value, e.divisor)[1]
            case Extremum():
                choose = tirx.Max if e.largest else tirx.Min
                return choose(self.write(e.a), self.write(e.b))
            case Product():
                first, *others = (self.write(f) for f in e.factors)
                for other in others:
                    first = tirx.Mul(first, other)
                return first
        raise AssertionError(type(e))

    def _floor(self, value: Index, divisor: Index) -> tuple[Node, Node]:
        """Quotient and remainder of floor division by a positive divisor."""
        a, b = self.write(value), self.write(divisor)
        quotient, rest = tirx.truncdiv(a, b), tirx.truncmod(a, b)
        low = ix.bounds(value)[0]
        if low is not None and low >= 0:
            return quotient, rest
        zero, one = (self._wide(self.context.integer(k)) for k in (0, 1))
        negative = tirx.LT(rest, zero)
        return (
            tirx.Select(negative, tirx.Sub(quotient, one), quotient),
            tirx.Select(negative, tirx.Add(rest, b), rest),
        )

    def _sum(self, e: Sum) -> Node:
        total = None
        for atom, k in e.terms:
            term = self.write(atom)
            if k != 1:
                term = tirx.Mul(term, self._wide(self.context.integer(k)))
            total = term if total is None else tirx.Add(total, term)
        constant = self._wide(self.context.integer(e.constant))
        if total is None:
            return constant
        return total if e.constant == 0 else tirx.Add(total, constant)

    def _wide(self, node: Node) -> Node:
        return node if self.lanes == 1 else tirx.Broadcast(node, self.lanes)


class Numbers:
    """Gives equal scalar expressions equal numbers, looking at each node of a shared tree once."""

    def __init__(self) -> None:
        self._by_id: dict[int, int] = {}
        self._by_key: dict[tuple[object, ...], int] = {}
        self._alive: list[ScalarExpr] = []

    def number(self, e: ScalarExpr) -> int:
        found = self._by_id.get(id(e))
        if found is None:
            found = self._by_key.setdefault(self._key(e), len(self._by_key))
            self._by_id[id(e)] = found
            self._alive.append(e)
        return found

    def _key(self, e: ScalarExpr) -> tuple[object, ...]:
        match e:
            case Const():
                return ("const", type(e.value), repr(e.value), e.dtype)
            case IndexValue():
                return ("index", e.index, e.dtype)
            case Load():
                return ("load", id(e.buffer), *(self._subscript(i) for i in e.index))
            case Apply():
                return (e.op, e.dtype, *(self.number(a) for a in e.args))

    def _subscript(self, i: object) -> object:
        if isinstance(i, int | Expr):
            return i
        return ("scalar", self.number(i))  # type: ignore[arg-type]


def used_once(e: ScalarExpr, numbers: Numbers) -> frozenset[int]:
    """The numbers of a tree's nodes that one operation reads, once."""
    operations = {numbers.number(n): n for n in distinct(e) if isinstance(n, Apply)}
    uses = Counter(numbers.number(a) for n in operations.values() for a in n.args)
    return frozenset(number for number, count in uses.items() if count == 1)


def flat_index(subscripts: Iterable[Index], strides: Iterable[Index]) -> Index:
    """The element offset of a multi-index."""
    flat: Index = 0
    for i, stride in zip(subscripts, strides, strict=True):
        flat = ix.add(flat, ix.mul(i, stride))
    return flat


def load_index(load: Load) -> Index:
    """The element offset of a load. LoweringError for a gather."""
    subscripts: list[Index] = []
    for i in load.index:
        if not isinstance(i, int | Expr):
            raise LoweringError(f"dot: {load.buffer} is gathered; pack it first")
        subscripts.append(i)
    return flat_index(subscripts, load.buffer.strides)


def distinct(e: ScalarExpr) -> list[ScalarExpr]:
    """Every node of the tree once, also where it is shared."""
    found: dict[int, ScalarExpr] = {}
    stack = [e]
    while stack:
        node = stack.pop()
        if id(node) in found:
            continue
        found[id(node)] = node
        match node:
            case Apply():
                stack.extend(node.args)
            case Load():
                stack.extend(i for i in node.index if not isinstance(i, int | Expr))
            case Const() | IndexValue():
                pass
    return list(found.values())
