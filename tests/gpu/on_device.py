"""One compiled kernel on a CUDA card: its inputs, its results, and what lies around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fusec.codegen.cuda.build import compile_kernels
from fusec.ir.attributes import SliceAttributes
from fusec.ir.graph import Graph
from fusec.runtime.torch_arrays import torch_dtype
from fusec.target.gpu import gpu_target
from fusec.tile.kernel import Kernel

_FOREIGN: dict[str, Any] = {
    "bfloat16": (np.int16, torch.bfloat16),
    "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
    "float8_e5m2": (np.uint8, torch.float8_e5m2),
}
_AROUND = 64
"""Elements behind a result that must stay as they are."""


def given(graph: Graph) -> list[np.ndarray[Any, Any]]:
    """Random inputs, some with a NaN."""
    rng = np.random.default_rng(0)
    made = []
    for value in graph.inputs:
        if value.type.dtype.is_integer:
            limits = np.iinfo(value.type.dtype.numpy)
            made.append(rng.integers(limits.min, limits.max, value.type.static_shape, value.type.dtype.numpy, True))
            continue
        data = rng.standard_normal(value.type.static_shape)
        data = np.asarray(data)
        if data.ndim:
            data[..., 0] = np.where(rng.random(data[..., 0].shape) < 0.01, np.nan, data[..., 0])
        made.append(data.astype(value.type.dtype.numpy))
    return made


def to_device(array: np.ndarray[Any, Any], shift: int = 0) -> Any:
    """The array on the card, ``shift`` elements behind an aligned address."""
    stored, wanted = _FOREIGN.get(array.dtype.name, (None, None))
    source = torch.from_numpy(array if stored is None else array.view(stored))
    source = source if wanted is None else source.view(wanted)
    memory = torch.empty(array.size + shift, dtype=source.dtype, device="cuda")[shift:]
    return memory.view(array.shape).copy_(source)


def run(graph: Graph, kernel: Kernel, arrays: list[np.ndarray[Any, Any]], shift: int = 0) -> list[Any]:
    """The results of the graph's only kernel in CUDA C++; nothing around them is written."""
    module = compile_kernels([kernel], gpu_target("cuda:0"))
    inputs = {v.name: to_device(a, shift) for v, a in zip(graph.inputs, arrays, strict=True)}
    for op in graph.ops:  # kernels read slices of inputs where these lie
        if isinstance(op.attributes, SliceAttributes) and op.operands[0].name in inputs:
            cut = zip(op.attributes.starts, op.attributes.stops, op.attributes.steps, strict=True)
            inputs[op.result.name] = inputs[op.operands[0].name][tuple(slice(*ends) for ends in cut)]
    count = len(kernel.parameters) - kernel.outputs
    memories, results = [], []
    for buffer in kernel.parameters[count:]:
        size = buffer.most + shift + _AROUND
        memories.append(torch.full((size,), 77, device="cuda").to(torch_dtype(buffer.dtype)))
        results.append(memories[-1][shift : shift + buffer.most].view(buffer.shape))
    arguments = [inputs[b.name] for b in kernel.parameters[:count]]
    module.function(kernel.name, 0)(*(t.data_ptr() for t in (*arguments, *results)))
    torch.cuda.synchronize()
    for memory, result in zip(memories, results, strict=True):
        around = torch.cat([memory[:shift], memory[shift + result.numel() :]])
        assert bool((around.float() == torch.full((), 77, device="cuda").to(around.dtype).float()).all())
    return results
