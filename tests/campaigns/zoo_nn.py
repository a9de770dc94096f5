"""Modules of ``torch.nn``, called as their documentation's examples call them.

Dynamo makes a graph break of each module of recurrent networks that is not within another.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .zoo import Made, Model, Table


def module(made: Callable[[], nn.Module], *inputs: Callable[[], Any], **named: Callable[[], Any]) -> Callable[[], Made]:
    return lambda: (made(), tuple(each() for each in inputs), {name: each() for name, each in named.items()})


def normal(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape)


def integers(high: int, *shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, high, shape)


class Words(nn.Module):
    """An LSTM's usual surroundings: words in, a class out."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.words = nn.Embedding(99, 32, padding_idx=0)
        self.states = kind(32, 48, num_layers=2, batch_first=True, bidirectional=True)  # type: ignore[call-arg]
        self.classes = nn.Linear(96, 5)

    def forward(self, ids: Tensor) -> Tensor:
        out, _ = self.states(self.words(ids))
        return self.classes(out[:, -1])


def convolutions() -> nn.Module:
    layers: list[tuple[str, nn.Module]] = [
        ("conv1", nn.Conv2d(3, 16, 3, padding=1)),
        ("norm1", nn.BatchNorm2d(16)),
        ("relu1", nn.ReLU()),
        ("pool1", nn.MaxPool2d(2)),
        ("conv2", nn.Conv2d(16, 32, 3, padding=1, bias=False)),
        ("norm2", nn.GroupNorm(4, 32)),
        ("relu2", nn.SiLU()),
        ("pool2", nn.AdaptiveAvgPool2d(1)),
        ("flat", nn.Flatten()),
        ("classes", nn.Linear(32, 10)),
    ]
    return nn.Sequential(OrderedDict(layers))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Dropout(0.1), nn.Linear(256, 64))


def layers(kind: str, count: int = 2) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        layer = getattr(nn, f"{kind}Layer")(d_model=64, nhead=4, dim_feedforward=96, batch_first=True)
        return getattr(nn, kind)(layer, count) if count else layer

    return make


_PAIR = (normal(8, 10), integers(10, 8))
_SEQUENCES = (normal(2, 17, 64), normal(2, 9, 64))
NN: Table = {
    "nn-lstm": Model(module(lambda: nn.LSTM(10, 20, 2), normal(5, 3, 10)), trains=True, breaks=1),
    "nn-lstm-state": Model(
        module(lambda: nn.LSTM(10, 20, 2), normal(5, 3, 10), lambda: (torch.randn(2, 3, 20), torch.randn(2, 3, 20))),
        breaks=1,
    ),
    "nn-gru": Model(module(lambda: nn.GRU(10, 20, 2), normal(5, 3, 10), normal(2, 3, 20)), breaks=1),
    "nn-rnn": Model(module(lambda: nn.RNN(10, 20, 2), normal(5, 3, 10), normal(2, 3, 20)), breaks=1),
    "nn-lstm-cell": Model(module(lambda: nn.LSTMCell(10, 20), normal(3, 10))),
    "nn-words-lstm": Model(module(lambda: Words(nn.LSTM), integers(99, 4, 12)), trains=True),
    "nn-words-gru": Model(module(lambda: Words(nn.GRU), integers(99, 4, 12))),
    "nn-attention": Model(
        module(lambda: nn.MultiheadAttention(64, 4, batch_first=True), *[normal(2, 17, 64)] * 3), trains=True
    ),
    "nn-attention-no-weights": Model(
        module(
            lambda: nn.MultiheadAttention(64, 4, batch_first=True),
            *[normal(2, 17, 64)] * 3,
            need_weights=lambda: False,
            key_padding_mask=lambda: torch.arange(17)[None] >= torch.tensor([[17], [9]]),
        )
    ),
    "nn-encoder-layer": Model(module(layers("TransformerEncoder", 0), normal(2, 17, 64))),
    "nn-encoder": Model(module(layers("TransformerEncoder"), normal(2, 17, 64)), trains=True),
    "nn-encoder-padded": Model(
        module(
            layers("TransformerEncoder"),
            normal(2, 17, 64),
            src_key_padding_mask=lambda: torch.arange(17)[None] >= torch.tensor([[17], [9]]),
        ),
        as_written="nested",  # PyTorch's fast path leaves the padding out
        known={"compile: ": "Dynamo misses that path, with any backend: padding is 0 as written, and numbers then"},
    ),
    "nn-encoder-causal": Model(
        module(
            layers("TransformerEncoder"),
            normal(2, 17, 64),
            mask=lambda: nn.Transformer.generate_square_subsequent_mask(17),
            is_causal=lambda: True,
        )
    ),
    "nn-decoder-layer": Model(module(layers("TransformerDecoder", 0), *_SEQUENCES)),
    "nn-decoder": Model(module(layers("TransformerDecoder"), *_SEQUENCES)),
    "nn-transformer": Model(
        module(lambda: nn.Transformer(64, 4, 2, 2, 96), normal(17, 2, 64), normal(9, 2, 64)), trains=True
    ),
    "nn-conv": Model(module(convolutions, normal(2, 3, 32, 32)), trains=True),
    "nn-conv1d": Model(module(lambda: nn.Conv1d(16, 33, 3, stride=2), normal(20, 16, 50))),
    "nn-conv3d": Model(module(lambda: nn.Conv3d(4, 8, 3), normal(2, 4, 8, 10, 12))),
    "nn-conv-transpose": Model(module(lambda: nn.ConvTranspose2d(16, 33, 3, stride=2), normal(2, 16, 20, 24))),
    "nn-mlp": Model(module(perceptron, normal(32, 64)), trains=True),
    "nn-bilinear": Model(module(lambda: nn.Bilinear(20, 30, 40), normal(128, 20), normal(128, 30))),
    "nn-batch-norm": Model(module(lambda: nn.BatchNorm1d(100), normal(20, 100))),
    "nn-instance-norm": Model(module(lambda: nn.InstanceNorm2d(10), normal(4, 10, 12, 14))),
    "nn-embedding": Model(module(lambda: nn.Embedding(99, 16), integers(99, 4, 9)), trains=True),
    "nn-embedding-bag": Model(module(lambda: nn.EmbeddingBag(99, 16), integers(99, 12), lambda: torch.tensor([0, 4]))),
    "nn-cross-entropy": Model(module(nn.CrossEntropyLoss, *_PAIR)),
    "nn-nll": Model(module(nn.NLLLoss, *_PAIR)),
    "nn-mse": Model(module(nn.MSELoss, normal(8, 10), normal(8, 10))),
    "nn-bce": Model(module(nn.BCEWithLogitsLoss, normal(8, 10), lambda: torch.rand(8, 10))),
    "nn-kl": Model(module(lambda: nn.KLDivLoss(reduction="batchmean"), normal(8, 10), lambda: torch.rand(8, 10))),
    "nn-ctc": Model(
        module(
            nn.CTCLoss,
            lambda: torch.randn(50, 4, 20).log_softmax(2),
            lambda: torch.randint(1, 20, (4, 10)),
            lambda: torch.full((4,), 50),
            lambda: torch.full((4,), 10),
        ),
        as_written="depends on the values of a tensor",  # the lengths of the targets
        breaks=1,
    ),
    "nn-triplet": Model(module(nn.TripletMarginLoss, *[normal(8, 32)] * 3)),
    "nn-upsample": Model(module(lambda: nn.Upsample(scale_factor=2, mode="bilinear"), normal(2, 3, 8, 10))),
    "nn-pixel-shuffle": Model(module(lambda: nn.PixelShuffle(3), normal(1, 9, 4, 4))),
    "nn-unfold": Model(module(lambda: nn.Unfold(kernel_size=(2, 3)), normal(2, 5, 3, 4))),
    "nn-cosine": Model(module(nn.CosineSimilarity, normal(100, 128), normal(100, 128))),
    "nn-adaptive-softmax": Model(
        module(lambda: nn.AdaptiveLogSoftmaxWithLoss(16, 100, [10, 50]), normal(8, 16), integers(100, 8)),
        as_written="depends on the values of a tensor",  # which rows are of rare classes
        breaks=1,
    ),
}
