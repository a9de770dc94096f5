"""fusec on a function and on an nn.Module, and what `explain` says of both.

Run it:
    python examples/mlp.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusec


@fusec.jit
def mlp(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    h = x @ w1 + b1
    h = 0.5 * h * (1.0 + torch.erf(h * 0.7071067811865476))
    return x + h @ w2


class Block(nn.Module):
    """A normalised, residual two-layer perceptron."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.silu(self.up(self.norm(x))))


@torch.no_grad()
def main() -> dict[str, float]:
    """Runs both, prints explain of both, and returns the greatest difference of each from eager."""
    torch.manual_seed(0)
    x, w1, b1, w2 = torch.randn(64, 256), torch.randn(256, 512) / 16, torch.randn(512), torch.randn(512, 256) / 16
    h = x @ w1 + b1
    differences = {"function": float((mlp(x, w1, b1, w2) - (x + F.gelu(h) @ w2)).abs().max())}
    print(fusec.explain(mlp, x, w1, b1, w2))

    block = Block(256, 512)
    fast = fusec.jit(block)
    differences["module"] = float((fast(x) - block(x)).abs().max())
    print(fusec.explain(fast, x))

    block.up.weight.mul_(2.0)  # parameters are taken by reference: an update is seen by the next call
    differences["updated"] = float((fast(x) - block(x)).abs().max())
    for name, difference in differences.items():
        print(f"{name}: differs from eager by at most {difference:.1e}")
    return differences


if __name__ == "__main__":
    main()
