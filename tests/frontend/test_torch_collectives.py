"""Functional collectives under jit, between two processes on this CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("PyTorch without gloo", allow_module_level=True)

from tests import collectives  # noqa: E402


def test_two_processes(tmp_path: Path) -> None:
    collectives.run("gloo", 2, tmp_path)
