"""Functional collectives under jit, between two GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
    pytest.skip("fewer than two CUDA devices", allow_module_level=True)

from tests import collectives  # noqa: E402

pytestmark = pytest.mark.gpu


def test_two_gpus(tmp_path: Path) -> None:
    collectives.run("nccl", 2, tmp_path)
