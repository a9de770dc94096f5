"""Small functions as users write them: the captured graph computes what eager does."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch_harness import check

torch.manual_seed(0)
X = torch.randn(3, 4)
Y = torch.randn(3, 4)
P = torch.rand(3, 4) + 0.5
I = torch.tensor([[1, -2, 3, 4], [5, 6, -7, 8], [9, 10, 11, 12]])  # noqa: E741 - an integer tensor
B = torch.tensor([[True, False, True, False]] * 3)
Z = torch.randn(2, 3, 4)
IMAGE = torch.randn(2, 4, 5, 6)
BYTES = torch.randint(-128, 128, (32, 16), dtype=torch.int8)
INDEX = torch.tensor([2, 0, 1, 1])


def gelu_tanh_by_hand(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attention(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    scores = scores.masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


def split_heads(x):
    return x.view(2, 3, 2, 2).transpose(1, 2)


ELEMENTWISE = [
    ("operators", lambda x, y: (x + y) * 2 - x / y, (X, Y)),
    ("reversed", lambda x: 1 - 2 / x + 3 * x, (P,)),
    ("alpha", lambda x, y: torch.add(x, y, alpha=2) - torch.sub(x, y, alpha=0.5), (X, Y)),
    ("exp_log", lambda x: torch.log(torch.exp(x) + 1) + torch.log1p(x) + torch.expm1(x), (P,)),
    ("trig", lambda x: x.sin() + x.cos() * x.tan() + x.atan(), (P,)),
    ("hyperbolic", lambda x: x.tanh() + x.sinh() - x.cosh(), (X,)),
    ("roots", lambda x: x.sqrt() + x.rsqrt() + x.square() + x.reciprocal(), (P,)),
    ("powers", lambda x: (x**2, x**3, x**0.5, x**-1, x**-2, x**1.7, 2**x, x**0), (P,)),
    ("power_of_tensor", lambda x, y: x**y, (P, Y)),
    ("decimals", lambda x: (torch.round(x * 9, decimals=1), torch.round(x * 999, decimals=-2)), (X,)),
    ("decimals_of_halves", lambda x: torch.round(x, decimals=2), (X.bfloat16(),)),
    ("angle", lambda x, i: (torch.angle(x), torch.angle(-x / x.abs()), torch.angle(i - 2)), (X, I)),
    ("integer_power", lambda i: (i**2, i**3), (I,)),
    ("abs_neg_sign", lambda x: x.abs() + (-x) + x.sign(), (X,)),
    ("sign_of_nan", lambda x: torch.sign(x / x), (torch.tensor([0.0, -1.0, 2.0]),)),
    ("rounding", lambda x: (x.floor(), x.ceil(), x.round(), x.trunc()), (X * 3,)),
    ("rounding_integers", lambda i: (i.floor(), torch.round(i)), (I,)),
    ("erf_gelu", lambda x: (torch.erf(x), F.gelu(x), F.gelu(x, approximate="tanh")), (X,)),
    ("gelu_by_hand", gelu_tanh_by_hand, (X,)),
    ("activations", lambda x: (F.relu(x), F.silu(x), torch.sigmoid(x), F.softplus(x), F.leaky_relu(x)), (X,)),
    ("activations2", lambda x: (F.elu(x), F.relu6(x), F.hardswish(x), F.hardsigmoid(x), F.mish(x), F.selu(x)), (X,)),
    ("activations3", lambda x: (F.logsigmoid(x), F.tanhshrink(x), F.softsign(x), F.glu(x), F.celu(x)), (X,)),
    ("comparisons", lambda x, y: (x > y, x <= 0, x == y, x != 1, y > 0.5), (X, Y)),
    ("integer_against_float", lambda i: (i > 2.5, i == 1, i / 2, i * 0.5), (I,)),
    ("logic", lambda x, b: ((x > 0) & b, (x > 0) | b, ~b, b ^ (x < 0), torch.logical_and(x, b)), (X, B)),
    ("bits", lambda i: (i & 3, i | 8, i ^ 5, ~i, i << 2, i >> 1), (I,)),
    ("where", lambda x, y: torch.where(x > y, x, 0.0) + torch.where(x > 0, x, y), (X, Y)),
    ("where_promotes", lambda x, i: torch.where(x > 0, x, i), (X, I)),
    ("clamp", lambda x: (x.clamp(-0.5, 0.5), x.clamp(min=0), x.clamp(max=0.1), x.clamp(1, -1)), (X,)),
    ("clamp_tensor", lambda x, y: torch.clamp(x, y, y + 1), (X, Y)),
    (
        "max_min_of_two",
        lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), torch.max(x, y), torch.fmax(x, y)),
        (X, Y),
    ),
    ("masked_fill", lambda x, b: x.masked_fill(b, -1e9), (X, B)),
    ("division", lambda x, y: (x // y, x % y, torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc")), (X, P)),
    ("integer_division", lambda i: (i // 3, i % 3, torch.fmod(i, 3), torch.div(i, -2, rounding_mode="trunc")), (I,)),
    (
        "nan_tests",
        lambda x: (torch.isnan(x), torch.isinf(x), torch.isfinite(x)),
        (torch.tensor([1.0, math.nan, math.inf]),),
    ),
    ("nan_tests_of_integers", lambda i: (torch.isnan(i), torch.isfinite(i)), (I,)),
    ("nan_to_num", lambda x: torch.nan_to_num(x), (torch.tensor([1.0, math.nan, -math.inf]),)),
    ("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.5) + torch.addcdiv(x, y, z), (X, Y, P)),
    ("lerp", lambda x, y: torch.lerp(x, y, 0.3), (X, Y)),
    ("atan2", lambda x, y: torch.atan2(x, y) + torch.hypot(x, y) + torch.copysign(x, y), (X, Y)),
    ("logaddexp", lambda x, y: torch.logaddexp(x, y), (X, Y)),
    ("zero_dim", lambda x, s: x * s + s, (X, torch.tensor(2.5))),
    ("bool_arithmetic", lambda b, x: (b * x, b + b, b * b, b + 1, b.float().sum()), (B, X)),
    ("casts", lambda x, i: (x.int(), x.double(), i.float(), x.to(torch.bool), i.to(torch.uint8)), (X, I)),
]

REDUCTIONS = [
    ("sums", lambda x: (x.sum(), x.sum(0), x.sum(-1, keepdim=True), x.sum((0, 1))), (X,)),
    ("integer_sums", lambda i, b: (i.int().sum(), b.sum(0), i.prod(1)), (I, B)),
    ("means", lambda x: (x.mean(), x.mean(-1), x.mean((0, 1), keepdim=True)), (X,)),
    ("var_std", lambda x: (x.var(), x.std(-1), x.var(0, unbiased=False), x.std(1, correction=0, keepdim=True)), (X,)),
    ("var_mean", lambda x: torch.var_mean(x, dim=-1), (X,)),
    ("std_mean", lambda x: torch.std_mean(x, dim=-1, keepdim=True), (X,)),
    ("extremes", lambda x: (x.max(), x.min(), x.amax(-1), x.amin((0, 1), keepdim=True)), (X,)),
    ("extremes_with_index", lambda x: (*x.max(-1), *x.min(0, keepdim=True)), (X,)),
    ("max_values_only", lambda x: x.max(dim=1).values, (X,)),
    ("argmax", lambda x: (x.argmax(), x.argmax(-1), x.argmin(0, keepdim=True)), (X,)),
    ("any_all", lambda b, x: (b.any(), b.all(-1), (x > 0).any(0, keepdim=True), torch.all(x)), (B, X)),
    ("aminmax", lambda x: tuple(torch.aminmax(x, dim=0)), (X,)),
    ("logsumexp", lambda x: (torch.logsumexp(x, -1), torch.logsumexp(x, (0, 1), keepdim=True)), (X,)),
    ("norms", lambda x: (x.norm(), x.norm(dim=-1), torch.linalg.vector_norm(x, 1), F.normalize(x, dim=-1)), (X,)),
    ("scans", lambda x: (x.cumsum(-1), x.cumprod(0), torch.cumsum(x > 0, 1)), (X,)),
    ("softmaxes", lambda x: (F.softmax(x, -1), x.log_softmax(0), F.softmin(x, 1)), (X,)),
    ("masked_row", lambda x: torch.softmax(x, -1), (torch.full((2, 3), -math.inf),)),
    ("count_nonzero", lambda b: (torch.count_nonzero(b), torch.count_nonzero(b, 0)), (B,)),
    ("losses", lambda x, y: (F.mse_loss(x, y), F.l1_loss(x, y), F.smooth_l1_loss(x, y), F.huber_loss(x, y)), (X, Y)),
    ("cosine", lambda x, y: F.cosine_similarity(x, y), (X, Y)),
    ("cross_entropy", lambda x, t: F.cross_entropy(x, t), (X, torch.tensor([0, 3, 2]))),
]

NETWORK = [
    ("linear", lambda x, w, b: F.linear(x, w, b), (Z, torch.randn(5, 4), torch.randn(5))),
    ("bilinear", lambda x, y, w, b: F.bilinear(x, y, w, b), (Z, Z + 1, torch.randn(5, 4, 4), torch.randn(5))),
    ("linear_1d", lambda x, w: F.linear(x, w), (torch.randn(4), torch.randn(5, 4))),
    ("matmuls", lambda x, y, z: (x @ y.T, z @ y.T, torch.mm(x, y.t()), z @ x[0], torch.bmm(z, z.mT)), (X, Y, Z)),
    ("broadcast_matmul", lambda a, b: a @ b, (torch.randn(2, 1, 3, 4), torch.randn(5, 4, 2))),
    ("vectors", lambda x, y: (x[0] @ y[0], torch.mv(x, y[0]), torch.outer(x[0], y[1]), torch.dot(x[0], y[0])), (X, Y)),
    (
        "addmm",
        lambda b, x, y: (torch.addmm(b, x, y.T), torch.addmm(b, x, y.T, beta=0.5, alpha=2)),
        (torch.randn(3), X, Y),
    ),
    ("int_mm", lambda a: torch._int_mm(a, a.t()[:, ::2]), (BYTES,)),
    ("baddbmm", lambda z: torch.baddbmm(torch.zeros(2, 3, 3), z, z.mT, beta=0, alpha=0.5), (Z,)),
    ("einsum", lambda q, k: torch.einsum("bid,bjd->bij", q, k), (Z, Z)),
    (
        "einsum_implicit",
        lambda q, k: (torch.einsum("...id,...jd->...ij", q, k), torch.einsum("ij,jk", q[0], k[0].T)),
        (Z, Z),
    ),
    ("einsum_trace", lambda x: (torch.einsum("ii->i", x), torch.einsum("ij->", x)), (torch.randn(3, 3),)),
    ("tensordot", lambda a, b: torch.tensordot(a, b, dims=1), (Z, torch.randn(4, 5))),
    ("layer_norm", lambda x, w, b: F.layer_norm(x, (4,), w, b), (Z, torch.randn(4), torch.randn(4))),
    ("layer_norm_two_axes", lambda x: F.layer_norm(x, (3, 4), eps=1e-3), (Z,)),
    ("rms_norm", lambda x, w: (F.rms_norm(x, (4,), w, 1e-6), F.rms_norm(x, (4,))), (Z, torch.randn(4))),
    ("group_norm", lambda x, w: F.group_norm(x, 2, w, w), (IMAGE, torch.randn(4))),
    ("batch_norm", lambda x, m, v: F.batch_norm(x, m, v, v, m), (IMAGE, torch.randn(4), torch.rand(4) + 0.5)),
    ("instance_norm", lambda x: F.instance_norm(x), (IMAGE,)),
    ("sdpa", lambda q: F.scaled_dot_product_attention(q, q, q), (torch.randn(2, 2, 3, 4),)),
    (
        "sdpa_causal",
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.3),
        (torch.randn(2, 2, 3, 4),),
    ),
    (
        "sdpa_masks",
        lambda q, m: (
            F.scaled_dot_product_attention(q, q, q, attn_mask=m > 0),
            F.scaled_dot_product_attention(q, q, q, attn_mask=m),
        ),
        (torch.randn(2, 2, 3, 4), torch.eye(3)),
    ),
    (
        "sdpa_grouped",
        lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True),
        (torch.randn(1, 4, 3, 8), torch.randn(1, 2, 5, 8)),
    ),
    ("attention_by_hand", attention, (torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4))),
    ("dropout_in_eval", lambda x: F.dropout(x, 0.5, training=False) + 1, (X,)),
    ("embedding", lambda i, w: F.embedding(i, w), (INDEX.view(2, 2), torch.randn(5, 3))),
    ("one_hot", lambda i: F.one_hot(i, 5), (INDEX,)),
    ("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), (IMAGE,)),
    ("upsample", lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), (IMAGE,)),
]

VIEWS = [
    ("views", lambda x: (x.view(4, 3) + 1, x.reshape(-1), x.t() * 2, x.T.reshape(2, 6)), (X,)),
    ("permutes", lambda z: (z.permute(2, 0, 1), z.transpose(0, -1) + 1, z.movedim(0, 2), z.mT), (Z,)),
    ("heads", split_heads, (torch.randn(2, 3, 4),)),
    ("merge_heads", lambda z: z.transpose(1, 2).reshape(2, 3, 4), (torch.randn(2, 2, 3, 2),)),
    ("squeezes", lambda z: (z[None], z.unsqueeze(-1), z[:, :1].squeeze(1), z[..., None, :], z.flatten(1)), (Z,)),
    ("expand", lambda x: (x[:, None].expand(3, 2, 4) * 1, x[0].expand(2, 4), x.unsqueeze(0).expand(2, -1, -1)), (X,)),
    ("slices", lambda x: (x[1:], x[:, ::2], x[-1], x[..., 1], x[0:0], x[1:10, -2:]), (X,)),
    ("splits", lambda x: (*x.split(2, 1), *x.chunk(3, 0), *torch.tensor_split(x, 3, dim=1)), (X,)),
    ("unbind", lambda x: x.unbind(0), (X,)),
    ("iterate", lambda x: [row * 2 for row in x], (X,)),
    ("narrow_select", lambda x: (x.narrow(1, 1, 2), x.select(0, 2)), (X,)),
    ("unfold", lambda x: x.unfold(1, 2, 1).sum(-1), (X,)),
    ("as_strided", lambda x: x.as_strided((3, 2, 2), (4, 1, 2), 0), (X,)),
    ("as_strided_of_transposed", lambda x: (x.T + 1).as_strided((2, 6), (6, 1)), (X,)),
    ("diagonal", lambda x: x.diagonal() + 1, (X,)),
    ("flip", lambda x: (x.flip(0), x.flip((0, 1)), torch.fliplr(x)), (X,)),
    ("contiguous", lambda x: (x.t().contiguous(), x.contiguous(), x.clone()), (X,)),
    ("same_tensor_twice", lambda x: (x + 1,) * 2, (X,)),
    ("argument_returned", lambda x, y: {"x": x, "sum": x + y}, (X, Y)),
    ("swapaxes_ravel", lambda z: (z.swapaxes(0, 1), z.ravel(), z.view_as(z), z.unflatten(2, (2, 2))), (Z,)),
]

DATA = [
    (
        "cat_stack",
        lambda x, y: (torch.cat([x, y], 1), torch.stack([x, y], -1), torch.hstack([x, y]), torch.cat([x])),
        (X, Y),
    ),
    ("cat_promotes", lambda x, i: torch.cat([x, i]), (X, I)),
    ("cat_with_empty", lambda x: torch.cat([torch.empty(0), x]), (X,)),
    ("pads", lambda x: (F.pad(x, (1, 2), value=3.0), F.pad(x, (0, 0, 1, -1)), F.pad(x, (-1, 1))), (X,)),
    ("reflect_pad", lambda x: F.pad(x, (1, 2), mode="reflect"), (Z,)),
    ("index_select", lambda x, i: x.index_select(1, i), (X, INDEX)),
    ("gather", lambda x, i: torch.gather(x, 1, i), (X, torch.tensor([[0, 3], [1, 1], [2, 0]]))),
    ("take_along", lambda x: torch.take_along_dim(x, x.argmax(-1, keepdim=True), -1), (X,)),
    ("advanced_index", lambda x, i: (x[i % 3], x[:, i], x[i % 3, i], x[-1 - i % 3]), (X, INDEX)),
    ("split_index", lambda z, i: z[i % 2, :, i], (Z, INDEX)),
    ("list_index", lambda x: x[[0, 2]], (X,)),
    ("pick_token", lambda z: z[torch.arange(2), torch.tensor([2, 0])], (Z,)),
    ("repeat", lambda x: (x.repeat(2, 3), x.repeat(2, 1, 1), torch.tile(x, (2,))), (X,)),
    ("repeat_interleave", lambda x: (x.repeat_interleave(2, 0), x.repeat_interleave(3)), (X,)),
    ("roll", lambda x: (x.roll(1, 0), x.roll((1, -1), (0, 1)), x.roll(2)), (X,)),
    ("triangles", lambda x: (x.tril(), x.triu(1), x.tril(-1)), (X,)),
    ("arange", lambda x: x * torch.arange(4) + torch.arange(1, 9, 2) + torch.arange(0.0, 2.0, 0.5), (X,)),
    ("linspace", lambda x: x + torch.linspace(-1, 1, 4), (X,)),
    (
        "fills",
        lambda x: (torch.zeros(2) + torch.ones_like(x[0, :2]), torch.full((2,), 3), x.new_zeros(2), torch.eye(3)),
        (X,),
    ),
    ("constants", lambda x: (x * torch.tensor(2.0) + torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([7, 7])), (X,)),
    ("meshgrid", lambda x: torch.meshgrid(x[0], x[1, :2], indexing="ij"), (X,)),
    ("rotate_half", lambda x: torch.cat((-x[..., 2:], x[..., :2]), dim=-1), (X,)),
    ("diff", lambda x: torch.diff(x, dim=1), (X,)),
    ("casts_alias", lambda x: (x.to(x.dtype), x.float(), x.type_as(x), x.detach()), (X,)),
    ("diag_embed", lambda x: torch.diag_embed(x), (X,)),
]


def table(cases):
    return pytest.mark.parametrize(("f", "args"), [pytest.param(f, args, id=name) for name, f, args in cases])


@table(ELEMENTWISE)
def test_elementwise(f, args):
    check(f, *args, fallback="error")


@table(REDUCTIONS)
def test_reductions(f, args):
    check(f, *args, fallback="error")


@table(NETWORK)
def test_network(f, args):
    check(f, *args, fallback="error", ulps=64)


@table(VIEWS)
def test_views(f, args):
    check(f, *args, fallback="error")


@table(DATA)
def test_data(f, args):
    check(f, *args, fallback="error")
