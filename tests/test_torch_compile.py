"""``torch.compile(backend="fusec")``: the same answers as eager, by PyTorch's contract for backends."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tomllib  # noqa: E402

import fusec  # noqa: E402
from fusec import torch_compile  # noqa: E402
from fusec.errors import FusecError  # noqa: E402
from fusec.torch_compile import gathering  # noqa: E402
from fusec.torch_graphs import CompiledGraph  # noqa: E402

Made = list[CompiledGraph]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def made() -> Iterator[Made]:
    with gathering() as graphs:
        yield graphs


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=torch_compile.backend, **options)


def ran_compiled(graphs: Made) -> bool:
    """Whether everything that was called ran in compiled parts."""
    called = [graph for graph in graphs if graph.parts]
    return bool(called) and not any(graph.cuts or graph.eager_calls for graph in called)


class Mlp(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(16, 32)
        self.norm = torch.nn.LayerNorm(32)
        self.down = torch.nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        return torch.softmax(self.down(self.norm(torch.nn.functional.gelu(self.up(x)))), -1)


# Inference


def test_the_entry_point_is_the_backend() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    group = project["project"]["entry-points"]["torch_dynamo_backends"]
    assert EntryPoint("fusec", group["fusec"], "torch_dynamo_backends").load() is torch_compile.backend


def test_a_module_runs_in_compiled_kernels_and_follows_its_weights(made: Made) -> None:
    module, x = Mlp(), torch.randn(5, 16)
    fast = compiled(module)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), module(x))
        module.up.weight.mul_(2)
        torch.testing.assert_close(fast(x), module(x))
        module.down.load_state_dict({k: v + 1 for k, v in module.down.state_dict().items()})
        torch.testing.assert_close(fast(x), module(x))
    assert [graph.kind for graph in made] == ["inference"]
    assert ran_compiled(made)
    assert not made[0].captures[0].notes


def test_a_long_product() -> None:
    """Longer than any tile, and no multiple of one."""
    a, b = torch.randn(130, 9001), torch.randn(9001, 150)
    with torch.no_grad():
        found = compiled(torch.matmul)(a, b)
    torch.testing.assert_close(found, (a.double() @ b.double()).float(), rtol=1e-4, atol=1e-3)


def test_views_of_inputs_come_out_as_views() -> None:
    def f(x: Any) -> Any:
        return x.t(), x[1:], x + 1, x.view(-1)

    x = torch.randn(4, 6)
    with torch.no_grad():
        t, rest, plus, flat = compiled(f)(x)
    assert (t.data_ptr(), rest.data_ptr(), flat.data_ptr()) == (x.data_ptr(), x[1:].data_ptr(), x.data_ptr())
    assert t.stride() == (1, 6)
    assert plus.data_ptr() != x.data_ptr()


def test_an_input_changed_in_place_is_changed(made: Made) -> None:
    def f(x: Any, y: Any) -> Any:
        x.mul_(2)
        x[0].add_(y)
        return x.sum(1)

    x, y = torch.randn(4, 6), torch.randn(6)
    expected, mine = x.clone(), x.clone()
    with torch.no_grad():
        torch.testing.assert_close(compiled(f)(mine, y), f(expected, y))
    torch.testing.assert_close(mine, expected)
    assert ran_compiled(made)


def test_a_view_of_a_changed_input_goes_through_aot(made: Made) -> None:
    def f(x: Any) -> Any:
        x.add_(1)
        return x[0], x.sum()

    expected, mine = torch.ones(3, 4), torch.ones(3, 4)
    with torch.no_grad():
        row, total = compiled(f)(mine)
        torch.testing.assert_close((row, total), f(expected))
    assert row.data_ptr() == mine.data_ptr()
    torch.testing.assert_close(mine, expected)
    assert ran_compiled(made)


def test_a_changed_input_that_shares_memory_with_another() -> None:
    def f(x: Any, y: Any) -> Any:
        x.add_(1)
        return x * y

    fast = compiled(f)
    with torch.no_grad():
        apart = torch.ones(6), torch.full((6,), 3.0)
        torch.testing.assert_close(fast(*apart), torch.full((6,), 6.0))
        base, same = torch.arange(8.0), torch.arange(8.0)
        torch.testing.assert_close(fast(base[:6], base[2:]), f(same[:6], same[2:]))
        torch.testing.assert_close(base, same)


def test_a_buffer_that_is_only_written() -> None:
    class Counting(torch.nn.Module):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.last.copy_(x.sum(0))
            return x * 2

    module, x = Counting(), torch.randn(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(compiled(module)(x), x * 2)
    torch.testing.assert_close(module.last, x.sum(0))


def test_sizes_that_change(made: Made) -> None:
    fast = compiled(Mlp())
    plain = fast._orig_mod
    with torch.no_grad():
        for rows in (3, 5, 7, 5, 3, 1):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(fast(x), plain(x))
    assert ran_compiled(made)


@pytest.mark.parametrize("dynamic", [True, False])
def test_sizes_in_the_arithmetic(dynamic: bool) -> None:
    def f(x: Any) -> Any:
        return x.reshape(x.shape[1], x.shape[0]) * x.shape[0] + torch.arange(x.shape[0]), x.shape[1] * 2

    fast = compiled(f, dynamic=dynamic)
    with torch.no_grad():
        for shape in ((3, 4), (5, 2), (5, 4)):
            x = torch.randn(shape)
            torch.testing.assert_close(fast(x), f(x))


def test_graph_breaks(capsys: Any, made: Made) -> None:
    def f(x: Any) -> Any:
        y = torch.sin(x) * 2
        print("between")
        if y.sum() > 1e9:
            return y
        return torch.softmax(y, -1)

    x = torch.randn(4, 9)
    with torch.no_grad():
        torch.testing.assert_close(compiled(f)(x), f(x))
    assert len(made) >= 2
    assert ran_compiled(made)


def test_random_numbers_are_the_librarys() -> None:
    def f(x: Any) -> Any:
        a = torch.rand_like(x)
        b = torch.nn.functional.dropout(x, 0.5, training=True)
        return a + 1, b * 2, torch.randn(3)

    x = torch.randn(50)
    with torch.no_grad():
        torch.manual_seed(7)
        expected = f(x)
        after = torch.rand(1)
        torch.manual_seed(7)
        found = compiled(f)(x)
    torch.testing.assert_close(found, expected)
    assert torch.rand(1) == after


def test_a_library_call_is_said(made: Made) -> None:
    def f(x: Any) -> Any:
        return torch.linalg.inv(x + 3 * torch.eye(4)) * 2

    x = torch.rand(4, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(f)(x), f(x))
    assert "linalg_inv" in made[0].report()


def test_a_node_that_cannot_be_captured_is_run_between_parts(made: Made) -> None:
    def f(x: Any) -> Any:
        y = torch.sin(x) + 1
        z = y.to(torch.float8_e4m3fnuz).to(torch.float32)
        return torch.cos(z) * x

    x = torch.randn(8, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(f)(x), f(x))
    (graph,) = made
    assert graph.cuts
    assert "float8" in graph.report()
    assert graph.executables
    assert not graph.eager_calls


def test_a_library_call_on_a_flipped_tensor() -> None:
    x = torch.randn(5, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(lambda x: x.flip(0).cumsum(0))(x), x.flip(0).cumsum(0))


def test_empty_graphs_and_no_tensors() -> None:
    with torch.no_grad():
        torch.testing.assert_close(compiled(lambda: torch.arange(5) * 2)(), torch.arange(5) * 2)
        empty = torch.empty(0, 3)
        torch.testing.assert_close(compiled(lambda x: (x * 2).sum(0))(empty), torch.zeros(3))


def test_autocast() -> None:
    module, x = Mlp(), torch.randn(5, 16)

    def f(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return module(x)

    with torch.no_grad():
        expected = f(x)
        found = compiled(f)(x)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("mode", "tune"), [("max-autotune", "quick"), ("reduce-overhead", False)])
def test_modes(mode: str, tune: object) -> None:
    x = torch.randn(3, 4)
    with gathering() as graphs, torch.no_grad():
        torch.testing.assert_close(compiled(torch.sin, mode=mode)(x), torch.sin(x))
    assert [graph.options.build.tune for graph in graphs] == [tune]


def test_a_mode_that_is_none() -> None:
    with torch.no_grad(), pytest.raises(Exception, match="mode='nope'; it is 'default'"):
        compiled(torch.cos, mode="nope")(torch.randn(3))


def test_options() -> None:
    x = torch.randn(4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(torch.sin, options={"cache": False})(x), torch.sin(x))
    with pytest.raises(Exception, match="no option speed") as caught:
        compiled(torch.cos, options={"speed": 3})(x)
    assert isinstance(caught.value, FusecError) or "FusecError" in str(caught.value)
    with pytest.raises(Exception, match="tune='hard'"):
        compiled(torch.tan, options={"tune": "hard"})(x)


# Gradients


def gradients(function: Callable[..., Any], inputs: list[Any]) -> tuple[Any, ...]:
    outputs = function()
    weights = torch.arange(outputs.numel(), dtype=outputs.dtype).reshape(outputs.shape).cos()
    return torch.autograd.grad((outputs * weights).sum(), inputs)


def test_gradients_through_both_graphs(made: Made) -> None:
    module, x = Mlp(), torch.randn(5, 16, requires_grad=True)
    inputs = [x, *module.parameters()]
    expected = gradients(lambda: module(x), inputs)
    found = gradients(lambda: compiled(module)(x), inputs)
    torch.testing.assert_close(found, expected)
    assert [graph.kind for graph in made] == ["forward", "backward"]
    assert ran_compiled(made)


def test_training_steps() -> None:
    torch.manual_seed(1)
    plain = Mlp()
    mine = Mlp()
    mine.load_state_dict(plain.state_dict())
    fast = compiled(mine)
    x, wanted = torch.randn(12, 16), torch.softmax(torch.randn(12, 8), -1)
    for module, call in ((plain, plain), (mine, fast)):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
        for _ in range(4):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(call(x), wanted).backward()
            optimizer.step()
    for a, b in zip(plain.parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_the_first_training_step_is_compiled_and_no_later_one_again(made: Made) -> None:
    """AOTAutograd's first call is under a mode of its own, which looks at custom operations."""
    x = torch.randn(5, 7, requires_grad=True)
    step = compiled(lambda x: x.sin().sum())
    for _ in range(3):
        step(x).backward()
    assert sorted(graph.kind for graph in made) == ["backward", "forward"]
    assert [len(graph.executables) for graph in made] == [1, 1]
    assert not any(graph.eager_calls for graph in made)


def test_attention_with_gradients(made: Made) -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.transpose(-1, -2) / 4
        mask = torch.ones(6, 6, dtype=torch.bool).tril()
        return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v

    inputs = [torch.randn(2, 3, 6, 16, requires_grad=True) for _ in range(3)]
    expected = gradients(lambda: attend(*inputs), inputs)
    torch.testing.assert_close(gradients(lambda: compiled(attend)(*inputs), inputs), expected)
    assert ran_compiled(made)


def test_inputs_changed_in_place_under_autograd() -> None:
    def f(x: Any, seen: Any, w: Any) -> Any:
        seen.copy_(x)
        y = x * w
        y[0].add_(w)
        return y.exp()

    w, x = torch.randn(3, requires_grad=True), torch.randn(2, 3)
    seen = [torch.ones(2, 3), torch.ones(2, 3)]
    expected = torch.autograd.grad(f(x, seen[0], w).sum(), w)
    torch.testing.assert_close(torch.autograd.grad(compiled(f)(x, seen[1], w).sum(), w), expected)
    torch.testing.assert_close(seen[0], seen[1])


# Telling


def test_explain_shows_each_graph_and_where_it_broke() -> None:
    def broken(x: Any) -> Any:
        y = torch.softmax(x * 2, -1)
        torch._dynamo.graph_break()
        return y @ y.t()

    with torch.no_grad():
        text = fusec.explain(compiled(broken), torch.randn(8, 8))
    assert text.startswith("2 graphs from torch.compile")
    assert "graph break" in text
    assert "row_" in text
    assert "gemm" in text
    assert "test_torch_compile.py" in text


def test_the_report_is_on_all_graphs(made: Made) -> None:
    module, x = Mlp(), torch.randn(5, 16)
    compiled(module)(x)
    (forward,) = made
    assert "kernel" in forward.report()
    assert forward in torch_compile.graphs()
    assert forward.name in torch_compile.report()


# What else PyTorch's contract asks for


def test_a_second_derivative_is_refused() -> None:
    x = torch.randn(3, requires_grad=True)
    (g,) = torch.autograd.grad(compiled(lambda x: (x**3).sum())(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        torch.autograd.grad(g.sum(), x)


def test_copies_and_pickles_of_a_compiled_module() -> None:
    module, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    fast = torch.compile(module, backend="fusec")
    with torch.no_grad():
        torch.testing.assert_close(fast(x), module(x))
        other = copy.deepcopy(fast)
        again = pickle.loads(pickle.dumps(fast))
        module.weight.mul_(2)
        torch.testing.assert_close(fast(x), module(x))
        torch.testing.assert_close(other(x), other._orig_mod(x))
        torch.testing.assert_close(again(x), other(x))
    assert list(fast.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_modes_change_no_result(mode: str) -> None:
    module, x = Mlp(), torch.randn(5, 16)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(module, backend="fusec", mode=mode)(x), module(x))


def test_a_whole_graph_is_asked_for_and_refused() -> None:
    def branches(x: Any) -> Any:
        return x + 1 if x.sum() > 0 else x - 1

    x = torch.ones(3)
    torch.testing.assert_close(compiled(torch.tanh, fullgraph=True)(x), torch.tanh(x))
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(branches, fullgraph=True)(x)


def test_inference_mode_and_grad_mode_in_turn(made: Made) -> None:
    module, x = Mlp(), torch.randn(5, 16)
    fast = compiled(module)
    with torch.inference_mode():
        result = fast(x)
        torch.testing.assert_close(result, module(x))
    assert result.is_inference()
    fast(x).sum().backward()
    assert module.up.weight.grad is not None
    with torch.no_grad():
        assert not fast(x).requires_grad
    assert ran_compiled(made)


def test_results_that_are_views_of_results_share_their_memory() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        return y, y[1:], y, x

    x = torch.randn(3, 3)
    with torch.no_grad():
        y, rest, again, same = compiled(f)(x)
        assert y is again
        assert same is x
        rest.zero_()
    torch.testing.assert_close(y[1:], torch.zeros(2, 3))


def test_what_a_module_counts_and_keeps_is_counted_and_kept() -> None:
    class Keeper(torch.nn.Module):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.seen = 0, []
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.calls += 1
            self.total += x
            self.seen.append(x * 2)
            return x * self.calls

    module, x = Keeper(), torch.ones(3)
    fast = compiled(module)
    with torch.no_grad():
        for n in (1, 2, 3):
            torch.testing.assert_close(fast(x), n * x)
    assert (module.calls, len(module.seen)) == (3, 3)
    torch.testing.assert_close(module.total, 3 * x)


def test_training_and_evaluating_in_turn() -> None:
    module, x = (
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5)),
        torch.randn(6, 4),
    )
    other = copy.deepcopy(module)
    fast = compiled(module)
    with torch.no_grad():
        for training in (True, False, True):
            fast.train(training)
            other.train(training)
            torch.manual_seed(0)
            wanted = other(x)
            torch.manual_seed(0)
            torch.testing.assert_close(fast(x), wanted)
    torch.testing.assert_close(module[1].running_mean, other[1].running_mean)
