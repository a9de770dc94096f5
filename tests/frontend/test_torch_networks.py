"""Recurrent and transformer layers of PyTorch: right, strided as eager's, and compiled or left to the library whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

import fusec  # noqa: E402
from fusec.frontend.torch_networks import as_called  # noqa: E402

STEPS = torch.linspace(-1, 1, 12 * 3 * 8).reshape(12, 3, 8).sin()
BATCH = torch.linspace(-2, 2, 3 * 12 * 8).reshape(3, 12, 8).cos()
PADDING = torch.arange(12) > torch.tensor([[11], [5], [8]])
ENCODER: dict[str, Any] = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "batch_first": True}


def causal(n: int) -> torch.Tensor:
    return nn.Transformer.generate_square_subsequent_mask(n)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_states_have_the_shape_of_those_that_a_network_was_given(kind: str) -> None:
    # On a card fake tensors say [2, 1, 3, 8].
    hidden = torch.zeros(2, 3, 8)
    hx: Any = [hidden, hidden] if kind == "lstm" else hidden
    func = getattr(torch.ops.aten, kind).input
    faked = (torch.zeros(12, 3, 8), *(torch.zeros(2, 1, 3, 8) for _ in range(2 if kind == "lstm" else 1)))
    output, *states = as_called(func, (STEPS, hx, [], True, 2, 0.0, False, False, False), {}, faked)
    assert output is faked[0]
    assert [list(state.shape) for state in states] == [[2, 3, 8]] * (len(faked) - 1)


def _doubles(values: Any) -> Any:
    return tree_map(lambda x: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x, values)


def compare(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The compiled module, after it gave twice what the module gives."""
    module = module.eval().requires_grad_(False)
    jitted: Any = fusec.jit(module)
    exact = copy.deepcopy(module).double()(*_doubles(args), **_doubles(kwargs))
    for _ in range(2):
        found, expected = jitted(*args, **kwargs), module(*args, **kwargs)
        assert type(found) is type(expected)
        for a, b, c in zip(tree_leaves(found), tree_leaves(expected), tree_leaves(exact), strict=True):
            if isinstance(b, torch.Tensor):
                assert a.shape == b.shape
                assert (a - c).abs().max() <= 2 * (b - c).abs().max() + 1e-6
                assert a.stride() == b.stride()
            else:
                assert a is b
    assert not jitted._fusec.dispatcher.eager_calls
    return jitted


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("steps", [3, 12])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 2, "bidirectional": True},
        {"batch_first": True},
        {"batch_first": True, "num_layers": 2, "bidirectional": True},
        {"bias": False},
        {"num_layers": 3, "bidirectional": True, "dtype": torch.float64},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_recurrent(kind: Callable[..., nn.Module], steps: int, options: dict[str, Any]) -> None:
    x = BATCH[:, :steps].contiguous() if options.get("batch_first") else STEPS[:steps]
    compare(kind(8, 5, **options), x.to(options.get("dtype", torch.float32)))


def test_recurrent_with_a_state_and_a_projection() -> None:
    torch.manual_seed(0)
    compare(nn.LSTM(8, 5), STEPS, (torch.rand(1, 3, 5), torch.rand(1, 3, 5)))
    compare(nn.LSTM(8, 5, proj_size=2, bidirectional=True), STEPS)
    compare(nn.GRU(8, 5), STEPS[:, 0], torch.rand(1, 5))
    compare(nn.RNN(8, 5, nonlinearity="relu"), STEPS)
    compare(nn.LSTMCell(8, 5), STEPS[0])
    compare(nn.GRUCell(8, 5), STEPS[0])


def test_what_stands_beside_a_long_network_is_compiled() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent, self.head = nn.GRU(8, 16, bidirectional=True), nn.Linear(32, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.log_softmax(self.head(self.recurrent(torch.tanh(x) * 2)[0].relu()), -1)

    x = torch.linspace(0, 1, 30 * 2 * 8).reshape(30, 2, 8)
    jitted = compare(Tagger(), x)
    report = fusec.explain(jitted, x)
    assert "aten.gru.input" in report
    assert "gemm" in report


def test_dropout_between_recurrent_layers_is_eagers() -> None:
    module = nn.GRU(8, 5, num_layers=2, dropout=0.5).requires_grad_(False)
    torch.manual_seed(0)
    expected = [module(STEPS[:4])[0] for _ in range(2)]
    torch.manual_seed(0)
    jitted: Any = fusec.jit(module)
    for value in expected:
        torch.testing.assert_close(jitted(STEPS[:4])[0], value, rtol=1e-5, atol=1e-5)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("weights", [{}, {"need_weights": False}, {"average_attn_weights": False}])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("same", [False, True])
def test_attention(weights: dict[str, bool], padded: bool, same: bool) -> None:
    options = {**weights, **({"key_padding_mask": PADDING} if padded else {})}
    other = BATCH if same else BATCH.roll(1, 0)
    compare(nn.MultiheadAttention(8, 2, batch_first=True), BATCH, other, other, **options)
    compare(nn.MultiheadAttention(8, 2), STEPS, STEPS, STEPS, **weights)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_layers(norm_first: bool, activation: str) -> None:
    torch.manual_seed(0)
    options = {**ENCODER, "norm_first": norm_first, "activation": activation}
    layer = nn.TransformerEncoderLayer(**options)
    compare(layer, BATCH)
    compare(layer, BATCH, src_key_padding_mask=PADDING)
    compare(layer, BATCH, src_mask=causal(12), is_causal=True)
    compare(nn.TransformerDecoderLayer(**options), BATCH, BATCH.roll(1, 0))
    compare(nn.TransformerDecoderLayer(**options), BATCH, BATCH, tgt_mask=causal(12), memory_key_padding_mask=PADDING)


@pytest.mark.nightly
def test_whole_transformers() -> None:
    torch.manual_seed(0)
    compare(nn.TransformerEncoder(nn.TransformerEncoderLayer(**ENCODER), 2), BATCH)
    compare(nn.Transformer(8, 2, 1, 1, 16, batch_first=True), BATCH, BATCH.roll(1, 0))
    compare(nn.Transformer(8, 2, 1, 1, 16), STEPS, STEPS, tgt_mask=causal(12), tgt_is_causal=True)


def test_padded_texts_through_an_encoder_are_right() -> None:
    """PyTorch packs them as a nested tensor, which is not captured."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**ENCODER), 2).eval().requires_grad_(False)
    jitted: Any = fusec.jit(encoder)
    for _ in range(2):
        found, expected = (f(BATCH, src_key_padding_mask=PADDING) for f in (jitted, encoder))
        torch.testing.assert_close(found, expected)


def test_the_same_array_twice_is_the_same_object() -> None:
    def which(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.add_(1)
        return x * 2 if x is y else x * 3

    jitted = fusec.jit(which)
    for x, y in [(STEPS.clone(), STEPS.clone())] * 2 + [(same := STEPS.clone(), same)] * 2:
        a, b = (x.clone(), y.clone()) if x is not y else [x.clone()] * 2
        torch.testing.assert_close(jitted(x, y), which(a, b))
        assert torch.equal(x, a)
    assert not jitted.dispatcher.eager_calls  # type: ignore[attr-defined]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("shape", [(5, 12), (2, 3, 12), (12,)])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_s_gradient(shape: tuple[int, ...], weighted: bool, dtype: torch.dtype) -> None:
    """The call that GPUs make; of a row the mean is divided, not each element."""
    torch.manual_seed(0)
    x, g = (torch.randn(shape).to(dtype) for _ in range(2))
    w = torch.randn(12).to(dtype) if weighted else None
    rstd = (x.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    call = torch.ops.aten._fused_rms_norm_backward.default

    def gradients(g: Any, x: Any, rstd: Any, w: Any) -> Any:
        return call(g, x, [12], rstd, w, [True, w is not None])

    jitted: Any = fusec.jit(gradients)
    found = jitted(g, x, rstd, w)
    assert not jitted.dispatcher.eager_calls
    leaf = x.double().requires_grad_()
    weight = None if w is None else w.double().requires_grad_()
    exact = torch.nn.functional.rms_norm(leaf, (12,), weight, 1e-6)
    wanted = torch.autograd.grad(exact, [leaf] if weight is None else [leaf, weight], g.double())
    limit = 2e-6 if dtype is torch.float32 else 1e-2
    for a, b in zip(found, wanted):
        assert a.dtype is dtype
        assert (a - b).abs().max() <= limit * max(1.0, float(b.abs().max()))
    assert (found[1] is None) is (w is None)
    graph = fusec.trace(gradients, g, x, rstd, w)
    divided = [op.result.type.size for op in graph.ops if op.name == "div"]
    assert divided == [x.numel() // 12]


def _pairs(n: int) -> torch.Tensor:
    """A mask whose third row has no key."""
    mask = torch.ones(n, n, dtype=torch.bool).triu(1)
    mask[2] = True
    return mask


EMPTY_ROWS: dict[str, tuple[torch.Tensor, int | None]] = {
    "pairs": (_pairs(12), 0),
    "keys": (torch.cat([PADDING[:2], torch.ones(1, 12, dtype=torch.bool)]), 1),
    "all": (_pairs(12).expand(3, 2, 12, 12).contiguous(), 2),
    "untold": (_pairs(12).expand(3, 2, 12, 12).contiguous(), None),
    "numbers": (torch.zeros(3, 2, 12, 12).masked_fill(_pairs(12), float("-inf")), 2),
    "other numbers": (_pairs(12).expand(3, 2, 12, 12) * 0.5, 2),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", EMPTY_ROWS)
@pytest.mark.parametrize("need_weights", [False, True])
def test_masks_of_the_native_attention(name: str, need_weights: bool) -> None:
    mask, mask_type = EMPTY_ROWS[name]
    torch.manual_seed(0)
    weights = [torch.randn(24, 8), torch.randn(24), torch.randn(8, 8), torch.randn(8)]

    def attend(x: torch.Tensor, mask: torch.Tensor) -> Any:
        found = torch._native_multi_head_attention(x, x, x, 8, 2, *weights, mask, need_weights, True, mask_type)
        return found if need_weights else found[0]

    jitted: Any = fusec.jit(attend, fallback="error")
    for _ in range(2):
        torch.testing.assert_close(jitted(BATCH, mask), attend(BATCH, mask), rtol=1e-4, atol=1e-5, equal_nan=True)
    (plan,) = jitted.dispatcher.plans
    assert len(plan.executable.program.reports) == len(plan.executable.program.steps)


def test_a_mask_that_does_not_fit_is_eagers_error() -> None:
    layer = nn.TransformerEncoderLayer(**ENCODER).eval().requires_grad_(False)
    jitted: Any = fusec.jit(layer)
    for f in (layer, jitted):
        with pytest.raises(RuntimeError, match="shape"):
            f(BATCH, src_mask=torch.zeros(12, 11, dtype=torch.bool))


@pytest.mark.parametrize(("target", "whole"), [("cuda:sm_90", True), ("cpu", False)])
def test_an_embeddings_gradient_is_the_librarys_on_a_gpu(target: str, whole: bool) -> None:
    """Decomposed, rows of one index are added up one after the other there: 4096 of one took 2 ms."""
    gradient = torch.ops.aten.embedding_dense_backward.default
    graph = fusec.trace(
        lambda g, ids: gradient(g, ids, 7, 0, False), torch.ones(4, 8), torch.tensor([1, 0, 6, 1]), target=target
    )
    assert ("embedding_dense_backward" in str(graph)) is whole
