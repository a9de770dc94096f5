"""Modules, random numbers and autocast where gradients are needed."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from gradients import check, compiled, copies, has_backward, leaf, near, quietly  # noqa: E402
from jitted import plans  # noqa: E402

import fusec  # noqa: E402


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


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


RECURRENT: dict[str, tuple[Any, tuple[int, ...], bool]] = {
    "of some steps": (lambda: torch.nn.LSTM(6, 4), (5, 2, 6), False),
    "without a batch": (lambda: torch.nn.LSTM(6, 4, bidirectional=True), (3, 6), False),
    "without a bias": (lambda: torch.nn.LSTM(6, 4, 2, bias=False, batch_first=True), (2, 5, 6), False),
    "of many steps": (lambda: torch.nn.LSTM(6, 4), (40, 2, 6), False),
    "with dropout": (lambda: torch.nn.LSTM(6, 4, 2, dropout=0.5), (5, 2, 6), False),
    "a GRU": (lambda: torch.nn.GRU(6, 4), (5, 2, 6), True),
}


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_networks(name: str, train: bool) -> None:
    """PyTorch opens an LSTM into a layer of oneDNN that has no backward, so an LSTM runs as written."""
    make, shape, is_compiled = RECURRENT[name]
    model = make().train(train)
    eager = copy.deepcopy(model)
    jitted = fusec.jit(warn=False)(model)
    x = torch.randn(shape)
    for _ in range(2):
        for net in (jitted, eager):
            torch.manual_seed(1)
            y, _ = net(x)
            y.square().sum().backward()
    assert has_backward(jitted) is is_compiled
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
