"""Memory is handed out again only when nobody can see it any more."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threads import at_once

from fusec.runtime.memory import ALIGNMENT, ArenaPlan, Pool, allocate, plan_arena, size_class

MIB = 1 << 20


@pytest.fixture
def pool() -> Pool:
    return Pool(64 * MIB)


def _address(pool: Pool, nbytes: int = MIB) -> int:
    return pool.take(nbytes)[1]


def _idle_addresses(pool: Pool) -> set[int]:
    held = [pool.take(MIB) for _ in range(8)]
    return {address for _, address in held}


def test_a_dropped_block_comes_again(pool: Pool) -> None:
    block, address = pool.take(MIB)
    assert address == block.ctypes.data
    assert block.nbytes >= MIB
    del block
    assert _address(pool) == address


def test_a_held_block_does_not(pool: Pool) -> None:
    block, address = pool.take(MIB)
    assert _address(pool) != address
    assert block is not None


def test_an_array_over_a_block_holds_it(pool: Pool) -> None:
    block, address = pool.take(MIB)
    array: Any = np.ndarray((512, 512), np.float32, block)
    del block
    assert _address(pool) != address
    tail = array[100:].T
    del array
    assert _address(pool) != address
    seen = memoryview(tail)
    del tail
    assert _address(pool) != address
    del seen
    assert address in _idle_addresses(pool)


def test_a_tensor_and_all_made_of_it_hold_a_block(pool: Pool) -> None:
    torch = pytest.importorskip("torch")
    block, address = pool.take(MIB)
    tensor = torch.from_numpy(np.ndarray((512, 512), np.float32, block))
    del block
    derived = tensor[3:].t()
    del tensor
    assert _address(pool) != address
    as_numpy = derived.numpy()
    del derived
    assert _address(pool) != address
    back = torch.utils.dlpack.from_dlpack(torch.from_numpy(as_numpy))
    del as_numpy
    assert _address(pool) != address
    storage = back.untyped_storage()
    del back
    assert _address(pool) != address
    del storage
    assert address in _idle_addresses(pool)


def test_results_held_by_the_caller_are_never_overwritten(pool: Pool) -> None:
    kept: list[tuple[int, Any]] = []
    for number in range(200):
        block, _ = pool.take(8192)
        array: Any = np.ndarray((1000,), np.float64, block)
        del block
        array[:] = number
        if number % 3:
            kept.append((number, array[10:20]))
        if number % 50 == 0:
            del kept[: len(kept) // 2]
    assert len(kept) > 20
    assert all((array == number).all() for number, array in kept)


def test_threads_never_share_a_block(pool: Pool) -> None:
    def work(mark: int) -> None:
        for _ in range(300):
            block, _ = pool.take(4096)
            block[:64] = mark
            copy = np.ndarray((64,), np.uint8, block)
            del block
            assert (copy == mark).all()

    at_once(work, range(8))


def test_the_limit_holds(pool: Pool) -> None:
    held = [pool.take(4 * MIB)[0] for _ in range(40)]
    assert pool.held_bytes <= pool.limit
    for number, block in enumerate(held):
        block[0] = number
    assert [int(block[0]) for block in held] == list(range(40))


def test_a_block_beyond_the_limit_is_not_kept(pool: Pool) -> None:
    block, _ = pool.take(128 * MIB)
    assert block.nbytes >= 128 * MIB
    assert pool.held_bytes == 0


def test_release_frees_idle_blocks_and_leaves_others(pool: Pool) -> None:
    block, address = pool.take(MIB)
    block[0] = 7
    pool.take(2 * MIB)
    assert pool.release() == size_class(2 * MIB)
    assert pool.held_bytes == 0
    assert _address(pool) != address
    assert block[0] == 7


@pytest.mark.parametrize("nbytes", [1, 4096, 4097, 3 * MIB + 1])
def test_blocks_are_aligned(nbytes: int) -> None:
    block = allocate(nbytes)
    assert block.nbytes == nbytes
    assert block.ctypes.data % 4096 == 0
    assert block.flags.writeable


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no transparent huge pages")
def test_large_blocks_ask_for_large_pages() -> None:
    block = allocate(8 * MIB)
    assert block.ctypes.data % (2 * MIB) == 0
    flags = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        field, _, rest = line.partition(" ")
        low, dash, high = field.partition("-")
        if dash and not field.endswith(":"):
            inside = int(low, 16) <= block.ctypes.data < int(high, 16)
        elif field == "VmFlags:" and inside:
            flags = rest.split()
    assert flags is not None
    assert "hg" in flags


@given(st.integers(1, 1 << 32))
def test_size_classes_waste_little(nbytes: int) -> None:
    size = size_class(nbytes)
    assert nbytes <= size <= max(nbytes * 1.125 + 1, nbytes + 4096)
    assert size_class(size) == size


pieces = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 12), st.integers(0, 6)).map(lambda t: (t[0], (t[1], t[1] + t[2]))),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(pieces)
def test_pieces_alive_together_do_not_overlap(parts: list[tuple[int, tuple[int, int]]]) -> None:
    sizes = [size for size, _ in parts]
    lives = [life for _, life in parts]
    offsets, total = plan_arena(sizes, lives)
    for i, (start, size) in enumerate(zip(offsets, sizes, strict=True)):
        assert start % ALIGNMENT == 0
        assert start + size <= total
        for j in range(i):
            together = lives[i][0] <= lives[j][1] and lives[j][0] <= lives[i][1]
            apart = start + size <= offsets[j] or offsets[j] + sizes[j] <= start
            assert apart or not together or not size or not sizes[j]


def test_pieces_that_do_not_meet_share_memory() -> None:
    offsets, total = plan_arena([1000, 1000, 1000], [(0, 1), (2, 3), (4, 4)])
    assert offsets == [0, 0, 0]
    assert total == 1024


def test_two_caches_of_many_layers_are_remembered() -> None:
    """Each call gives a new cache of keys and values while the caller still holds the last."""
    pool = Pool(1 << 30)
    held = [pool.take(300_000) for _ in range(2 * 48)]
    assert pool.held_bytes >= 2 * 48 * 300_000
    addresses = {address for _, address in held}
    held = []
    assert {address for _, address in [pool.take(300_000) for _ in range(2 * 48)]} == addresses


def test_sizes_that_grow_by_a_little_share_a_plan() -> None:
    plan = ArenaPlan([(0, 1), (1, 2), (3, 3)])
    total, offsets = plan((100_000, 5000, 70_000))
    assert plan((100_064, 5000, 70_064)) == (total, offsets)
    assert offsets[1] >= 100_064
    assert total >= offsets[1] + 5000
    assert plan((900_000, 5000, 70_000))[0] >= 905_000


def test_blocks_that_are_dropped_in_turn_come_back_in_turn() -> None:
    pool = Pool(1 << 30)
    held = deque(pool.take(1 << 16)[0] for _ in range(60))
    held.popleft()
    remembered = pool.held_bytes
    for _ in range(150):
        held.append(pool.take(1 << 16)[0])
        assert len({int(block.ctypes.data) for block in held}) == 60
        held.popleft()
    assert pool.held_bytes == remembered
    block, address = pool.take(1 << 16)
    del block
    assert pool.take(1 << 16)[1] == address
