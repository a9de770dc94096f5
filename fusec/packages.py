# SPDX-License-Identifier: Apache-2.0
"""Python packages beside fusec: their versions, and importing large ones."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from fusec.errors import TargetError


@cache
def installed(package: str) -> str:
    """The version of a package, ``none`` where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def is_there(module: str) -> bool:
    """Whether a module can be found. It is not imported."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a module in sys.modules that is none
        return False


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection meanwhile: in a large import it takes a sixth of the time, and finds nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def needing_compiler(what: str) -> Iterator[None]:
    """TargetError where an import fails because the compiler is not installed: ``fusec-runtime`` is there alone."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        lacking = "which" if package == "fusec" else f"and {package}"
        raise TargetError(f"{what} needs the compiler, {lacking} is not installed: pip install fusec") from error
