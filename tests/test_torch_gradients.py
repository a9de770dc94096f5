"""``fusec.jit`` where gradients are needed: forward and backward compiled, against eager and float64."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from gradients import check, compiled, copies, has_backward, near, quietly, reasons, tensors  # noqa: E402
from jitted import plans  # noqa: E402

import fusec  # noqa: E402
from fusec.errors import FusecError  # noqa: E402
from fusec.frontend.torch_attention import with_library_attention  # noqa: E402


def leaf(*shape: int, **named: Any) -> Any:
    return torch.randn(*shape, **named).requires_grad_()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class TestAsNearAsEager:
    def test_a_perceptron_and_its_input(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
        check(model, leaf(4, 16))

    def test_a_norm_and_a_loss(self) -> None:
        def loss(x: Any, w: Any, b: Any, y: Any) -> Any:
            return F.cross_entropy(F.layer_norm(x, (24,), w, b), y)

        check(loss, leaf(10, 24), leaf(24), leaf(24), torch.randint(0, 24, (10,)))

    @pytest.mark.parametrize("causal", [False, True])
    def test_attention(self, causal: bool) -> None:
        def attend(q: Any, k: Any, v: Any) -> Any:
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        check(attend, *(leaf(2, 3, 16, 8) for _ in range(3)))

    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    def test_losses_that_are_library_calls(self, reduction: str) -> None:
        def loss(x: Any, y: Any, i: Any) -> Any:
            of_all = F.binary_cross_entropy(x.sigmoid(), y, reduction=reduction)
            return of_all + F.multi_margin_loss(x, i, reduction=reduction)[..., None]

        jitted = fusec.jit(loss)
        x, y, i = leaf(4, 3), torch.rand(4, 3), torch.tensor([0, 2, 1, 1])
        (wanted,) = torch.autograd.grad(loss(x, y, i).sum(), x)
        for _ in range(2):
            (found,) = torch.autograd.grad(jitted(x, y, i).sum(), x)
            torch.testing.assert_close(found, wanted)
        assert not any(graph.eager_calls for plan in plans(jitted) for graph in plan.gradient.graphs)

    def test_nan_in_a_loss_is_in_its_gradient(self) -> None:
        x, y = (
            torch.tensor([0.5, torch.nan, 3, -torch.inf, 0.1] * 5),
            torch.tensor([0, 0, 1, -torch.inf, torch.nan] * 5),
        )
        jitted = compiled(lambda x: F.smooth_l1_loss(x, y))
        found, wanted = copies([x.requires_grad_()]) + copies([x])
        jitted(found).backward()
        F.smooth_l1_loss(wanted, y).backward()
        torch.testing.assert_close(found.grad, wanted.grad, equal_nan=True)

    def test_a_derivative_that_is_zero_everywhere(self) -> None:
        jitted = check(lambda x: x.sgn(), leaf(7), calls=1)  # in eager a second gradient can not be added to it
        assert not any(graph.eager_calls for plan in plans(jitted) for graph in plan.gradient.graphs)

    def test_attention_that_is_written_out_becomes_the_library_s(self, monkeypatch: pytest.MonkeyPatch) -> None:
        taken = []

        def on_cpus(module: Any) -> Any:
            made = with_library_attention(module, ("cpu",))
            taken.append(made is not module)
            return made

        def attend(q: Any, k: Any, v: Any) -> Any:
            scores = q @ k.transpose(-2, -1)
            scores *= 0.25
            hidden = torch.ones(20, 20, dtype=torch.bool, device=q.device).triu(1)
            return torch.softmax(scores.masked_fill(hidden, float("-inf")).float(), -1).to(q.dtype) @ v

        monkeypatch.setattr("fusec.torch_gradients.with_library_attention", on_cpus)
        check(attend, *(leaf(2, 3, 20, 16, dtype=torch.bfloat16) for _ in range(3)))
        assert taken
        assert all(taken)

    def test_an_encoder_layer(self) -> None:
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        check(layer, leaf(2, 5, 16))

    def test_a_convolution_with_a_batch_norm_in_training(self) -> None:
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(288, 4),
        )
        check(model, torch.randn(2, 3, 8, 8), calls=3)

    def test_an_embedding(self) -> None:
        check(torch.nn.Embedding(20, 6), torch.randint(0, 20, (3, 4)))

    def test_a_recurrent_cell(self) -> None:
        check(torch.nn.GRUCell(6, 5), leaf(3, 6), leaf(3, 5))

    def test_indices_and_scatters(self) -> None:
        def f(x: Any, i: Any) -> Any:
            return (x[i] * 2).cumsum(0), torch.gather(x, 1, i.reshape(3, 1) % 3).exp()

        check(f, leaf(7, 3), torch.tensor([1, 1, 5]))

    def test_other_layouts(self) -> None:
        x = torch.randn(6, 5).t().requires_grad_()
        check(lambda x, w: (x @ w).relu(), x, leaf(6, 4))
        check(lambda x, w: (x * w).sum(0), leaf(1, 4).detach().expand(3, 4).requires_grad_(), leaf(3, 4))


class TestGradients:
    def test_of_parameters_add_up(self) -> None:
        model = torch.nn.Linear(3, 2)
        jitted = compiled(model)
        x = torch.randn(4, 3)
        jitted(x).sum().backward()
        once = model.weight.grad.clone()
        jitted(x).sum().backward()
        torch.testing.assert_close(model.weight.grad, 2 * once)

    def test_of_results_that_are_not_used_are_none(self) -> None:
        def f(x: Any, a: Any, b: Any) -> Any:
            return x * a, x * b

        jitted = compiled(f)
        for used in (0, 1):
            inputs = [leaf(3) for _ in range(3)]
            jitted(*inputs)[used].sum().backward()
            assert [x.grad is None for x in inputs] == [False, used == 1, used == 0]
            with pytest.raises(RuntimeError, match="not have been used"):
                torch.autograd.grad(jitted(*inputs)[used].sum(), inputs[2 - used])

    def test_of_results_that_are_not_used_beside_an_input(self) -> None:
        def f(h: Any, a: Any, b: Any) -> Any:
            return h, h * a, h * b, h.view(-1)

        jitted = compiled(f)
        for used in range(4):
            x, a, b = (leaf(3) for _ in range(3))
            jitted(x * 2, a, b)[used].sum().backward()
            assert [t.grad is None for t in (x, a, b)] == [False, used != 1, used != 2]

    def test_expanded_strided_and_zero(self) -> None:
        def f(x: Any, w: Any) -> Any:
            return torch.tanh(x @ w)

        jitted = compiled(f)
        given = [
            torch.ones(()).expand(6, 4),
            torch.randn(4, 6).t(),
            torch.randn(12, 8)[::2, ::2],
            torch.zeros(6, 4),
            torch.randn(1, 4).expand(6, 4),
        ]
        for gradient in given:
            own = [leaf(6, 3), leaf(3, 4)]
            plain, wide = copies(own), copies(own, torch.float64)
            jitted(*own).backward(gradient)
            f(*plain).backward(gradient)
            f(*wide).backward(gradient.double())
            for one, other, best in zip(own, plain, wide):
                near(one.grad, other.grad, best.grad)

    def test_of_some_inputs_alone(self) -> None:
        jitted = compiled(lambda x, w: (x @ w).sigmoid())
        x, w = torch.randn(3, 4), leaf(4, 5)
        (found,) = torch.autograd.grad(jitted(x, w).sum(), w)
        (wanted,) = torch.autograd.grad((x @ w).sigmoid().sum(), w)
        torch.testing.assert_close(found, wanted)
        assert x.grad is None
        x.requires_grad_()
        torch.autograd.grad(jitted(x, w).sum(), w)
        assert len(plans(jitted)) == 2

    def test_reach_what_came_before(self) -> None:
        jitted = compiled(lambda h: (h * h).tanh())
        x = leaf(5)
        jitted(x.exp()).sum().backward()
        y = x.detach().requires_grad_()
        (y.exp() * y.exp()).tanh().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)

    def test_a_graph_that_is_kept_is_run_again(self) -> None:
        jitted = compiled(lambda x: (x * 2).tanh().exp())
        x = leaf(5)
        y = jitted(x).sum()
        y.backward(retain_graph=True)
        once = x.grad.clone()
        y.backward()
        torch.testing.assert_close(x.grad, 2 * once)
        with pytest.raises(RuntimeError, match="second time"):
            y.backward()


class TestWhatRequiresAGradient:
    def test_results_that_need_none(self) -> None:
        def f(x: Any, w: Any) -> Any:
            return x * w, x + 1, (x * w).detach(), (x * w) > 0, w.argmax()

        x, w = torch.randn(4), leaf(4)
        found, wanted = compiled(f)(x, w), f(x, w)
        assert [y.requires_grad for y in found] == [y.requires_grad for y in wanted]
        for one, other in zip(found, wanted):
            torch.testing.assert_close(one, other)

    def test_parts_without_gradients(self) -> None:
        def f(x: Any, w: Any) -> Any:
            with torch.no_grad():
                scale = (x * w).abs().max()
            return x * w / scale, scale

        check(f, leaf(4, 5), leaf(5))
        assert not compiled(f)(leaf(4, 5), leaf(5))[1].requires_grad

    def test_a_part_with_gradients_again(self) -> None:
        def f(x: Any) -> Any:
            with torch.no_grad():
                a = x * 2
                with torch.enable_grad():
                    b = x * 3
            return a + b, a, b

        check(f, leaf(4))
        assert [y.requires_grad for y in compiled(f)(leaf(4))] == [True, False, True]

    def test_gradients_turned_on_inside(self) -> None:
        def f(x: Any) -> Any:
            with torch.enable_grad():
                return x * 2

        jitted = fusec.jit(f)
        x = leaf(3)
        with torch.no_grad():
            found = quietly(jitted, x)
            assert not compiled(f)(x.detach()).requires_grad
        found.sum().backward()
        torch.testing.assert_close(x.grad, torch.full((3,), 2.0))
        assert "turns gradients on" in reasons(jitted)[0]

    def test_without_gradients_the_forward_alone_is_compiled(self) -> None:
        jitted = compiled(lambda x, w: (x @ w).relu())
        x, w = torch.randn(3, 4), leaf(4, 5)
        assert jitted(x, w).requires_grad
        with torch.no_grad():
            assert not jitted(x, w).requires_grad
        assert not jitted(x, w.detach()).requires_grad
        with torch.inference_mode():
            assert jitted(x, w.detach()).is_inference()
        assert [plan.gradient is not None for plan in plans(jitted)] == [True, False, False, False]

    def test_frozen_parameters(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        jitted = compiled(model)
        x = torch.randn(3, 4)
        jitted(x).sum().backward()
        for p in model[0].parameters():
            p.requires_grad_(False)
            p.grad = None
        jitted(x).sum().backward()
        assert model[0].weight.grad is None
        for p in model.parameters():
            p.requires_grad_(False)
        assert not jitted(x).requires_grad

    def test_asking_is_answered_as_autograd_would(self) -> None:
        def f(x: Any, w: Any) -> Any:
            h = x * w
            return h.tanh() if h.requires_grad else h.sigmoid()

        jitted = compiled(f)
        for x, w in [(torch.randn(3), leaf(3)), (torch.randn(3), torch.randn(3)), (leaf(3), torch.randn(3))]:
            torch.testing.assert_close(jitted(x, w), f(x, w))


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


class TestModules:
    def test_a_training_loop(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        eager = copy.deepcopy(model)
        jitted = compiled(model)
        x = torch.randn(32, 8)
        y = x.sum(1, keepdim=True).sin()
        losses = []
        for net, own in ((jitted, model), (eager, eager)):
            optimizer = torch.optim.AdamW(own.parameters(), lr=1e-2)
            for _ in range(20):
                optimizer.zero_grad()
                loss = F.mse_loss(net(x), y)
                loss.backward()
                optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-5)
        assert len(plans(jitted)) == 1

    def test_training_and_evaluation_take_turns(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2))
        eager = copy.deepcopy(model)
        jitted = compiled(model)
        for _ in range(3):
            x = torch.randn(5, 4)
            for net in (jitted, eager):
                net.train()
                net(x).square().sum().backward()
                net.eval()
            with torch.no_grad():
                torch.testing.assert_close(jitted(x), eager(x))
        for one, other in zip(model.buffers(), eager.buffers()):
            torch.testing.assert_close(one, other)
        for p, q in zip(model.parameters(), eager.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)
        assert model[1].num_batches_tracked == 3

    def test_a_parameter_replaced(self) -> None:
        model = torch.nn.Linear(3, 2)
        jitted = compiled(model)
        x = torch.randn(4, 3)
        jitted(x).sum().backward()
        model.weight = torch.nn.Parameter(torch.randn(2, 3))
        y = jitted(x)
        torch.testing.assert_close(y, model(x))
        y.sum().backward()
        assert model.weight.grad is not None

    def test_a_method_and_a_function_that_reads_a_module(self) -> None:
        model = torch.nn.Linear(3, 2)

        @compiled
        def loss(x: Any) -> Any:
            return model(x).square().mean()

        x = torch.randn(4, 3)
        loss(x).backward()
        found, model.weight.grad = model.weight.grad, None
        model(x).square().mean().backward()
        torch.testing.assert_close(found, model.weight.grad)

    def test_a_counter_in_python(self) -> None:
        class Steps(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(3))
                self.step = 0

            def forward(self, x: Any) -> Any:
                self.step += 1
                return x * self.weight

        model = Steps()
        jitted = fusec.jit(model)
        x = torch.randn(3)
        for number in range(1, 6):
            quietly(jitted, x).sum().backward()
            assert model.step == number
        torch.testing.assert_close(model.weight.grad, 5 * x)

    def test_weight_norm(self) -> None:
        check(torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 3)), leaf(2, 4))


class TestRandomNumbers:
    @pytest.mark.parametrize("p", [0.1, 0.5])
    def test_dropout_follows_eager(self, p: float) -> None:
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.Dropout(p), torch.nn.Linear(32, 8), torch.nn.Dropout(p)
        )
        eager, jitted = copy.deepcopy(model), fusec.jit(model)
        x, y = leaf(4, 8), leaf(4, 8)
        y.data.copy_(x)
        for seed in range(3):
            found, wanted = [], []
            for net, at, kept in ((jitted, x, found), (eager, y, wanted)):
                torch.manual_seed(seed)
                out = net(at)
                out.square().sum().backward()
                kept += [out, torch.rand(3)]
            for one, other in zip(found, wanted):
                torch.testing.assert_close(one, other)
            torch.testing.assert_close(x.grad, y.grad)
        for p, q in zip(model.parameters(), eager.parameters()):
            torch.testing.assert_close(p.grad, q.grad)

    @pytest.mark.parametrize("unused", [False, True])
    def test_noise(self, unused: bool) -> None:
        def f(x: Any) -> Any:
            if unused:
                torch.rand(5)
            noise = torch.randn_like(x)
            return x * noise + torch.bernoulli(torch.full_like(x, 0.5))

        jitted = fusec.jit(f)
        for _ in range(2):
            found = []
            for function in (jitted, f):
                torch.manual_seed(3)
                x = leaf(6)
                y = quietly(function, x)
                y.sum().backward()
                found += [y, x.grad, torch.rand(2)]
            for one, other in zip(found[:3], found[3:]):
                torch.testing.assert_close(one, other)
        assert has_backward(jitted) != unused


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 100


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return -gradient


class TestBesideAutograd:
    """Whatever else may happen to a gradient happens, or the call runs as written."""

    def same(self, f: Any, *inputs: Any) -> Any:
        own, plain = copies(inputs), copies(inputs)
        jitted = fusec.jit(f)
        for _ in range(2):
            results = quietly(jitted, *own), f(*plain)
            for result in results:
                sum(y.sum() for y in tensors(result) if y.requires_grad).backward()
            for one, other in zip(tensors(results[0]), tensors(results[1]), strict=True):
                torch.testing.assert_close(one, other)
            for one, other in zip(tensors(own), tensors(plain), strict=True):
                torch.testing.assert_close(one.grad, other.grad)
        return jitted

    @pytest.mark.parametrize("function", [Doubled, Reversed])
    def test_a_backward_of_the_functions_own(self, function: Any) -> None:
        for f in (lambda x: function.apply(x).exp(), lambda x: function.apply(x * 1)):
            jitted = self.same(f, leaf(3))
            assert "backward of its own" in reasons(jitted)[0]
        with torch.no_grad():
            jitted(torch.randn(3))
        assert "apply" not in vars(function)

    def test_tensor_hooks_inside(self) -> None:
        def f(x: Any) -> Any:
            y = x * 2
            if y.requires_grad:
                y.register_hook(lambda gradient: gradient * 10)
            return y.exp()

        jitted = self.same(f, leaf(3))
        assert "hook" in reasons(jitted)[0]

    def test_tensor_hooks_outside(self) -> None:
        jitted = compiled(lambda x: x.exp())
        x, seen = leaf(3), []
        x.register_hook(lambda gradient: gradient * 10)
        x.register_post_accumulate_grad_hook(lambda x: seen.append(x.grad.clone()))
        y = jitted(x)
        y.register_hook(lambda gradient: gradient * 2)
        y.retain_grad()
        y.sum().backward()
        torch.testing.assert_close(x.grad, 20 * x.exp())
        torch.testing.assert_close(y.grad, torch.full((3,), 2.0))
        assert len(seen) == 1

    @pytest.mark.parametrize("late", [False, True])
    @pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
    def test_hooks_of_modules(self, kind: str, late: bool) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())
        jitted = fusec.jit(model)
        x, seen = leaf(2, 3), []
        if late:
            jitted(x).sum().backward()
        getattr(model[0], kind)(lambda *given: seen.append(len(given)))
        quietly(jitted, x).sum().backward()
        assert len(seen) == 1
        assert "backward hooks" in reasons(jitted)[0]

    def test_second_derivatives(self) -> None:
        def f(x: Any, w: Any) -> Any:
            return (x @ w).tanh().square().sum(1)

        def penalty(function: Any, x: Any, w: Any) -> Any:
            (gradient,) = torch.autograd.grad(function(x, w).sum(), x, create_graph=True)
            return (gradient.square().sum() - 1).square()

        own = [leaf(3, 4), leaf(4, 5)]
        plain, wide = copies(own), copies(own, torch.float64)
        jitted = compiled(f)
        for _ in range(2):
            penalty(jitted, *own).backward()
            penalty(f, *plain).backward()
            penalty(f, *wide).backward()
            for one, other, best in zip(own, plain, wide):
                near(one.grad, other.grad, best.grad)
        assert torch.autograd.gradgradcheck(compiled(lambda x: x.exp() * x), leaf(3, dtype=torch.float64))

    def test_second_derivatives_of_a_module_behind_another(self) -> None:
        first, second = torch.nn.Linear(3, 4), torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Softplus())
        jitted = [compiled(first), compiled(second)]

        def penalty(one: Any, other: Any, x: Any) -> Any:
            (gradient,) = torch.autograd.grad(other(one(x).sigmoid()).sum(), x, create_graph=True)
            return torch.autograd.grad(
                gradient.square().sum(), [x, *first.parameters(), *second.parameters()], allow_unused=True
            )

        x = leaf(2, 3)
        for found, wanted in zip(penalty(*jitted, x), penalty(first, second, x), strict=True):
            torch.testing.assert_close(found, wanted)

    def test_second_derivatives_with_random_numbers_are_refused(self) -> None:
        jitted = fusec.jit(lambda x: F.dropout(x, 0.5).exp())
        x = leaf(8)
        (gradient,) = torch.autograd.grad(jitted(x).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="double backward"):
            gradient.sum().backward()

    def test_transforms(self) -> None:
        def f(x: Any) -> Any:
            return (x.sin() * x).sum()

        jitted = fusec.jit(f)
        x = torch.randn(4)
        jitted(x.clone().requires_grad_())
        torch.testing.assert_close(quietly(torch.func.grad(jitted), x), torch.func.grad(f)(x))
        torch.testing.assert_close(quietly(torch.func.vmap(jitted), x[:, None]), torch.func.vmap(f)(x[:, None]))
        jacobian = torch.autograd.functional.jacobian
        torch.testing.assert_close(quietly(jacobian, jitted, x), jacobian(f, x))

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_checkpoints_inside_and_outside(self, reentrant: bool) -> None:
        from torch.utils.checkpoint import checkpoint

        def block(x: Any, w: Any) -> Any:
            return (x @ w).tanh()

        def inside(x: Any, w: Any) -> Any:
            return checkpoint(block, x, w, use_reentrant=reentrant).exp()

        x, w = leaf(3, 4), leaf(4, 4)
        self.same(inside, x, w)
        jitted = compiled(block)
        for _ in range(2):
            x.grad = w.grad = None
            checkpoint(jitted, x, w, use_reentrant=reentrant).exp().sum().backward()
            other = copies([x, w])
            block(*other).exp().sum().backward()
            torch.testing.assert_close(x.grad, other[0].grad)
            torch.testing.assert_close(w.grad, other[1].grad)

    def test_saved_tensors_on_hooks(self) -> None:
        jitted = compiled(lambda x, w: (x @ w).tanh())
        packed: list[Any] = []
        x, w = leaf(3, 4), leaf(4, 4)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.shape) or t, lambda t: t):
            y = jitted(x, w)
        y.sum().backward()
        assert packed
        other = copies([x, w])
        (other[0] @ other[1]).tanh().sum().backward()
        torch.testing.assert_close(w.grad, other[1].grad)

    def test_differentiation_inside(self) -> None:
        def f(x: Any) -> Any:
            (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
            return gradient * 2

        self.same(f, leaf(3))

    def test_a_step_inside(self) -> None:
        model = torch.nn.Linear(3, 2)

        def step(x: Any) -> Any:
            loss = model(x).sum()
            loss.backward()
            return loss.detach()

        jitted = fusec.jit(step)
        x = torch.randn(4, 3)
        for _ in range(2):
            quietly(jitted, x)
        torch.testing.assert_close(model.weight.grad, 2 * x.sum(0).expand(2, 3))

    def test_leaves_of_its_own(self) -> None:
        def f(x: Any) -> Any:
            z = torch.ones(3, requires_grad=True)
            return (x.detach() * z).requires_grad, x * z

        self.same(f, leaf(3))
        f = lambda x: (x.detach().requires_grad_(), x * 2)  # noqa: E731
        found = quietly(fusec.jit(f), leaf(3))
        assert found[0].requires_grad

    def test_sparse_gradients(self) -> None:
        table = torch.nn.Embedding(10, 4, sparse=True)
        jitted = fusec.jit(table)
        quietly(jitted, torch.tensor([1, 2])).sum().backward()
        assert table.weight.grad.is_sparse

    def test_anomaly_mode(self) -> None:
        jitted = compiled(lambda x: x.log())
        with torch.autograd.detect_anomaly(check_nan=False):
            x = leaf(3)
            jitted(x.abs()).sum().backward()
        torch.testing.assert_close(x.grad, x.sign() / x.abs())


class TestAutocast:
    def test_casts_are_eagers(self) -> None:
        model = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)
        )
        eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
        jitted = compiled(model)
        x = torch.randn(8, 16)
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                found, wanted = jitted(x), eager(x)
                F.mse_loss(found.float(), torch.ones(8, 4)).backward()
            F.mse_loss(wanted.float(), torch.ones(8, 4)).backward()
            F.mse_loss(exact(x.double()), torch.ones(8, 4).double()).backward()
            assert found.dtype == wanted.dtype == torch.bfloat16
            near(found, wanted, exact(x.double()))
            for p, q, r in zip(model.parameters(), eager.parameters(), exact.parameters()):
                near(p.grad, q.grad, r.grad)
        assert jitted(x).dtype == torch.float32

    def test_inside(self) -> None:
        def f(x: Any, w: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                y = x @ w
            return y.float().exp()

        x, w = leaf(4, 4), leaf(4, 4)
        compiled(f)(x, w).sum().backward()
        other = copies([x, w])
        f(*other).sum().backward()
        torch.testing.assert_close(w.grad, other[1].grad, rtol=2e-2, atol=2e-2)


class TestWhereItRunsAsWritten:
    def test_the_reason_is_told_and_may_be_an_error(self) -> None:
        def f(x: Any) -> Any:
            return Doubled.apply(x)

        with pytest.warns(fusec.RunsAsWritten, match="backward of its own"):
            fusec.jit(f)(leaf(3))
        with pytest.raises(FusecError, match="backward of its own"):
            compiled(f)(leaf(3))

    def test_what_cant_be_captured_costs_little(self) -> None:
        def f(x: Any) -> Any:
            return x * 2 if x.sum() > 0 else x * 3

        jitted = fusec.jit(f)
        x = leaf(3)
        for _ in range(3):
            torch.testing.assert_close(quietly(jitted, x), f(x))
        assert not has_backward(jitted)

    def test_what_has_no_backward_is_not_tried_for_each_size(self) -> None:
        jitted = fusec.jit(lambda x: Doubled.apply(x) + 1)
        for n in range(2, 12):
            assert quietly(jitted, leaf(n)).requires_grad
        assert len(plans(jitted)) == 2
        with torch.no_grad():
            jitted(torch.ones(3))
        assert [plan.is_compiled for plan in plans(jitted)] == [False, False, True]

    def test_what_raises_raises(self) -> None:
        jitted = compiled(lambda table, i: F.embedding(i, table) * 2)
        jitted(leaf(5, 3), torch.tensor([1, 2])).sum().backward()
        with pytest.raises(IndexError):
            jitted(leaf(5, 3), torch.tensor([1, 7]))

    def test_pytorchs_own_failure_is_a_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*given: Any, **options: Any) -> Any:
            raise RuntimeError("no such luck")

        monkeypatch.setattr("fusec.torch_gradients.through_aot", fail)
        jitted = fusec.jit(lambda x: x * 2)
        x = leaf(3)
        with pytest.warns(fusec.RunsAsWritten, match="no such luck"):
            jitted(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.full((3,), 2.0))
        with pytest.raises(FusecError, match="no such luck"):
            compiled(lambda x: x * 2)(x)


class TestExplain:
    def test_forward_and_backward(self) -> None:
        jitted = compiled(lambda x, w: (x @ w).tanh())
        x, w = leaf(3, 4), leaf(4, 5)
        before = fusec.explain(jitted, x, w)
        assert "forward and backward" in before
        jitted(x, w).sum().backward()
        text = fusec.explain(jitted, x, w)
        assert "compiled for such calls, forward and backward" in text
        assert "_forward on cpu" in text
        assert "_backward on cpu" in text
        assert "_backward on cpu" in fusec.explain(jitted)

    def test_why_not(self) -> None:
        jitted = fusec.jit(lambda x: Doubled.apply(x))
        assert "backward of its own" in fusec.explain(jitted, leaf(3))
        quietly(jitted, leaf(3))
        assert "backward of its own" in fusec.explain(jitted, leaf(3))


class TestMemory:
    def test_nothing_of_a_call_is_kept(self) -> None:
        w = leaf(4)
        jitted = compiled(lambda x: (x * 2).sum(0) + w)

        kept: list[Any] = []

        def call() -> list[Any]:
            x = torch.randn(2, 4)
            h = x * w
            y = jitted(h)
            h.add_(y)  # what the call was given comes to depend on it
            state = torch.zeros(2, 4)
            state.add_(jitted(state))
            y.sum().backward(retain_graph=True)
            kept.append(jitted(x * 1))
            kept[-1].sum().backward()
            return [weakref.ref(t) for t in (x, h, y, state)]

        for _ in range(2):
            gone = call()
            assert [tensor() for tensor in gone] == [None] * 4

    def test_a_jitted_function_is_freed(self) -> None:
        jitted = compiled(lambda x: x * 2)
        jitted(leaf(3)).sum().backward()
        kept = weakref.ref(jitted.dispatcher)
        del jitted
        gc.collect()
        assert kept() is None


def test_many_threads() -> None:
    jitted = [compiled(lambda x, w: (x @ w).tanh()), compiled(lambda x, w: (x @ w).exp())]
    wrong: list[Any] = []

    def work(number: int) -> None:
        try:
            for _ in range(5):
                x, w = leaf(3, 4), leaf(4, 4)
                plain = copies([x, w])
                f = torch.tanh if number % 2 == 0 else torch.exp
                jitted[number % 2](x, w).sum().backward()
                f(plain[0] @ plain[1]).sum().backward()
                torch.testing.assert_close(w.grad, plain[1].grad)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
