"""PyTorch's settings that functions ask for and change, and how results stand to gradients under its modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fusec

torch = pytest.importorskip("torch")

Call = Callable[..., Any]


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Settings are as they were after each test."""
    threads, dtype, precision = torch.get_num_threads(), torch.get_default_dtype(), torch.get_float32_matmul_precision()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision(precision)


ASKING: dict[str, tuple[Call, Call]] = {
    "deterministic": (
        lambda x: x + torch.are_deterministic_algorithms_enabled(),
        lambda n: torch.use_deterministic_algorithms(n == 1),
    ),
    "precision": (
        lambda x: x * len(torch.get_float32_matmul_precision()),
        lambda n: torch.set_float32_matmul_precision("high" if n == 1 else "highest"),
    ),
    "threads": (lambda x: x + torch.get_num_threads(), lambda n: torch.set_num_threads(1 + n % 2)),
    "onednn": (
        lambda x: x + torch.backends.mkldnn.is_available() + torch._C._get_mkldnn_enabled(),
        lambda n: torch._C._set_mkldnn_enabled(n != 1),
    ),
    "seed": (lambda x: x + torch.initial_seed(), lambda n: torch.manual_seed(n)),
    "what new memory holds": (
        lambda x: (x + torch.empty(3)).isnan(),
        lambda n: torch.use_deterministic_algorithms(n == 1),
    ),
}


@pytest.mark.parametrize("name", ASKING)
def test_a_setting_that_is_asked_for_is_read_at_each_call(name: str) -> None:
    function, put = ASKING[name]
    fast = fusec.jit(function)
    for n in (0, 1, 2):
        put(n)
        if name != "what new memory holds" or n == 1:
            torch.testing.assert_close(fast(torch.ones(3)), function(torch.ones(3)))
        else:
            fast(torch.ones(3))
    put(0)
    assert not fast.dispatcher.eager_calls


def test_random_numbers_of_a_fork_leave_the_others_as_they_are() -> None:
    def function(x: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            drawn = torch.rand(3)
        return x + drawn

    fast = fusec.jit(warn=False)(function)
    for call in (function, fast, fast):
        torch.manual_seed(3)
        found = call(torch.ones(3)), torch.rand(2)
        torch.manual_seed(3)
        torch.testing.assert_close(found, (function(torch.ones(3)), torch.rand(2)), rtol=0, atol=0)


CHANGING: dict[str, tuple[Call, Call]] = {
    "default dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "threads": (lambda: torch.set_num_threads(torch.get_num_threads() + 1), torch.get_num_threads),
    "precision": (lambda: torch.set_float32_matmul_precision("medium"), torch.get_float32_matmul_precision),
    "deterministic": (lambda: torch.use_deterministic_algorithms(True), torch.are_deterministic_algorithms_enabled),
}


@pytest.mark.parametrize("name", CHANGING)
def test_a_setting_that_is_changed_is_changed_once_a_call(name: str, request: pytest.FixtureRequest) -> None:
    change, read = CHANGING[name]
    before = read()

    def function(x: Any) -> Any:
        change()
        return x * 2

    def lives(call: Call) -> list[Any]:
        found = []
        for _ in range(3):
            call(torch.ones(3))
            found.append(read())
        return found

    as_written = lives(function)
    {"threads": torch.set_num_threads, "default dtype": torch.set_default_dtype}.get(name, lambda _: None)(before)
    assert lives(fusec.jit(warn=False)(function)) == as_written


def without_gradients(x: Any) -> Any:
    with torch.no_grad():
        return x[0]


VIEWS: tuple[Call, ...] = (
    lambda x: (x, x.detach(), x[0], x.detach()[0], x * 1),
    lambda x: x.detach(),
    lambda x: (x.T.detach().T, x.view(-1)),
    lambda x: (torch.tanh(x), without_gradients(x)),
    lambda x: (without_gradients(x) * 2, x * 3),
)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("number", range(len(VIEWS)))
def test_which_results_require_a_gradient(number: int, gradients: bool) -> None:
    function = VIEWS[number]
    fast = fusec.jit(warn=False)(function)

    def lives(call: Call) -> tuple[list[Any], Any]:
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        with torch.set_grad_enabled(gradients):
            made = call(x)
        made = made if isinstance(made, tuple) else (made,)
        told = [(y.requires_grad, y.is_leaf, y is x, y.data_ptr() == x.data_ptr()) for y in made]
        graded = [y for y in made if y.requires_grad and y is not x]
        if graded:
            sum(y.sum() for y in graded).backward()
        return told, None if x.grad is None else x.grad.tolist()

    for _ in range(2):
        assert lives(fast) == lives(function)


ASKED_OF_ARGUMENTS: tuple[Call, ...] = (
    lambda x: x * x.storage_offset(),
    lambda x: x * (2 if x._base is None else 3),
    lambda x: x * (2 if x._is_view() else 3),
    lambda x: x * (2 if x.is_shared() else 3),
    lambda x: x * x.untyped_storage().nbytes(),
)


@pytest.mark.parametrize("number", range(len(ASKED_OF_ARGUMENTS)))
def test_what_is_asked_of_an_arguments_storage(number: int) -> None:
    function = ASKED_OF_ARGUMENTS[number]
    fast = fusec.jit(warn=False)(function)
    for x in (torch.ones(3), torch.ones(9)[3:6], torch.ones(3).share_memory_(), torch.ones(3)):
        torch.testing.assert_close(fast(x), function(x))


@pytest.mark.parametrize("kind", ["", "_pre"])
@pytest.mark.parametrize("graded", [False, True])
def test_a_forward_hook_of_all_modules(kind: str, graded: bool) -> None:
    """That is registered between calls, and removed again."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()).requires_grad_(graded)
    hooks = {"": lambda m, given, result: result * 2, "_pre": lambda m, given: (given[0] * 2,)}
    register = getattr(torch.nn.modules.module, f"register_module_forward{kind}_hook")
    x = torch.ones(2, 3)
    for fast in (fusec.jit(warn=False)(model), fusec.jit(warn=False)(lambda x: model(x))):
        torch.testing.assert_close(fast(x), model(x))
        handle = register(lambda m, *given: hooks[kind](m, *given) if type(m) is torch.nn.Linear else None)
        torch.testing.assert_close(fast(x), model(x))
        handle.remove()
        torch.testing.assert_close(fast(x), model(x))
