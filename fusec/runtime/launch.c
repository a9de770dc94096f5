// SPDX-License-Identifier: Apache-2.0
/* Kernels through the CUDA driver: a prepared row of launches is one C call that takes integers.

   load(code, name, shared, device) -> (function, context, module)
   prepare(context, arguments, addresses, kernels, misaligned, graph) -> run(stream, argument, ...)
   graphs() -> how many graphs this process holds

   The first `addresses` arguments are addresses, the others sizes. `kernels` is a tuple of (function, module, (x, y,
   z), threads, shared, overlaps, parameters); a number of blocks below 0 is that of argument -1 - number at the call, where
   0 launches nothing. One that `overlaps` may start before the kernel ahead of it has ended, for which it waits itself
   (griddepcontrol), but in a graph. A parameter is the number of an argument, bytes (passed as they are), or (argument,
   element, sizes, strides, box, swizzle, promotion, fill, low, high, steps): a tensor map of the memory at that argument, sizes innermost
   first, strides in bytes without the innermost; a size or stride below 0 is that of argument -1 - number at the call.

   Where an address is no multiple of 16, `misaligned(stream, argument, ...)` is called instead, unless it is None. With
   `graph` the row is one CUDA graph, whose nodes get new addresses where they changed; while the stream is being
   captured by someone else the kernels are launched as they are. The interpreter's lock is not held in the driver. */

#include "driver.h"

/* Modules */

/* A loaded module. It is unloaded when nothing holds its capsule any more, unless a stream was being captured when one
   of its kernels was launched: a graph that someone else keeps may run that at any time. */
typedef struct {
    CUmodule module;
    CUcontext context;
    pid_t process;
    int captured;
} Loaded;

static const char LOADED[] = "fusec_launch.Loaded";

static void unload(PyObject *capsule) {
    Loaded *loaded = PyCapsule_GetPointer(capsule, LOADED);
    CUcontext popped;
    int mode = RELAXED; /* unloading is allowed while a stream is being captured */
    if (!loaded->captured && loaded->process == getpid() && !driver.cuCtxPushCurrent_v2(loaded->context)) {
        driver.cuThreadExchangeStreamCaptureMode(&mode);
        driver.cuModuleUnload(loaded->module); /* waits for what still runs; fails where the driver is gone */
        driver.cuThreadExchangeStreamCaptureMode(&mode);
        driver.cuCtxPopCurrent_v2(&popped);
    }
    free(loaded);
}

static PyObject *held(CUmodule module, CUcontext context) {
    Loaded *loaded = malloc(sizeof *loaded);
    if (!loaded) return PyErr_NoMemory();
    *loaded = (Loaded){.module = module, .context = context, .process = getpid()};
    PyObject *capsule = PyCapsule_New(loaded, LOADED, unload);
    if (!capsule) free(loaded);
    return capsule;
}

static PyObject *load(PyObject *self, PyObject *args) {
    const char *code, *name;
    Py_ssize_t size;
    int shared, ordinal;
    if (!PyArg_ParseTuple(args, "y#sii", &code, &size, &name, &shared, &ordinal) || needs_driver()) return NULL;
    CUdevice device;
    CUcontext context = NULL, popped;
    CUmodule module;
    CUfunction function = NULL;
    CUresult result;
    int mode = RELAXED; /* loading is allowed while a stream is being captured */
    Py_BEGIN_ALLOW_THREADS;
    result = driver.cuDeviceGet(&device, ordinal);
    if (!result) result = driver.cuDevicePrimaryCtxRetain(&context, device);
    if (!result) result = driver.cuCtxPushCurrent_v2(context);
    if (!result) {
        driver.cuThreadExchangeStreamCaptureMode(&mode);
        result = driver.cuModuleLoadData(&module, code);
        if (!result) result = driver.cuModuleGetFunction(&function, module, name);
        if (!result && shared > STATIC_LIMIT) result = driver.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED, shared);
        driver.cuThreadExchangeStreamCaptureMode(&mode);
        driver.cuCtxPopCurrent_v2(&popped);
    }
    Py_END_ALLOW_THREADS;
    if (result) return error(result, name);
    PyObject *capsule = held(module, context);
    if (!capsule) return NULL;
    return Py_BuildValue("KKN", (unsigned long long)(uintptr_t)function, (unsigned long long)(uintptr_t)context, capsule);
}

/* Prepared rows */

enum { RANK = 5, MAPS_KEPT = 4 };

typedef struct {
    int argument, element, rank, swizzle, promotion, fill, next;
    int64_t sizes[2 * RANK]; /* then strides; -1 - the number of the argument that says it */
    uint32_t box[RANK], steps[RANK];
    int windows, low[RANK], high[RANK]; /* axes with windows; 0 for a map of tiles */
    int count, offset, apart; /* maps that follow in one parameter, itself too; bytes from the address, and to the next */
    int sized; /* whether a size or a stride is an argument */
    uint64_t addresses[MAPS_KEPT], known[MAPS_KEPT][2 * RANK], maps[MAPS_KEPT][16];
} Map;

typedef struct {
    enum { ADDRESS, BYTES, MAP } kind;
    int index; /* of the argument, or of the map in the row */
    void *bytes;
} Parameter;

typedef struct {
    CUfunction function;
    PyObject *capsule; /* its module's, which it holds */
    Loaded *loaded;
    int grid[3]; /* -1 - the number of the argument that says it */
    unsigned threads, shared;
    int overlaps, count;
    Parameter *parameters;
    CUgraphNode node;
} Kernel;

typedef struct {
    PyObject_HEAD
    CUcontext context;
    int arguments, addresses, count, maps, widest, graph;
    Kernel *kernels;
    Map *map;
    PyObject *misaligned;
    CUgraph nodes; /* kept, because the nodes are its own */
    CUgraphExec exec;
    uint64_t *last; /* the addresses that the graph's nodes have */
    pthread_mutex_t lock;
} Row;

static long graphs_held = 0;

static void drop_graph(Row *row) {
    if (row->exec) driver.cuGraphExecDestroy(row->exec);
    if (row->nodes) __atomic_fetch_sub(&graphs_held, 1, __ATOMIC_RELAXED);
    if (row->nodes) driver.cuGraphDestroy(row->nodes);
    row->exec = NULL;
    row->nodes = NULL;
}

static void row_free(PyObject *self) {
    Row *row = (Row *)self;
    PyTypeObject *type = Py_TYPE(self);
    drop_graph(row);
    for (int k = 0; row->kernels && k < row->count; k++) {
        Kernel *kernel = &row->kernels[k];
        for (int i = 0; kernel->parameters && i < kernel->count; i++) free(kernel->parameters[i].bytes);
        free(kernel->parameters);
        Py_XDECREF(kernel->capsule);
    }
    free(row->kernels);
    free(row->map);
    free(row->last);
    Py_XDECREF(row->misaligned);
    pthread_mutex_destroy(&row->lock);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyType_Slot row_slots[] = {{Py_tp_dealloc, row_free}, {0, NULL}};
static PyType_Spec row_spec = {
    "fusec_launch.Row", sizeof(Row), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, row_slots,
};
static PyObject *row_type = NULL;

/* The numbers of a tuple; -1 with an exception set where it is none or too long. */
static int numbers(PyObject *tuple, int64_t *into) {
    Py_ssize_t n = PyTuple_Size(tuple);
    if (n > RANK) PyErr_SetString(PyExc_ValueError, "too many dimensions");
    for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++) into[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    return PyErr_Occurred() ? -1 : (int)n;
}

/* The same for numbers that may be negative. */
static int offsets(PyObject *tuple, int *into) {
    Py_ssize_t n = PyTuple_Size(tuple);
    if (n > RANK) PyErr_SetString(PyExc_ValueError, "too many dimensions");
    for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++) into[i] = (int)PyLong_AsLong(PyTuple_GetItem(tuple, i));
    return PyErr_Occurred() ? -1 : (int)n;
}

static int read_map(const Row *row, PyObject *record, Map *map) {
    PyObject *sizes, *strides, *box, *low, *high, *steps;
    int64_t widths[RANK] = {0}, apart[RANK] = {0};
    if (!PyArg_ParseTuple(record, "iiOOOiiiOOOii", &map->argument, &map->element, &sizes, &strides, &box, &map->swizzle,
                          &map->promotion, &map->fill, &low, &high, &steps, &map->count, &map->apart))
        return -1;
    map->rank = numbers(sizes, map->sizes);
    map->windows = offsets(low, map->low);
    if (map->rank < 0 || numbers(strides, map->sizes + RANK) < 0 || numbers(box, widths) < 0 || map->windows < 0 ||
        offsets(high, map->high) < 0 || numbers(steps, apart) < 0)
        return -1;
    for (int i = 0; i < RANK; i++) {
        map->box[i] = (uint32_t)widths[i];
        map->steps[i] = map->windows && i < map->rank ? (uint32_t)apart[i] : 1;
    }
    for (int i = 0; i < 2 * RANK; i++) {
        map->sized |= map->sizes[i] < 0;
        if (-1 - map->sizes[i] >= row->arguments) {
            PyErr_SetString(PyExc_ValueError, "a tensor map names an argument that is not there");
            return -1;
        }
    }
    return 0;
}

static int read_parameter(Row *row, PyObject *record, Parameter *into) {
    if (PyLong_Check(record)) {
        into->kind = ADDRESS;
        into->index = (int)PyLong_AsLong(record);
    } else if (PyBytes_Check(record)) {
        char *data;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(record, &data, &size)) return -1;
        into->kind = BYTES;
        if (!(into->bytes = malloc((size_t)size + 1))) return PyErr_NoMemory(), -1;
        memcpy(into->bytes, data, (size_t)size);
    } else {
        Map first = {0};
        if (read_map(row, record, &first)) return -1;
        Map *grown = realloc(row->map, sizeof(Map) * (size_t)(row->maps + first.count));
        if (!grown) return PyErr_NoMemory(), -1;
        row->map = grown;
        into->kind = MAP;
        into->index = row->maps;
        for (int i = 0; i < first.count; i++) {
            row->map[row->maps] = first;
            row->map[row->maps++].offset = i * first.apart;
        }
    }
    int argument = into->kind == MAP ? row->map[into->index].argument : into->kind == ADDRESS ? into->index : 0;
    if (!PyErr_Occurred() && (argument < 0 || argument >= row->arguments))
        PyErr_SetString(PyExc_ValueError, "a parameter names an argument that is not there");
    return PyErr_Occurred() ? -1 : 0;
}

static int read_kernel(Row *row, PyObject *record, Kernel *kernel) {
    unsigned long long function;
    PyObject *capsule, *parameters;
    if (!PyArg_ParseTuple(record, "KO(iii)IIpO!", &function, &capsule, &kernel->grid[0], &kernel->grid[1],
                          &kernel->grid[2], &kernel->threads, &kernel->shared, &kernel->overlaps, &PyTuple_Type,
                          &parameters) ||
        !(kernel->loaded = PyCapsule_GetPointer(capsule, LOADED)))
        return -1;
    kernel->function = (CUfunction)(uintptr_t)function;
    Py_INCREF(capsule);
    kernel->capsule = capsule;
    for (int axis = 0; axis < 3; axis++)
        if (-1 - kernel->grid[axis] >= row->arguments) {
            PyErr_SetString(PyExc_ValueError, "a grid names an argument that is not there");
            return -1;
        }
    int count = (int)PyTuple_Size(parameters);
    kernel->parameters = calloc((size_t)count + 1, sizeof(Parameter));
    if (!kernel->parameters) return PyErr_NoMemory(), -1;
    for (int i = 0; i < count; i++) {
        kernel->count = i + 1;
        if (read_parameter(row, PyTuple_GetItem(parameters, i), &kernel->parameters[i])) return -1;
    }
    if (count > row->widest) row->widest = count;
    return 0;
}

/* The driver's array of pointers to a kernel's parameters. */
static void point(const Kernel *kernel, uint64_t *addresses, CUtensorMap *maps, void **pointers) {
    for (int i = 0; i < kernel->count; i++) {
        const Parameter *p = &kernel->parameters[i];
        pointers[i] = p->kind == ADDRESS ? (void *)&addresses[p->index]
                      : p->kind == BYTES ? p->bytes
                                         : (void *)&maps[p->index];
    }
}

static unsigned blocks(const Kernel *kernel, const uint64_t *arguments, int axis) {
    int n = kernel->grid[axis];
    return (unsigned)(n < 0 ? arguments[-1 - n] : (uint64_t)n);
}

static int is_empty(const Kernel *kernel, const uint64_t *arguments) {
    return !blocks(kernel, arguments, 0) || !blocks(kernel, arguments, 1) || !blocks(kernel, arguments, 2);
}

static NodeParameters node_of(const Kernel *kernel, const uint64_t *arguments, void **pointers) {
    return (NodeParameters){
        .function = kernel->function,
        .grid = {blocks(kernel, arguments, 0), blocks(kernel, arguments, 1), blocks(kernel, arguments, 2)},
        .block = {kernel->threads, 1, 1},
        .shared = kernel->shared,
        .parameters = pointers,
    };
}

static CUresult launch_one(const Kernel *kernel, CUstream stream, const uint64_t *arguments, void **pointers) {
    unsigned x = blocks(kernel, arguments, 0), y = blocks(kernel, arguments, 1), z = blocks(kernel, arguments, 2);
    if (!kernel->overlaps)
        return driver.cuLaunchKernel(kernel->function, x, y, z, kernel->threads, 1, 1, kernel->shared, stream,
                                     pointers, NULL);
    Attribute attribute = {.id = STREAM_SERIALIZATION, .value = 1};
    LaunchConfig config = {
        .grid = {x, y, z},
        .block = {kernel->threads, 1, 1},
        .shared = kernel->shared,
        .stream = stream,
        .attributes = &attribute,
        .count = 1,
    };
    return driver.cuLaunchKernelEx(&config, kernel->function, pointers, NULL);
}

static CUresult launch_each(Row *row, CUstream stream, uint64_t *addresses, CUtensorMap *maps) {
    void *pointers[row->widest + 1];
    CUresult result = 0;
    for (int k = 0; k < row->count && !result; k++) {
        if (is_empty(&row->kernels[k], addresses)) continue;
        point(&row->kernels[k], addresses, maps, pointers);
        result = launch_one(&row->kernels[k], stream, addresses, pointers);
    }
    return result;
}

static CUresult make_graph(Row *row, uint64_t *addresses, CUtensorMap *maps) {
    void *pointers[row->widest + 1];
    CUresult result = driver.cuGraphCreate(&row->nodes, 0);
    if (!result) __atomic_fetch_add(&graphs_held, 1, __ATOMIC_RELAXED);
    for (int k = 0; k < row->count && !result; k++) {
        Kernel *kernel = &row->kernels[k];
        point(kernel, addresses, maps, pointers);
        NodeParameters p = node_of(kernel, addresses, pointers);
        const CUgraphNode *ahead = k ? &row->kernels[k - 1].node : NULL;
        result = driver.cuGraphAddKernelNode_v2(&kernel->node, row->nodes, ahead, k > 0, &p);
    }
    if (!result) result = driver.cuGraphInstantiateWithFlags(&row->exec, row->nodes, 0);
    return result;
}

static int has_moved(const Row *row, const Kernel *kernel, const uint64_t *addresses) {
    for (int i = 0; i < kernel->count; i++) {
        const Parameter *p = &kernel->parameters[i];
        int argument = p->kind == MAP ? row->map[p->index].argument : p->index;
        if (p->kind != BYTES && row->last[argument] != addresses[argument]) return 1;
    }
    return 0;
}

static CUresult launch_graph(Row *row, CUstream stream, uint64_t *addresses, CUtensorMap *maps) {
    void *pointers[row->widest + 1];
    CUresult result = 0;
    pthread_mutex_lock(&row->lock);
    if (!row->exec) {
        result = make_graph(row, addresses, maps);
    } else {
        for (int k = 0; k < row->count && !result; k++) {
            const Kernel *kernel = &row->kernels[k];
            if (!has_moved(row, kernel, addresses)) continue;
            point(kernel, addresses, maps, pointers);
            NodeParameters p = node_of(kernel, addresses, pointers);
            result = driver.cuGraphExecKernelNodeSetParams_v2(row->exec, kernel->node, &p);
        }
    }
    if (!result) {
        memcpy(row->last, addresses, sizeof(uint64_t) * (size_t)row->arguments);
        result = driver.cuGraphLaunch(row->exec, stream);
    } else { /* some nodes may have new addresses, so none are known */
        drop_graph(row);
    }
    pthread_mutex_unlock(&row->lock);
    return result;
}

/* The tensor maps of these addresses, from those kept or encoded now. */
static CUresult find_maps(Row *row, const uint64_t *addresses, CUtensorMap *into) {
    for (int m = 0; m < row->maps; m++) {
        Map *map = &row->map[m];
        uint64_t address = addresses[map->argument], sizes[2 * RANK], *strides = sizes + RANK;
        for (int i = 0; i < 2 * RANK; i++)
            sizes[i] = map->sizes[i] < 0 ? addresses[-1 - map->sizes[i]] : (uint64_t)map->sizes[i];
        int k = 0;
        while (k < MAPS_KEPT &&
               (map->addresses[k] != address || (map->sized && memcmp(map->known[k], sizes, sizeof sizes))))
            k++;
        if (k == MAPS_KEPT) {
            k = map->next;
            map->addresses[k] = 0;
            void *memory = (void *)(uintptr_t)(address + (uint64_t)map->offset);
            CUresult result =
                map->windows
                    ? driver.cuTensorMapEncodeIm2col(&into[m], map->element, (uint32_t)map->rank, memory, sizes,
                                                     strides, map->low, map->high, map->box[0], map->box[1],
                                                     map->steps, 0, map->swizzle, map->promotion, map->fill)
                    : driver.cuTensorMapEncodeTiled(&into[m], map->element, (uint32_t)map->rank, memory, sizes,
                                                    strides, map->box, map->steps, 0, map->swizzle,
                                                    map->promotion, map->fill);
            if (result) return result;
            memcpy(map->maps[k], into[m].words, sizeof into[m].words);
            memcpy(map->known[k], sizes, sizeof sizes);
            map->addresses[k] = address;
            map->next = (k + 1) % MAPS_KEPT;
        } else {
            memcpy(into[m].words, map->maps[k], sizeof into[m].words);
        }
    }
    return 0;
}

/* Makes the row's context the thread's own, where it is not; a thread that has called nothing before has none. */
static CUresult enter(Row *row, int *entered) {
    CUcontext current = NULL;
    CUresult result = driver.cuCtxGetCurrent(&current);
    if (result || current == row->context) return result;
    result = driver.cuCtxPushCurrent_v2(row->context);
    *entered = !result;
    return result;
}

static void leave(int entered) {
    CUcontext popped;
    if (entered) driver.cuCtxPopCurrent_v2(&popped);
}

static CUresult launch_row(Row *row, CUstream stream, uint64_t *addresses, CUtensorMap *maps) {
    CUresult result;
    int capturing = 0;
    int empty = 0; /* a graph has no node of no blocks */
    for (int k = 0; k < row->count; k++) empty |= is_empty(&row->kernels[k], addresses);
    int known = !driver.cuStreamIsCapturing(stream, &capturing);
    for (int k = 0; k < row->count && !(known && !capturing); k++) row->kernels[k].loaded->captured = 1;
    if (row->graph && !empty && known && !capturing)
        result = launch_graph(row, stream, addresses, maps);
    else
        result = launch_each(row, stream, addresses, maps);
    return result;
}

static PyObject *call_misaligned(Row *row, PyObject *const *args, Py_ssize_t n) {
    PyObject *tuple = PyTuple_New(n);
    if (!tuple) return NULL;
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_INCREF(args[i]);
        PyTuple_SetItem(tuple, i, args[i]);
    }
    PyObject *result = PyObject_CallObject(row->misaligned, tuple);
    Py_DECREF(tuple);
    return result;
}

static PyObject *run(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    Row *row = (Row *)self;
    if (n != row->arguments + 1) {
        PyErr_Format(PyExc_TypeError, "a stream and %d arguments are needed, %zd integers were given", row->arguments, n);
        return NULL;
    }
    uint64_t addresses[n], bits = 0;
    CUtensorMap maps[row->maps + 1];
    CUstream stream = (CUstream)(uintptr_t)PyLong_AsUnsignedLongLong(args[0]);
    for (Py_ssize_t i = 1; i < n; i++) addresses[i - 1] = PyLong_AsUnsignedLongLong(args[i]);
    for (int i = 0; i < row->addresses; i++) bits |= addresses[i];
    if (PyErr_Occurred()) return NULL;
    if ((bits & 15) && row->misaligned != Py_None) return call_misaligned(row, args, n);
    int entered = 0;
    CUresult result = enter(row, &entered);
    if (result) return error(result, "entering a device's context");
    if ((result = find_maps(row, addresses, maps))) {
        leave(entered);
        return error(result, "encoding a tensor map");
    }
    Py_BEGIN_ALLOW_THREADS;
    result = launch_row(row, stream, addresses, maps);
    leave(entered);
    Py_END_ALLOW_THREADS;
    if (result) return error(result, "launching a kernel");
    Py_RETURN_NONE;
}

static PyMethodDef run_method = {"run", (PyCFunction)(void (*)(void))run, METH_FASTCALL, "run(stream, argument, ...)"};

static PyObject *prepare(PyObject *self, PyObject *args) {
    unsigned long long context;
    int arguments, addresses, graph;
    PyObject *kernels, *misaligned;
    if (!PyArg_ParseTuple(args, "KiiO!Op", &context, &arguments, &addresses, &PyTuple_Type, &kernels, &misaligned,
                          &graph) ||
        needs_driver())
        return NULL;
    if (addresses < 0 || addresses > arguments) {
        PyErr_SetString(PyExc_ValueError, "more addresses than arguments");
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot((PyTypeObject *)row_type, Py_tp_alloc);
    Row *row = (Row *)alloc((PyTypeObject *)row_type, 0);
    if (!row) return NULL;
    pthread_mutex_init(&row->lock, NULL);
    row->context = (CUcontext)(uintptr_t)context;
    row->arguments = arguments;
    row->addresses = addresses;
    row->graph = graph;
    Py_INCREF(misaligned);
    row->misaligned = misaligned;
    int count = (int)PyTuple_Size(kernels);
    row->last = calloc((size_t)arguments + 1, sizeof(uint64_t));
    row->kernels = calloc((size_t)count + 1, sizeof(Kernel));
    PyObject *made = NULL;
    if (!row->last || !row->kernels) {
        PyErr_NoMemory();
    } else {
        for (int k = 0; k < count && !PyErr_Occurred(); k++) {
            row->count = k + 1;
            read_kernel(row, PyTuple_GetItem(kernels, k), &row->kernels[k]);
        }
        if (!PyErr_Occurred()) made = PyCFunction_NewEx(&run_method, (PyObject *)row, NULL);
    }
    Py_DECREF(row);
    return made;
}

static PyObject *graphs(PyObject *self, PyObject *none) {
    return PyLong_FromLong(__atomic_load_n(&graphs_held, __ATOMIC_RELAXED));
}

static PyMethodDef methods[] = {
    {"open", open_driver, METH_VARARGS, "open(path, fail): None, or why the driver can't be used"},
    {"load", load, METH_VARARGS, "load(code, name, shared, device): the function, its context and what holds its module"},
    {"prepare", prepare, METH_VARARGS, "prepare(context, arguments, addresses, kernels, misaligned, graph): a row of launches"},
    {"graphs", graphs, METH_NOARGS, "graphs(): how many CUDA graphs this process holds"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "fusec_launch", NULL, -1, methods};

PyMODINIT_FUNC PyInit_fusec_launch(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && !(row_type = PyType_FromSpec(&row_spec))) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
