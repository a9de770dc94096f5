"""Calibration: the sentence encoder of minilm.py with weights and activations of eight bits, and what that costs.

python examples/quantize.py                       # int8 by percentile
python examples/quantize.py --scheme int4-weights
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from minilm import encode, load
from torch import Tensor, nn

import fusec

TOKENS = 24
BATCH = 32


def parts_of(sentence: str) -> list[str]:
    """Queries made from a sentence: its first half, its second half, and every second pair of its words."""
    words = sentence.split()
    middle = len(words) // 2
    pairs = [word for i, word in enumerate(words) if i // 2 % 2 == 0]
    return [" ".join(words[:middle]), " ".join(words[middle:]), " ".join(pairs)]


def vectors(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    return torch.cat([model(*batch) for batch in batches])


@torch.inference_mode()
def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Calibrates, searches with both encoders, and returns the share of queries with the same first answer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scheme", default="int8", choices=("int8", "fp8", "int8-weights", "int4-weights"))
    parser.add_argument("--method", default="percentile", choices=("minmax", "percentile", "entropy", "mse"))
    parser.add_argument("--budget", type=float, default=0.1, help="share of the weights that may stay in float")
    given = parser.parse_args(arguments)

    model, tokenizer = load()
    sentences = (Path(__file__).parent / "sentences.txt").read_text().splitlines()

    def batches(texts: list[str]) -> list[tuple[Tensor, Tensor]]:
        return [encode(tokenizer, texts[i : i + BATCH], TOKENS) for i in range(0, len(texts), BATCH)]

    small = fusec.quantize(model, batches(sentences), given.scheme, given.method, budget=given.budget)
    print(small.quantization)

    queries = [part for sentence in sentences for part in parts_of(sentence)]
    found = {}
    for name, encoder in (("float", fusec.jit(model)), (given.scheme, fusec.jit(small))):
        found[name] = vectors(encoder, batches(queries)) @ vectors(encoder, batches(sentences)).T
    first = [scores.argmax(1) for scores in found.values()]
    same = float((first[0] == first[1]).float().mean())
    right = float((first[1] == torch.arange(len(queries)) // 3).float().mean())
    print(f"{len(queries)} queries: {same:.1%} have the first answer of float32, {right:.1%} find their sentence")
    return {"same": same, "right": right, "decibels": small.quantization.decibels}


if __name__ == "__main__":
    main()
