"""Captures on several threads leave PyTorch's notes on dispatch modes as they were."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils import _python_dispatch  # noqa: E402

from fusec.frontend.torch_modes import dispatch_modes  # noqa: E402


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
