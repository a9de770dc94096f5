// Fused multiply-adds on registers only: what one core can do at most. WIDTH is the bytes of a vector.
// Enough independent chains to cover the latency of two vector units. Returns a value so that nothing is dropped.

constexpr int chains = 20;
typedef float vector __attribute__((vector_size(WIDTH)));

extern "C" float multiply_add(long steps, float scale, float shift) {
    const vector a = vector{} + scale, b = vector{} + shift;
    vector sums[chains];
    for (int c = 0; c < chains; ++c) sums[c] = b * float(c);
    for (long i = 0; i < steps; ++i) {
#pragma GCC unroll 20
        for (int c = 0; c < chains; ++c) sums[c] = sums[c] * a + b;
    }
    vector total = sums[0];
    for (int c = 1; c < chains; ++c) total += sums[c];
    return total[0];
}
