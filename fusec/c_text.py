# SPDX-License-Identifier: Apache-2.0
"""The parts of an exported C header that are the same in each."""

from __future__ import annotations

COMMON = """\
#ifndef FUSEC_C_RUNTIME
#define FUSEC_C_RUNTIME
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  FUSEC_OK, FUSEC_OUT_OF_RANGE, FUSEC_BAD_INDEX, FUSEC_NO_MEMORY, FUSEC_NO_FILE, FUSEC_FAILED,
  FUSEC_WRONG_CPU, /* the CPU lacks instructions that the code uses */
  FUSEC_NO_TILES,  /* the code uses AMX, whose registers Linux refuses to the process */
  FUSEC_DAMAGED,   /* a file is not the one that was exported with this header */
  FUSEC_NO_GPU,    /* there is no CUDA driver, or no device */
  FUSEC_WRONG_GPU  /* the GPU is of another architecture than the code */
};

static inline const char *fusec_strerror(int status) {
  switch (status) {
    case FUSEC_OK: return "no error";
    case FUSEC_OUT_OF_RANGE: return "a dimension is out of the range that was compiled";
    case FUSEC_BAD_INDEX: return "an index is out of range";
    case FUSEC_NO_MEMORY: return "out of memory";
    case FUSEC_NO_FILE: return "a file that belongs to the header, or libgomp.so.1, is missing or can't be loaded";
    case FUSEC_FAILED: return "a kernel has failed";
    case FUSEC_WRONG_CPU: return "the CPU lacks instructions that the code uses";
    case FUSEC_NO_TILES: return "Linux refuses AMX's registers to the process";
    case FUSEC_DAMAGED: return "a file is damaged, or not the one that was exported with the header";
    case FUSEC_NO_GPU: return "there is no GPU that can be used, or its driver is missing or too old";
    case FUSEC_WRONG_GPU: return "the GPU is of another architecture than the code";
    default: return "unknown status";
  }
}

static inline int64_t fusec_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t fusec_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t fusec_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a % b < 0) != (b < 0)); }

/* A whole file of so many bytes, in memory aligned to a cache line. Its words' sum, and their sum weighted by their
 * places, are those given. */
static inline int fusec_read(
    const char *folder, const char *file, size_t size, uint64_t sum, uint64_t weighted, char **data) {
  char path[4096];
  if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path) return FUSEC_NO_FILE;
  FILE *stream = fopen(path, "rb");
  if (stream == NULL) return FUSEC_NO_FILE;
  const size_t room = (size + 64) / 64 * 64;
  *data = (char *)aligned_alloc(64, room);
  if (*data == NULL) {
    fclose(stream);
    return FUSEC_NO_MEMORY;
  }
  memset(*data + room - 64, 0, 64);
  int whole = fread(*data, 1, size, stream) == size && fgetc(stream) == EOF;
  fclose(stream);
  for (size_t i = 0; whole && i < (size + 7) / 8; i++) {
    uint64_t word;
    memcpy(&word, *data + 8 * i, 8);
    sum -= word;
    weighted -= (uint64_t)(i + 1) * word;
  }
  if (whole && sum == 0 && weighted == 0) return FUSEC_OK;
  free(*data);
  *data = NULL;
  return FUSEC_DAMAGED;
}

/* Whether a file is the one that was exported. */
static inline int fusec_check(const char *folder, const char *file, size_t size, uint64_t sum, uint64_t weighted) {
  char *data = NULL;
  const int status = fusec_read(folder, file, size, sum, weighted, &data);
  free(data);
  return status;
}
#endif
"""
"""What every header has, once: statuses, index arithmetic, reading files."""

CPU = """\
#ifndef FUSEC_C_CPU
#define FUSEC_C_CPU
typedef struct { int32_t type; uint32_t zero; int64_t value; } fusec_any;
typedef int (*fusec_kernel)(void *, const fusec_any *, int32_t, fusec_any *);

static inline fusec_any fusec_int(int64_t value) { fusec_any a = {1, 0, value}; return a; }

/* Whether Linux lists all of these features, which spaces separate, for the first CPU; yes where it lists none. */
static inline int fusec_has(const char *features) {
  char line[16384] = "";
  FILE *stream = fopen("/proc/cpuinfo", "r");
  while (stream != NULL && strncmp(line, "flags", 5) != 0 && strncmp(line, "Features", 8) != 0)
    if (fgets(line, sizeof line, stream) == NULL) line[0] = 0, fclose(stream), stream = NULL;
  if (stream == NULL) return 1;
  fclose(stream);
  while (*features != 0) {
    const size_t length = strcspn(features, " ");
    const char *at = strchr(line, ' ');
    while (at != NULL && !(strncmp(at + 1, features, length) == 0 && strchr(" \\n", at[length + 1]) != NULL))
      at = strchr(at + 1, ' ');
    if (at == NULL) return 0;
    features += length + (features[length] == ' ');
  }
  return 1;
}

/* Opens a shared object and finds its kernels; threads come from GNU's OpenMP library. */
static void *fusec_open(
    const char *folder, const char *file, const char *const *names, int count, fusec_kernel *kernels) {
  char path[4096];
  if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path) return NULL;
  void *threads = dlopen("libgomp.so.1", RTLD_NOW | RTLD_GLOBAL);
  void *module = threads != NULL ? dlopen(path, RTLD_LAZY | RTLD_LOCAL) : NULL;
  if (module == NULL) return NULL;
  fusec_kernel setup = (fusec_kernel)dlsym(module, "__tvm_ffi_fusec_setup");
  const fusec_any calls[] = {
    fusec_int((int64_t)dlsym(threads, "GOMP_parallel")), fusec_int((int64_t)dlsym(threads, "omp_get_num_threads")),
    fusec_int((int64_t)dlsym(threads, "omp_get_thread_num")), fusec_int((int64_t)dlsym(threads, "omp_get_max_threads")),
    fusec_int((int64_t)dlsym(threads, "pthread_self")), fusec_int((int64_t)dlsym(threads, "sched_yield"))};
  fusec_any result = {0, 0, 0};
  if (setup == NULL || setup(NULL, calls, 6, &result) != 0) return NULL;
  for (int i = 0; i < count; i++) {
    kernels[i] = (fusec_kernel)dlsym(module, names[i]);
    if (kernels[i] == NULL) return NULL;
  }
  return module;
}
#endif
"""
"""The same for code for CPUs: what they have, and opening shared objects."""

TILES = """\
#if !defined(FUSEC_C_TILES) && defined(__linux__) && defined(__x86_64__)
#define FUSEC_C_TILES
#include <unistd.h>
#ifndef __cplusplus
long syscall(long number, ...);
#endif

/* Asks Linux for AMX's tile registers, for all threads of the process (ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA). */
static inline int fusec_allow_tiles(void) { return syscall(158L, 0x1023L, 18L) == 0; }
#endif
"""
"""The same for code that uses AMX."""
