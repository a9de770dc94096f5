# SPDX-License-Identifier: Apache-2.0
"""Functions in TorchScript, as a capture runs them."""

from __future__ import annotations

import threading
from typing import Any, List, Optional  # noqa: UP035

import pytest

torch = pytest.importorskip("torch")

import fusec  # noqa: E402
from fusec.frontend.torch_scripts import scripts_as_written  # noqa: E402


@torch.jit.script
def root_of(x: torch.Tensor, factor: int = 2) -> torch.Tensor:
    return torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * factor)


@torch.jit.script
def scaled(x: torch.Tensor, factor: int) -> torch.Tensor:
    return x / root_of(x, factor)


@torch.jit.script
def times(x: torch.Tensor, factor: int) -> torch.Tensor:
    return x * factor


def test_they_are_ops_of_the_graph() -> None:
    x = torch.randn(3, 5)
    graph = fusec.trace(lambda x: scaled(x, 3) + root_of(x), x)
    assert not [op for op in graph.ops if op.definition.kind == "extern"]
    assert len(graph.inputs) == 1


def test_the_result_is_theirs() -> None:
    def f(x: Any) -> Any:
        return scaled(x, 3) + root_of(x) + root_of(x, factor=4)

    jitted = fusec.jit(f, fallback="error")
    for rows in (3, 4):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(jitted(x), f(x))


def test_a_function_that_takes_the_place_of_one_is_seen() -> None:
    def f(x: Any) -> Any:
        return scaled(x, 3)

    global scaled
    jitted, x, before = fusec.jit(f), torch.randn(3, 5), scaled
    torch.testing.assert_close(jitted(x), f(x))
    try:
        scaled = times
        torch.testing.assert_close(jitted(x), x * 3)
    finally:
        scaled = before
    torch.testing.assert_close(jitted(x), f(x))


@torch.jit.script
def added(x: torch.Tensor, by: float, more: Optional[List[int]] = None) -> torch.Tensor:  # noqa: UP006, UP045
    if more is not None:
        more.append(3)
        by = by + more[0]
    return x + torch.tensor(by)


def test_arguments_are_what_torchscript_makes_of_them() -> None:
    x, kept = torch.arange(4), [5]
    for f in (lambda x: added(x, 2), lambda x: added(x, by=True), lambda x: added(x, 2.0, kept)):
        found = fusec.jit(f)(x)
        assert found.dtype == f(x).dtype == torch.float32
        assert found.equal(f(x))
    assert kept == [5]


def test_arguments_that_it_refuses_are_refused() -> None:
    for f in (lambda x: root_of(x, 2.5), lambda x: root_of(x, "a"), lambda x: root_of(x, 1, 2)):
        with pytest.raises(RuntimeError, match="root_of"):
            fusec.jit(f)(torch.ones(3))


def test_other_threads_and_calls_run_what_was_compiled() -> None:
    called = type(root_of).__call__
    x, found = torch.randn(2, 8), []
    with scripts_as_written(), scripts_as_written():
        other = threading.Thread(target=lambda: found.append(root_of(x)))
        other.start()
        other.join()
        found.append(root_of(x))
    assert [y.item() for y in found] == [4.0, 4.0]
    assert type(root_of).__call__ == called


def half(x: torch.Tensor, factor: int) -> torch.Tensor:
    return x * factor / 2 + torch.tensor(factor).type_as(x)


def test_no_stand_in_reaches_their_interpreter() -> None:
    """It would choose kernels for these, which real tensors are given to afterwards."""
    fresh = torch.jit.script(half)
    jitted = fusec.jit(lambda x: fresh(x, 3).sum(0))
    for rows in (3, 4, 5, 7):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(jitted(x), half(x, 3).sum(0))
    with pytest.raises(RuntimeError):  # it has not been run
        fresh.get_debug_state()
