"""``fusec.jit`` where gradients are needed: forward and backward compiled, against eager and float64."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from gradients import check, compiled, copies, leaf, near, quietly, reasons  # noqa: E402
from jitted import plans  # noqa: E402

import fusec  # noqa: E402
from fusec.frontend.torch_attention import with_library_attention  # noqa: E402


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
