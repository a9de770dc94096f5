# SPDX-License-Identifier: Apache-2.0
"""fusec: the same answer as your plain PyTorch or NumPy code, faster, and it shows you why."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path as _Path
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_checkout = _Path(__file__).resolve().parent.parent
if (_checkout / "passes").is_dir() and not (_Path(__file__).parent / "passes").exists():
    # Run from a checkout whose root is on sys.path: fusec.passes and fusec.codegen stand beside this folder there.
    __path__.append(str(_checkout))

if TYPE_CHECKING:
    from fusec.api import compile as compile
    from fusec.api import explain as explain
    from fusec.api import jit as jit
    from fusec.api import lower as lower
    from fusec.api import parse as parse
    from fusec.api import release_memory as release_memory
    from fusec.api import trace as trace
    from fusec.exporting import Compiled as Compiled
    from fusec.loading import load as load
    from fusec.notices import RunsAsWritten as RunsAsWritten
    from fusec.quantizing.quantize import quantize as quantize
    from fusec.specs import TensorSpec as TensorSpec
    from fusec.tracing import profile as profile

__all__ = [
    "Compiled",
    "RunsAsWritten",
    "TensorSpec",
    "compile",
    "explain",
    "jit",
    "load",
    "lower",
    "parse",
    "profile",
    "quantize",
    "release_memory",
    "trace",
]

_HOMES = {
    "Compiled": "fusec.exporting",
    "RunsAsWritten": "fusec.notices",
    "load": "fusec.loading",
    "TensorSpec": "fusec.specs",
    "profile": "fusec.tracing",
    "quantize": "fusec.quantizing.quantize",
}


def __getattr__(name: str) -> object:
    """The public functions are imported on first use, so that ``import fusec`` costs next to nothing.

    TargetError for what needs the compiler, where a package of it is missing: ``fusec-runtime`` brings NumPy alone.
    """
    if name in __all__:
        from fusec.packages import needing_compiler

        with needing_compiler(f"fusec.{name}"):
            home = import_module(_HOMES.get(name, "fusec.api"))
        value = globals()[name] = getattr(home, name)
        return value
    raise AttributeError(f"module 'fusec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
