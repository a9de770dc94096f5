"""Chunks of host arrays, and what is said where no GPU can take them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fusec
from fusec.errors import ArtifactError, LoweringError, TargetError
from fusec.runtime import host, staging


def test_chunks_divide_the_batch_where_they_can() -> None:
    assert host.chunk_of(64, host.CHUNK_BYTES // 2) == 2
    assert host.chunk_of(64, 1) == 16
    assert host.chunk_of(66, 1) == 11  # most would be 16
    assert host.chunk_of(61, host.CHUNK_BYTES // 10) == 10
    assert host.chunk_of(5, 10 * host.CHUNK_BYTES) == 1
    assert host.chunk_of(2, 1) == 1


def test_copies_with_threads() -> None:
    rng = np.random.default_rng(0)
    for source in (rng.random(3_000_000), rng.random((3000, 2000)).T, rng.random(3), np.array(1.0)):
        target = np.zeros(source.shape)
        staging.copy_with_threads(target, source)
        np.testing.assert_array_equal(target, source)


def without_a_gpu() -> None:
    """Skips where there is one."""
    cupy = pytest.importorskip("cupy")
    pytest.importorskip("triton")
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        count = 0
    if count:
        pytest.skip("there is a GPU")
    staging.load_cupy.cache_clear()


def test_no_gpu() -> None:
    without_a_gpu()
    with pytest.raises(TargetError, match="no GPU here"):
        fusec.jit(lambda x: x + 1, target="cuda:sm_90", fallback="error")(np.ones(5))


def test_compiled_without_the_card(tmp_path: Path) -> None:
    without_a_gpu()
    x, w = np.ones((64, 30, 20), np.float32), np.ones((20, 10), np.float32)
    compiled = fusec.compile(lambda x: np.exp(x @ w), x, target="cuda:sm_90")
    text = compiled.explain()
    assert "64 elements of a batch, 16 at a time" in text
    with pytest.raises(TargetError, match="no GPU here"):
        compiled(x)
    with pytest.raises(ArtifactError, match="can't be saved"):
        compiled.save(tmp_path / "f.fusec")


def test_a_view_of_an_argument_is_refused() -> None:
    pytest.importorskip("triton")
    with pytest.raises(LoweringError, match="a view of an argument"):
        fusec.jit(lambda x: (x + 1, x[1:]), target="cuda:sm_90", fallback="error")(np.ones(5))
