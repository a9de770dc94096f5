# SPDX-License-Identifier: Apache-2.0
"""The compilers and libraries that fusec calls: which versions it takes, and what to install where one is missing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from fusec.errors import TargetError
from fusec.lazily import lazily
from fusec.packages import is_there, uncollected


@dataclass(frozen=True)
class Tool:
    """A Python package. ``least`` is the first version that fusec takes, ``below`` the first that it doesn't."""

    package: str
    module: str
    least: str
    below: str = ""
    purpose: str = ""

    @property
    def requirement(self) -> str:
        """As pip takes it."""
        return f"{self.package}>={self.least}" + (f",<{self.below}" if self.below else "")


TVM = Tool("apache-tvm", "tvm", "0.27", "0.28", "kernels for CPUs")
TVM_RUNTIME = Tool("apache-tvm-ffi", "tvm_ffi", "0.1", "", "compiled kernels for CPUs")
TRITON = Tool("triton", "triton", "3.4", "", "kernels for GPUs")
ONNX = Tool("onnx", "onnx", "1.17", "", "files for Netron")
TORCH = Tool("torch", "torch", "2.9", "", "PyTorch functions")


def missing(tool: Tool) -> str:
    """What is wrong with a tool and what to install; empty where it is there in a version that fusec takes."""
    return _missing(tool) if is_there(tool.module) else f"{_needs(tool)}, which is not installed: {_install(tool)}"


@cache
def _missing(tool: Tool) -> str:
    try:
        found = version(tool.package)
    except PackageNotFoundError:  # put on the path by hand
        return ""
    fits = _number(found) >= _number(tool.least) and (not tool.below or _number(found) < _number(tool.below))
    return "" if fits else f"{_needs(tool)}; {tool.package} {found} is installed: {_install(tool)}"


def require(tool: Tool) -> None:
    """TargetError where a tool is missing, or of a version that fusec does not take."""
    reason = missing(tool)
    if reason:
        raise TargetError(reason)


_UNUSED = ("tvm.relax", "tvm.runtime.disco")
_BACKENDS = "TVM_DEVICE_BACKEND_AUTOLOAD"
"""TVM's own variable: whether it loads what it has for GPUs and other devices.

A first name that TVM does not know makes it read the debug information of every library of the process, for the
error's trace: a second. Its backends, and Disco where that was left out of a build, ask for such names."""


@contextmanager
def importing(tool: Tool) -> Iterator[None]:
    """TargetError where a tool that is installed can't be imported. Of TVM only what fusec calls is loaded."""
    try:
        with uncollected(), _tvm_in_part() if tool is TVM else nullcontext():
            yield
    except (ImportError, OSError) as error:
        if str(getattr(error, "name", None) or "").partition(".")[0] == "fusec":
            raise
        raise TargetError(f"{tool.package} can't be imported ({error}): {_install(tool)}") from error


@contextmanager
def _tvm_in_part() -> Iterator[None]:
    known = os.environ.get(_BACKENDS)
    if known is None:
        os.environ[_BACKENDS] = "0"
    try:
        with lazily(_UNUSED):
            yield
    finally:
        if known is None:
            del os.environ[_BACKENDS]


def require_gpu_compiler(target: str, language: str) -> None:
    """TargetError where nothing here compiles kernels for a GPU. ``language``: ``triton``, ``cuda`` or ``both``."""
    reasons = list(_why_no_compiler(target, language))
    if all(reasons):
        raise TargetError("; ".join(reasons))


def _why_no_compiler(target: str, language: str) -> Iterator[str]:
    """Of each language that may be used, why not; empty where it can be."""
    if language != "cuda":
        yield missing(TRITON)
    if language != "triton" and not target.startswith("hip"):
        from fusec.codegen.cuda.nvrtc import load_nvrtc

        try:
            load_nvrtc()
        except TargetError as error:
            yield str(error)
        else:
            yield ""


def _needs(tool: Tool) -> str:
    return f"{tool.purpose} need {tool.requirement}"


def _install(tool: Tool) -> str:
    return f"pip install '{tool.requirement}'"


def _number(text: str) -> tuple[int, ...]:
    """The leading numbers of a version."""
    return tuple(map(int, re.findall(r"\d+", re.split(r"[^\d.]", text, maxsplit=1)[0])))
