"""A product with every window of a matrix, in NumPy: fusec multiplies once and takes windows of the result.

Plain NumPy multiplies `a` by 981 overlapping windows of 20 columns. Each column of `b` is in up to 20 of them,
so most of that work is done 20 times. fusec derives `a @ windows(b)  =>  windows(a @ b)` from the strides.

Run it:
    python examples/windows.py
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

import fusec

WINDOW = 20
Matrix = npt.NDArray[np.float32]


def products(a: Matrix, b: Matrix) -> Matrix:
    """a [m, k] times each 20-column window of b [k, n]: [n - 19, m, 20]."""
    down, right = b.strides
    windows = as_strided(b, (b.shape[1] - WINDOW + 1, b.shape[0], WINDOW), (right, down, right))
    return a @ windows


def main() -> dict[str, object]:
    """Prints the graph before and after, and returns its sizes and the greatest relative error."""
    random = np.random.default_rng(0)
    a = random.standard_normal((10, 20), np.float32)
    b = random.standard_normal((20, 1000), np.float32)

    graph = fusec.trace(products, a, b)
    low = fusec.lower(graph)
    print(f"as written:\n{graph}\n\nas it runs:\n{low.stages['fuse']}\n")

    ours, theirs = fusec.jit(products)(a, b), products(a, b)
    exact = products(a.astype(np.float64), b.astype(np.float64))
    error, numpys = np.abs(ours - exact).max(), np.abs(theirs - exact).max()
    multiplied = 981 * 10 * 20 * WINDOW
    print(f"multiplications: {multiplied:,} as written, {10 * 20 * 1000:,} as it runs")
    print(f"result {ours.shape}, greatest error {error:.1e} (NumPy's {numpys:.1e})")
    return {"error": float(error), "numpy": float(numpys), "shape": ours.shape, "fused": low.stages["fuse"]}


if __name__ == "__main__":
    main()
