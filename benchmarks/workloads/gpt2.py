"""GPT-2 small (124M) with random weights: a prompt of 512 tokens, and the tokens after it one by one.

With the code of ``transformers``, whose cache grows by a token at each call, and with that of examples/gpt2.py,
whose cache is allocated once.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import fusec
from benchmarks.harness import Peer
from benchmarks.peers import torch_peers
from benchmarks.report import FUSEC, Row
from benchmarks.session import Array, Case, Faster, Session
from benchmarks.workloads.bert import DTYPES
from benchmarks.workloads.modules import exact

PROMPT, LONGEST = 512, 576
WIDTH, LAYERS, WORDS = 768, 12, 50257
WEIGHTS = LAYERS * 12 * WIDTH * WIDTH + WORDS * WIDTH

Past = list[tuple[Tensor, Tensor]]


class WithCache(nn.Module):
    """A call of transformers' model that takes and gives keys and values of earlier tokens, as ``generate`` does."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(0)
        self.model = GPT2LMHeadModel(GPT2Config()).eval().requires_grad_(False).to(dtype)

    def forward(self, ids: Tensor, past: Past) -> tuple[Tensor, Past]:
        from transformers import DynamicCache

        cache = DynamicCache(past or None, config=self.model.config)
        logits = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        return logits, [(layer.keys, layer.values) for layer in cache.layers]


class Prompt(WithCache):
    """Keys and values of a prompt, and the logits of the token after it."""

    def forward(self, ids: Tensor, past: tuple[()] = ()) -> tuple[Tensor, Past]:  # type: ignore[override]
        return super().forward(ids, [])


class Writing:
    """Calls that follow one another: each gets the keys and values that the last one gave, up to LONGEST tokens."""

    def __init__(self, function: Callable[..., Any], past: Past) -> None:
        self._function = function
        self._start = self._past = past
        if hasattr(function, "_fusec"):
            self._fusec = function._fusec

    def restart(self) -> None:
        self._past = self._start

    def __call__(self, ids: Tensor, past: Past) -> Any:
        if self._past[0][0].shape[2] >= LONGEST:
            self.restart()
        logits, self._past = self._function(ids, self._past)
        return logits


def rows(session: Session) -> Iterator[Row]:
    yield from session.time_all(partial(make, name) for make in (prompt, token, placed) for name in DTYPES)


def _case(
    work: str, name: str, peers: dict[str, Peer], function: nn.Module, args: tuple[Any, ...], tokens: int
) -> Case:
    """tokens: how many go through the network at once; PROMPT of them are in all."""
    itemsize = DTYPES[name].itemsize
    cache = 2 * LAYERS * PROMPT * WIDTH
    dense = 2.0 * tokens * LAYERS * 12 * WIDTH * WIDTH + 2.0 * WORDS * WIDTH
    pairs = tokens * (2 * PROMPT + 1 - tokens) / 2 if tokens > 1 else PROMPT
    return Case(
        work,
        peers,
        [Faster(1.3, ("eager", "compile"))],
        function,
        args,
        exact=lambda: exact(function, *args),
        flops=dense + 4.0 * LAYERS * pairs * WIDTH,
        nbytes=float(itemsize * (WEIGHTS + cache)),
        multiplies=name,
    )


def prompt(name: str) -> Case:
    module = Prompt(DTYPES[name])
    ids = words(PROMPT)
    return _case(f"GPT-2 {name}, prompt of {PROMPT} tokens", name, torch_peers(module, (ids,)), module, (ids,), PROMPT)


def token(name: str) -> Case:
    """One compiled program serves all lengths that the calls have."""
    module = WithCache(DTYPES[name])
    _, past = module(words(PROMPT), [])
    args = (words(1), past)
    functions: dict[str, Any] = {"eager": module}
    if shutil.which("g++"):
        torch.compiler.reset()
        functions["compile"] = torch.compile(module, dynamic=True)
    functions[FUSEC] = fusec.jit(dynamic=True)(module)
    writing = {peer: Writing(function, past) for peer, function in functions.items()}
    peers = {peer: Peer(calls, args) for peer, calls in writing.items()}
    case = _case(f"GPT-2 {name}, a token after {PROMPT} to {LONGEST}", name, peers, module, args, 1)

    def first() -> Array:
        for calls in writing.values():
            calls.restart()
        return exact(module, *args)

    return replace(case, exact=first)


def placed(name: str) -> Case:
    """Each peer has keys and values of its own; all write the same position again and again."""
    example = _example()
    module = example.load(example.Config(), DTYPES[name])
    module(words(PROMPT), torch.arange(PROMPT))
    args = (words(1), torch.tensor([PROMPT]))
    work = f"GPT-2 {name}, a token at position {PROMPT} of 1024 allocated"
    return _case(work, name, torch_peers(module, args), module, args, 1)


def words(count: int) -> Tensor:
    return torch.randint(0, WORDS, (1, count), generator=torch.Generator().manual_seed(0))


def _example() -> ModuleType:
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    return import_module("gpt2")
