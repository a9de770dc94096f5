"""What jitted functions that need gradients return and write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gradients import check, compiled, leaf, quietly  # noqa: E402

import fusec  # noqa: E402


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@dataclass
class Output:
    loss: Any
    hidden: Any
    name: str


class TestResults:
    def test_nested(self) -> None:
        def f(x: Any, w: Any) -> Any:
            y = x @ w
            return {"y": y, "parts": [y.exp(), None, 3], "out": Output(y.sum(), (y, x), "name")}

        x, w = leaf(3, 4), leaf(4, 2)
        found = compiled(f)(x, w)
        assert isinstance(found["out"], Output)
        assert found["parts"][1:] == [None, 3]
        assert found["out"].name == "name"
        assert found["out"].hidden[0] is found["y"]
        assert found["out"].hidden[1] is x
        (found["out"].loss + found["parts"][0].sum()).backward()
        y = w.detach().requires_grad_()
        ((x.detach() @ y).sum() + (x.detach() @ y).exp().sum()).backward()
        torch.testing.assert_close(w.grad, y.grad)

    def test_inputs_and_views_of_them(self) -> None:
        def f(x: Any, w: Any) -> Any:
            return x, x.t(), x[1:], x * w

        x, w = leaf(3, 3), leaf(3)
        found = compiled(f)(x, w)
        assert found[0] is x
        assert [y.data_ptr() for y in found[:3]] == [y.data_ptr() for y in f(x, w)[:3]]
        assert found[1]._is_view()
        check(f, x, w)

    def test_views_of_what_it_makes_share_memory(self) -> None:
        def f(x: Any) -> Any:
            y = x * 2
            return y, y.view(-1), y[0]

        x = leaf(3, 4)
        found = compiled(f)(x)
        with torch.no_grad():
            found[0].zero_()
        assert not found[1].any()
        assert not found[2].any()
        check(f, leaf(3, 4))

    def test_equal_ones_are_tensors_of_their_own(self) -> None:
        def f(x: Any) -> Any:
            return x + 1, x + 1, (x + 1).exp(), (x + 1).exp()

        x = leaf(3)
        found, wanted = compiled(f)(x), f(x)
        for results in (found, wanted):
            with torch.no_grad():
                results[0].zero_()
                results[2].zero_()
        for one, other in zip(found, wanted):
            torch.testing.assert_close(one, other)
        sum(y.sum() for y in compiled(f)(x)).backward()
        torch.testing.assert_close(x.grad, 2 + 2 * (x + 1).exp())

    def test_a_parameter(self) -> None:
        class Tied(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(torch.randn(4, 4))

            def forward(self, x: Any) -> Any:
                return x @ self.weight, self.weight

        model = Tied()
        _, weight = compiled(model)(torch.randn(2, 4))
        assert weight is model.weight
        check(model, leaf(2, 4))

    def test_a_view_of_a_parameter(self) -> None:
        class Tokens(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.token = torch.nn.Parameter(torch.randn(1, 1, 4))

            def forward(self, x: Any) -> Any:
                return torch.cat([self.token.expand(len(x), -1, -1), x], 1).exp()

        check(Tokens(), leaf(2, 3, 4))

    def test_one_tensor_for_two_arguments(self) -> None:
        jitted = compiled(lambda a, b: a * b.exp())
        x = leaf(4)
        jitted(x, x).sum().backward()
        torch.testing.assert_close(x.grad, x.exp() + x.detach() * x.exp())

    def test_nothing_but_side_effects(self) -> None:
        def f(x: Any, w: Any) -> None:
            x.add_(w.exp())

        def run(function: Any, w: Any) -> Any:
            x = torch.ones(3)
            h = x.clone()
            assert function(h, w) is None
            h.sum().backward()
            return h

        w, v = leaf(3), leaf(3)
        v.data.copy_(w)
        torch.testing.assert_close(run(compiled(f), w), run(f, v))
        torch.testing.assert_close(w.grad, v.grad)


class TestWrites:
    def test_to_an_input(self) -> None:
        def f(x: Any, w: Any, state: Any) -> Any:
            state.mul_(0.5).add_(x.detach().mean(0))
            return x * w + state

        check(f, leaf(3, 4), leaf(4), torch.randn(4))

    def test_to_what_was_computed(self) -> None:
        def f(h: Any, w: Any) -> Any:
            h.add_(w * 2)
            return h.exp()

        jitted = compiled(f)
        found, wanted = [], []
        for function, kept in ((jitted, found), (f, wanted)):
            torch.manual_seed(1)
            x, w = leaf(3, 4), leaf(4)
            h = (x * 1)[:, :2]
            kept += [function(h, w[:2]), h]
            (kept[0].sum() + (h * 3).sum()).backward()
            kept += [x.grad, w.grad]
        for one, other in zip(found, wanted):
            torch.testing.assert_close(one, other)
        assert found[1].requires_grad

    def test_to_a_leaf_raise_as_eager(self) -> None:
        def f(x: Any, w: Any) -> Any:
            x.mul_(2)
            return x * w

        jitted = fusec.jit(f)
        jitted(torch.randn(3) * leaf(3), leaf(3)).sum().backward()
        with pytest.raises(RuntimeError, match="leaf Variable"):
            quietly(jitted, leaf(3), leaf(3))

    def test_to_a_leaf_under_no_grad(self) -> None:
        def f(x: Any, w: Any) -> Any:
            with torch.no_grad():
                x.mul_(2)
            return x * w

        check(f, leaf(3), leaf(3))

    @pytest.mark.parametrize("what", ["result", "input", "parameter"])
    def test_between_forward_and_backward_are_refused(self, what: str) -> None:
        def f(x: Any, w: Any) -> Any:
            return (x * w).exp()

        for function in (f, compiled(f)):
            x, w = leaf(3), leaf(3)
            y = function(x, w)
            with torch.no_grad():
                {"result": y, "input": x, "parameter": w}[what].mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()

    @pytest.mark.parametrize("view", [lambda w: w.t(), lambda w: w[:2], lambda w: w.reshape(-1)])
    def test_to_what_a_view_shows_are_refused(self, view: Any) -> None:
        def f(x: Any, w: Any) -> Any:
            return view(w).exp() * view(x)

        for function in (f, compiled(f)):
            x, w = leaf(3, 4), leaf(3, 4)
            y = function(x, w)
            with torch.no_grad():
                w.mul_(2)
                x.mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()

    def test_to_a_result_flow_on(self) -> None:
        jitted = compiled(lambda x: x * 3)
        x = leaf(4)
        y = jitted(x)
        y.mul_(2)
        y.sum().backward()
        torch.testing.assert_close(x.grad, torch.full((4,), 6.0))

    def test_of_inputs_that_share_memory_run_as_written(self) -> None:
        def f(a: Any, b: Any, w: Any) -> Any:
            a.mul_(2)
            return b * w

        jitted = fusec.jit(f)
        jitted(torch.ones(4), torch.ones(3), leaf(3))
        base = torch.ones(4)
        w = leaf(3)
        torch.testing.assert_close(quietly(jitted, base, base[1:], w), 2 * w)
