# SPDX-License-Identifier: Apache-2.0
"""Values on the CPU in functions of tensors on a GPU, which need not be here."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import fusec  # noqa: E402
from fusec.frontend import torch_tensors  # noqa: E402
from fusec.frontend.torch import capture  # noqa: E402
from fusec.ir.graph import Graph  # noqa: E402

GPU = "cuda:0"
SHAPES = ((4, 6), (4, 6))


def graph_of(function: Any, monkeypatch: pytest.MonkeyPatch, *more: Any) -> Graph:
    """The graph of a call of two matrices on a GPU, and of tensors on the CPU."""
    with FakeTensorMode():
        fakes = [torch.empty(shape, device=GPU) for shape in SHAPES]
    monkeypatch.setattr(torch_tensors, "check_plain", lambda tensor, path: None)
    return capture(function, (*fakes, *more), {}).graph


def scaled(x: Any, y: Any) -> Any:
    return x / torch.sqrt(torch.full((), 64.0) * 3) + torch.full((), 2, dtype=torch.int64) * y


def moved(x: Any) -> Any:
    """``x.to(GPU)``, which asks for a GPU."""
    return torch.ops.aten._to_copy.default(x, device=torch.device(GPU))


def placed(x: Any, y: Any) -> Any:
    return x * moved(torch.arange(6)) + moved((torch.arange(4.0) * 2).exp()[:, None])


def masked(x: Any, y: Any) -> Any:
    return torch.where(x > torch.full((), 0.5), torch.full((), -1.0), y)


def rounded(x: Any, y: Any) -> Any:
    return (x.bfloat16() / torch.full((), 192.0).sqrt().to(torch.bfloat16)) @ y.bfloat16().T


@pytest.mark.parametrize("function", [scaled, placed, masked, rounded])
def test_what_is_known_is_computed_where_it_is_read(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fusec.lower(graph_of(function, monkeypatch), "cuda:sm_90").program
    assert [type(step).__name__ for step in program.steps] == ["Launch"]
    assert {program.slots[n].type.device for n in program.steps[0].arguments} == {GPU}


def test_an_argument_on_the_cpu_is_read_there(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(lambda x, y, s: x * (s * 2 + 1) + y, monkeypatch, torch.tensor(3.0))
    program = fusec.lower(graph, "cuda:sm_90").program
    for step in program.steps:
        devices = {program.slots[n].type.device for n in step.arguments}
        assert type(step).__name__ == "Call" or devices == {GPU}
    assert [s.attributes.target for s in program.steps if type(s).__name__ == "Call"] == [
        "fusec.interpret",
        "aten.mul.Tensor",
    ]
