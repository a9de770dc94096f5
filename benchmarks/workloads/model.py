"""The main example's model and real sentences for it. Imports nothing of fusec's compiler."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch

TEXTS, TOKENS = 32, 128


@cache
def example() -> ModuleType:
    """examples/minilm.py as a module."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    return import_module("minilm")


def inputs(tokenizer: object) -> tuple[torch.Tensor, torch.Tensor]:
    """ids and mask of real sentences, cut to 128 tokens."""
    sentences = (Path(__file__).parents[2] / "examples" / "sentences.txt").read_text().splitlines()
    texts = example().paragraphs(sentences, TEXTS)
    ids, mask = example().encode(tokenizer, texts, TOKENS)
    return ids, mask
