"""Chunks of host arrays, and what is said where no GPU can take them."""

from __future__ import annotations

import numpy as np
import pytest

import fusec
from fusec.errors import TargetError
from fusec.runtime import host


def test_chunks_divide_the_batch_where_they_can() -> None:
    assert host.chunk_of(64, host.CHUNK_BYTES // 2) == 2
    assert host.chunk_of(64, 1) == 16  # most would be 21
    assert host.chunk_of(61, host.CHUNK_BYTES // 10) == 10
    assert host.chunk_of(5, 10 * host.CHUNK_BYTES) == 1
    assert host.chunk_of(2, 1) == 1


def test_copies_with_threads() -> None:
    rng = np.random.default_rng(0)
    for source in (rng.random(3_000_000), rng.random((3000, 2000)).T, rng.random(3), np.array(1.0)):
        target = np.zeros(source.shape)
        host.copy_with_threads(target, source)
        np.testing.assert_array_equal(target, source)


def test_no_gpu() -> None:
    cupy = pytest.importorskip("cupy")
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        count = 0
    if count:
        pytest.skip("there is a GPU")
    host.load_cupy.cache_clear()
    with pytest.raises(TargetError, match="no GPU here"):
        fusec.jit(lambda x: x + 1, target="cuda:sm_90", fallback="error")(np.ones(5))
