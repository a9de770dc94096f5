"""Inputs that a graph of torch.compile writes and that overlap others, at the first call or at a later one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fusec.torch_compile import gathering
from fusec.torch_overlaps import WhereApart, are_apart, examples_are_apart

Given = tuple[torch.Tensor, ...]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """One thread: eager's own threads write overlapping statistics in any order."""
    torch._dynamo.reset()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def apart() -> Given:
    return (
        torch.linspace(-1, 2, 20).view(5, 4),
        torch.linspace(0.5, 1, 4).requires_grad_(),
        torch.ones(4),
        torch.ones(4),
    )


def partly() -> Given:
    both = torch.linspace(1, 2, 6)
    return *apart()[:2], both[:4], both[2:]


def partly_the_other_way() -> Given:
    x, w, a, b = partly()
    return x, w, b, a


def whole() -> Given:
    both = torch.linspace(1, 2, 4)
    return *apart()[:2], both, both[:]


def interleaved() -> Given:
    both = torch.linspace(1, 2, 8)
    return *apart()[:2], both[::2], both[1::2]


def row_of_x() -> Given:
    x, w, _, b = apart()
    return x, w, x[1], b


def statistics(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, a, b, weight=w, training=True).square().sum() + (a * b).sum()


def written_then_read(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.mul_(0.5)
    return (w.sin() * b).sum() + a.sum() + x.sum()


def written_through_a_view(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    b.view(2, 2)[1].add_(x.detach().mean())
    return (w * a).sum()


def outcome(function: Callable[..., Any], given: Given) -> list[torch.Tensor]:
    result = function(*given)
    (gradient,) = torch.autograd.grad(result, given[1])
    return [t.detach().clone() for t in (result, gradient, *given)]


CASES = [
    (statistics, partly, False),
    (statistics, whole, False),
    (written_then_read, partly_the_other_way, False),
    (written_then_read, whole, True),
    (written_then_read, row_of_x, False),
    (written_through_a_view, partly, True),
    (written_through_a_view, interleaved, False),
]


@pytest.mark.parametrize(("function", "make", "dynamic"), CASES)
def test_calls_are_what_they_are_in_eager(
    function: Callable[..., Any], make: Callable[[], Given], dynamic: bool
) -> None:
    for order in ((apart, make, apart, make), (make, apart, make)):
        torch._dynamo.reset()
        fast = torch.compile(function, backend="fusec", dynamic=dynamic)
        for each in order:
            found, wanted = outcome(fast, each()), outcome(function, each())
            assert all(torch.allclose(x, y, atol=1e-6) for x, y in zip(found, wanted, strict=True)), each.__name__


def test_the_graph_for_separate_memory_stays() -> None:
    with gathering() as graphs:
        fast = torch.compile(written_then_read, backend="fusec")
        for make in (apart, apart, partly, apart):
            fast(*make())
    assert len(graphs) == 2
    assert len(graphs[0].captures) == 1


def test_spans() -> None:
    assert are_apart([])
    assert are_apart([(0, 4, True), (4, 8, True), (6, 9, False)][:2])
    assert are_apart([(0, 9, False), (2, 5, False), (9, 12, True)])
    assert not are_apart([(0, 9, False), (2, 3, False), (8, 12, True)])
    assert not are_apart([(0, 9, True), (2, 3, False)])
    assert not are_apart([(0, 20, True), (2, 3, True), (30, 31, False)])
    assert not are_apart([(4, 8, False), (4, 8, True)])


def test_examples_tell_by_their_storages() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(8)
        assert examples_are_apart([x[:4], x[4:], torch.empty(3), 5], [0])
        assert not examples_are_apart([x[:4], x[3:]], [1])
        assert examples_are_apart([x[:4], x[3:], torch.empty(2)], [2])
        assert examples_are_apart([x[:0], x], [0, 1])


def test_the_other_way_is_made_once_and_when_it_is_needed() -> None:
    made = []

    def otherwise() -> Callable[..., Any]:
        made.append(1)
        return lambda *_: "as it is"

    x = torch.zeros(8)
    called = WhereApart(lambda *_: "compiled", [0], [x[:4], x[4:]], otherwise)
    assert called(x[:4], x[4:]) == "compiled"
    assert not made
    assert [called(x[:4], x[3:7]), called(x[4:], x[:4]), called(x[:4], x[:4])] == ["as it is", "compiled", "as it is"]
    assert len(made) == 1
