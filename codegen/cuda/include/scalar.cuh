// SPDX-License-Identifier: Apache-2.0
// Scalar functions of generated kernels, and vectors of neighbouring elements. No header of CUDA's is needed.
//
// Functions that CUDA has under the same name with the same meaning (exp, erf, fmod, ...) are not here.
#pragma once
#include "base.cuh"

using i8 = signed char;
using i16 = short;
using i64 = long long;
using u8 = unsigned char;

#define infinity __int_as_float(0x7f800000)
#define nan_value __int_as_float(0x7fffffff)

namespace fusec {

// N neighbouring elements, moved by as few instructions as their alignment allows (16 bytes each).
template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec {
    T at[N];
    T& operator[](int i) { return at[i]; }
    const T& operator[](int i) const { return at[i]; }
};

template <int N, typename T>
Vec<T, N> load(const T* from) {
    return *reinterpret_cast<const Vec<T, N>*>(from);
}

/// As `load`, of memory that no one writes, and where the code says: the compiler does not move it to where it is used.
template <int N, typename T>
Vec<T, N> load_ahead(const T* from) {
    Vec<T, N> found;
    if constexpr (sizeof(found) == 4) {
        asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(reinterpret_cast<u32&>(found)) : "l"(from));
    } else if constexpr (sizeof(found) == 8) {
        asm volatile("ld.global.nc.b64 %0, [%1];" : "=l"(reinterpret_cast<u64&>(found)) : "l"(from));
    } else {
        found = load<N>(from);
    }
    return found;
}

template <int N, typename T>
void store(T* to, const Vec<T, N>& value) {
    *reinterpret_cast<Vec<T, N>*>(to) = value;
}

// Comparisons in which a NaN wins (NumPy's maximum) or loses (its fmax).

inline float maximum(float a, float b) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}
inline float minimum(float a, float b) {
    float result;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}
template <typename T>
T maximum(T a, T b) {
    return a > b || a != a ? a : b;
}
template <typename T>
T minimum(T a, T b) {
    return a < b || a != a ? a : b;
}
template <typename T>
T number_maximum(T a, T b) {
    return a > b || b != b ? a : b;
}
template <typename T>
T number_minimum(T a, T b) {
    return a < b || b != b ? a : b;
}

// Integers wrap around, as NumPy's do.

template <typename T>
struct Unsigned {
    using type = T;
};
template <>
struct Unsigned<i8> {
    using type = u8;
};
template <>
struct Unsigned<i16> {
    using type = u16;
};
template <>
struct Unsigned<int> {
    using type = u32;
};
template <>
struct Unsigned<i64> {
    using type = u64;
};

template <typename T>
T wrapping_add(T a, T b) {
    using U = typename Unsigned<T>::type;
    return T(U(a) + U(b));
}
template <typename T>
T wrapping_sub(T a, T b) {
    using U = typename Unsigned<T>::type;
    return T(U(a) - U(b));
}
template <typename T>
T wrapping_mul(T a, T b) {
    using U = typename Unsigned<T>::type;
    return T(u64(U(a)) * u64(U(b)));
}

// Division of integers, by 0 gives 0; rounded down, with a remainder that has the divisor's sign.

template <typename T>
T floor_divide(T a, T b) {
    if (b == 0) return 0;
    if (T(-1) < T(0) && b == T(-1)) return wrapping_sub(T(0), a);
    const T quotient = a / b;
    return (a % b != 0 && (a < 0) != (b < 0)) ? quotient - 1 : quotient;
}
template <typename T>
T floor_remainder(T a, T b) {
    if (b == 0 || (T(-1) < T(0) && b == T(-1))) return 0;
    const T rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
template <typename T>
T truncated_remainder(T a, T b) {
    return b == 0 || (T(-1) < T(0) && b == T(-1)) ? T(0) : T(a % b);
}

// The same of floats, as Python has it: the quotient is that of a value less its remainder.

template <typename T>
T float_remainder(T a, T b) {
    const T rest = fmod(a, b);
    if (rest == T(0)) return copysign(T(0), b);
    return (rest < T(0)) != (b < T(0)) ? rest + b : rest;
}
template <typename T>
T float_floor_divide(T a, T b) {
    if (b == T(0)) return a / b;
    const T rest = fmod(a, b);
    T quotient = (a - rest) / b;
    if (rest != T(0) && (rest < T(0)) != (b < T(0))) quotient -= T(1);
    if (quotient == T(0)) return copysign(T(0), a / b);
    const T down = floor(quotient);
    return quotient - down > T(0.5) ? down + T(1) : down;
}

// A shift by the width or more gives what shifting one bit at a time would.

template <typename T>
T shift_left(T a, T b) {
    using U = typename Unsigned<T>::type;
    return U(b) >= 8 * sizeof(T) ? T(0) : T(u64(U(a)) << u64(b));
}
template <typename T>
T shift_right(T a, T b) {
    using U = typename Unsigned<T>::type;
    return U(b) >= 8 * sizeof(T) ? T(a < 0 ? -1 : 0) : T(a >> b);
}

// Powers of integers; to a negative power, truncated toward zero.
template <typename T>
T integer_power(T base, T exponent) {
    if (exponent < 0) return base == 1 ? T(1) : base == T(-1) ? T(exponent % 2 ? -1 : 1) : T(0);
    T result = 1;
    for (; exponent; exponent >>= 1, base = wrapping_mul(base, base))
        if (exponent & 1) result = wrapping_mul(result, base);
    return result;
}

template <typename T>
T sign(T x) {
    return x > T(0) ? T(1) : x < T(0) ? T(-1) : x;
}
template <typename T>
T magnitude(T x) {
    return x < 0 ? wrapping_sub(T(0), x) : x;
}
template <typename T>
bool is_infinite(T x) {
    return fabs(x) == T(infinity);
}
template <typename T>
bool is_finite(T x) {
    return fabs(x) < T(infinity);
}
template <typename T>
T clamped(T i, T last) {
    return i < 0 ? T(0) : i > last ? last : i;
}

// Where every result is a half type: hardware's approximations, a few units of f32 off.

inline float fast_tanh(float x) { return 1.0f - __fdividef(2.0f, __expf(2.0f * x) + 1.0f); }
// Where every result is bf16: 2⁻¹¹ relative, a quarter of its rounding.
inline float coarse_tanh(float x) {
    float result;
    asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
// erf(x) = tanh(x P(x²)): P fitted to 6e-5 relative in erf up to x = 4, from where erf is 1.
inline float coarse_erf(float x) {
    float u = fminf(x * x, 16.0f);
    return coarse_tanh(x * (1.12831393f + u * (0.10364079f - 0.00161515f * u)));
}
inline float fast_exp2(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
inline float fast_exp(float x) { return fast_exp2(x * 1.4426950408889634f); }

}  // namespace fusec
