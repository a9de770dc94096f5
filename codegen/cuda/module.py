"""A module of CUDA C++: its kernels as Python functions, its text, its bytes."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fusec.codegen.cuda.launch import KernelFunction, StreamOf, launcher
from fusec.codegen.cuda.nvrtc import Cubin
from fusec.codegen.cuda.source import KernelSource, ModuleSource
from fusec.codegen.cuda.tensor_map import TensorMap
from fusec.errors import ArtifactError, TargetError
from fusec.target.gpu import GpuTarget

MAGIC = b"fusec-cuda\n"


@dataclass(frozen=True, eq=False)
class CudaModule:
    """Cubins of some kernels, by name, for one GPU target. Nothing is compiled when it runs."""

    target: GpuTarget
    text: ModuleSource
    cubins: Mapping[str, Cubin]
    _functions: dict[tuple[str, int], KernelFunction] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def function(self, name: str, device: int | None = None) -> KernelFunction:
        """The kernel, called with the address of each parameter.

        It runs on the device (torch's current one when this is asked) and on torch's current stream there.
        TargetError where there is no such device, or one of another architecture.
        """
        index = require_device(self.target, device)
        with self._lock:
            known = self._functions.get((name, index))
            if known is None:
                known = self._functions[name, index] = self._make(name, index)
        return known

    def _make(self, name: str, device: int) -> KernelFunction:
        kernel = self.text[name]
        if not all(kernel.grid):
            return lambda *addresses: None
        stream_of, current = _torch_calls()
        misaligned = None
        if kernel.unaligned is not None:
            plain = kernel.unaligned
            misaligned = launcher(plain, self.cubins[plain.name].code, device, None, stream_of, current)
        return launcher(kernel, self.cubins[name].code, device, misaligned, stream_of, current)

    def source(self, name: str) -> str:
        """The kernel in CUDA C++, without the device headers that it includes."""
        return self.text[name].text

    def assembly(self) -> str:
        """What ptxas said of each kernel: registers, shared memory, spills."""
        return "\n".join(f"// {name}\n{cubin.log}" for name, cubin in self.cubins.items())

    def to_bytes(self) -> bytes:
        """A JSON record; the machine code in it as base64."""
        record = {
            "target": asdict(self.target),
            "arch": self.text.arch,
            "kernels": [asdict(k) for k in self.text.kernels],
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
            target = GpuTarget(**record["target"])
            text = ModuleSource(tuple(_kernel_from(k) for k in record["kernels"]), str(record["arch"]))
            cubins = {str(n): Cubin(base64.b64decode(c), str(log)) for n, (c, log) in record["cubins"].items()}
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"the GPU module is damaged: {error}") from None
        return cls(target, text, cubins)


def _kernel_from(record: dict[str, Any]) -> KernelSource:
    maps = tuple(
        TensorMap(m["parameter"], m["dtype"], tuple(m["shape"]), tuple(m["strides"]), tuple(m["box"]), m["swizzle"])
        for m in record["tensor_maps"]
    )
    unaligned = _kernel_from(record["unaligned"]) if record["unaligned"] else None
    tuples = {name: tuple(record[name]) for name in ("dtypes", "grid", "cluster", "shapes")}
    return KernelSource(**{**record, **tuples, "tensor_maps": maps, "unaligned": unaligned})


def require_device(target: GpuTarget, device: int | None = None) -> int:
    """The number of a device that runs code for ``target``; by default torch's current one. TargetError for none."""
    import torch

    if not torch.cuda.is_available():
        raise TargetError(f"no GPU here to run code for {target.name}")
    index = torch.cuda.current_device() if device is None else device
    if index >= torch.cuda.device_count():
        raise TargetError(f"no device cuda:{index} here, there are {torch.cuda.device_count()}")
    major, minor = torch.cuda.get_device_capability(index)
    if 10 * major + minor != target.arch:
        raise TargetError(f"cuda:{index} is sm_{major}{minor}; the code is for {target.name}; compile for the card")
    return index


def _torch_calls() -> tuple[StreamOf, Callable[[], int]]:
    """The handle of torch's current stream on a device, and the current device."""
    import torch

    return torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice
