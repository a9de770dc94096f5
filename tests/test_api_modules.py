"""``fusec.jit`` on modules, decorated ``forward`` functions and methods, against eager."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from jitted import plans, same, strict  # noqa: E402

import fusec  # noqa: E402


def small_model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.GELU(), torch.nn.Dropout(0.5), torch.nn.Linear(10, 4))


@torch.no_grad()
def test_a_module_and_everything_that_changes_in_it() -> None:
    model = small_model().eval()
    jitted = strict(model)
    x = torch.randn(3, 6)
    other = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def step() -> None:
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()

    changes: list[Any] = [
        lambda: None,
        lambda: model[0].weight.mul_(2),
        step,
        lambda: model.load_state_dict(other.state_dict()),
        lambda: model[3].bias.data.add_(1),
        lambda: model[3].weight.data.copy_(torch.randn(4, 10)),
        lambda: setattr(model[0], "weight", torch.nn.Parameter(torch.randn(10, 6))),
        lambda: model.__setitem__(1, torch.nn.ReLU()),
    ]
    for change in changes:
        change()
        for _ in range(2):
            same(jitted(x), model(x))


@pytest.mark.parametrize("graded", [False, True])
def test_a_module_whose_first_call_makes_its_parameters(graded: bool) -> None:
    model = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.ReLU())
    jitted = fusec.jit(model, warn=False)
    x = torch.randn(2, 4)
    with torch.set_grad_enabled(graded):
        jitted(x)
        assert not plans(jitted)
        same(jitted(x), model(x))
    assert [plan.is_compiled for plan in plans(jitted)] == [True]


@torch.no_grad()
def test_a_jitted_module_is_still_the_module() -> None:
    model = small_model()
    jitted = fusec.jit(model)
    assert jitted.eval() is jitted
    assert not model.training
    assert jitted.training is False
    assert list(jitted.state_dict()) == list(model.state_dict())
    assert len(list(jitted.parameters())) == 4
    jitted.note = "kept"
    assert model.note == "kept"
    assert jitted[0] is model[0]
    x = torch.randn(3, 6)
    same(jitted(x), model(x))
    twin = copy.deepcopy(jitted)
    twin[0].weight.zero_()
    same(jitted(x), model(x))
    jitted.train()
    assert model.training


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(6, 6)
        self.gain = 2.0

    @fusec.jit(fallback="error")
    def forward(self, x: Any) -> Any:
        return torch.tanh(self.inner(x)) * self.gain


@torch.no_grad()
def test_a_decorated_forward() -> None:
    first, second = Block(), Block()
    x = torch.randn(3, 6)

    def wanted(block: Any) -> Any:
        return torch.tanh(block.inner(x)) * block.gain

    for _ in range(2):
        same(first(x), wanted(first))
        same(second(x), wanted(second))
    first.gain = 5.0
    same(first(x), wanted(first))
    same(second(x), wanted(second))
    twin = copy.deepcopy(first)
    twin.inner.weight.zero_()
    same(twin(x), wanted(twin))
    same(first(x), wanted(first))
    again = pickle.loads(pickle.dumps(first))
    same(again(x), wanted(first))


class Scaler:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    @fusec.jit
    def apply(self, x: Any) -> Any:
        return x * self.factor

    @staticmethod
    @fusec.jit
    def halve(x: Any) -> Any:
        return x / 2

    @classmethod
    @fusec.jit
    def named(cls, x: Any) -> Any:
        return x + len(cls.__name__)


def test_methods() -> None:
    x = torch.randn(4)
    one, two = Scaler(2.0), Scaler(3.0)
    same(one.apply(x), x * 2)
    same(two.apply(x), x * 3)
    one.factor = 7.0
    same(one.apply(x), x * 7)
    same(Scaler.halve(x), x / 2)
    same(Scaler.named(x), x + 6)


def test_parameters_that_need_a_gradient() -> None:
    model = small_model().eval()
    jitted = fusec.jit(model)
    x = torch.randn(3, 6)
    assert jitted(x).requires_grad
    with torch.no_grad():
        same(jitted(x), model(x))
    for p in model.parameters():
        p.requires_grad_(False)
    found = jitted(x)
    same(found, model(x))
    assert [plan.executable is not None for plan in plans(jitted)] == [False, True, True]


class _Inner(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return self.doubled(x) @ _Power()

    def doubled(self, x: Any) -> Any:
        return x * 2


class _Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.act = _Inner(), torch.nn.ReLU()

    def forward(self, x: Any) -> Any:
        return self.act(self.inner(x)) + 1


class _Power:
    def __rmatmul__(self, x: Any) -> Any:
        return x**2 + self()

    def __call__(self) -> float:
        return 3.0


@pytest.mark.parametrize(
    ("cls", "name", "new"),
    [
        (_Outer, "forward", lambda self, x: self.inner(x) * 5),
        (_Inner, "forward", lambda self, x: x * 5),
        (_Inner, "doubled", lambda self, x: x * 5),
        (_Power, "__rmatmul__", lambda self, x: x * 5),
        (_Power, "__call__", lambda self: 5.0),
        (torch.nn.ReLU, "forward", lambda self, x: x * 5),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else value if isinstance(value, str) else "",
)
def test_a_method_that_a_class_is_given_is_seen(
    cls: type, name: str, new: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those, too, that Python looks up itself and no name in the code leads to."""
    module, x = _Outer(), torch.linspace(-1, 2, 6)
    compiled: Any = fusec.jit(module)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), module(x))
    assert not compiled._fusec.dispatcher.eager_calls
    monkeypatch.setattr(cls, name, new)
    torch.testing.assert_close(compiled(x), module(x))


class Repeats(torch.nn.Module):
    """Calls itself, as a model that generates text does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x))

    def repeat(self, x: torch.Tensor, times: int) -> torch.Tensor:
        for _ in range(times):
            x = self(x)
        return x

    def fails(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError(f"{self(x).shape}")


def test_calls_that_a_method_makes_of_its_module_are_compiled() -> None:
    module = Repeats().eval().requires_grad_(False)
    own = set(vars(module))
    fast, x = fusec.jit(module), torch.randn(2, 4)
    torch.testing.assert_close(fast.repeat(x, 3), module.repeat(x, 3))
    with pytest.raises(ValueError, match="2, 4"):
        fast.fails(x)
    assert [plan.is_compiled for plan in fast._fusec.dispatcher.plans] == [True]
    assert set(vars(module)) == own


def test_calls_of_the_module_in_other_threads_stay_as_written() -> None:
    module = Repeats().eval().requires_grad_(False)
    seen = []

    class Own(Repeats):
        def repeat(self, x: torch.Tensor, times: int) -> torch.Tensor:
            with ThreadPoolExecutor(1) as pool:
                seen.append(pool.submit(self, x).result())
            return super().repeat(x, times)

    module.__class__ = Own
    fast, x = fusec.jit(module), torch.randn(2, 4)
    fast.repeat(x, 0)
    torch.testing.assert_close(seen[0], module(x))
    assert not fast._fusec.dispatcher.plans
