"""Numbers as the sum of two floats, of which the second holds what rounding the first lost.

After Dekker, *A floating-point technique for extending the available precision* (1971); products use fused
multiply-add.
"""

from __future__ import annotations

from fusec.codegen.tvm.tir import Value
from fusec.codegen.tvm.vector import Code

Pair = tuple[Value, Value]


def two_sum(code: Code, a: Value, b: Value) -> Pair:
    """The rounded sum and what rounding lost (Knuth, TAOCP 2, section 4.2.2)."""
    total = code.add(a, b)
    second = code.sub(total, a)
    return total, code.add(code.sub(a, code.sub(total, second)), code.sub(b, second))


def ordered_sum(code: Code, a: Value, b: Value) -> Pair:
    """The same where ``a`` is 0 or not the smaller one."""
    total = code.add(a, b)
    return total, code.sub(b, code.sub(total, a))


def two_product(code: Code, a: Value, b: Value) -> Pair:
    product = code.mul(a, b)
    return product, code.fma(a, b, code.neg(product))


def multiply(code: Code, a: Pair, b: Pair) -> Pair:
    product, lost = two_product(code, a[0], b[0])
    return product, code.fma(a[0], b[1], code.fma(a[1], b[0], lost))


def divide(code: Code, a: Pair, b: Pair) -> Pair:
    """The quotient of finite pairs whose divisor is not 0."""
    inverse = code.div(code.constant(b[0], 1.0), b[0])
    quotient = code.mul(a[0], inverse)
    rest = code.add(code.fma(code.neg(quotient), b[0], a[0]), code.fma(code.neg(quotient), b[1], a[1]))
    return ordered_sum(code, quotient, code.mul(rest, inverse))


def root(code: Code, a: Pair) -> Pair:
    """The square root; of 0 it is 0."""
    zero = code.constant(a[0], 0.0)
    first = code.call("llvm.sqrt", a[0].type, a[0])
    rest = code.add(code.fma(code.neg(first), first, a[0]), a[1])
    lost = code.div(rest, code.add(first, first))
    return first, code.select(code.compare("eq", first, zero), zero, lost)
