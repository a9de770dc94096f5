"""What is captured of tensors on a CPU for a GPU: what is captured of tensors there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import fusec
from fusec.frontend import torch_tensors
from fusec.frontend.torch import capture
from fusec.ir.graph import Graph

GPU = "cuda:sm_90"
HALF = torch.bfloat16


def shaped(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def recurrent(kind: Any, x: torch.Tensor, *weights: torch.Tensor) -> Any:
    state = x.new_zeros(1, x.shape[1], 8)
    given = [state, state] if kind is torch.lstm else state
    return kind(x, given, weights, True, 1, 0.0, False, False, False)


def weights(gates: int) -> tuple[torch.Tensor, ...]:
    return shaped(8 * gates, 8), shaped(8 * gates, 8), shaped(8 * gates), shaped(8 * gates)


IMAGE = shaped(2, 16, 12, 10)
CHOICES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "a convolution of bf16": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
        (IMAGE.to(HALF), shaped(32, 16, 3, 3, dtype=HALF), shaped(32, dtype=HALF)),
    ),
    "a convolution in groups": (lambda x, w: F.conv2d(x, w, padding=3, groups=4), (IMAGE, shaped(16, 4, 7, 7))),
    "bilinear resampling": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (IMAGE,)),
    "linear resampling": (lambda x: F.interpolate(x, size=17, mode="linear"), (IMAGE[0],)),
    "trilinear resampling": (lambda x: F.interpolate(x[None], scale_factor=2, mode="trilinear"), (IMAGE,)),
    "bicubic resampling": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), (IMAGE,)),
    "nearest": (lambda x: F.interpolate(x, size=(17, 15)), (IMAGE,)),
    "variance": (lambda x: x.var(-1), (IMAGE,)),
    "mean and standard deviation": (lambda x: torch.std_mean(x, (2, 3)), (IMAGE,)),
    "a number that bf16 has not": (lambda x: x + 65519.0, (IMAGE.to(HALF),)),
    "dropout": (lambda x: F.dropout(x, 0.3), (IMAGE,)),
    "attention with dropout": (
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
        (shaped(2, 4, 16, 32, dtype=torch.float16),),
    ),
    "a short LSTM": (lambda *given: recurrent(torch.lstm, *given), (shaped(4, 2, 8), *weights(4))),
    "a short RNN": (lambda *given: recurrent(torch.rnn_tanh, *given), (shaped(4, 2, 8), *weights(1))),
}
"""Functions with calls that are done in one way on a CPU, and in another on a GPU."""

BOTH: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "a wide depthwise convolution": (lambda x, w: F.conv2d(x, w, padding=4, groups=16), (IMAGE, shaped(16, 1, 9, 9))),
    "a transposed convolution": (lambda x, w, b: F.conv_transpose2d(x, w, b), (IMAGE, shaped(16, 8, 3, 3), shaped(8))),
}
"""Functions with calls that are the library's on both, though not in the same form."""

DECOMPOSED = ("trilinear resampling", "bicubic resampling", "nearest")
"""Those for which PyTorch makes tensors of its own, which takes a GPU."""

ALIKE = {
    **{name: [pytest.mark.gpu] if name in DECOMPOSED else [] for name in CHOICES | BOTH},
    "a short LSTM": [pytest.mark.skipif(torch.cuda.is_available(), reason="its states have another rank as fakes")],
}
del ALIKE["bicubic resampling"]  # PyTorch's decomposition adds up in one way on a CPU, and in another on a GPU


def there(function: Callable[..., Any], args: tuple[torch.Tensor, ...], monkeypatch: pytest.MonkeyPatch) -> Graph:
    """The graph of a call of tensors on a GPU, which are not made where there is none."""
    if torch.cuda.is_available():
        return capture(function, [x.cuda() for x in args], {}).graph
    with FakeTensorMode():
        fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda:0") for x in args]
    monkeypatch.setattr(torch_tensors, "check_plain", lambda tensor, path: None)
    return capture(function, fakes, {}).graph


def said(graph: Graph) -> str:
    """A graph's text without the user's lines."""
    return "\n".join(line.partition("//")[0].rstrip() for line in str(graph).splitlines())


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks) for name, marks in ALIKE.items()])
def test_a_graph_is_that_of_tensors_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, args = (CHOICES | BOTH)[name]
    aot, jitted = fusec.trace(function, *args, target=GPU), there(function, args, monkeypatch)
    assert said(aot) == said(jitted)
    kernels = [[(k.name, k.report and k.report.kind) for k in fusec.lower(g, GPU).kernels] for g in (aot, jitted)]
    assert kernels[0] == kernels[1]
    assert {v.type.device for op in aot.ops for v in op.results} == {"cuda:0"}


@pytest.mark.parametrize("name", CHOICES)
def test_a_cpu_has_another(name: str) -> None:
    function, args = CHOICES[name]
    plain, named = fusec.trace(function, *args), fusec.trace(function, *args, target="cpu")
    assert said(plain) == said(named)
    assert said(plain) != said(fusec.trace(function, *args, target=GPU)).replace("@cuda:0", "")


@pytest.mark.parametrize("name", DECOMPOSED)
def test_resampling_is_kernels_there(name: str) -> None:
    function, args = CHOICES[name]
    low = fusec.lower(fusec.trace(function, *args, target=GPU), GPU)
    assert low.kernels
    assert not [step for step in low.program.steps if type(step).__name__ == "Call"]


def test_the_library_for_cpus_is_not_asked_what_it_takes() -> None:
    scores, classes = shaped(3, 5, dtype=torch.float16), shaped(3, dtype=torch.int64)
    with pytest.raises(NotImplementedError, match="not implemented for 'Half'"):
        fusec.trace(F.multi_margin_loss, scores, classes)
    assert fusec.trace(F.multi_margin_loss, scores, classes, target=GPU).ops


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Conv2d(8, 8, 7, padding=3, groups=4)
        self.outer = torch.nn.Conv2d(8, 16, 3)
        self.register_buffer("shift", torch.arange(16.0)[:, None, None])

    def forward(self, x: Any) -> Any:
        x = self.outer(F.silu(self.inner(x))) + self.shift
        x = F.interpolate(x, scale_factor=2, mode="bilinear") * torch.arange(x.shape[-1] * 2)
        return x + torch.zeros((), device=self.shift.device)


def test_a_module_and_what_it_makes_are_on_the_gpu() -> None:
    net = Net().to(HALF)
    graph = fusec.trace(net, shaped(2, 8, 9, 9, dtype=HALF), target=GPU)
    assert {v.type.device for v in graph.inputs} == {"cuda:0"}
    assert "extern" not in str(graph)
    compiled = fusec.compile(net, fusec.TensorSpec((2, 8, 9, 9), HALF), target=GPU)
    assert [op.name for op in fusec.parse(compiled.only.graph_text).ops] == [op.name for op in graph.ops]
    on_cpu = fusec.trace(net, shaped(2, 8, 9, 9, dtype=HALF))
    assert str(on_cpu).count("extern(") == 3
