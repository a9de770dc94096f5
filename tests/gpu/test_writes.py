"""Writes into arguments on a GPU, where they lie: against the code as written. Skipped without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import fusec  # noqa: E402

pytestmark = pytest.mark.gpu


def layer_slice(cache: Any, keys: Any, at: Any) -> Any:
    cache[1][:, :, 5:6] = keys * 2
    return cache[1].sum(-1)


def layer_copied(cache: Any, keys: Any, at: Any) -> Any:
    cache[1].index_copy_(2, at[:1], keys * 2)
    return cache[1].sum(-1)


def layer_indexed(cache: Any, keys: Any, at: Any) -> Any:
    cache[1][:, :, at[:1]] = keys * 2
    return cache.sum(-1)


def of_each_sequence(cache: Any, keys: Any, at: Any) -> Any:
    cache[0][torch.arange(4, device=cache.device), :, at] = keys[:, :, 0] * 2
    return cache[0].sum(-1)


def from_behind(cache: Any, keys: Any, at: Any) -> Any:
    cache[0][:, :, -at - 1] = (keys * 2).expand(-1, -1, 4, -1)
    return cache.sum(-1)


def of_views(cache: Any, keys: Any, at: Any) -> Any:
    cache.transpose(0, 2)[1, :, 1, 3:4, 2:6] = keys[:, 0, :, 2:6]
    cache[1, :, 0].index_add_(1, at, keys[:, 0].expand(-1, 4, -1))
    return cache * 2


def all_of_it(cache: Any, keys: Any, at: Any) -> Any:
    cache.mul_(2).add_(1)
    return cache.amax()


def shifted(cache: Any, keys: Any, at: Any) -> Any:
    cache[:, :, :, 1:] = cache[:, :, :, :-1] * 2
    return cache.sum(-1)


WRITES: list[Callable[..., Any]] = [
    *(layer_slice, layer_copied, layer_indexed, of_each_sequence, from_behind, of_views, all_of_it, shifted),
]


def arguments(dtype: Any, width: int, offset: int = 0) -> tuple[Any, ...]:
    torch.manual_seed(0)
    numbers = 2 * 4 * 3 * 16 * width
    cache = torch.randn(numbers + offset, device="cuda", dtype=dtype)[offset:].view(2, 4, 3, 16, width)
    return cache, torch.randn(4, 3, 1, width, device="cuda", dtype=dtype), torch.tensor([3, 0, 9, 15], device="cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "offset"), [(8, 0), (64, 0), (7, 3)])
@pytest.mark.parametrize("function", WRITES)
def test_as_written(function: Callable[..., Any], width: int, offset: int, dtype: Any) -> None:
    compiled = fusec.jit(function, cache=False)
    given, wanted, exact = (arguments(dtype, width, offset) for _ in range(3))
    exact = (exact[0].double(), exact[1].double(), exact[2])
    for _ in range(3):
        for args in (given, wanted, exact):
            args[2].add_(1).remainder_(16)
        found, expected, right = compiled(*given), function(*wanted), function(*exact)
        for mine, eager, true in ((given[0], wanted[0], exact[0]), (found, expected, right)):
            assert mine.shape == eager.shape
            assert mine.dtype == eager.dtype
            allowed = 2 * (eager.double() - true).abs().max() + torch.finfo(dtype).eps * true.abs().max()
            assert (mine.double() - true).abs().max() <= allowed


@pytest.mark.parametrize("function", [layer_copied, layer_indexed, of_each_sequence])
def test_a_cache_is_not_copied(function: Callable[..., Any]) -> None:
    """Nothing as large as a layer is allocated, but for the result."""
    cache, keys, at = arguments(torch.bfloat16, 64)
    cache = cache.repeat(1, 1, 1, 64, 1)

    def write(cache: Any, keys: Any, at: Any) -> Any:
        function(cache, keys, at)
        return keys + 1

    compiled = fusec.jit(write, cache=False)
    compiled(cache, keys, at)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    compiled(cache, keys, at)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before < cache[0].nbytes // 4


def test_through_torch_compile() -> None:
    compiled = torch.compile(of_each_sequence, backend="fusec")
    given, wanted = arguments(torch.float32, 64), arguments(torch.float32, 64)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(*given), of_each_sequence(*wanted))
            torch.testing.assert_close(given[0], wanted[0])


def test_a_graph_of_launches() -> None:
    compiled = fusec.jit(of_each_sequence, cache=False, graph=True)
    given, wanted = arguments(torch.float32, 64), arguments(torch.float32, 64)
    for step in range(4):
        given[2].add_(step).remainder_(16)
        wanted[2].add_(step).remainder_(16)
        torch.testing.assert_close(compiled(*given), of_each_sequence(*wanted))
        torch.testing.assert_close(given[0], wanted[0])


def test_no_position_out_of_range_is_written() -> None:
    """What is beside the cache keeps its contents."""
    memory = torch.zeros(4, 16, 8, device="cuda")
    cache = memory[1:3]

    @fusec.jit(cache=False)
    def write(cache: Any, at: Any, keys: Any) -> None:
        cache.index_copy_(1, at, keys)

    write(cache, torch.tensor([16, 2], device="cuda"), torch.ones(2, 2, 8, device="cuda"))
    assert memory[1:3, 2].eq(1).all()
    assert memory.sum() == 2 * 8
