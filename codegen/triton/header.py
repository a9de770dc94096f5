# SPDX-License-Identifier: Apache-2.0
"""What stands before the kernels of a Triton module: imports, and functions that kernels call."""

from __future__ import annotations

HEADER = """import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _product(a, b):
    return a * b


@triton.jit
def _sum(a, b):
    return a + b


@triton.jit
def _maximum(a, b):
    return tl.maximum(a, b)


@triton.jit
def _minimum(a, b):
    return tl.minimum(a, b)


@triton.jit
def _nan_maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _post(where, value, live):
    # A number and a mark behind it in one word of 64 bits: who sees the mark sees the number.
    word = (value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF) | (1 << 32)
    tl.atomic_xchg(where.to(tl.pointer_type(tl.int64)), word, mask=live, sem="relaxed")


@triton.jit
def _await(where, live):
    # What blocks before this one post. They are started before it, and wait for none behind them. Each number is one
    # thread's, or a thread might go on with what another has seen.
    where = where.to(tl.pointer_type(tl.int64))
    word = tl.load(where, mask=live, other=1 << 32, volatile=True)
    while tl.min(word >> 32) == 0:
        late = (word >> 32) == 0
        word = tl.where(late, tl.load(where, mask=live & late, other=0, volatile=True), word)
    return word.to(tl.int32)


@triton.jit
def _logaddexp(a, b):
    # Of two infinities alike it is that infinity.
    apart = tl.where(a == b, 0.0, -tl.abs(a - b))
    return _nan_maximum(a, b) + libdevice.log1p(tl.exp(apart))


@triton.jit
def _exponentials(a, s, b, t):
    # s exponentials of a and t of b, as so many of the larger of the two.
    power = tl.exp(tl.where(a == b, 0.0, -tl.abs(a - b)))
    return _nan_maximum(a, b), tl.where(a >= b, s + t * power, t + s * power)


@triton.jit
def _log_sums(value, before, first, axis: tl.constexpr, reverse: tl.constexpr):
    # Running sums of exponentials below the largest number of all; where sums begin so far below that their logarithms
    # lose digits, below the largest so far. NaN and infinities take the second way.
    top = _nan_maximum(tl.expand_dims(tl.reduce(value, axis, _nan_maximum), axis), before)
    start = tl.maximum(tl.expand_dims(tl.sum(tl.where(first, value, 0.0), axis), axis), before)
    if tl.min((top - start <= 16.0).to(tl.int32)) == 1:
        sums = tl.associative_scan(tl.exp(value - top), axis, _sum, reverse=reverse) + tl.exp(before - top)
        running = top + tl.log(sums)
    else:
        ones = tl.full(value.shape, 1.0, value.dtype)
        most, sums = tl.associative_scan((value, ones), axis, _exponentials, reverse=reverse)
        running = _logaddexp(before, most + tl.log(sums))
    return running


@triton.jit
def _nan_minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _from_f8e4m3(x):
    size = (x & 0x7F).to(tl.int32)
    number = ((size << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36).to(tl.int32, bitcast=True)  # 2**120
    found = tl.where(size == 0x7F, 0x7FC00000, number)
    return (found | ((x & 0x80).to(tl.int32) << 24)).to(tl.float32, bitcast=True)


@triton.jit
def _from_f8e5m2(x):
    size = (x & 0x7F).to(tl.int32)
    number = ((size << 21).to(tl.float32, bitcast=True) * 5.192296858534828e33).to(tl.int32, bitcast=True)  # 2**112
    found = tl.where(size >= 0x7C, (size << 21) | 0x7F800000, number)
    return (found | ((x & 0x80).to(tl.int32) << 24)).to(tl.float32, bitcast=True)


@triton.jit
def _to_f8e4m3(x):
    # Beyond the largest number it is NaN; for subnormal results a sum that has their last digit does the rounding.
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    usual = (size - 0x3BF80001 + ((size >> 20) & 1)) >> 20
    small = (tl.abs(x) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    found = tl.where(size < 0x3C800000, small, usual)
    found = tl.where(size >= 0x43F00000, 0x7F, found)
    return (found | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def _to_f8e5m2(x):
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    usual = (size - 0x37F00001 + ((size >> 21) & 1)) >> 21
    small = (tl.abs(x) + 128.0).to(tl.int32, bitcast=True) - 0x43000000
    found = tl.where(size < 0x38800000, small, usual)
    found = tl.where(size >= 0x47800000, tl.where(size > 0x7F800000, 0x7F, 0x7C), found)
    return (found | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def _reciprocal(b):
    # A power of two that keeps the divisor in range, and 1 / b as a sum of two numbers, to 46 digits. 0, infinity and
    # NaN have nothing to add.
    scale = tl.where(tl.abs(b) < 5.421010862427522e-20, 18446744073709551616.0, 1.0)  # 2**-64, 2**64
    scale = tl.where(tl.abs(b) > 18446744073709551616.0, 5.421010862427522e-20, scale)
    b = b * scale
    near = tl.div_rn(tl.full((), 1.0, tl.float32), b)
    high = near * 0.9999998807907104  # 1 - 2**-23
    low = tl.fma(-b, high, tl.full((), 1.0, tl.float32)) * near
    usual = (tl.abs(b) > 0) & (tl.abs(b) <= 18446744073709551616.0)
    return scale, tl.where(usual, high, near), tl.where(usual, low, near)


@triton.jit
def _quotient(a, scale, high, low):
    a = a * scale
    return tl.fma(a, low, a * high)


@triton.jit
def _exp_below(x):
    # log2(e) in two parts: one f32 would make each sum of exponentials 5e-8 too large
    return tl.exp2(tl.fma(x, 1.925963033500011e-08, x * 1.4426950216293335))


@triton.jit
def _tf32(x):
    # Tensor cores cut digits off: round to the nearest number of 10 digits before.
    rounded = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    return tl.where(x == x, rounded.to(tl.float32, bitcast=True), x)
"""
