"""A small attention model, trained: the loss of a batch is one compiled function, forward and backward.

Run it:
    python examples/training.py

The task: name the largest of the digits that a row shows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusec

DIGITS, LENGTH, WIDTH = 16, 8, 32


class Block(nn.Module):
    """Attention to what came before, and a perceptron, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        projected = self.project(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Model(nn.Module):
    """Digits to the logits of the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.digits, self.places = nn.Embedding(DIGITS, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH) / 8)
        self.blocks = nn.Sequential(Block(WIDTH, 4), Block(WIDTH, 4))
        self.norm, self.read = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, DIGITS)

    def forward(self, rows: Tensor) -> Tensor:
        seen: Tensor = self.blocks(self.digits(rows) + self.places)
        answer: Tensor = self.read(self.norm(seen[:, -1]))
        return answer


def batch(rows: int) -> tuple[Tensor, Tensor]:
    """Rows of digits, and the largest of each."""
    digits = torch.randint(0, DIGITS, (rows, LENGTH))
    return digits, digits.amax(-1)


def train(steps: int = 150) -> dict[str, float]:
    """Trains, and returns the first and the last loss, the share of right answers, and how far gradients are from
    eager's."""
    torch.manual_seed(0)
    model = Model()

    @fusec.jit
    def loss(rows: Tensor, answers: Tensor) -> Tensor:
        return F.cross_entropy(model(rows), answers)

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        step = loss(*batch(64))
        step.backward()
        optimizer.step()
        losses.append(float(step.detach()))

    rows, answers = batch(256)
    with torch.no_grad():  # the forward alone
        right = float((fusec.jit(model)(rows).argmax(-1) == answers).float().mean())
    found = torch.autograd.grad(loss(rows[:64], answers[:64]), [*model.parameters()])
    wanted = torch.autograd.grad(F.cross_entropy(model(rows[:64]), answers[:64]), [*model.parameters()])
    difference = max(float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True))
    print("\n".join(line for line in fusec.explain(loss, rows[:64], answers[:64]).splitlines() if " on cpu: " in line))
    return {"first": losses[0], "last": losses[-1], "right": right, "difference": difference}


def main() -> dict[str, float]:
    """Trains, and tells what came of it."""
    found = train()
    print(f"loss {found['first']:.3f} at first, {found['last']:.3f} in the end; {found['right']:.0%} right")
    print(f"gradients differ from eager by at most {found['difference']:.1e}")
    return found


if __name__ == "__main__":
    main()
