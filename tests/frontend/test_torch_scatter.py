"""Sums into rows that an index names, as PyTorch code writes them: which are ops, and that results are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fusec
from fusec.frontend.torch import capture

torch = pytest.importorskip("torch")

N, E, D = 11, 40, 6
Function = Callable[..., Any]


def index_added(x: Any, s: Any, d: Any, w: Any) -> Any:
    return torch.zeros_like(x).index_add_(0, d, x[s] * w[:, None])


def scattered(x: Any, s: Any, d: Any, w: Any) -> Any:
    m = x[s] * w[:, None]
    return torch.zeros_like(x).scatter_add_(0, d[:, None].expand_as(m), m), m.sum(0)


def accumulated(x: Any, s: Any, d: Any, w: Any) -> Any:
    out = torch.ones_like(x)
    out.index_put_((d - N,), x[s], accumulate=True)
    return out


def of_numbers(x: Any, s: Any, d: Any, w: Any) -> Any:
    return torch.zeros(N, dtype=x.dtype).scatter_add(0, d, w)


def normalised(x: Any, s: Any, d: Any, w: Any) -> Any:
    """A graph convolution with degrees on both sides."""
    degree = torch.zeros(N, dtype=x.dtype).index_add_(0, d, w).clamp(min=0.1).rsqrt()
    return torch.zeros_like(x).index_add_(0, d, x[s] * (degree[s] * w * degree[d])[:, None])


def in_place(x: Any, s: Any, d: Any, w: Any) -> Any:
    """What is added is gathered before any of it changes."""
    return x.index_add_(0, d, x[s])


def along_columns(x: Any, s: Any, d: Any, w: Any) -> Any:
    return torch.zeros(D, N, dtype=x.dtype).index_add(1, d, x[s].T)


def into_columns(x: Any, s: Any, d: Any, w: Any) -> Any:
    """The index is repeated along axes that it does not have."""
    return torch.zeros(D, N, dtype=x.dtype).scatter_add(1, d.expand(D, E), x[s].T)


ADDED = [index_added, scattered, accumulated, of_numbers, normalised, in_place, along_columns, into_columns]


def arguments(dtype: Any = torch.float32) -> tuple[Any, ...]:
    g = torch.Generator().manual_seed(0)
    ends = (torch.randint(0, N, (E,), generator=g) for _ in range(2))
    return torch.randn(N, D, generator=g).to(dtype), *ends, torch.rand(E, generator=g).to(dtype)


@pytest.mark.parametrize("f", ADDED, ids=lambda f: f.__name__)
def test_sums_are_kernels(f: Function) -> None:
    ours, theirs = arguments(), arguments()
    graph = capture(f, arguments(), {}).graph
    assert any(op.name == "scatter_add" for op in graph.ops)
    assert not any(op.name == "extern" for op in graph.ops)
    torch.testing.assert_close(fusec.jit(f)(*ours), f(*theirs))
    torch.testing.assert_close(ours, theirs)


def a_few(x: Any, s: Any, d: Any, w: Any) -> Any:
    return x.index_add(0, d[:3], x[:3])


def each_its_own(x: Any, s: Any, d: Any, w: Any) -> Any:
    index = torch.stack([d] * D, 1)
    return torch.zeros_like(x).scatter_add(0, index, x[s])


def halves(x: Any, s: Any, d: Any, w: Any) -> Any:
    return torch.zeros(N, D, dtype=torch.bfloat16).index_add(0, d, x[s].bfloat16())


def transposed(x: Any, s: Any, d: Any, w: Any) -> Any:
    """A square index whose columns are those of the array that is repeated along rows."""
    index = d[:N, None].expand(N, N).T
    return torch.zeros(N, N, dtype=x.dtype).scatter_add(0, index, x @ x.T)


def strided(x: Any, s: Any, d: Any, w: Any) -> Any:
    """An index that shows other elements than the array of its extents below it."""
    index = d[:N, None].expand(N, N).as_strided((N, N), (0, 1))
    return torch.zeros(N, N, dtype=x.dtype).scatter_add(0, index, x @ x.T)


@pytest.mark.parametrize("f", [a_few, each_its_own, halves, transposed, strided], ids=lambda f: f.__name__)
def test_sums_that_stay_the_library_s(f: Function) -> None:
    graph = capture(f, arguments(), {}).graph
    assert not any(op.name == "scatter_add" for op in graph.ops)
    torch.testing.assert_close(fusec.jit(f)(*arguments()), f(*arguments()))


def test_bytes_are_a_mask() -> None:
    def f(x: Any, mask: Any, values: Any) -> Any:
        return torch.index_put(x, (mask,), values, accumulate=True)

    x, mask = torch.zeros(4, 2), torch.tensor([0, 1, 1, 0], dtype=torch.uint8)
    values = torch.ones(2, 2), torch.ones(4, 2)  # one for each that the mask picks; one for each of the mask
    torch.testing.assert_close(fusec.jit(f)(x, mask, values[0]), f(x, mask, values[0]))
    with pytest.raises(RuntimeError, match="shape mismatch"):
        fusec.jit(f)(x, mask, values[1])


def test_an_index_out_of_range_raises_as_eager_does() -> None:
    x, s, d, w = arguments()
    for run in (index_added, fusec.jit(index_added)):
        run(x, s, d, w)
        with pytest.raises(RuntimeError, match="out of bounds"):
            run(x, s, d + N, w)
