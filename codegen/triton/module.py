"""A module of GPU code: its functions as Python callables, its text, its bytes.

Triton's launcher is prepared once a kernel and device; a launch then takes integers and enters one C function.
"""

from __future__ import annotations

import base64
import inspect
import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any

from fusec.codegen.triton.describe import Descriptor
from fusec.codegen.triton.source import KernelSource, ModuleSource, signature_of
from fusec.errors import ArtifactError, CodegenError, TargetError
from fusec.runtime.code import Scope, make_function
from fusec.target.gpu import GpuTarget

KernelFunction = Callable[..., None]
MAGIC = b"fusec-gpu\n"


@dataclass(frozen=True, eq=False)
class Binary:
    """One kernel's machine code, what its launcher must know, and its assembly."""

    code: bytes
    metadata: dict[str, Any]
    assembly: str = ""


@dataclass(frozen=True, eq=False)
class TritonModule:
    """Machine code of some kernels for one GPU target.

    ``unaligned`` compiles a kernel for addresses that are no multiples of 16 bytes.
    """

    target: GpuTarget
    text: ModuleSource
    binaries: dict[str, Binary]
    unaligned: Callable[[str], Binary]
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
        slow: list[KernelFunction] = []

        def misaligned(*addresses: int) -> None:
            if not slow:
                slow.append(_launcher(kernel.unaligned or kernel, self.unaligned(name), device, None))
            slow[0](*addresses)

        return _launcher(kernel, self.binaries[name], device, misaligned)

    def source(self, name: str) -> str:
        """The kernel in Triton's language."""
        return self.text[name].text

    def assembly(self) -> str:
        """What Triton's compiler made, PTX or AMD's assembly."""
        return "\n".join(b.assembly for b in self.binaries.values())

    def to_bytes(self) -> bytes:
        """A JSON record; the machine code in it as base64."""
        record = {
            "target": asdict(self.target),
            "header": self.text.header,
            "kernels": [asdict(k) for k in self.text.kernels],
            "binaries": {
                n: [base64.b64encode(b.code).decode(), b.metadata, b.assembly] for n, b in self.binaries.items()
            },
        }
        return MAGIC + json.dumps(record).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> TritonModule:
        """The module that :meth:`to_bytes` wrote. ArtifactError where it can't be read."""
        try:
            if not data.startswith(MAGIC):
                raise ValueError("another kind of file")
            record = json.loads(data[len(MAGIC) :])
            target = GpuTarget(**record["target"])
            source = ModuleSource(tuple(_kernel_from(k) for k in record["kernels"]), str(record["header"]))
            binaries = {n: Binary(base64.b64decode(c), m, a) for n, (c, m, a) in record["binaries"].items()}
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"the GPU module is damaged: {error}") from None
        return cls(target, source, binaries, _compile_again(source, target))


def _compile_again(source: ModuleSource, target: GpuTarget) -> Callable[[str], Binary]:
    def compile_unaligned(name: str) -> Binary:
        from fusec.codegen.triton.build import compile_one, load_source

        return compile_one(load_source(source), source[name].unaligned or source[name], target, aligned=False)

    return compile_unaligned


def _kernel_from(record: dict[str, Any]) -> KernelSource:
    described = tuple(
        Descriptor(int(d["parameter"]), tuple(d["shape"]), tuple(d["strides"]), tuple(d["block"]), str(d["dtype"]))
        for d in record["descriptors"]
    )
    unaligned = _kernel_from(record["unaligned"]) if record["unaligned"] else None
    plain = {**record, "pointers": tuple(record["pointers"]), "grid": tuple(record["grid"])}
    return KernelSource(**{**plain, "descriptors": described, "unaligned": unaligned})


def require_device(target: GpuTarget, device: int | None = None) -> int:
    """The number of a device that runs code for ``target``; by default torch's current one. TargetError for none."""
    import torch

    if not torch.cuda.is_available():
        raise TargetError(f"no GPU here to run code for {target.name}")
    index = torch.cuda.current_device() if device is None else device
    if index >= torch.cuda.device_count():
        raise TargetError(f"no device cuda:{index} here, there are {torch.cuda.device_count()}")
    if target.backend == "cuda":
        major, minor = torch.cuda.get_device_capability(index)
        if 10 * major + minor != target.arch:
            raise TargetError(f"cuda:{index} is sm_{major}{minor}; the code is for {target.name}; compile for the card")
    return index


def _launcher(kernel: KernelSource, binary: Binary, device: int, misaligned: KernelFunction | None) -> KernelFunction:
    """A function that tests its addresses and enters Triton's C launcher."""
    import torch
    from triton.runtime.driver import driver

    metadata = SimpleNamespace(**binary.metadata)
    names = [f"a{i}" for i in range(len(kernel.pointers))]
    described = SimpleNamespace(
        signature=dict(enumerate(signature_of(kernel))), constants={}, fn=SimpleNamespace(arg_names=names)
    )
    with torch.cuda.device(device):
        active = driver.active
        limit = active.utils.get_device_properties(device)["max_shared_mem"]
        if metadata.shared > limit:
            raise CodegenError(f"{kernel.name} needs {metadata.shared} bytes of shared memory, the device has {limit}")
        launcher = active.launcher_cls(described, metadata)
        _, function, *_ = active.utils.load_binary(metadata.name, binary.code, metadata.shared, device)
    packed = (metadata.num_warps, metadata.num_ctas, metadata.shared)
    scope = Scope()
    bind = scope.bind
    lines = []
    arguments = ", ".join(names)
    if misaligned is not None:
        lines.append(f"if ({' | '.join(names)}) & 15: return {bind(misaligned, 'misaligned')}({arguments})")
    for number, (d, meta) in enumerate(zip(kernel.descriptors, getattr(metadata, "tensordesc_meta", None) or ())):
        made_before: dict[int, tuple[Any, ...]] = {}
        known = bind(made_before, f"known_{number}")
        make = bind(_describer(active.utils.fill_tma_descriptor, d, meta, made_before), f"describe_{number}")
        lines.append(f"d{number} = {known}.get(a{d.parameter}) or {make}(a{d.parameter})")
        arguments += f", *d{number}"
    x, y, z = kernel.grid
    stream = f"{bind(torch._C._cuda_getCurrentRawStream, 'stream_of')}({device})"
    scratch = "None"
    if getattr(metadata, "global_scratch_size", 0):
        size = metadata.global_scratch_size * x * y * z * metadata.num_ctas
        place = bind(torch.device("cuda", device), "device")
        lines.append(
            f"scratch = {bind(torch.empty, 'empty')}({size}, dtype={bind(torch.int8, 'int8')}, device={place})"
        )
        scratch = "scratch"
    if hasattr(launcher, "launch_pdl"):
        options = f"{launcher.launch_cooperative_grid}, {launcher.launch_pdl}, {scratch}, None"
        enter = bind(_plain_launch(launcher.launch), "launch")
        text = f"{enter}({x}, {y}, {z}, {stream}, {function}, {options}, {bind(packed, 'packed')}, None, None, None"
    else:
        enter = bind(launcher, "launch")
        text = f"{enter}({x}, {y}, {z}, {stream}, {function}, {bind(packed, 'packed')}, None, None, None"
    current = bind(torch._C._cuda_getDevice, "current_device")
    guard = bind(torch.cuda.device, "device_guard")
    lines += [
        f"if {current}() != {device}:",
        f"    with {guard}({device}): return {text}, {arguments})",
        f"{text}, {arguments})",
    ]
    made: KernelFunction = make_function(f"launch_{kernel.name}", names, lines, scope)
    return made


def _plain_launch(launch: Any) -> Any:
    """Triton's C function under the wrapper that encodes descriptors anew on each call."""
    return inspect.getclosurevars(launch).nonlocals["launcher"] if inspect.isfunction(launch) else launch


_DESCRIPTORS_KEPT = 256


def _describer(
    encode: Callable[..., Any], d: Descriptor, meta: dict[str, Any], known: dict[int, tuple[Any, ...]]
) -> Callable[[int], tuple[Any, ...]]:
    """Makes the launcher's arguments for a descriptor of the tensor at an address, and keeps them in ``known``."""
    from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

    kind = TMA_DTYPE_DEVICE_TO_HOST[meta["elem_type"]]
    shape, strides = list(d.shape), list(d.strides)

    def describe(address: int) -> tuple[Any, ...]:
        if len(known) >= _DESCRIPTORS_KEPT:
            known.clear()
        made = encode(address, meta["swizzle"], meta["elem_size"], kind, meta["block_size"], shape, strides, 0)
        known[address] = (made, *shape, *strides)
        return known[address]

    return describe
