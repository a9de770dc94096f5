"""A report that fits a screen: of a model of many layers."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fusec  # noqa: E402
from fusec.digest import SCREEN, folded  # noqa: E402
from fusec.report import WIDTH  # noqa: E402

F: Any = torch.nn.functional
LAYERS = 6


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(32) for _ in range(2))

    def forward(self, x: Any) -> Any:
        q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norms[0](x + self.out(mixed))
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


@pytest.fixture(scope="module")
def encoder() -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Layer() for _ in range(LAYERS))).requires_grad_(False)
    return fusec.compile(model, torch.randn(2, 8, 32))


def test_an_encoder_of_six_layers_fits_a_screen(encoder: Any) -> None:
    text = encoder.explain()
    lines = text.splitlines()
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) <= WIDTH
    table = [line for line in lines if f"× {LAYERS} " in line and " %" in line]
    assert {line.split()[3] for line in table} >= {"gemm", "attention", "row"}
    running = [int(line.split("%")[1].strip()) for line in lines if line.count("%") == 3]
    assert running == sorted(running)
    assert running[-1] == 100
    assert "test_digest.py" in text
    assert "detail=True" in lines[-1]


def test_the_rest_is_told_on_request(encoder: Any) -> None:
    text = encoder.explain(detail=True)
    reports = encoder.only.executable.program.reports
    assert all(f"{report.kernel} does" in text for report in reports)
    assert "tile_m=" in text


def test_kernels_that_do_the_same_are_folded(encoder: Any) -> None:
    program = encoder.only.executable.program
    groups = folded(program)
    assert sum(len(group.reports) for group in groups) == len(program.reports)
    assert [group.seconds for group in groups] == sorted((g.seconds for g in groups), reverse=True)
    assert all(len({r.kind for r in group.reports}) == 1 for group in groups)


def test_few_kernels_are_told_whole() -> None:
    compiled = fusec.compile(lambda x: torch.softmax(x * 2, -1), torch.randn(4, 8))
    assert compiled.explain() == compiled.explain(detail=True)
