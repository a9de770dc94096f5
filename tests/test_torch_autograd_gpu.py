"""Training steps lowered for a GPU that is not here: forwards and backwards become programs, none runs as written.

PyTorch's autograd knows no GPU without one: the joint graph is traced for tensors of the CPU, and moved before it is
cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree

from fusec import torch_autograd
from fusec.build import Options, run_passes
from fusec.frontend.torch_fake import fake_mode
from fusec.frontend.torch_fx import capture_graph
from fusec.runtime.program import Lowered

TARGET = "cuda:h100"
GPU = torch.device("cuda:0")


def fake(mode: FakeTensorMode, x: torch.Tensor, device: torch.device) -> FakeTensor:
    like = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta").requires_grad_(x.requires_grad)
    return FakeTensor(mode, like, device)


def moved(joint: fx.GraphModule, mode: FakeTensorMode) -> None:
    """Notes a GPU on all values of a graph, and makes what it creates there."""

    def move(value: Any) -> Any:
        return fake(mode, value, GPU) if isinstance(value, torch.Tensor) else value

    for node in joint.graph.nodes:
        node.meta["val"] = _pytree.tree_map(move, node.meta.get("val"))
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": GPU}
    joint.recompile()


def lowered_step(module: nn.Module, args: tuple[torch.Tensor, ...], monkeypatch: pytest.MonkeyPatch) -> list[Lowered]:
    """The programs of a module's forward and backward, for arguments on the meta device."""
    mode, graphs = fake_mode(), list[fx.GraphModule]()
    own = dict(module.named_parameters())

    class Step(nn.Module):
        def forward(self, *given: Any) -> Any:
            return (torch.func.functional_call(module, dict(zip(own, given)), given[len(own) :]),)

    def add(graph: fx.GraphModule, kind: str) -> Callable[[list[Any]], Any]:
        graphs.append(graph)
        return lambda given: given

    cut = torch_autograd._cut

    def cut_on_a_gpu(options: Options, joint: fx.GraphModule, inputs: Any, **given: Any) -> Any:
        moved(joint, mode)
        return cut(options, joint, inputs, **given)

    monkeypatch.setattr(torch_autograd, "_cut", cut_on_a_gpu)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    options = Options(target=TARGET)
    inputs = [fake(mode, x, torch.device("cpu")) for x in (*own.values(), *args)]
    with torch._guards.tracing(torch._guards.TracingContext(mode)):
        torch_autograd.through_aot(Step(), inputs, add, options, at_once=True)
    made = []
    for graph in graphs:
        noted = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
        made.append(run_passes(capture_graph(graph, noted, {}, foreseen=True).graph, TARGET, options))
    return made


class Block(nn.Module):
    """Attention without its scores, then an MLP: what lies around the library's call."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.before(x)).chunk(3, -1)
        x = x + self.out(q * torch.sigmoid(k) + v)
        return x + self.narrow(F.gelu(self.wide(self.between(x))))


class PositionsFirst(nn.Module):
    """Batches whose rows lie positions first, as after nn.MultiheadAttention; the first position is classified."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.next = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.start, self.head = nn.Parameter(torch.zeros(1, 1, width)), nn.Linear(width, 100)

    def forward(self, x: Any, target: Any) -> Any:
        x = torch.cat([self.start.expand(x.shape[0], -1, -1), x], 1)
        y = self.norm(x).transpose(0, 1)
        y = self.narrow(F.gelu(self.wide(y))).transpose(0, 1) + x
        return F.cross_entropy(self.head(self.next(y)[:, 0]), target)


class Words(nn.Module):
    def __init__(self, width: int, words: int, **options: Any) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(words, width), Block(width)
        self.head, self.options = nn.Linear(width, words, bias=False), options

    def forward(self, ids: Any, target: Any) -> Any:
        logits = self.head(self.blocks(self.words(ids))).flatten(0, 1).float()
        return F.cross_entropy(logits, target.flatten(), **self.options) + 1e-4 * logits.logsumexp(-1).square().mean()


class Images(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.next = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.after = nn.GroupNorm(4, channels), nn.GroupNorm(4, channels)

    def forward(self, x: Any) -> Any:
        return F.relu(self.after(self.next(F.relu(self.norm(self.first(x))))) + x).float().square().mean()


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta").requires_grad_(dtype.is_floating_point)


IDS = meta(8, 1024, dtype=torch.int64)
STEPS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "words": lambda: (Words(768, 50304), (IDS, IDS)),
    "words, smoothed": lambda: (Words(256, 32000, label_smoothing=0.1, ignore_index=3), (IDS, IDS)),
    "an odd number of words": lambda: (Words(300, 30522), (meta(7, 333, dtype=torch.int64),) * 2),
    "positions first": lambda: (PositionsFirst(768), (meta(64, 196, 768), meta(64, dtype=torch.int64))),
    "images, channels last": lambda: (
        Images(64),
        (meta(32, 64, 56, 56).to(memory_format=torch.channels_last).detach().requires_grad_(),),
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_becomes_programs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        module, args = STEPS[name]()
    made = lowered_step(module.to(torch.bfloat16), args, monkeypatch)
    assert len(made) == 2
    assert all(each.program.kernels for each in made)
