"""A small network for a C program: compiles it for 1 to 64 rows and writes a header, weights and shared objects.

python examples/c/classify.py build
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

import fusec

Array = npt.NDArray[np.float32]
_generator = np.random.default_rng(0)
UP, SHIFT, DOWN = (_generator.standard_normal(s).astype(np.float32) / 5 for s in ((24, 40), (40,), (40, 10)))


def classify(rows: Array) -> Array:
    """Rows of 24 numbers to the probabilities of 10 classes."""
    hidden = np.maximum(rows @ UP + SHIFT, 0)
    scores = np.exp(hidden @ DOWN)
    result: Array = scores / scores.sum(axis=-1, keepdims=True)
    return result


def main(folder: str) -> Path:
    """Writes the files, and gives the header's path."""
    compiled = fusec.compile(classify, fusec.TensorSpec(("ROWS:1..64", 24)), fallback="error")
    return compiled.export_c(folder)


if __name__ == "__main__":
    print(main(sys.argv[1]))
