"""What is remembered of tensors, and which changes of them are seen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fusec.runtime.torch_arrays import ARRAYS

DTYPES = (torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex128)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (17, 5), (300, 70)])
@pytest.mark.parametrize("inference", [False, True])
def test_writes_that_pass_the_counter_by_are_seen(shape: tuple[int, ...], dtype: torch.dtype, inference: bool) -> None:
    with torch.inference_mode(inference):
        arrays = [torch.ones(shape, dtype=dtype), torch.ones(4)]
    watch = ARRAYS.watch(arrays)
    assert watch is not None
    assert watch.same(arrays)
    arrays[0].data.zero_()
    assert not watch.same(arrays)


def _mask(way: str, shape: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    rows, columns = shape
    match way:
        case "rows":
            mask = np.zeros(shape, bool)
            mask[generator.permutation(rows)[: rows * 3 // 4]] = True
        case "columns":
            mask = np.zeros(shape, bool)
            mask[:, generator.permutation(columns)[: columns * 3 // 4]] = True
        case "half":
            mask = np.arange(rows * columns).reshape(shape) * 2 < rows * columns
        case _:
            mask = generator.random(shape) < 0.5
    return mask


@pytest.mark.parametrize("way", ["rows", "columns", "half", "elements"])
@pytest.mark.parametrize("shape", [(64, 768), (768, 64), (129, 1000), (50, 4096)])
def test_an_update_of_most_elements_is_seen(way: str, shape: tuple[int, int]) -> None:
    array = torch.zeros(shape)
    watch = ARRAYS.watch([array])
    assert watch is not None
    array.numpy()[_mask(way, shape, np.random.default_rng(0))] = 1
    assert not watch.same([array])


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.add_(0),
        lambda w: setattr(w, "data", w.data.clone()),
        lambda w: w.untyped_storage().resize_(0),
        lambda w: w.untyped_storage().resize_(1 << 20),
    ],
)
def test_counters_and_addresses(change: Callable[[torch.Tensor], object]) -> None:
    w = torch.ones(100, 30)
    watch = ARRAYS.watch([w])
    assert watch is not None
    change(w)
    assert not watch.same([w])


def test_a_tensor_without_a_counter_where_one_had_one() -> None:
    with_counter = torch.ones(10)
    watch = ARRAYS.watch([with_counter])
    assert watch is not None
    with torch.inference_mode():
        without = torch.empty(0).set_(with_counter.untyped_storage(), 0, (10,), (1,))
    assert without.is_inference()
    assert without.data_ptr() == with_counter.data_ptr()
    assert not watch.same([without])


def test_neighbours_in_a_storage_may_change() -> None:
    whole = torch.zeros(3, 1000)
    views = [whole[1]]
    watch = ARRAYS.watch(views)
    assert watch is not None
    whole.data[0] += 1
    whole.data[2] += 1
    assert watch.same(views)


def test_tensors_without_elements() -> None:
    arrays = [torch.ones(0, 3), torch.ones(5)[5:]]
    watch = ARRAYS.watch(arrays)
    assert watch is not None
    assert watch.same(arrays)


def test_what_is_watched_stays_in_its_memory() -> None:
    array = torch.ones(1000)
    watch = ARRAYS.watch([array])
    assert watch is not None
    address = array.data_ptr()
    del array
    held = [torch.ones(1000) for _ in range(50)]
    assert all(other.data_ptr() != address for other in held)
