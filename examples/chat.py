"""A language model of transformers that answers, its ``generate()`` compiled by fusec.

Without a model's folder it is GPT-2 (124M) made from its configuration: its weights are random, its words are bytes,
and what is shown is time. With one it is the model in it, with the tokenizer that lies there.

Tokens a second of eager, fusec and torch.compile, on the GPU if there is one:
    python examples/chat.py
A conversation with a model that was downloaded before:
    python examples/chat.py --model path/to/folder --talk
A small model, few tokens, no torch.compile:
    python examples/chat.py --small
"""

from __future__ import annotations

import argparse
import copy
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel
from transformers.generation.streamers import BaseStreamer

import fusec

QUESTION = "How does a compiler make one kernel of several operations?"
CACHES = {"grown": None, "preallocated": "static"}
"""How keys and values are kept: a cache that grows with each token, or memory that is allocated once."""


class Bytes:
    """A tokenizer of a model without one: a token is a byte."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(t % 128 for t in tokens).decode()


@dataclass
class Chat:
    """A causal language model with its tokenizer (``encode`` and ``decode``)."""

    model: Any
    tokenizer: Any

    def answer(self, text: str, count: int, cache: str | None, streamer: BaseStreamer | None = None) -> list[int]:
        """The ``count`` likeliest tokens after the text, one after another."""
        ids = torch.tensor([self.tokenizer.encode(text)], device=self.model.device)
        found = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            cache_implementation=cache,
            disable_compile=True,  # of transformers: each peer here is compiled already, or is not to be
            streamer=streamer,
        )
        return [int(t) for t in found[0, ids.shape[1] :]]


def load(folder: str | None, small: bool, device: str) -> Chat:
    """The model in a folder; GPT-2 with random weights where there is none."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    if folder is not None:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        return Chat(model.to(device).eval(), AutoTokenizer.from_pretrained(folder, local_files_only=True))
    torch.manual_seed(0)
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256, "n_positions": 128} if small else {}
    model = GPT2LMHeadModel(GPT2Config(bos_token_id=None, eos_token_id=None, pad_token_id=0, **sizes))
    return Chat(model.to(dtype).to(device).eval(), Bytes())


class Bar(BaseStreamer):
    """Moves a progress bar by one for each token."""

    def __init__(self, progress: Progress, name: str, count: int) -> None:
        self.progress, self.task = progress, progress.add_task(name, total=count)
        self.prompt = True

    def put(self, value: torch.Tensor) -> None:
        if not self.prompt:
            self.progress.advance(self.task)
        self.prompt = False

    def end(self) -> None:
        self.prompt = True


class Spoken(BaseStreamer):
    """Prints words as they come."""

    def __init__(self, tokenizer: Any, console: Console) -> None:
        self.tokenizer, self.console, self.prompt = tokenizer, console, True

    def put(self, value: torch.Tensor) -> None:
        if not self.prompt:
            self.console.print(self.tokenizer.decode([int(value)]), end="", markup=False, highlight=False)
        self.prompt = False

    def end(self) -> None:
        self.prompt = True
        self.console.print()


def compiled(chat: Chat, compile: Callable[..., Any]) -> Chat:
    """The same weights, with the calls that ``generate()`` makes compiled."""
    model = copy.copy(chat.model)
    model.forward = compile(chat.model.forward)
    return Chat(model, chat.tokenizer)


def measure(chat: Chat, count: int, peers: dict[str, Callable[..., Any] | None], console: Console) -> dict[str, Any]:
    """Shows how fast each peer answers with each cache; their tokens by peer and cache."""
    table = Table("", *(f"{name} cache, tokens/s" for name in CACHES), "first answer, s", title="one sequence")
    found: dict[str, Any] = {}
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        for name, compile in peers.items():
            own = chat if compile is None else compiled(chat, compile)
            rates, first = [], 0.0
            for kind, cache in CACHES.items():
                bar = Bar(progress, f"{name}, {kind} cache", 3 * count)
                seconds = []
                for _ in range(3):
                    start = time.perf_counter()
                    found[name, kind] = own.answer(QUESTION, count, cache, bar)
                    seconds.append(time.perf_counter() - start)
                first = first or seconds[0]
                rates.append(f"{count / min(seconds[1:]):.1f}")
            table.add_row(name, *rates, f"{first:.1f}")
    console.print(table)
    return found


def talk(chat: Chat, count: int, console: Console) -> None:
    """Answers lines until there is none. Each is compiled code but the first token's call."""
    streamer = Spoken(chat.tokenizer, console)
    while line := console.input("> "):
        chat.answer(line, count, None, streamer)


@torch.inference_mode()
def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measures, or talks; the tokens that were written by peer and cache."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="a folder with a model's weights, configuration and tokenizer")
    parser.add_argument("--talk", action="store_true", help="answer lines that are typed, compiled by fusec")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--small", action="store_true", help="a small model, few tokens, no torch.compile")
    given = parser.parse_args(arguments)
    console = Console()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    chat = load(given.model, given.small, device)
    count = 8 if given.small else given.tokens
    if given.talk:
        talk(compiled(chat, fusec.jit), count, console)
        return {}
    peers: dict[str, Callable[..., Any] | None] = {"eager": None, "fusec": fusec.jit}
    if not given.small and shutil.which("g++"):
        peers["torch.compile"] = torch.compile
    return measure(chat, count, peers, console)


if __name__ == "__main__":
    main()
