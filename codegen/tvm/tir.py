# SPDX-License-Identifier: Apache-2.0
"""Short constructors for TIR nodes. The rest of the emitter builds its trees with these only.

TVM has no type stubs, so a node is ``Any`` to the type checker; ``Value`` carries the element type and the
number of lanes beside it. No pass of TVM's simplifies what is built here: its rules are not those of IEEE
floating point (``x - x`` becomes 0), so the trees go to LLVM as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call, PointerType, PrimType

from fusec.ir.indexing import round_up

Node = Any

SERIAL = tirx.ForKind.SERIAL
PARALLEL = tirx.ForKind.PARALLEL

_KEEP_ON_STACK = {"disable_lower_builtin": tirx.IntImm("bool", 1)}


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """A TIR expression, its element type (TIR's name, ``bool`` for a condition) and its number of lanes."""

    node: Node
    type: str
    lanes: int = 1


def vector_type(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"{element}x{lanes}"


@lru_cache(maxsize=1 << 14)
def integer(value: int, dtype: str = "int32") -> Node:
    return tirx.IntImm(dtype, value)


def literal(value: bool | int | float, element: str) -> Node:
    """A scalar constant of any element type but bool."""
    if element.startswith("float"):
        return tirx.FloatImm(element, float(value))
    if element == "uint64" and value >= 2**63:
        return tirx.reinterpret("uint64", tirx.IntImm("int64", int(value) - 2**64))
    return tirx.IntImm(element, int(value))


def constant(value: bool | int | float, element: str, lanes: int = 1) -> Value:
    node = literal(value, element)
    return Value(tirx.Broadcast(node, lanes) if lanes > 1 else node, element, lanes)


def condition(value: bool, lanes: int = 1) -> Value:
    node = tirx.IntImm("bool", int(value))
    return Value(tirx.Broadcast(node, lanes) if lanes > 1 else node, "bool", lanes)


def widen(value: Value, lanes: int) -> Value:
    """The value on ``lanes`` lanes: itself, or a scalar on every lane."""
    if value.lanes == lanes:
        return value
    return Value(tirx.Broadcast(value.node, lanes), value.type, lanes)


def ramp(start: Node, lanes: int, stride: int = 1, dtype: str = "int32") -> Node:
    return start if lanes == 1 else tirx.Ramp(start, integer(stride, dtype), lanes)


def lane(value: Value, number: int) -> Value:
    """One lane of a vector."""
    if value.lanes == 1:
        return value
    return Value(tirx.Shuffle([value.node], [integer(number)]), value.type)


def part(value: Value, start: int, lanes: int) -> Value:
    """Consecutive lanes of a vector."""
    return pick(value, range(start, start + lanes))


def pick(value: Value, picks: Sequence[int]) -> Value:
    """Lanes of a vector, each any number of times."""
    enough = -(-len(picks) // value.lanes)  # TVM gives no more lanes than it is given
    return Value(tirx.Shuffle([value.node] * enough, [integer(i) for i in picks]), value.type, len(picks))


def join(values: Sequence[Value]) -> Value:
    """A vector made of scalars."""
    indices = [integer(i) for i in range(len(values))]
    return Value(tirx.Shuffle([v.node for v in values], indices), values[0].type, len(values))


def shuffle(a: Value, b: Value, picks: Sequence[int]) -> Value:
    """Lanes picked from two vectors of the same type, those of ``b`` numbered after those of ``a``."""
    indices = [integer(i) for i in picks]
    return Value(tirx.Shuffle([a.node, b.node], indices), a.type, len(picks))


def intrinsic(name: str, result: str, lanes: int, *args: Node) -> Node:
    """A call of an LLVM intrinsic without side effects, such as ``llvm.fma``."""
    return tirx.call_llvm_pure_intrin(vector_type(result, lanes), name, *args)


def effect(name: str, *args: Node) -> Node:
    """A statement that calls an LLVM intrinsic for what it does, such as ``llvm.x86.tilezero``."""
    return tirx.Evaluate(tirx.call_llvm_intrin("void", name, *args))


def fetch(buffer: Node, flat: Node, level: int = 1) -> Node:
    """A statement that has the cache line of an element brought to L1 or L2; the element need not be there."""
    read, stays, data = integer(0), integer(4 - level), integer(1)
    return effect("llvm.prefetch", address_of(buffer, flat), read, stays, data)


def address_of(buffer: Node, flat: Node) -> Node:
    """The address of an element of a flat buffer."""
    return tirx.address_of(tirx.BufferLoad(buffer, [flat]))


def first_lanes(count: Node, lanes: int, dtype: str) -> Node:
    """The mask of the first ``count`` lanes; ``dtype`` is that of the count."""
    return tirx.LT(ramp(tirx.IntImm(dtype, 0), lanes, 1, dtype), tirx.Broadcast(count, lanes))


def block(statements: Sequence[Node]) -> Node:
    if len(statements) == 1:
        return statements[0]
    return tirx.SeqStmt(list(statements)) if statements else tirx.Evaluate(tirx.IntImm("int32", 0))


def variable(name: str, dtype: str) -> Node:
    return tirx.Var(name, dtype)


def bind(var: Node, value: Node) -> Node:
    return tirx.Bind(var, value)


def loop(var: Node, count: Node, body: Sequence[Node], kind: Any = SERIAL, dtype: str = "int32") -> Node:
    """``for var in range(count)``; runs nothing where the count is negative."""
    return tirx.For(var, tirx.IntImm(dtype, 0), count, kind, block(body))


def when(test: Node, body: Sequence[Node], orelse: Sequence[Node] = ()) -> Node:
    return tirx.IfThenElse(test, block(body), block(orelse) if orelse else None)


def importing(text: str, body: Node) -> Node:
    """The body, which calls functions that the LLVM IR ``text`` defines."""
    return tirx.AttrStmt(tvm.ir.StringImm("import"), "pragma_import_llvm", tvm.ir.StringImm(text), body)


def plain_argument(name: str, kind: str) -> Node:
    """A parameter of a plain C function: ``pointer``, or an element type."""
    return tirx.Var(name, PointerType(PrimType("int8"), "global") if kind == "pointer" else kind)


def pointer_of(address: Node, name: str, element: str) -> tuple[Node, Node]:
    """A pointer variable and the statement that binds it to an integer address."""
    kind = PointerType(PrimType(element), "global")
    var = tirx.Var(name, kind)
    return var, tirx.Bind(var, Call("tirx.reinterpret", [address], ret_ty=kind))


def memory(name: str, element: str, size: int, pointer: Node, alignment: int) -> tuple[Node, Node]:
    """A flat buffer over a pointer variable, and its declaring statement."""
    buffer = tirx.decl_buffer((size,), element, name=name, data=pointer, data_alignment=alignment, layout=None)
    return buffer, tirx.DeclBuffer(buffer, data=pointer)


def registers(name: str, element: str, lanes: int) -> tuple[Node, Node]:
    """A one-vector variable that can be assigned, and its allocation; LLVM keeps it in a register."""
    buffer = tirx.decl_buffer((1,), vector_type(element, lanes), name=name, scope="local", layout=None)
    return buffer, tirx.AllocBuffer(buffer, _KEEP_ON_STACK)


def stack(name: str, element: str, size: int) -> tuple[Node, Node]:
    """A flat buffer on the stack, aligned to 64 bytes, and its allocation."""
    buffer = tirx.decl_buffer((size,), element, name=name, scope="local", data_alignment=64, layout=None)
    return buffer, tirx.AllocBuffer(buffer, _KEEP_ON_STACK)


def aligned_stack(name: str, element: str, size: int, nbytes: int) -> tuple[Node, list[Node]]:
    """A flat buffer on the stack that starts a cache line, and what allocates it.

    TVM aligns stack memory to 16 bytes, whatever the buffer asks for: half of the vectors would straddle two lines.
    """
    spare = LINE_BYTES * size // nbytes
    room, allocate = stack(f"{name}_room", element, size + spare)
    kind = PointerType(PrimType(element), "global")
    first = Call("tirx.reinterpret", [address_of(room, integer(spare - 1))], ret_ty=PrimType("int64"))
    start = tirx.bitwise_and(first, tirx.IntImm("int64", -LINE_BYTES))
    var = tirx.Var(f"{name}_memory", kind)
    buffer, declared = memory(name, element, size, var, LINE_BYTES)
    return buffer, [allocate, tirx.Bind(var, Call("tirx.reinterpret", [start], ret_ty=kind)), declared]


LINE_BYTES = 64


def heap(name: str, element: str, size: int, nbytes: int) -> tuple[Node, list[Node], Node]:
    """A flat buffer from the C library's heap, aligned to 64 bytes: buffer, allocation and release."""
    kind = PointerType(PrimType(element), "global")
    var = tirx.Var(f"{name}_memory", kind)
    whole = round_up(nbytes, 64)
    sizes = [tirx.IntImm("int64", 64), tirx.IntImm("int64", whole)]
    call = Call("tirx.call_extern", [tvm.ir.StringImm("aligned_alloc"), *sizes], ret_ty=kind)
    buffer, declared = memory(name, element, size, var, 64)
    release = tirx.Evaluate(tirx.call_extern("int32", "free", var))
    return buffer, [tirx.Bind(var, call), declared], release
