# SPDX-License-Identifier: Apache-2.0
"""What every exported C header for a GPU has: the CUDA driver's functions that it calls, found by their names."""

from __future__ import annotations

GPU = """\
#ifndef FUSEC_C_GPU
#define FUSEC_C_GPU
/* Prototypes of cuda.h: CUresult, CUdevice and enumerations are int, handles are pointers, CUdeviceptr is uint64_t. */
typedef struct { uint64_t words[16]; } __attribute__((aligned(64))) fusec_map; /* CUtensorMap */
typedef struct { int id, padding; union { char room[64]; int value; } of; } fusec_attribute; /* CUlaunchAttribute */
typedef struct { /* CUlaunchConfig */
  unsigned grid[3], block[3], shared;
  void *stream;
  fusec_attribute *attributes;
  unsigned count;
} fusec_config;

typedef struct {
  void *context;
  int device, is_primary;
  int (*cuInit)(unsigned);
  int (*cuGetErrorName)(int, const char **);
  int (*cuDeviceGet)(int *, int);
  int (*cuDeviceGetAttribute)(int *, int, int);
  int (*cuDevicePrimaryCtxRetain)(void **, int);
  int (*cuDevicePrimaryCtxRelease_v2)(int);
  int (*cuCtxGetCurrent)(void **);
  int (*cuCtxGetDevice)(int *);
  int (*cuCtxPushCurrent_v2)(void *);
  int (*cuCtxPopCurrent_v2)(void **);
  int (*cuModuleLoadData)(void **, const void *);
  int (*cuModuleGetFunction)(void **, void *, const char *);
  int (*cuModuleUnload)(void *);
  int (*cuFuncSetAttribute)(void *, int, int);
  int (*cuMemAlloc_v2)(uint64_t *, size_t);
  int (*cuMemFree_v2)(uint64_t);
  int (*cuMemAllocAsync)(uint64_t *, size_t, void *);
  int (*cuMemFreeAsync)(uint64_t, void *);
  int (*cuMemcpyHtoD_v2)(uint64_t, const void *, size_t);
  int (*cuMemcpyDtoH_v2)(void *, uint64_t, size_t);
  int (*cuStreamSynchronize)(void *);
  int (*cuLaunchKernel)(
      void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
  int (*cuLaunchKernelEx)(const fusec_config *, void *, void **, void **);
  int (*cuTensorMapEncodeTiled)(
      fusec_map *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *, int,
      int, int, int);
  int (*cuTensorMapEncodeIm2col)(
      fusec_map *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const int *, const int *, uint32_t,
      uint32_t, const uint32_t *, int, int, int, int);
} fusec_gpu;

/* The driver's last error of this thread, by its name in cuda.h. */
static __thread const char *fusec_gpu_said = "CUDA_SUCCESS";
static inline const char *fusec_gpu_error(void) { return fusec_gpu_said; }

static inline int fusec_said(const fusec_gpu *gpu, int code, int status) {
  if (code == 0) return FUSEC_OK;
  fusec_gpu_said = "unknown error";
  gpu->cuGetErrorName(code, &fusec_gpu_said);
  return code == 2 ? FUSEC_NO_MEMORY : status;
}

/* Opens the driver, and finds the device of the thread's context, or the first. arch: ten times its compute
 * capability. */
static inline int fusec_find(fusec_gpu *gpu, int arch) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == NULL) return FUSEC_NO_GPU;
  const struct { const char *name; void *function; } entries[] = {
#define FUSEC_ENTRY(name) {#name, &gpu->name}
    FUSEC_ENTRY(cuInit), FUSEC_ENTRY(cuGetErrorName), FUSEC_ENTRY(cuDeviceGet), FUSEC_ENTRY(cuDeviceGetAttribute),
    FUSEC_ENTRY(cuDevicePrimaryCtxRetain), FUSEC_ENTRY(cuDevicePrimaryCtxRelease_v2), FUSEC_ENTRY(cuCtxGetCurrent),
    FUSEC_ENTRY(cuCtxGetDevice), FUSEC_ENTRY(cuCtxPushCurrent_v2), FUSEC_ENTRY(cuCtxPopCurrent_v2),
    FUSEC_ENTRY(cuModuleLoadData), FUSEC_ENTRY(cuModuleGetFunction), FUSEC_ENTRY(cuModuleUnload),
    FUSEC_ENTRY(cuFuncSetAttribute), FUSEC_ENTRY(cuMemAlloc_v2), FUSEC_ENTRY(cuMemFree_v2),
    FUSEC_ENTRY(cuMemAllocAsync), FUSEC_ENTRY(cuMemFreeAsync), FUSEC_ENTRY(cuMemcpyHtoD_v2),
    FUSEC_ENTRY(cuMemcpyDtoH_v2), FUSEC_ENTRY(cuStreamSynchronize), FUSEC_ENTRY(cuLaunchKernel),
    FUSEC_ENTRY(cuLaunchKernelEx), FUSEC_ENTRY(cuTensorMapEncodeTiled), FUSEC_ENTRY(cuTensorMapEncodeIm2col),
#undef FUSEC_ENTRY
  };
  for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
    void *found = dlsym(library, entries[i].name);
    if (found == NULL) return FUSEC_NO_GPU; /* the driver is too old */
    memcpy(entries[i].function, &found, sizeof found);
  }
  int status = fusec_said(gpu, gpu->cuInit(0), FUSEC_NO_GPU), major = 0, minor = 0;
  void *context = NULL;
  if (status == FUSEC_OK) status = fusec_said(gpu, gpu->cuCtxGetCurrent(&context), FUSEC_NO_GPU);
  if (status == FUSEC_OK)
    status = fusec_said(
        gpu, context != NULL ? gpu->cuCtxGetDevice(&gpu->device) : gpu->cuDeviceGet(&gpu->device, 0), FUSEC_NO_GPU);
  /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR */
  if (status == FUSEC_OK)
    status = fusec_said(gpu, gpu->cuDeviceGetAttribute(&major, 75, gpu->device), FUSEC_NO_GPU);
  if (status == FUSEC_OK)
    status = fusec_said(gpu, gpu->cuDeviceGetAttribute(&minor, 76, gpu->device), FUSEC_NO_GPU);
  if (status == FUSEC_OK && 10 * major + minor != arch) status = FUSEC_WRONG_GPU;
  if (status == FUSEC_OK && context == NULL) {
    status = fusec_said(gpu, gpu->cuDevicePrimaryCtxRetain(&context, gpu->device), FUSEC_NO_GPU);
    gpu->is_primary = status == FUSEC_OK;
  }
  if (status == FUSEC_OK) gpu->context = context;
  return status;
}

/* Makes the model's context the thread's own, where it is not. */
static inline int fusec_enter(const fusec_gpu *gpu, int *entered) {
  void *current = NULL;
  int code = gpu->cuCtxGetCurrent(&current);
  if (code == 0 && current != gpu->context) {
    code = gpu->cuCtxPushCurrent_v2(gpu->context);
    *entered = code == 0;
  }
  return fusec_said(gpu, code, FUSEC_FAILED);
}

static inline int fusec_take(const fusec_gpu *gpu, char **memory, int64_t size, void *stream) {
  uint64_t address = 0;
  if (size == 0) return FUSEC_OK;
  const int status = fusec_said(gpu, gpu->cuMemAllocAsync(&address, (size_t)size, stream), FUSEC_FAILED);
  *memory = (char *)(uintptr_t)address;
  return status;
}

/* Lets go of scratch and context; the first failure. */
static inline int fusec_leave(const fusec_gpu *gpu, char *memory, void *stream, int entered, int status) {
  void *popped = NULL;
  int code = memory != NULL ? gpu->cuMemFreeAsync((uint64_t)(uintptr_t)memory, stream) : 0;
  if (status == FUSEC_OK) status = fusec_said(gpu, code, FUSEC_FAILED);
  if (entered) gpu->cuCtxPopCurrent_v2(&popped);
  return status;
}

static inline int fusec_encode(
    const fusec_gpu *gpu, fusec_map *map, int element, uint32_t rank, uint64_t address, const uint64_t *sizes,
    const uint64_t *strides, const uint32_t *box, const uint32_t *steps, const int *low, const int *high, int swizzle,
    int promotion, int fill) {
  void *memory = (void *)(uintptr_t)address;
  const int code =
      low == NULL
          ? gpu->cuTensorMapEncodeTiled(
                map, element, rank, memory, sizes, strides, box, steps, 0, swizzle, promotion, fill)
          : gpu->cuTensorMapEncodeIm2col(
                map, element, rank, memory, sizes, strides, low, high, box[0], box[1], steps, 0, swizzle, promotion,
                fill);
  return fusec_said(gpu, code, FUSEC_FAILED);
}

/* A kernel that overlaps may start before the one ahead of it has ended, for which it waits itself. */
static inline int fusec_launch(
    const fusec_gpu *gpu, void *function, int64_t x, int64_t y, int64_t z, unsigned threads, unsigned shared,
    int overlaps, void *stream, void **parameters) {
  if (x == 0 || y == 0 || z == 0) return FUSEC_OK;
  if (!overlaps)
    return fusec_said(
        gpu,
        gpu->cuLaunchKernel(
            function, (unsigned)x, (unsigned)y, (unsigned)z, threads, 1, 1, shared, stream, parameters, NULL),
        FUSEC_FAILED);
  fusec_attribute attribute = {6, 0, {{0}}}; /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
  attribute.of.value = 1;
  fusec_config config = {
      {(unsigned)x, (unsigned)y, (unsigned)z}, {threads, 1, 1}, shared, stream, &attribute, 1};
  return fusec_said(gpu, gpu->cuLaunchKernelEx(&config, function, parameters, NULL), FUSEC_FAILED);
}

typedef struct { size_t offset; int shared; const char *name; } fusec_code;

/* Loads each kernel's module. More than 32 KiB of dynamic shared memory is asked for. */
static inline int fusec_load(
    const fusec_gpu *gpu, const char *cubins, const fusec_code *code, int count, void **modules, void **kernels) {
  int entered = 0, status = fusec_enter(gpu, &entered);
  for (int i = 0; i < count && status == FUSEC_OK; i++) {
    int failed = gpu->cuModuleLoadData(&modules[i], cubins + code[i].offset);
    if (failed == 0) failed = gpu->cuModuleGetFunction(&kernels[i], modules[i], code[i].name);
    /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
    if (failed == 0 && code[i].shared > 32 * 1024) failed = gpu->cuFuncSetAttribute(kernels[i], 8, code[i].shared);
    status = fusec_said(gpu, failed, FUSEC_FAILED);
  }
  return fusec_leave(gpu, NULL, NULL, entered, status);
}

static inline void fusec_unload(const fusec_gpu *gpu, void **modules, int count) {
  int entered = 0;
  if (gpu->context == NULL || fusec_enter(gpu, &entered) != FUSEC_OK) return;
  for (int i = 0; i < count; i++)
    if (modules[i] != NULL) gpu->cuModuleUnload(modules[i]);
  fusec_leave(gpu, NULL, NULL, entered, FUSEC_OK);
}

/* Bytes in the GPU's memory: a copy of those of the host, where they are given. */
static inline int fusec_send(const fusec_gpu *gpu, const void *bytes, size_t size, char **memory) {
  uint64_t address = 0;
  int entered = 0, status = fusec_enter(gpu, &entered);
  if (status != FUSEC_OK || size == 0) return fusec_leave(gpu, NULL, NULL, entered, status);
  status = fusec_said(gpu, gpu->cuMemAlloc_v2(&address, size), FUSEC_NO_MEMORY);
  if (status == FUSEC_OK) *memory = (char *)(uintptr_t)address;
  if (status == FUSEC_OK && bytes != NULL)
    status = fusec_said(gpu, gpu->cuMemcpyHtoD_v2(address, bytes, size), FUSEC_FAILED);
  return fusec_leave(gpu, NULL, NULL, entered, status);
}

/* Copies memory of the GPU to the host, after all that the stream does. */
static inline int fusec_receive(const fusec_gpu *gpu, void *bytes, const void *memory, size_t size, void *stream) {
  int entered = 0, status = fusec_enter(gpu, &entered);
  if (status == FUSEC_OK) status = fusec_said(gpu, gpu->cuStreamSynchronize(stream), FUSEC_FAILED);
  if (status == FUSEC_OK)
    status = fusec_said(gpu, gpu->cuMemcpyDtoH_v2(bytes, (uint64_t)(uintptr_t)memory, size), FUSEC_FAILED);
  return fusec_leave(gpu, NULL, NULL, entered, status);
}

static inline void fusec_drop(const fusec_gpu *gpu, char *memory) {
  int entered = 0;
  if (memory == NULL || fusec_enter(gpu, &entered) != FUSEC_OK) return;
  gpu->cuMemFree_v2((uint64_t)(uintptr_t)memory);
  fusec_leave(gpu, NULL, NULL, entered, FUSEC_OK);
}

/* Lets go of the device. */
static inline void fusec_lose(fusec_gpu *gpu) {
  if (gpu->is_primary) gpu->cuDevicePrimaryCtxRelease_v2(gpu->device);
  gpu->context = NULL;
  gpu->is_primary = 0;
}
#endif
"""
"""Finding a device, loading cubins, memory, tensor maps and launches."""
