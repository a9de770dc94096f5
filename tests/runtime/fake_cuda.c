/* A CUDA driver that notes what it is asked: for tests of fusec/runtime/launch.c on machines without a GPU. */

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static char notes[1 << 16];
static int next_error, capturing, current = 1;
static uint64_t nodes;
static int graphs;

const char *fake_notes(void) { return notes; }
void fake_clear(void) { notes[0] = 0; }
void fake_fail(int code) { next_error = code; }
void fake_capture(int on) { capturing = on; }

static void say(const char *what, uint64_t a, uint64_t b) {
    snprintf(notes + strlen(notes), sizeof notes - strlen(notes), "%s %llu %llu\n", what, (unsigned long long)a,
             (unsigned long long)b);
}

static int note(const char *what, uint64_t a, uint64_t b) {
    say(what, a, b);
    int code = next_error;
    next_error = 0;
    return code;
}

typedef struct { uint64_t words[16]; } Map;
typedef struct {
    uint64_t function;
    unsigned grid[3], block[3], shared;
    void **parameters, **extra;
    void *kernel, *context;
} Node;

int cuInit(unsigned flags) { return 0; }
int cuGetErrorName(int code, const char **name) { *name = code == 700 ? "ILLEGAL_ADDRESS" : "SOME_ERROR"; return 0; }
int cuGetErrorString(int code, const char **text) { *text = "what happened"; return 0; }
int cuCtxGetCurrent(uint64_t *context) { *context = (uint64_t)current; return 0; }
int cuCtxPushCurrent_v2(uint64_t context) { current = (int)context; return note("push", context, 0); }
int cuCtxPopCurrent_v2(uint64_t *context) { current = 1; return note("pop", 0, 0); }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(uint64_t *context, int device) { *context = 1 + (uint64_t)device; return 0; }
int cuModuleLoadData(uint64_t *module, const void *code) { *module = 7; return note("load", *(const char *)code, 0); }
int cuModuleGetFunction(uint64_t *function, uint64_t module, const char *name) { *function = (uint64_t)name[0]; return 0; }
int cuModuleUnload(uint64_t module) { return note("unload", module, 0); }
int cuFuncSetAttribute(uint64_t function, int what, int value) { return note("shared", function, (uint64_t)value); }
int cuThreadExchangeStreamCaptureMode(int *mode) { return 0; }
int cuStreamIsCapturing(uint64_t stream, int *status) { *status = capturing; return 0; }

int cuLaunchKernel(uint64_t function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, uint64_t stream, void **parameters, void **extra) {
    say("grid", x * 10000 + y * 100 + z, bx);
    return note("launch", *(uint64_t *)parameters[0], stream);
}

typedef struct { int id, padding, value, room[15]; } Attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    uint64_t stream;
    Attribute *attributes;
    unsigned count;
} Config;
int cuLaunchKernelEx(const Config *config, uint64_t function, void **parameters, void **extra) {
    say("early", (uint64_t)config->attributes->id, (uint64_t)config->attributes->value * 10 + config->count);
    return note("launch", *(uint64_t *)parameters[0], config->stream);
}

int cuTensorMapEncodeTiled(Map *map, int element, uint32_t rank, void *address, const uint64_t *sizes,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                           int swizzle, int promotion, int fill) {
    map->words[0] = (uint64_t)address + 5;
    return note("encode", (uint64_t)address, sizes[0] * 1000 + strides[0] * 10 + box[1]);
}

int cuTensorMapEncodeIm2col(Map *map, int element, uint32_t rank, void *address, const uint64_t *sizes,
                            const uint64_t *strides, const int *low, const int *high, uint32_t channels,
                            uint32_t windows, const uint32_t *steps, int interleave, int swizzle, int promotion,
                            int fill) {
    map->words[0] = (uint64_t)address + 7;
    return note("windows", (uint64_t)address, sizes[0] * 1000 + windows * 10 + steps[1]);
}

int cuGraphCreate(uint64_t *graph, unsigned flags) { graphs++; *graph = 9; return note("graph", 0, 0); }
int cuGraphAddKernelNode_v2(uint64_t *node, uint64_t graph, const uint64_t *after, size_t count, const Node *p) {
    *node = ++nodes;
    return note("node", *(uint64_t *)p->parameters[0], count);
}
int cuGraphInstantiateWithFlags(uint64_t *exec, uint64_t graph, unsigned long long flags) { *exec = 11; return 0; }
int cuGraphExecKernelNodeSetParams_v2(uint64_t exec, uint64_t node, const Node *p) {
    if (!graphs) return 1; /* a node lives as long as its graph */
    return note("set", *(uint64_t *)p->parameters[0], p->function);
}
int cuGraphLaunch(uint64_t exec, uint64_t stream) { return note("replay", exec, stream); }
int cuGraphDestroy(uint64_t graph) { graphs--; return 0; }
int cuGraphExecDestroy(uint64_t exec) { return note("destroy", exec, 0); }
