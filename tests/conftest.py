"""Makes the helpers beside this file importable from every test, and skips what this machine can't run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests marked ``gpu`` where torch sees no GPU."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = _no_gpu() if marked else None
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


def _no_gpu() -> str | None:
    """Why GPU tests can't run here, or None where they can."""
    try:
        import torch
    except ImportError:
        return "gpu: torch is not installed"
    return None if torch.cuda.is_available() else "gpu: no CUDA or ROCm device on this machine"
