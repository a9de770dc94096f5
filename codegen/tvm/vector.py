# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on vectors: each method assigns its result to a variable of its own and returns that.

So a value that is used twice is computed once. The variables are one-element stack buffers, which LLVM turns
into registers: TVM's ``Bind`` would have its analyser look through chains of values, in exponential time.
Conditions are kept as bytes of 0 and 1 and compared again where they are used, which LLVM folds away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx

from fusec.codegen.tvm import tir
from fusec.codegen.tvm.tir import Node, Value

_COMPARE: dict[str, Callable[[Node, Node], Node]] = {
    "eq": tirx.EQ,
    "ne": tirx.NE,
    "lt": tirx.LT,
    "le": tirx.LE,
    "gt": tirx.GT,
    "ge": tirx.GE,
}
_FLOAT_ARITHMETIC: dict[str, Callable[[Node, Node], Node]] = {"add": tirx.Add, "sub": tirx.Sub, "mul": tirx.Mul}

_SHORT, _LAST = 4, 2
"""Terms of a polynomial that Horner's rule takes alone, and of the lowest powers in a longer one."""


def is_float(element: str) -> bool:
    return element.startswith("float")


def is_signed(element: str) -> bool:
    return element.startswith("int")


def bits_of(element: str) -> int:
    return int(element.lstrip("uintfloa"))


class Code:
    """A list of statements being written, with the instruction set they may use.

    avx512: vectors of 16 floats may use AVX-512's own intrinsics. halves: where it is not None, AVX512-BF16 may round
    to bf16, and the LLVM IR that this takes is added to it. fused: there are instructions for fused multiply-add, and
    for conversions of f16. refined: roots of whole registers are made of an estimate, as that for roots takes longer.
    """

    def __init__(
        self,
        avx512: bool,
        names: list[int] | None = None,
        halves: set[str] | None = None,
        fused: bool = True,
        refined: bool = False,
    ) -> None:
        self.avx512 = avx512
        self.halves = halves
        self.fused = fused
        self.refined = refined
        self.statements: list[Node] = []
        self._names = names if names is not None else [0]

    def nested(self) -> Code:
        """An empty list of statements whose variables have names of their own."""
        return Code(self.avx512, self._names, self.halves, self.fused, self.refined)

    def append(self, *statements: Node) -> None:
        self.statements.extend(statements)

    def fresh(self, name: str) -> str:
        self._names[0] += 1
        return f"{name}{self._names[0]}"

    def let(self, value: Value, name: str = "t") -> Value:
        buffer, allocate = tir.registers(self.fresh(name), value.type, value.lanes)
        zero = tir.integer(0)
        self.statements += [allocate, tirx.BufferStore(buffer, value.node, [zero])]
        return Value(tirx.BufferLoad(buffer, [zero]), value.type, value.lanes)

    def let_index(self, node: Node, dtype: str, name: str = "i") -> Node:
        """A bound integer."""
        var = tir.variable(self.fresh(name), dtype)
        self.statements.append(tir.bind(var, node))
        return var

    def constant(self, like: Value, number: bool | int | float) -> Value:
        return tir.constant(number, like.type, like.lanes)

    def call(self, name: str, result: str, *args: Value) -> Value:
        """An LLVM intrinsic over lanes."""
        lanes, widened = self._widen(args)
        return self.let(Value(tir.intrinsic(name, result, lanes, *(a.node for a in widened)), result, lanes))

    def library(self, name: str, *args: Value) -> Value:
        """A function of the C library (``powf``), called once a lane."""
        lanes, widened = self._widen(args)
        element = args[0].type
        if lanes == 1:
            return self.let(Value(tirx.call_pure_extern(element, name, *(a.node for a in widened)), element))
        sources = [self._spilled(a) for a in widened]
        result, allocate = tir.stack(self.fresh("lanes"), element, lanes)
        i = tir.variable(self.fresh("lane"), "int32")
        call = tirx.call_pure_extern(element, name, *(tirx.BufferLoad(s, [i]) for s in sources))
        self.append(allocate, tir.loop(i, tir.integer(lanes), [tirx.BufferStore(result, call, [i])]))
        return self.let(Value(tirx.BufferLoad(result, [tir.ramp(tir.integer(0), lanes)]), element, lanes))

    def _spilled(self, a: Value) -> Node:
        """The lanes of a vector in memory."""
        buffer, allocate = tir.stack(self.fresh("lanes"), a.type, a.lanes)
        self.append(allocate, tirx.BufferStore(buffer, a.node, [tir.ramp(tir.integer(0), a.lanes)]))
        return buffer

    def replace_where(self, test: Value, usual: Value, write: Callable[[Code], Value]) -> Value:
        """``usual``, but where the test holds on some lane, what ``write`` computes there; it is run only then."""
        buffer, allocate = tir.registers(self.fresh("t"), usual.type, usual.lanes)
        zero = tir.integer(0)
        self.append(allocate, tirx.BufferStore(buffer, usual.node, [zero]))
        byte = self.byte(test)
        some = byte.node if byte.lanes == 1 else tir.intrinsic("llvm.vector.reduce.umax", "int8", 1, byte.node)
        inner = self.nested()
        chosen = inner.select(self.test(byte), write(inner), usual)
        inner.append(tirx.BufferStore(buffer, chosen.node, [zero]))
        self.append(tir.when(tirx.NE(some, tir.integer(0, "int8")), inner.statements))
        return Value(tirx.BufferLoad(buffer, [zero]), usual.type, usual.lanes)

    def _widen(self, values: Sequence[Value]) -> tuple[int, list[Value]]:
        lanes = max(v.lanes for v in values)
        return lanes, [tir.widen(v, lanes) for v in values]

    # arithmetic that wraps on integers; TVM's own nodes say "no overflow" to LLVM

    def add(self, a: Value, b: Value) -> Value:
        return self._arithmetic("add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self._arithmetic("sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self._arithmetic("mul", a, b)

    def _arithmetic(self, op: str, a: Value, b: Value) -> Value:
        lanes, (a, b) = self._widen((a, b))
        if is_float(a.type) or bits_of(a.type) < 32:
            return self.let(Value(_FLOAT_ARITHMETIC[op](a.node, b.node), a.type, lanes))
        if lanes > 1:
            every = tir.condition(True, lanes).node
            node = tir.intrinsic(f"llvm.vp.{op}", a.type, lanes, a.node, b.node, every, tir.integer(lanes))
            return self.let(Value(node, a.type, lanes))
        if op == "sub":
            op, b = "add", self.complement(b)  # a - b = a + ~b + 1
            partial = self._pair(op, a, b)
            return self._pair("add", partial, tir.constant(1, a.type))
        return self._pair(op, a, b)

    def _pair(self, op: str, a: Value, b: Value) -> Value:
        node = tir.intrinsic(f"llvm.vector.reduce.{op}", a.type, 1, tir.join((a, b)).node)
        return self.let(Value(node, a.type))

    def complement(self, a: Value) -> Value:
        """Every bit inverted."""
        ones = tir.constant(-1 if is_signed(a.type) else 2 ** bits_of(a.type) - 1, a.type, a.lanes)
        return self.let(Value(tirx.bitwise_xor(a.node, ones.node), a.type, a.lanes))

    def div(self, a: Value, b: Value) -> Value:
        """Floating-point division."""
        lanes, (a, b) = self._widen((a, b))
        return self.let(Value(tirx.Div(a.node, b.node), a.type, lanes))

    def divide_integers(self, a: Value, b: Value) -> Value:
        """Integer division towards zero. The divisor must be neither 0 nor -1 under the smallest dividend."""
        lanes, (a, b) = self._widen((a, b))
        return self.let(Value(tirx.truncdiv(a.node, b.node), a.type, lanes))

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """``a*b + c`` rounded once, but twice where no instruction does it: what must not be stands in ``pairs``."""
        return self.call("llvm.fma", a.type, a, b, c) if self.fused else self.add(self.mul(a, b), c)

    def neg(self, a: Value) -> Value:
        if is_float(a.type):
            return self.sub(self.constant(a, -0.0), a)
        return self.sub(self.constant(a, 0), a)

    def abs(self, a: Value) -> Value:
        if is_float(a.type):
            return self.call("llvm.fabs", a.type, a)
        if not is_signed(a.type):
            return a
        return self.select(self.compare("lt", a, self.constant(a, 0)), self.neg(a), a)

    def copysign(self, a: Value, sign: Value) -> Value:
        return self.call("llvm.copysign", a.type, a, sign)

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """The highest power first: Horner's rule, but long ones from short ones in x**2, x**4 (Estrin), of which each
        waits for few others. The lowest powers come last, so that rounding the others hardly counts.
        """
        rest = [self.constant(x, c) for c in coefficients[:-_LAST]]
        powers = [x]
        while len(rest) > _SHORT << (len(powers) - 1):
            powers.append(self.mul(powers[-1], powers[-1]))
        last = [self.constant(x, c) for c in coefficients[-_LAST:]]
        return self._horner([self._estrin(rest, powers), *last] if rest else last, x)

    def _estrin(self, coefficients: Sequence[Value], powers: Sequence[Value]) -> Value:
        """``powers``: x, x**2, x**4, ...; as many as the polynomial is to be halved, and x."""
        if len(powers) == 1 or len(coefficients) <= _SHORT:
            return self._horner(coefficients, powers[0])
        even, odd = coefficients[::-2][::-1], coefficients[-2::-2][::-1]
        return self.fma(self._estrin(odd, powers[1:]), powers[0], self._estrin(even, powers[1:]))

    def _horner(self, coefficients: Sequence[Value], x: Value) -> Value:
        result = coefficients[0]
        for c in coefficients[1:]:
            result = self.fma(result, x, c)
        return result

    # bits

    def reinterpret(self, a: Value, element: str) -> Value:
        return self.let(Value(tirx.reinterpret(tir.vector_type(element, a.lanes), a.node), element, a.lanes))

    def bitwise(self, op: str, a: Value, b: Value) -> Value:
        """``op`` is ``bitwise_and``, ``bitwise_or``, ``bitwise_xor``, ``shift_left`` or ``shift_right``."""
        lanes, (a, b) = self._widen((a, b))
        return self.let(Value(getattr(tirx, op)(a.node, b.node), a.type, lanes))

    def convert(self, a: Value, element: str) -> Value:
        """LLVM's own conversion; a float out of an integer type's range is undefined, see ``casts``."""
        if a.type == element:
            return a
        return self.let(Value(tirx.Cast(tir.vector_type(element, a.lanes), a.node), element, a.lanes))

    # conditions

    def compare(self, op: str, a: Value, b: Value) -> Value:
        """eq, ne, lt, le, gt, ge. A NaN is unequal to everything; the other comparisons with it are false."""
        lanes, (a, b) = self._widen((a, b))
        if op == "ne" and is_float(a.type):
            return Value(tirx.Not(tirx.EQ(a.node, b.node)), "bool", lanes)
        return Value(_COMPARE[op](a.node, b.node), "bool", lanes)

    def is_nan(self, a: Value) -> Value:
        return self.compare("ne", a, a)

    def both(self, a: Value, b: Value) -> Value:
        lanes, (a, b) = self._widen((a, b))
        return self.settle(Value(tirx.And(a.node, b.node), "bool", lanes))

    def either(self, a: Value, b: Value) -> Value:
        lanes, (a, b) = self._widen((a, b))
        return self.settle(Value(tirx.Or(a.node, b.node), "bool", lanes))

    def invert(self, a: Value) -> Value:
        return self.settle(Value(tirx.Not(a.node), "bool", a.lanes))

    def settle(self, a: Value) -> Value:
        """The condition computed here once, whatever its size."""
        return self.test(self.byte(a))

    def byte(self, a: Value) -> Value:
        """A condition as an int8 of 0 or 1."""
        one, zero = tir.constant(1, "int8", a.lanes), tir.constant(0, "int8", a.lanes)
        return self.let(Value(tirx.Select(a.node, one.node, zero.node), "int8", a.lanes))

    def test(self, a: Value) -> Value:
        """The condition that a byte holds."""
        return self.compare("ne", a, self.constant(a, 0))

    def select(self, test: Value, a: Value, b: Value) -> Value:
        lanes, (test, a, b) = self._widen((test, a, b))
        if a.type == "bool":
            a, b = self.byte(a), self.byte(b)
            return self.test(self.let(Value(tirx.Select(test.node, a.node, b.node), "int8", lanes)))
        return self.let(Value(tirx.Select(test.node, a.node, b.node), a.type, lanes))

    def greater(self, a: Value, b: Value) -> Value:
        """The larger; NaN if either is."""
        return self._extremum("gt", a, b)

    def lesser(self, a: Value, b: Value) -> Value:
        """The smaller; NaN if either is."""
        return self._extremum("lt", a, b)

    def _extremum(self, op: str, a: Value, b: Value) -> Value:
        """One machine instruction gives ``b`` where either is NaN; a second puts ``a``'s NaN in its place.

        So only one instruction waits for ``b``: a running extreme belongs there. A number in its place changes sides:
        it is no NaN, and of two zeros the other one stays, as PyTorch's relu and clamp have it.
        """
        if is_float(a.type) and _is_number(b) and not _is_number(a):
            a, b = b, a
        lanes, (a, b) = self._widen((a, b))
        chosen = tirx.Select(self.compare(op, a, b).node, a.node, b.node)
        if is_float(a.type):
            chosen = tirx.Select(self.compare("eq", a, a).node, chosen, a.node)
        return self.let(Value(chosen, a.type, lanes))


def _is_number(value: Value) -> bool:
    """True for a constant on one or all lanes."""
    node = value.node.value if isinstance(value.node, tirx.Broadcast) else value.node
    return isinstance(node, tirx.FloatImm | tirx.IntImm)
