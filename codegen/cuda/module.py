# SPDX-License-Identifier: Apache-2.0
"""A module of CUDA C++: its kernels as Python functions, its text, its bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from fusec.codegen.cuda.nvrtc import Cubin
from fusec.codegen.cuda.source import KernelSource, ModuleSource, every
from fusec.codegen.cuda.tensor_map import TensorMap
from fusec.codegen.launches import Launched
from fusec.codegen.sizes import indices_from_json, indices_to_json, record_of, sizes_from_json, sizes_to_json
from fusec.errors import ArtifactError
from fusec.runtime.launch import DeviceKernel
from fusec.target.gpu import GpuTarget, target_of_record

MAGIC = b"fusec-gpu-cuda\n"


@dataclass(frozen=True, eq=False)
class CudaModule(Launched):
    """Cubins of some kernels, by name, for one GPU target. Nothing is compiled when it runs."""

    target: GpuTarget
    text: ModuleSource
    cubins: Mapping[str, Cubin]

    @cached_property
    def _kernels(self) -> dict[str, DeviceKernel]:
        return {k.name: _device_kernel(k, self.cubins[k.name]) for k in every(self.text.kernels)}

    def kernel(self, name: str, aligned: bool) -> DeviceKernel | None:
        """The kernel's code for addresses that are multiples of 16, or for others; None where it has nothing to do."""
        text = self.text[name]
        if not all(text.grid):
            return None
        return self._kernels[text.name if aligned or text.unaligned is None else text.unaligned.name]

    def takes_any_address(self, name: str) -> bool:
        """False for a kernel that has no form for addresses that are no multiples of 16."""
        text = self.text[name]
        return not text.aligned or text.unaligned is not None

    def complete(self) -> CudaModule:
        """This module: all code that it may need is compiled from the start."""
        return self

    def source(self, name: str) -> str:
        """The kernel in CUDA C++, without the device headers that it includes."""
        return self.text[name].text

    def texts(self, name: str) -> dict[str, str]:
        """What can be read of one kernel, by the ending of a file's name. NVRTC makes no assembly on the way."""
        return {"cu": self.source(name), "ptxas.txt": self.cubins[name].log}

    def assembly(self) -> str:
        """What ptxas said of each kernel: registers, shared memory, spills."""
        return "\n".join(f"// {name}\n{cubin.log}" for name, cubin in self.cubins.items())

    def to_bytes(self) -> bytes:
        """A JSON record; the machine code in it as base64."""
        record = {
            "target": asdict(self.target),
            "arch": self.text.arch,
            "kernels": [_kernel_to(k) for k in self.text.kernels],
            "cubins": {n: [base64.b64encode(c.code).decode(), c.log] for n, c in self.cubins.items()},
        }
        return MAGIC + json.dumps(record).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> CudaModule:
        """The module that :meth:`to_bytes` wrote. ArtifactError where it can't be read."""
        try:
            if not data.startswith(MAGIC):
                raise ValueError("another kind of file")
            record = json.loads(data[len(MAGIC) :])
            target = target_of_record(record["target"])
            text = ModuleSource(tuple(_kernel_from(k) for k in record["kernels"]), str(record["arch"]))
            cubins = {str(n): Cubin(base64.b64decode(c), str(log)) for n, (c, log) in record["cubins"].items()}
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"the GPU module is damaged: {error}") from None
        return cls(target, text, cubins)


def _kernel_to(kernel: KernelSource) -> dict[str, Any]:
    maps = [
        record_of(m) | {"shape": indices_to_json(m.shape), "strides": indices_to_json(m.strides)}
        for m in kernel.tensor_maps
    ]
    return {
        **record_of(kernel),
        "grid": indices_to_json(kernel.grid),
        "tensor_maps": maps,
        "unaligned": _kernel_to(kernel.unaligned) if kernel.unaligned else None,
        "sizes": sizes_to_json(kernel.sizes),
    }


def _kernel_from(record: dict[str, Any]) -> KernelSource:
    sizes = sizes_from_json(record["sizes"])
    maps = tuple(
        TensorMap(
            m["parameter"],
            m["dtype"],
            indices_from_json(m["shape"], sizes),
            indices_from_json(m["strides"], sizes),
            tuple(m["box"]),
            m["swizzle"],
            tuple(m["low"]),
            tuple(m["high"]),
            tuple(m["steps"]),
            m["count"],
        )
        for m in record["tensor_maps"]
    )
    unaligned = _kernel_from(record["unaligned"]) if record["unaligned"] else None
    tuples: dict[str, Any] = {name: tuple(record[name]) for name in ("dtypes", "cluster", "shapes")}
    tuples |= {"grid": indices_from_json(record["grid"], sizes), "sizes": sizes}
    return KernelSource(**{**record, **tuples, "tensor_maps": maps, "unaligned": unaligned})


def _device_kernel(kernel: KernelSource, cubin: Cubin) -> DeviceKernel:
    count = len(kernel.dtypes) + len(kernel.sizes)
    parameters = (*range(count), *(m.encoded() for m in kernel.tensor_maps))
    launch = (kernel.grid, kernel.threads, kernel.shared)
    return DeviceKernel(
        kernel.name, cubin.code, *launch, count, parameters, overlaps=kernel.overlaps, sizes=kernel.sizes
    )
