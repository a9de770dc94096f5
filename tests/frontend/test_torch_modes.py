"""Captures on several threads leave PyTorch's notes on dispatch modes as they were."""

from __future__ import annotations

import threading
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils import _python_dispatch  # noqa: E402

import fusec  # noqa: E402
from fusec.frontend.torch_modes import dispatch_modes  # noqa: E402


@pytest.fixture(autouse=True)
def none_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's note is the process's: threads of other tests, whose modes end in any order, may have left it on."""
    monkeypatch.setattr(_python_dispatch, "_is_in_torch_dispatch_mode", False)
    monkeypatch.setattr(_python_dispatch, "_is_in_non_infra_torch_dispatch_mode", False)


def in_a_mode() -> bool:
    return bool(_python_dispatch.is_in_torch_dispatch_mode())


def test_modes_that_end_in_the_order_in_which_they_began() -> None:
    entered, ended = threading.Event(), threading.Event()

    def second() -> None:
        with dispatch_modes(), FakeTensorMode():
            entered.set()
            ended.wait()

    other = threading.Thread(target=second)
    with dispatch_modes(), FakeTensorMode():
        other.start()
        entered.wait()
    ended.set()
    other.join()
    assert not in_a_mode()


def test_within_a_mode_of_the_users() -> None:
    with FakeTensorMode():
        with dispatch_modes(), FakeTensorMode():
            pass
        assert in_a_mode()
    assert not in_a_mode()


def test_a_compiled_function_that_a_capture_calls_is_compiled_afterwards():
    compiled = []

    def backend(module, examples):
        compiled.append(module)
        return module.forward

    inner = torch.compile(lambda x: x * 2 + 1, backend=backend)
    x = torch.ones(3)
    assert torch.equal(fusec.jit(lambda x: inner(x) + 1, fallback="error")(x), x * 4)
    assert not compiled
    assert torch.equal(inner(x), x * 3)
    assert len(compiled) == 1


def test_cond_works_in_a_function_and_after_it():
    def f(x):
        return torch.cond(torch.tensor(True), lambda a: a + 1, lambda a: a - 1, (x,))

    torch._dynamo.reset()
    x = torch.ones(3)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(fusec.jit(f)(x), x + 1)
        assert torch.equal(f(x), x + 1)
