// SPDX-License-Identifier: Apache-2.0
/* The CUDA driver: its types, and its functions by their names in the library. Built against Python's stable interface,
   so that one build serves any later Python. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUgraph_st *CUgraph;
typedef struct CUnode_st *CUgraphNode;
typedef struct CUexec_st *CUgraphExec;
typedef struct { _Alignas(64) uint64_t words[16]; } CUtensorMap;

/* CUDA_KERNEL_NODE_PARAMS_v2 */
typedef struct {
    CUfunction function;
    unsigned grid[3], block[3], shared;
    void **parameters, **extra;
    void *kernel;
    CUcontext context;
} NodeParameters;

/* CUlaunchAttribute and CUlaunchConfig */
typedef struct {
    int id;
    int padding;
    union {
        char room[64];
        int value;
    };
} Attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    CUstream stream;
    Attribute *attributes;
    unsigned count;
} LaunchConfig;

/* What a kernel has besides dynamic shared memory counts, too: far below the 48 KiB that need no asking. */
enum { MAX_DYNAMIC_SHARED = 8, STATIC_LIMIT = 32 * 1024, RELAXED = 2, STREAM_SERIALIZATION = 6 };

static struct {
    CUresult (*cuInit)(unsigned);
    CUresult (*cuGetErrorName)(CUresult, const char **);
    CUresult (*cuGetErrorString)(CUresult, const char **);
    CUresult (*cuCtxGetCurrent)(CUcontext *);
    CUresult (*cuCtxPushCurrent_v2)(CUcontext);
    CUresult (*cuCtxPopCurrent_v2)(CUcontext *);
    CUresult (*cuDeviceGet)(CUdevice *, int);
    CUresult (*cuDevicePrimaryCtxRetain)(CUcontext *, CUdevice);
    CUresult (*cuModuleLoadData)(CUmodule *, const void *);
    CUresult (*cuModuleGetFunction)(CUfunction *, CUmodule, const char *);
    CUresult (*cuModuleUnload)(CUmodule);
    CUresult (*cuFuncSetAttribute)(CUfunction, int, int);
    CUresult (*cuLaunchKernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                               CUstream, void **, void **);
    CUresult (*cuLaunchKernelEx)(const LaunchConfig *, CUfunction, void **, void **);
    CUresult (*cuTensorMapEncodeTiled)(CUtensorMap *, int, uint32_t, void *, const uint64_t *, const uint64_t *,
                                       const uint32_t *, const uint32_t *, int, int, int, int);
    CUresult (*cuTensorMapEncodeIm2col)(CUtensorMap *, int, uint32_t, void *, const uint64_t *, const uint64_t *,
                                        const int *, const int *, uint32_t, uint32_t, const uint32_t *, int, int, int,
                                        int);
    CUresult (*cuThreadExchangeStreamCaptureMode)(int *);
    CUresult (*cuStreamIsCapturing)(CUstream, int *);
    CUresult (*cuGraphCreate)(CUgraph *, unsigned);
    CUresult (*cuGraphAddKernelNode_v2)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const NodeParameters *);
    CUresult (*cuGraphInstantiateWithFlags)(CUgraphExec *, CUgraph, unsigned long long);
    CUresult (*cuGraphExecKernelNodeSetParams_v2)(CUgraphExec, CUgraphNode, const NodeParameters *);
    CUresult (*cuGraphLaunch)(CUgraphExec, CUstream);
    CUresult (*cuGraphDestroy)(CUgraph);
    CUresult (*cuGraphExecDestroy)(CUgraphExec);
} driver;

#define ENTRY(name) {#name, (void **)&driver.name}
static const struct {
    const char *name;
    void **function;
} ENTRIES[] = {
    ENTRY(cuInit),
    ENTRY(cuGetErrorName),
    ENTRY(cuGetErrorString),
    ENTRY(cuCtxGetCurrent),
    ENTRY(cuCtxPushCurrent_v2),
    ENTRY(cuCtxPopCurrent_v2),
    ENTRY(cuDeviceGet),
    ENTRY(cuDevicePrimaryCtxRetain),
    ENTRY(cuModuleLoadData),
    ENTRY(cuModuleGetFunction),
    ENTRY(cuModuleUnload),
    ENTRY(cuFuncSetAttribute),
    ENTRY(cuLaunchKernel),
    ENTRY(cuLaunchKernelEx),
    ENTRY(cuTensorMapEncodeTiled),
    ENTRY(cuTensorMapEncodeIm2col),
    ENTRY(cuThreadExchangeStreamCaptureMode),
    ENTRY(cuStreamIsCapturing),
    ENTRY(cuGraphCreate),
    ENTRY(cuGraphAddKernelNode_v2),
    ENTRY(cuGraphInstantiateWithFlags),
    ENTRY(cuGraphExecKernelNodeSetParams_v2),
    ENTRY(cuGraphLaunch),
    ENTRY(cuGraphDestroy),
    ENTRY(cuGraphExecDestroy),
};

static int is_open = 0;
static PyObject *fail = NULL; /* fail(code, name, text, doing) makes the exception */

static PyObject *error(CUresult code, const char *doing) {
    const char *name = "unknown error", *text = "";
    driver.cuGetErrorName(code, &name);
    driver.cuGetErrorString(code, &text);
    PyObject *made = PyObject_CallFunction(fail, "isss", (int)code, name, text, doing);
    if (made) {
        PyErr_SetObject((PyObject *)Py_TYPE(made), made);
        Py_DECREF(made);
    }
    return NULL;
}

/* open(path, fail): the driver's library; None, or the reason why it can't be used. */
static PyObject *open_driver(PyObject *self, PyObject *args) {
    const char *path;
    PyObject *maker;
    if (!PyArg_ParseTuple(args, "sO", &path, &maker)) return NULL;
    if (is_open) Py_RETURN_NONE;
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library) return PyUnicode_FromString(dlerror());
    for (size_t i = 0; i < sizeof ENTRIES / sizeof *ENTRIES; i++)
        if (!(*ENTRIES[i].function = dlsym(library, ENTRIES[i].name)))
            return PyUnicode_FromFormat("the driver has no %s; it is too old", ENTRIES[i].name);
    CUresult code = driver.cuInit(0);
    if (code) return PyUnicode_FromFormat("cuInit gave error %d", code);
    Py_INCREF(maker);
    fail = maker;
    is_open = 1;
    Py_RETURN_NONE;
}

static int needs_driver(void) {
    if (!is_open) PyErr_SetString(PyExc_RuntimeError, "the driver is not open");
    return !is_open;
}
