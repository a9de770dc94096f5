// Reads or copies memory with all threads: the most that main memory gives.
// WIDTH is the bytes of a vector. Copies go past the caches where the processor has such stores.

#include <atomic>
#include <cstddef>
#ifdef __x86_64__
#include <immintrin.h>
#endif

typedef float vector __attribute__((vector_size(WIDTH), aligned(4)));

constexpr int lines = 8, ahead = 4096;

static float sum(const char *from, size_t size) {
    vector sums[lines] = {};
    for (size_t i = 0; i + lines * WIDTH <= size; i += lines * WIDTH)
        for (int k = 0; k < lines; ++k) {
            __builtin_prefetch(from + i + k * WIDTH + ahead);
            sums[k] += *reinterpret_cast<const vector *>(from + i + k * WIDTH);
        }
    for (int k = 1; k < lines; ++k) sums[0] += sums[k];
    return sums[0][0];
}

static void copy(char *to, const char *from, size_t size) {
    for (size_t i = 0; i + WIDTH <= size; i += WIDTH) {
#if defined(__AVX512F__) && WIDTH == 64
        _mm512_stream_ps(reinterpret_cast<float *>(to + i), _mm512_loadu_ps(from + i));
#elif defined(__AVX__) && WIDTH == 32
        _mm256_stream_ps(reinterpret_cast<float *>(to + i), _mm256_loadu_ps(reinterpret_cast<const float *>(from + i)));
#else
        *reinterpret_cast<vector *>(to + i) = *reinterpret_cast<const vector *>(from + i);
#endif
    }
#ifdef __x86_64__
    _mm_sfence();
#endif
}

// Parts of a megabyte, each for the thread that is free: a thread that the machine holds up leaves its share to others.
template <class Part> static void in_threads(size_t size, int threads, Part part) {
    const size_t most = 1 << 20, parts = (size + most - 1) / most;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (size_t i = 0; i < parts; ++i) part(i * most, i + 1 < parts ? most : size - i * most);
}

extern "C" float read_all(const char *from, size_t size, int threads) {
    std::atomic<float> any;
    in_threads(size, threads, [&](size_t start, size_t part) { any = sum(from + start, part); });
    return any;
}

// ``to`` is a multiple of WIDTH, and so is ``size``.
extern "C" void copy_all(char *to, const char *from, size_t size, int threads) {
    in_threads(size, threads, [&](size_t start, size_t part) { copy(to + start, from + start, part); });
}
