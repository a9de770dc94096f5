"""``torch.compile(backend="fusec")`` with sizes that change: one program for a range of them, where that can be."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusec import torch_compile  # noqa: E402
from fusec.errors import DimensionError  # noqa: E402
from fusec.torch_compile import gathering  # noqa: E402
from fusec.torch_graphs import CompiledGraph  # noqa: E402
from fusec.torch_symbols import SizedGraph, sizes_of  # noqa: E402

Made = list[CompiledGraph]
functional = torch.nn.functional


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture
def made() -> Iterator[Made]:
    with gathering() as graphs:
        yield graphs


def compiled(function: Any, dynamic: bool | None = True) -> Any:
    return torch.compile(function, backend=torch_compile.backend, dynamic=dynamic)


def programs(graphs: Made) -> list[int]:
    """How many programs each graph that was called has; none of the calls ran as written."""
    print(*(part.closed for graph in graphs for part in graph.parts))  # shown where a count is wrong
    assert not any(graph.cuts or graph.eager_calls for graph in graphs)
    return [len(graph.executables) for graph in graphs if graph.parts]


def check(fast: Any, plain: Callable[..., Any], *args: Any) -> None:
    torch.testing.assert_close(fast(*args), plain(*args))


class Attention(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        batch, length, _ = x.shape
        parts = (t.view(batch, length, 2, 8).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, 16))


class Encoder(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.words, self.attention = torch.nn.Embedding(50, 16), Attention()

    def forward(self, ids: Any) -> Any:
        return self.attention(self.words(ids)).mean(1)


def words(batch: int, length: int) -> Any:
    return torch.randint(50, (batch, length))


def test_an_mlp_has_one_program_for_its_range(made: Made, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    plain = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8), torch.nn.Softmax(-1))
    fast = compiled(plain)
    for rows in (3, 2, 7, 16):
        check(fast, plain, torch.randn(rows, 16))
    assert programs(made) == [1]
    check(fast, plain, torch.randn(1, 16))  # Dynamo makes a graph for 1 by itself
    assert programs(made) == [1, 1]
    for rows in (65, 100, 33):  # beyond four times the first
        check(fast, plain, torch.randn(rows, 16))
    assert programs(made) == [2, 1]
    assert "new signature (1 plans so far): array 2 is f32[65, 16], was f32[3, 16]" in caplog.text


def test_batch_and_length_of_an_encoder(made: Made) -> None:
    plain = Encoder()
    fast = compiled(plain)
    for shape in ((3, 7), (2, 2), (5, 9), (9, 20), (2, 17)):
        check(fast, plain, words(*shape))
    assert programs(made) == [1]
    assert [kernel.kind for kernel in made[0].executables[0].program.reports].count("attention") == 1
    for shape in ((1, 9), (1, 3), (4, 1), (7, 1), (1, 1)):
        check(fast, plain, words(*shape))
    assert programs(made) == [1, 1, 1, 1]


def test_the_second_size_opens_a_range_by_itself(made: Made) -> None:
    plain = Attention()
    fast = compiled(plain, dynamic=None)
    for length in (6, 9, 2, 11, 30, 7):
        check(fast, plain, torch.randn(2, length, 16))
    assert programs(made) == [1, 1]


def test_gradients_and_their_strides(made: Made) -> None:
    plain = Encoder()
    fast = compiled(plain)
    parameters = list(plain.parameters())
    with torch.enable_grad():
        for shape in ((3, 7), (2, 5), (6, 11)):
            ids = words(*shape)
            expected = torch.autograd.grad(plain(ids).square().sum(), parameters)
            torch.testing.assert_close(torch.autograd.grad(fast(ids).square().sum(), parameters), expected)
    assert [graph.kind for graph in made] == ["forward", "backward"]
    assert programs(made) == [1, 1]


def test_sizes_among_the_results_and_in_the_arithmetic(made: Made) -> None:
    def f(x: Any) -> Any:
        rows, columns = x.shape
        return rows, x.reshape(columns, rows) * rows + torch.arange(rows), columns * 2 + rows, x.sum()

    fast = compiled(f)
    for shape in ((3, 4), (5, 2), (5, 7)):
        check(fast, f, torch.randn(shape))
    assert programs(made) == [1]


def test_inputs_that_are_not_row_major(made: Made) -> None:
    def f(x: Any, y: Any) -> Any:
        return torch.softmax(x, -1) + y

    fast = compiled(f)
    for rows, columns in ((3, 4), (7, 5), (5, 11)):
        check(fast, f, torch.randn(columns, rows).t(), torch.randn(rows, 1).expand(rows, columns))
    assert programs(made) == [1]
    assert made[0].captures[0].graph.input_ports[0].strides is not None


def test_an_input_changed_in_place(made: Made) -> None:
    def f(x: Any) -> Any:
        x.mul_(2)
        return x.sum(0)

    fast = compiled(f)
    for rows in (3, 6, 9):
        expected, mine = torch.ones(rows, 4), torch.ones(rows, 4)
        torch.testing.assert_close(fast(mine), f(expected))
        torch.testing.assert_close(mine, expected)
    assert programs(made) == [1]


def test_of_more_sizes_than_a_program_can_have_those_that_change_are_open(made: Made) -> None:
    def f(x: Any, y: Any) -> Any:
        return x.sum() + y.exp()

    fast = compiled(f)
    for rows in (4, 9, 11, 3, 20):
        check(fast, f, torch.randn(3, rows, 5), torch.randn(6, 7, 8))
    assert programs(made) == [2]  # the first size, then a range of it


def test_a_size_that_is_no_extent_is_compiled_for_each_value(made: Made, caplog: Any) -> None:
    def f(x: Any, count: int) -> Any:
        return x + torch.arange(count).sum()

    caplog.set_level(logging.INFO)
    fast = compiled(f)
    for rows, count in ((3, 4), (5, 6), (5, 4)):
        check(fast, f, torch.randn(rows), count)
    assert programs(made) == [3]
    assert "is no extent of an array among the inputs" in caplog.text


def test_a_graph_is_read_without_running_it() -> None:
    graphs: list[Any] = []

    def keep(module: Any, example_inputs: Any) -> Any:
        graphs.append(SizedGraph(module, sizes_of(module) or pytest.fail("no sizes")))
        return module

    def f(x: Any) -> Any:
        return x.view(-1) * 2, x.shape[0] * x.shape[1]

    torch.compile(f, backend=keep, dynamic=True)(torch.ones(3, 4))
    (sized,) = graphs
    x = torch.randn(5, 6)
    (flat,) = sized(x)
    torch.testing.assert_close(sized.together((flat,), x), f(x))
    assert sized.sizes.values([(5, 6)]) == dict(zip(sized.sizes.read_at, (5, 6), strict=True))


def test_numbers_that_change_are_refused() -> None:
    graph = torch.fx.Graph()
    graph.placeholder("x").meta["val"] = torch.SymFloat(1.5)
    graph.output(())
    with pytest.raises(DimensionError, match="a number that changes"):
        sizes_of(torch.fx.GraphModule({}, graph))


def test_what_has_no_kernel_for_a_range_is_compiled_for_each_size_and_says_so(made: Made, caplog: Any) -> None:
    index = torch.tensor([2, 0, 1, 1, 0])

    def f(x: Any) -> Any:
        return x[index] * 2

    caplog.set_level(logging.INFO)
    fast = compiled(f)
    for rows in (3, 6, 9):
        check(fast, f, torch.randn(rows, 4))
    assert programs(made) == [3]
    assert "not for a range of extents" in caplog.text
    assert "gather reaches into an axis of symbolic extent" in made[0].report()


def test_a_number_that_varies_is_cast_to_the_tensors_dtype() -> None:
    """Dynamo passes it as f64[], and converts that by a function of a library."""

    def f(x: Any, y: Any) -> Any:
        return (x * y).sum(-1)

    fast = compiled(f, None)
    x = torch.randn(3, 6)
    assert torch.allclose(fast(x, x), f(x, x))
    for rows, number in ((4, 2.0), (4, 3.5), (5, 0.25)):
        x = torch.randn(rows, 6)
        assert torch.allclose(fast(x, number), f(x, number))
