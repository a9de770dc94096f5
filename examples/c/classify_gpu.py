"""A small network for a C program on a GPU: compiles it for 1 to 1024 rows and writes a header, weights and cubins.

python examples/c/classify_gpu.py build [cuda:sm_90]

No GPU is needed here.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import fusec

torch.manual_seed(0)
network = torch.nn.Sequential(
    torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 16), torch.nn.Softmax(-1)
).requires_grad_(False)


def classify(rows: torch.Tensor) -> torch.Tensor:
    """Rows of 64 numbers to the probabilities of 16 classes."""
    scores: torch.Tensor = network(rows)
    return scores


def main(folder: str, target: str = "cuda:sm_90") -> Path:
    """Writes the files, and gives the header's path."""
    rows = fusec.TensorSpec(("ROWS:1..1024", 64), "float32")
    return fusec.compile(classify, rows, library="torch", target=target, fallback="error").export_c(folder)


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
