"""What stands beside autograd: backwards of users, hooks, checkpoints; what runs as written, and what explain says."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from gradients import compiled, copies, has_backward, leaf, near, quietly, reasons, tensors  # noqa: E402
from jitted import plans  # noqa: E402

import fusec  # noqa: E402
from fusec.errors import FusecError  # noqa: E402


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


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

    def test_the_gradient_of_a_result_on_which_another_depends(self) -> None:
        jitted = compiled(lambda x: (lambda h: (h, h.exp(), x + 1))(x * 2))
        looks: list[Any] = [lambda h: h.retain_grad(), lambda h: h.register_hook(lambda gradient: None)]
        for look in looks:
            results = jitted(leaf(3))
            look(results[0])
            with pytest.raises(RuntimeError, match="as written"):
                sum(y.sum() for y in results).backward()
        for k in (1, 2):
            x = leaf(3)
            results = jitted(x)
            results[k].retain_grad()
            sum(y.sum() for y in results).backward()
            torch.testing.assert_close(results[k].grad, torch.ones(3))
            torch.testing.assert_close(x.grad, 3 + 2 * (2 * x).exp())

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

    def test_what_has_no_backward_is_not_tried_for_each_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fusec.runtime.refusals.SECONDS", 1e9)  # on a busy machine one try may take longer
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
