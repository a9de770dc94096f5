/* A CUDA driver that writes down what it is asked, with the bytes of each parameter: for tests of code that launches
 * kernels, on machines without a GPU. Its memory is the host's.
 *
 * FAKE_GPU_LOG: the file to write to. FAKE_GPU_PARAMETERS: a file with a line for each kernel, its name and the sizes
 * of its parameters. FAKE_GPU_ARCH: ten times the compute capability. FAKE_GPU_FAIL: a function's name and the error
 * that it gives. */

#include <elf.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char name[256]; int count, sizes[64]; } Kernel;

static int arch(void) { const char *said = getenv("FAKE_GPU_ARCH"); return said ? atoi(said) : 90; }

static FILE *out(void) {
  static FILE *file;
  if (!file) file = fopen(getenv("FAKE_GPU_LOG"), "a");
  return file;
}

static int said(const char *function) {
  const char *fails = getenv("FAKE_GPU_FAIL");
  fflush(out());
  return fails && strncmp(fails, function, strlen(function)) == 0 ? atoi(fails + strlen(function)) : 0;
}

static uint64_t digest(uint64_t hash, const void *bytes, size_t size) {
  for (size_t i = 0; i < size; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(1099511628211);
  return hash;
}

int cuInit(unsigned flags) { return said("cuInit") || flags; }
int cuGetErrorName(int code, const char **name) { *name = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR"; return 0; }
int cuGetErrorString(int code, const char **text) { *text = code ? "an error" : "none"; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return said("cuDeviceGet"); }
int cuDeviceGetAttribute(int *value, int which, int device) {
  *value = which == 75 ? arch() / 10 : which == 76 ? arch() % 10 : -1;
  return device;
}

static __thread uintptr_t current;
static int retained;
int cuDevicePrimaryCtxRetain(uintptr_t *context, int device) { *context = 100 + (uintptr_t)device; retained++; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { fprintf(out(), "release %d\n", --retained); return device; }
int cuCtxGetCurrent(uintptr_t *context) { *context = current; return 0; }
int cuCtxGetDevice(int *device) { *device = (int)(current - 100); return 0; }
int cuCtxPushCurrent_v2(uintptr_t context) { current = context; return said("cuCtxPushCurrent"); }
int cuCtxPopCurrent_v2(uintptr_t *context) { *context = current; current = 0; return 0; }
static void needs_context(void) { if (!current) { fprintf(out(), "no context\n"); } }

static int loaded;
int cuModuleLoadData(void **module, const void *image) {
  const Elf64_Ehdr *elf = image;
  const size_t sections = elf->e_shoff + (size_t)elf->e_shnum * elf->e_shentsize;
  const size_t segments = elf->e_phoff + (size_t)elf->e_phnum * elf->e_phentsize;
  needs_context();
  fprintf(out(), "load %016llx\n",
          (unsigned long long)digest(UINT64_C(14695981039346656037), image, sections > segments ? sections : segments));
  const int code = said("cuModuleLoadData");
  if (code) return code;
  *module = malloc(1);
  loaded++;
  return 0;
}
int cuModuleUnload(void *module) { needs_context(); free(module); fprintf(out(), "unload %d\n", --loaded); return 0; }
int cuModuleGetFunction(Kernel **kernel, void *module, const char *name) {
  char line[4096];
  FILE *file = fopen(getenv("FAKE_GPU_PARAMETERS"), "r");
  (void)module;
  *kernel = calloc(1, sizeof **kernel);
  while (file && fgets(line, sizeof line, file)) {
    char *word = strtok(line, " \n");
    if (strcmp(word, name) != 0) continue;
    while ((word = strtok(NULL, " \n"))) (*kernel)->sizes[(*kernel)->count++] = atoi(word);
  }
  if (file) fclose(file);
  snprintf((*kernel)->name, sizeof (*kernel)->name, "%s", name);
  return 0;
}
int cuFuncSetAttribute(Kernel *kernel, int what, int value) {
  fprintf(out(), "attribute %s %d %d\n", kernel->name, what, value);
  return 0;
}

static int launch(Kernel *kernel, const unsigned *grid, const unsigned *block, unsigned shared, uintptr_t stream,
                  int early, void **parameters) {
  needs_context();
  fprintf(out(), "launch %s %llu %u,%u,%u %u,%u,%u %u %d", kernel->name, (unsigned long long)stream, grid[0], grid[1],
          grid[2], block[0], block[1], block[2], shared, early);
  for (int i = 0; i < kernel->count; i++) {
    fputc(' ', out());
    for (int k = 0; k < kernel->sizes[i]; k++) fprintf(out(), "%02x", ((unsigned char *)parameters[i])[k]);
  }
  fputc('\n', out());
  return said("cuLaunchKernel");
}
int cuLaunchKernel(Kernel *kernel, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, uintptr_t stream, void **parameters, void **extra) {
  (void)extra;
  return launch(kernel, (unsigned[]){x, y, z}, (unsigned[]){bx, by, bz}, shared, stream, 0, parameters);
}
typedef struct { int id, padding; union { char room[64]; int value; } of; } Attribute;
typedef struct { unsigned grid[3], block[3], shared; uintptr_t stream; Attribute *attributes; unsigned count; } Config;
int cuLaunchKernelEx(const Config *c, Kernel *kernel, void **parameters, void **extra) {
  (void)extra;
  const int early = c->count == 1 && c->attributes->id == 6 ? c->attributes->of.value : -1;
  return launch(kernel, c->grid, c->block, c->shared, c->stream, early, parameters);
}

/* A map is a digest of all that it was made of, then the address. */
static int encode(uint64_t *map, const char *kind, int element, uint32_t rank, void *address, const uint64_t *sizes,
                  const uint64_t *strides, const uint32_t *steps, const int *settings, uint64_t hash) {
  memset(map, 0, 128);
  hash = digest(hash, kind, strlen(kind));
  hash = digest(hash, &element, sizeof element);
  hash = digest(hash, sizes, rank * sizeof *sizes);
  hash = digest(hash, strides, (rank - 1) * sizeof *strides);
  hash = digest(hash, steps, rank * sizeof *steps);
  map[0] = digest(hash, settings, 4 * sizeof *settings);
  map[1] = (uint64_t)(uintptr_t)address;
  return said("cuTensorMapEncode");
}
int cuTensorMapEncodeTiled(uint64_t *map, int element, uint32_t rank, void *address, const uint64_t *sizes,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                           int swizzle, int promotion, int fill) {
  const int settings[] = {interleave, swizzle, promotion, fill};
  return encode(map, "tiled", element, rank, address, sizes, strides, steps, settings, digest(1, box, rank * 4));
}
int cuTensorMapEncodeIm2col(uint64_t *map, int element, uint32_t rank, void *address, const uint64_t *sizes,
                            const uint64_t *strides, const int *low, const int *high, uint32_t channels,
                            uint32_t windows, const uint32_t *steps, int interleave, int swizzle, int promotion,
                            int fill) {
  const int settings[] = {interleave, swizzle, promotion, fill};
  const uint32_t box[] = {channels, windows};
  const uint64_t hash = digest(digest(digest(1, box, 8), low, (rank - 2) * 4), high, (rank - 2) * 4);
  return encode(map, "im2col", element, rank, address, sizes, strides, steps, settings, hash);
}

/* Memory */

static int blocks;
static int take(uint64_t *address, size_t size) {
  void *made = aligned_alloc(512, (size + 511) / 512 * 512);
  memset(made, 0xa5, size);
  *address = (uint64_t)(uintptr_t)made;
  blocks++;
  return 0;
}
static int give(uint64_t address) { free((void *)(uintptr_t)address); fprintf(out(), "free %d\n", --blocks); return 0; }
int cuMemAlloc_v2(uint64_t *address, size_t size) { needs_context(); int code = said("cuMemAlloc_v2"); return code ? code : take(address, size); }
int cuMemFree_v2(uint64_t address) { return give(address); }
int cuMemAllocAsync(uint64_t *address, size_t size, uintptr_t stream) {
  int code = said("cuMemAllocAsync");
  if (!code) take(address, size);
  if (!code) fprintf(out(), "take %llx %zu %llu\n", (unsigned long long)*address, size, (unsigned long long)stream);
  return code;
}
int cuMemFreeAsync(uint64_t address, uintptr_t stream) { (void)stream; return give(address); }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { needs_context(); memcpy((void *)(uintptr_t)to, from, size); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { needs_context(); memcpy(to, (void *)(uintptr_t)from, size); return 0; }
int cuStreamSynchronize(uintptr_t stream) { fprintf(out(), "wait %llu\n", (unsigned long long)stream); return said("cuStreamSynchronize"); }

/* What fusec's own launcher needs besides. */
int cuThreadExchangeStreamCaptureMode(int *mode) { return *mode == 99; }
int cuStreamIsCapturing(uintptr_t stream, int *status) { (void)stream; *status = 0; return 0; }
int cuGraphCreate(void) { return 801; }
int cuGraphAddKernelNode_v2(void) { return 801; }
int cuGraphInstantiateWithFlags(void) { return 801; }
int cuGraphExecKernelNodeSetParams_v2(void) { return 801; }
int cuGraphLaunch(void) { return 801; }
int cuGraphDestroy(void) { return 801; }
int cuGraphExecDestroy(void) { return 801; }
