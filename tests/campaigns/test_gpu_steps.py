"""Whole steps compiled for a GPU that is not here: a slice, and that an error is seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.campaigns import gpu_steps
from tests.campaigns.gpu_steps import Outcome, main, outcomes_of


class Attention(nn.Module):
    """The library's attention between matmuls, whose operand is one of its several results."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Losses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.classes = nn.Embedding(50, 32), nn.LayerNorm(32), nn.Linear(32, 50)

    def forward(self, ids: Tensor) -> Tensor:
        scores = self.classes(F.gelu(self.norm(self.words(ids))))
        return F.cross_entropy(scores.flatten(0, 1), ids.flatten(), label_smoothing=0.1)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).mean((2, 3)))


CASES: list[tuple[type[nn.Module], tuple[Any, ...]]] = [
    (Attention, (torch.zeros(2, 64, 64),)),
    (Losses, (torch.zeros(2, 16, dtype=torch.int64),)),
    (Convolutions, (torch.zeros(2, 3, 8, 8),)),
]


@pytest.mark.parametrize(("make", "args"), CASES)
def test_steps_compile(make: type[nn.Module], args: tuple[Any, ...]) -> None:
    found = outcomes_of("step", make(), args, {})
    assert [o.name for o in found] == [
        f"step {name}"
        for name in (
            "float32 inference",
            "bfloat16 inference",
            "float32 forward",
            "float32 backward",
            "bfloat16 forward",
            "bfloat16 backward",
        )
    ]
    assert [o for o in found if o.error or o.cut or not o.kernels] == []


def test_an_error_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: Any) -> Any:
        raise KeyError("a value of several results")

    monkeypatch.setattr(gpu_steps, "run_passes", fail)
    assert main(["nn-mlp"]) == 1
    told = capsys.readouterr().out
    assert "nn-mlp float32 inference: WRONG KeyError" in told
    assert "graphs of 1 models end with an internal error" in told


def test_what_is_not_traced_is_told() -> None:
    class Decides(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    found = outcomes_of("decides", Decides(), (torch.zeros(3),), {})
    assert all(isinstance(o, Outcome) and o.cut.startswith("not traced") for o in found)
