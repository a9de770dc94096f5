# SPDX-License-Identifier: Apache-2.0
"""Numbers as the sum of two floats, of which the second holds what rounding the first lost.

After Dekker, *A floating-point technique for extending the available precision* (1971).
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
    """The rounded product and what rounding lost; without fused multiply-add for factors below 2**(bias - mantissa)."""
    product = code.mul(a, b)
    if code.fused:
        return product, code.fma(a, b, code.neg(product))
    (a_high, a_low), (b_high, b_low) = _halves(code, a), _halves(code, b)
    lost = code.sub(code.mul(a_high, b_high), product)
    lost = code.add(code.add(lost, code.mul(a_high, b_low)), code.mul(a_low, b_high))
    return product, code.add(lost, code.mul(a_low, b_low))


def _halves(code: Code, a: Value) -> Pair:
    """Parts of half as many digits (Veltkamp)."""
    spread = code.mul(a, code.constant(a, 4097.0 if a.type == "float32" else 134217729.0))
    high = code.sub(spread, code.sub(spread, a))
    return high, code.sub(a, high)


def product_less(code: Code, a: Value, b: Value, c: Value) -> Value:
    """``a*b - c`` to its last digit, where ``c`` is about the product."""
    if code.fused:
        return code.fma(a, b, code.neg(c))
    product, lost = two_product(code, a, b)
    return code.add(code.sub(product, c), lost)


def multiply(code: Code, a: Pair, b: Pair) -> Pair:
    product, lost = two_product(code, a[0], b[0])
    return product, code.fma(a[0], b[1], code.fma(a[1], b[0], lost))


def divide(code: Code, a: Pair, b: Pair) -> Pair:
    """The quotient of finite pairs whose divisor is not 0."""
    inverse = code.div(code.constant(b[0], 1.0), b[0])
    quotient = code.mul(a[0], inverse)
    rest = code.sub(code.fma(code.neg(quotient), b[1], a[1]), product_less(code, quotient, b[0], a[0]))
    return ordered_sum(code, quotient, code.mul(rest, inverse))


def root(code: Code, a: Pair) -> Pair:
    """The square root; of 0 it is 0."""
    zero = code.constant(a[0], 0.0)
    first = code.call("llvm.sqrt", a[0].type, a[0])
    rest = code.sub(a[1], product_less(code, first, first, a[0]))
    lost = code.div(rest, code.add(first, first))
    return first, code.select(code.compare("eq", first, zero), zero, lost)
