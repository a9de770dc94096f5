"""Table of ``generate()`` of transformers as people call it: tokens a second, the first call, and where tokens part.

``python -m benchmarks.generation [--models llama-1b,gpt2] [--tokens N] [--device cuda|cpu] [--dtype bf16|f32]``.
Weights are random, decoding greedy. A token may differ from eager's only where eager's two logits differ by less than
its own rounding: both are compared with the same model in float32, on the text up to there (*margin*, *rounding*).
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from typing import Any

import torch

import fusec

LLAMA = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
SMALL = LLAMA | {"vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}
WINDOW = {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 4, "num_hidden_layers": 8}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-1b": ("Llama", LLAMA),
    "llama-0.5b": ("Llama", SMALL | {"num_hidden_layers": 24}),
    "gpt2": ("GPT2", {}),
    "qwen2": ("Qwen2", LLAMA | WINDOW),
}
PROMPT = 16


def made(name: str, dtype: torch.dtype, device: str) -> Any:
    import transformers

    family, sizes = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**sizes)
    head = {"GPT2": "GPT2LMHeadModel"}.get(family, f"{family}ForCausalLM")
    torch.manual_seed(0)
    with torch.device(device):
        model = getattr(transformers, head)(config).to(dtype).eval()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return model


class Text:
    """Calls of ``generate()`` on one prompt of each sequence."""

    def __init__(self, model: Any, batch: int, count: int, cache: str) -> None:
        self.model, self.count = model, count
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(3, 1000, (batch, PROMPT), generator=generator).to(model.device)
        self.options = {"cache_implementation": cache} if cache != "default" else {}

    def __call__(self) -> Any:
        how = {"do_sample": False, "max_new_tokens": self.count, "disable_compile": True, **self.options}
        made = self.model.generate(input_ids=self.ids, attention_mask=torch.ones_like(self.ids), **how)
        if made.device.type == "cuda":
            torch.cuda.synchronize()
        return made

    def rate(self, rounds: int) -> float:
        """Tokens a second, the median call's."""
        found = []
        for _ in range(rounds):
            start = time.perf_counter()
            self()
            found.append(time.perf_counter() - start)
        return len(self.ids) * self.count / statistics.median(found)


def parting(model: Any, ours: Any, theirs: Any) -> str:
    """Where the first sequence that differs does: the position, the margin of eager's logits between both tokens, and
    how far rounding has moved that margin from float32's. An error says that the margin is the larger."""
    differ = (ours != theirs).nonzero()
    if not len(differ):
        return "equal"
    row, at = differ[0].tolist()
    tokens = [int(theirs[row, at]), int(ours[row, at])]
    with torch.no_grad():
        eager = model(theirs[row : row + 1, :at]).logits[0, -1, tokens].double()
        exact = copy.deepcopy(model).float()(theirs[row : row + 1, :at]).logits[0, -1, tokens].double()
    margin, moved = float(eager[0] - eager[1]), float(((eager - exact).abs()).sum())
    step = float(eager.abs().max()) * torch.finfo(model.dtype).eps
    text = f"{at - PROMPT}: margin {margin:.1e}, rounding {max(moved, step):.1e}"
    return text if abs(margin) <= max(moved, step) else f"{text} WRONG"


def row(name: str, cache: str, batch: int, given: argparse.Namespace) -> str:
    model = made(name, torch.bfloat16 if given.dtype == "bf16" else torch.float32, given.device)
    text = Text(model, batch, given.tokens, cache)
    theirs = text()
    eager, own = text.rate(given.rounds), model.forward
    model.forward = fusec.jit(own)
    start = time.perf_counter()
    ours = text()
    first = time.perf_counter() - start
    text()
    rate = text.rate(given.rounds)
    model.forward = own
    found = (f"{eager:.0f}", f"{rate:.0f}", f"{rate / eager:.2f}", f"{first:.1f}", parting(model, ours, theirs))
    return f"| {name}, {cache}, batch {batch} | {' | '.join(found)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="llama-1b,gpt2")
    parser.add_argument("--caches", default="default,static")
    parser.add_argument("--batches", default="1")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f32"))
    given = parser.parse_args()
    columns = ("model, cache", "eager, tokens/s", "fusec, tokens/s", "ratio", "first call, s", "where tokens part")
    print(f"| {' | '.join(columns)} |\n|" + "---|" * len(columns))
    for name in given.models.split(","):
        for cache in given.caches.split(","):
            for batch in map(int, given.batches.split(",")):
                print(row(name, cache, batch, given), flush=True)


if __name__ == "__main__":
    main()
