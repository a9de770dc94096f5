# SPDX-License-Identifier: Apache-2.0
"""A module of GPU code: its functions as Python callables, its text, its bytes."""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from fusec.codegen.launches import Launched
from fusec.codegen.sizes import indices_from_json, indices_to_json, record_of, sizes_from_json, sizes_to_json
from fusec.codegen.triton.compile import Binary, compile_one
from fusec.codegen.triton.describe import Descriptor
from fusec.codegen.triton.source import KernelSource, ModuleSource, load_source
from fusec.errors import ArtifactError, CodegenError
from fusec.ir.index import Expr, Index, mul, product
from fusec.ir.indexing import most
from fusec.runtime.launch import DeviceKernel, Parameter, TensorMap
from fusec.target.gpu import GpuTarget, target_of_record

MAGIC = b"fusec-gpu\n"


@dataclass(frozen=True, eq=False)
class TritonModule(Launched):
    """Machine code of some kernels for one GPU target.

    ``compile_unaligned`` compiles a kernel for addresses that are no multiples of 16 bytes; ``unaligned`` are those
    compiled so far.
    """

    target: GpuTarget
    text: ModuleSource
    binaries: dict[str, Binary]
    compile_unaligned: Callable[[str], Binary]
    unaligned: dict[str, Binary] = field(default_factory=dict)
    _kernels: dict[tuple[str, bool], DeviceKernel] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def kernel(self, name: str, aligned: bool) -> DeviceKernel | None:
        """The kernel's code for addresses that are multiples of 16, or for others; None where it has nothing to do."""
        if not all(self.text[name].grid):
            return None
        with self._lock:
            known = self._kernels.get((name, aligned))
            if known is None:
                text = self.text[name]
                binary = self.binaries[name] if aligned else self._unaligned(name)
                known = device_kernel(text if aligned else text.unaligned or text, binary)
                self._kernels[name, aligned] = known
        return known

    def _unaligned(self, name: str) -> Binary:
        with self._lock:
            if name not in self.unaligned:
                self.unaligned[name] = self.compile_unaligned(name)
            return self.unaligned[name]

    def complete(self) -> TritonModule:
        """This module, with all code that it may need compiled."""
        for kernel in self.text.kernels:
            if all(kernel.grid):
                self._unaligned(kernel.name)
        return self

    def source(self, name: str) -> str:
        """The kernel in Triton's language."""
        return self.text[name].text

    def texts(self, name: str) -> dict[str, str]:
        """What can be read of one kernel, by the ending of a file's name."""
        found = {"triton.py": self.source(name)}
        if name in self.binaries:
            found["ptx" if self.target.backend == "cuda" else "amdgcn"] = self.binaries[name].assembly
        return found

    def assembly(self) -> str:
        """What Triton's compiler made, PTX or AMD's assembly."""
        return "\n".join(b.assembly for b in self.binaries.values())

    def to_bytes(self) -> bytes:
        """A JSON record; the machine code in it as base64."""
        record = {
            "target": asdict(self.target),
            "header": self.text.header,
            "kernels": [_kernel_to(k) for k in self.text.kernels],
            "binaries": {n: _binary_to(b) for n, b in self.binaries.items()},
            "unaligned": {n: _binary_to(b) for n, b in self.unaligned.items()},
            "unaligned_only": [k.name for k in self.text.kernels if k.name not in self.binaries],
        }
        return MAGIC + json.dumps(record).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> TritonModule:
        """The module that :meth:`to_bytes` wrote. ArtifactError where it can't be read."""
        try:
            if not data.startswith(MAGIC):
                raise ValueError("another kind of file")
            record = json.loads(data[len(MAGIC) :])
            target = target_of_record(record["target"])
            source = ModuleSource(tuple(_kernel_from(k) for k in record["kernels"]), str(record["header"]))
            binaries, unaligned = (
                {n: Binary(base64.b64decode(c), m, a) for n, (c, m, a) in record[part].items()}
                for part in ("binaries", "unaligned")
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"the GPU module is damaged: {error}") from None
        if {*binaries, *record["unaligned_only"]} != {k.name for k in source.kernels}:
            raise ArtifactError("the GPU module does not have the code of all its kernels")
        return cls(target, source, binaries, _compile_again(source, target), unaligned)


def _binary_to(binary: Binary) -> list[Any]:
    return [base64.b64encode(binary.code).decode(), binary.metadata, binary.assembly]


def _kernel_to(kernel: KernelSource) -> dict[str, Any]:
    return {
        **record_of(kernel),
        "grid": indices_to_json(kernel.grid),
        "descriptors": [
            record_of(d) | {"shape": indices_to_json(d.shape), "strides": indices_to_json(d.strides)}
            for d in kernel.descriptors
        ],
        "unaligned": _kernel_to(kernel.unaligned) if kernel.unaligned else None,
        "sizes": sizes_to_json(kernel.sizes),
    }


def _compile_again(source: ModuleSource, target: GpuTarget) -> Callable[[str], Binary]:
    def compile_unaligned(name: str) -> Binary:
        return compile_one(load_source(source), source[name].unaligned or source[name], target, aligned=False)

    return compile_unaligned


def _kernel_from(record: dict[str, Any]) -> KernelSource:
    sizes = sizes_from_json(record["sizes"])

    def indices(given: Any) -> tuple[Index, ...]:
        return indices_from_json(given, sizes)

    described = tuple(
        Descriptor(int(d["parameter"]), indices(d["shape"]), indices(d["strides"]), tuple(d["block"]), str(d["dtype"]))
        for d in record["descriptors"]
    )
    x, y, z = indices(record["grid"])
    return KernelSource(
        str(record["name"]),
        str(record["text"]),
        tuple(map(str, record["pointers"])),
        (x, y, z),
        int(record["warps"]),
        int(record["stages"]),
        described,
        _kernel_from(record["unaligned"]) if record["unaligned"] else None,
        int(record["registers"]),
        sizes,
        bool(record["wide"]),
    )


def device_kernel(kernel: KernelSource, binary: Binary) -> DeviceKernel:
    """How Triton's machine code wants to be called: pointers, then of each descriptor its map, shape and strides."""
    facts = binary.metadata
    metas = facts.get("tensordesc_meta") or ()
    if len(metas) != len(kernel.descriptors):
        raise CodegenError(f"{kernel.name} has {len(kernel.descriptors)} descriptors, its code {len(metas)}")
    parameters: list[Parameter] = list(range(len(kernel.pointers) + len(kernel.sizes)))
    for d, meta in zip(kernel.descriptors, metas):
        parameters.append(_tensor_map(d, meta))
        parameters += [n if isinstance(n, Expr) else struct.pack("<i", n) for n in d.shape]
        parameters += [n if isinstance(n, Expr) else struct.pack("<q", n) for n in d.strides]
    count = len(kernel.pointers) + len(kernel.sizes)
    x, y, z = kernel.grid
    blocks = most(product((x, y, z)))
    scratch = int(facts.get("global_scratch_size") or 0) * blocks * int(facts["num_ctas"])
    parameters += [count if scratch else bytes(8), bytes(8)]  # memory for the kernel itself, and for a profiler
    threads = int(facts["num_warps"]) * int(facts.get("warp_size") or 32)
    return DeviceKernel(
        str(facts["name"]),
        binary.code,
        kernel.grid,
        threads,
        int(facts["shared"]),
        count + bool(scratch),
        tuple(parameters),
        scratch,
        bool(facts.get("launch_pdl")),
        kernel.sizes,
    )


_HOST_TYPES = {8: 10, 9: 8, 10: 9}
"""Triton numbers element types as PTX does, cuTensorMapEncodeTiled another way."""


def _tensor_map(d: Descriptor, meta: dict[str, Any]) -> TensorMap:
    kind, size = int(meta["elem_type"]), int(meta["elem_size"])
    strides = tuple(mul(n, size) for n in reversed(d.strides[:-1]))
    box = tuple(int(n) for n in reversed(meta["block_size"]))
    return TensorMap(
        d.parameter, _HOST_TYPES.get(kind, kind), tuple(reversed(d.shape)), strides, box, int(meta["swizzle"])
    )
