"""The CUDA driver's calls that running a kernel takes, through ctypes: load, prepare, launch.

A launch is one ``cuLaunchKernelEx`` with a record that was filled when the kernel was prepared.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

from fusec.errors import CodegenError, FusecError, TargetError

_MAX_SHARED = 8
_NON_PORTABLE_CLUSTER = 14
_CLUSTER_DIMENSION = 4
_PLAIN_SHARED = 48 * 1024
"""Bytes of shared memory a block that need not be asked for."""


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


@cache
def load_driver() -> ctypes.CDLL:
    """libcuda, initialised. TargetError where there is no driver or no device."""
    for name in ("libcuda.so.1", "libcuda.so", "nvcuda.dll"):
        try:
            library = ctypes.CDLL(name)
            break
        except OSError:
            continue
    else:
        raise TargetError("no CUDA driver here to run code for a GPU")
    status = library.cuInit(0)
    if status:
        raise TargetError(f"the CUDA driver does not start: {error_text(library, status)}")
    return library


def error_text(library: ctypes.CDLL, status: int) -> str:
    """What the driver calls an error."""
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    library.cuGetErrorName(status, ctypes.byref(name))
    library.cuGetErrorString(status, ctypes.byref(text))
    return f"{(name.value or b'?').decode()} ({(text.value or b'?').decode()})"


def check(status: int, doing: str) -> None:
    """FusecError for a driver call that failed; ``doing`` says what was tried."""
    if status:
        raise FusecError(f"{doing}: {error_text(load_driver(), status)}")


@cache
def primary_context(device: int) -> int:
    """The context of a device that torch and CuPy use, too; held until the process ends."""
    driver = load_driver()
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    check(driver.cuDeviceGet(ctypes.byref(handle), device), f"cuda:{device}")
    check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), f"cuda:{device}")
    assert context.value is not None
    return context.value


class OnDevice:
    """``with OnDevice(0):`` driver calls inside are about this device."""

    def __init__(self, device: int) -> None:
        self._context = ctypes.c_void_p(primary_context(device))

    def __enter__(self) -> None:
        check(load_driver().cuCtxPushCurrent_v2(self._context), "taking the device")

    def __exit__(self, *_: object) -> None:
        load_driver().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def load_function(code: bytes, name: str, device: int, shared: int, cluster: int) -> int:
    """A kernel of a cubin on a device, allowed its dynamic shared memory (bytes) and its cluster (blocks).

    CodegenError where the device can't run it.
    """
    driver = load_driver()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with OnDevice(device):
        _fits(driver.cuModuleLoadData(ctypes.byref(module), code), name, device)
        _fits(driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), name, device)
        if shared > _PLAIN_SHARED:
            _fits(driver.cuFuncSetAttribute(function, _MAX_SHARED, shared), f"{name} ({shared} bytes shared)", device)
        if cluster > 8:
            _fits(driver.cuFuncSetAttribute(function, _NON_PORTABLE_CLUSTER, 1), name, device)
    assert function.value is not None
    return function.value


def _fits(status: int, name: str, device: int) -> None:
    if status:
        raise CodegenError(f"cuda:{device} can't take {name}: {error_text(load_driver(), status)}")


def launch_config(
    grid: Sequence[int], block: int, shared: int, cluster: Sequence[int] = (1, 1, 1)
) -> tuple[LaunchConfig, Any]:
    """The record of a launch without its stream, and what must stay alive with it."""
    config = LaunchConfig((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(block, 1, 1), shared)
    if prod(cluster) == 1:
        return config, None
    attribute = LaunchAttribute(_CLUSTER_DIMENSION, 0)
    attribute.value[:3] = list(cluster)
    config.attributes = ctypes.cast(ctypes.byref(attribute), ctypes.c_void_p)
    config.count = 1
    return config, attribute
