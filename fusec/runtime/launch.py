# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels launched through the driver by a small C extension: prepared once, then called with integers.

The extension is built at first use with the system's C compiler and kept in the cache folder; a program loaded from a
file brings its own build along. Nothing here needs PyTorch or a compiler of kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from fusec.config import cache_dir
from fusec.errors import DeviceError, TargetError
from fusec.ir.index import Expr, Index, Symbol, symbol
from fusec.ir.indexing import substitute
from fusec.runtime.cache import write_whole
from fusec.runtime.code import Scope, make_function

_FILES = ("driver.h", "launch.c")
_NAME = "fusec_launch"
_DRIVER = "libcuda.so.1"
_LOST = frozenset({46, 214, 219, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999})
"""Errors after which the driver gives the same error for every call of the process (CUresult in cuda.h)."""


@dataclass(frozen=True)
class TensorMap:
    """A kernel's parameter of type CUtensorMap: the memory at address ``argument`` as a tensor.

    sizes, box: elements, innermost first. strides: bytes, without the innermost. Sizes and strides may depend on the
    kernel's sizes. element, swizzle, promotion and fill are cuTensorMapEncodeTiled's enumerations. Where there are
    ``low`` and ``high``, offsets of a box of windows' first positions from both ends of each axis but the innermost and
    the outermost, with ``steps`` between them, the map is cuTensorMapEncodeIm2col's, and ``box`` is channels and
    windows. count: maps that are one parameter, of memory so many bytes ``apart``.
    """

    argument: int
    element: int
    sizes: tuple[Index, ...]
    strides: tuple[Index, ...]
    box: tuple[int, ...]
    swizzle: int
    promotion: int = 2
    fill: int = 0
    low: tuple[int, ...] = ()
    high: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    count: int = 1
    apart: int = 0


Parameter = int | bytes | TensorMap | Expr
"""What a kernel receives: the argument of that number, bytes as they are, a tensor map, or what an expression of its
sizes is at the call."""

Run = Callable[..., None]
"""``run(stream, address, ...)``: integers; nothing waits for the device."""


@dataclass(frozen=True, eq=False)
class DeviceKernel:
    """Machine code (a cubin) and how it is launched, whatever wrote it.

    grid: blocks on each axis; none is 0, but where one depends on ``sizes``, integers that follow the addresses among
    the arguments. threads: of a block. shared: bytes of dynamic shared memory. arguments: how many a launch gives;
    ``parameters`` says where they go. scratch: bytes of device memory that one launch needs for itself; its address is
    the last argument. overlaps: it may start before the kernel ahead
    of it has ended: it lets the one behind it start, and waits, by itself (griddepcontrol, Hopper and later).
    """

    name: str
    code: bytes
    grid: tuple[Index, Index, Index]
    threads: int
    shared: int
    arguments: int
    parameters: tuple[Parameter, ...]
    scratch: int = 0
    overlaps: bool = False
    sizes: tuple[Symbol, ...] = ()

    @property
    def addresses(self) -> int:
        """How many of the arguments are addresses that a launch gives; the sizes follow."""
        return self.arguments - len(self.sizes) - bool(self.scratch)


class Device:
    """One CUDA device of this process. Loads each kernel once, until neither it nor a row of it is left."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._extension = extension()
        self._loaded: WeakKeyDictionary[DeviceKernel, tuple[int, int, object]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def row(
        self,
        launches: Sequence[tuple[DeviceKernel, Sequence[int]]],
        arguments: int,
        misaligned: Run | None = None,
        *,
        graph: bool = False,
    ) -> Run:
        """One function for kernels launched one after another.

        A launch's numbers say which of the ``arguments`` are its own, addresses first and sizes after them. Where an
        address is no multiple of 16 ``misaligned`` runs instead. ``graph``: the driver replays them as one CUDA graph.
        DeviceError where the driver refuses a kernel.
        """
        records = []
        context = 0
        formulas: dict[str, int] = {}
        addresses = 1 + max((n for kernel, numbers in launches for n in numbers[: kernel.addresses]), default=-1)
        for kernel, numbers in launches:
            function, context, module = self._load(kernel)
            number = partial(_number, kernel=kernel, numbers=numbers, formulas=formulas, arguments=arguments)
            parameters = tuple(_record(p, numbers, number) for p in kernel.parameters)
            grid = tuple(map(number, kernel.grid))
            records.append((function, module, grid, kernel.threads, kernel.shared, kernel.overlaps, parameters))
        total = arguments + len(formulas)
        run: Run = self._extension.prepare(context, total, addresses, tuple(records), misaligned, graph)
        return _with_formulas(run, arguments, list(formulas)) if formulas else run

    def _load(self, kernel: DeviceKernel) -> tuple[int, int, object]:
        """The function, its context, and what holds its module."""
        with self._lock:
            known = self._loaded.get(kernel)
            if known is None:
                known = self._extension.load(kernel.code, kernel.name, kernel.shared, self.index)
                self._loaded[kernel] = known
        return known


def _number(n: Index, kernel: DeviceKernel, numbers: Sequence[int], formulas: dict[str, int], arguments: int) -> int:
    """A number of a launch; for one that is known at the call only, -1 - the number of the argument it will be."""
    if isinstance(n, int):
        return n
    given = zip(kernel.sizes, numbers[kernel.addresses :], strict=False)
    text = str(substitute(n, {s: symbol(f"a{number}", s.lo, s.hi) for s, number in given}))
    return -1 - (arguments + formulas.setdefault(text, len(formulas)))


def _with_formulas(run: Run, arguments: int, formulas: Sequence[str]) -> Run:
    """``run``, given what the formulas are after its ``arguments``, which they name a0, a1 and so on."""
    names = [f"a{n}" for n in range(arguments)]
    scope = Scope()
    line = f"{scope.bind(run, 'run')}(stream, {', '.join([*names, *formulas])})"
    made: Run = make_function("run_sized", ["stream", *names], [line], scope)
    return made


def _record(parameter: Parameter, numbers: Sequence[int], number: Callable[[Index], int]) -> Any:
    match parameter:
        case int():
            return numbers[parameter]
        case bytes():
            return parameter
        case Expr():
            return -1 - number(parameter)
        case TensorMap():
            p = parameter
            where = numbers[p.argument]
            sizes, strides = (tuple(map(number, given)) for given in (p.sizes, p.strides))
            windows = p.low, p.high, p.steps, p.count, p.apart
            return where, p.element, sizes, strides, p.box, p.swizzle, p.promotion, p.fill, *windows


@cache
def device(index: int) -> Device:
    """The device of this number. TargetError where there is no driver or no compiler for the extension."""
    return Device(index)


# The extension

_opening = threading.Lock()
_offered: dict[str, bytes] = {}


@cache
def extension() -> Any:
    """The C extension with the driver open. TargetError where that can't be."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError as error:
        raise TargetError(f"no GPU here: {error}") from None
    with _opening:
        module = _import(_built())
        reason = module.open(_DRIVER, _error)
    if reason is not None:
        raise TargetError(f"the CUDA driver can't be used: {reason}")
    return module


def _error(code: int, name: str, text: str, doing: str) -> DeviceError:
    if code in _LOST:
        return DeviceError(
            f"the GPU can't be used by this process any more ({name}: {text}): a kernel, of fusec or of any other "
            "library, failed before this call; start the process again, with CUDA_LAUNCH_BLOCKING=1 to see which"
        )
    return DeviceError(f"{doing}: {name}: {text}")


@cache
def build_key() -> str:
    """Which extension this is: of this fusec, for this kind of machine."""
    return hashlib.sha256(b"".join(map(_source, _FILES)) + sysconfig.get_platform().encode()).hexdigest()[:24]


def build_of_extension() -> bytes | None:
    """The extension's shared object, to go along with a program; None where no C compiler is here."""
    try:
        return _built().read_bytes()
    except (TargetError, OSError):
        return None


def offer_build(key: str, build: bytes) -> None:
    """Takes a build that came with a program, for a machine that has no C compiler."""
    _offered[key] = build


def _source(name: str) -> bytes:
    return (Path(__file__).parent / name).read_bytes()


def _built() -> Path:
    """The extension for this machine: from the cache folder, built now, or one that was offered."""
    path = cache_dir() / "launch" / f"{build_key()}.abi3.so"
    if path.is_file():
        return path
    made = _compile()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(path, made)
        return path
    path = Path(tempfile.mkdtemp(prefix="fusec-")) / path.name
    path.write_bytes(made)
    return path


def _compile() -> bytes:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    header = Path(sysconfig.get_paths()["include"])
    if compiler is None or not (header / "Python.h").is_file():
        if build_key() in _offered:
            return _offered[build_key()]
        missing = "C compiler" if compiler is None else f"Python.h in {header}"
        raise TargetError(f"kernels can't be launched: there is no {missing} to build the launcher with")
    with tempfile.TemporaryDirectory() as folder:
        text, made = Path(folder) / "launch.c", Path(folder) / "launch.so"
        for name in _FILES:
            (Path(folder) / name).write_bytes(_source(name))
        flags = ["-std=gnu11", "-O2", "-shared", "-fPIC", "-pthread", f"-I{header}", "-o", os.fspath(made)]
        done = subprocess.run([compiler, *flags, os.fspath(text), "-ldl"], capture_output=True, text=True)
        if done.returncode:
            raise TargetError(f"the launcher of kernels can't be built: {done.stderr.strip()[-500:]}")
        return made.read_bytes()


def _import(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(_NAME, path, loader=ExtensionFileLoader(_NAME, os.fspath(path)))
    assert spec is not None
    assert spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        with contextlib.suppress(OSError):
            path.unlink()
        here = sys.version.split()[0]
        raise TargetError(f"the launcher of kernels can't be loaded by Python {here}: {error}") from None
    return module
