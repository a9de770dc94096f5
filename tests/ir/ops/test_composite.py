"""The NumPy references of composites against PyTorch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from op_samples import random_array
from references import run, same, tensor

from fusec.ir.attributes import (
    AxisAttributes,
    EinsumAttributes,
    GeluAttributes,
    NormAttributes,
    SdpaAttributes,
    VarAttributes,
)
from fusec.ir.types import DType, bf16, f16, f32, f64


def test_gelu() -> None:
    x = np.concatenate(
        [random_array(np.random.default_rng(7), f32, (200,)), [0.0, -0.0, math.nan, 12.0, -12.0]]
    ).astype(np.float32)
    same(run("gelu", x, attributes=GeluAttributes()), F.gelu(tensor(x)), 8, 1e-6)
    same(run("gelu", x, attributes=GeluAttributes("tanh")), F.gelu(tensor(x), approximate="tanh"), 8, 1e-6)


@pytest.mark.parametrize("dtype", [f32, f64, bf16, f16], ids=str)
def test_softmax(dtype: DType) -> None:
    x = random_array(np.random.default_rng(8), dtype, (3, 4, 5))
    x[0, 0] = -math.inf
    x[1, 0, 0] = math.inf
    x[1, 1, 2] = math.nan
    x[2, 2, 2] = -math.inf
    for axis in (0, 1, 2):
        same(run("softmax", x, attributes=AxisAttributes(axis)), torch.softmax(tensor(x), axis), 8)
        same(run("log_softmax", x, attributes=AxisAttributes(axis)), torch.log_softmax(tensor(x), axis), 8, 1e-6)
    empty = np.zeros((2, 0), dtype.numpy)
    same(run("softmax", empty, attributes=AxisAttributes(1)), torch.softmax(tensor(empty), 1))


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
@pytest.mark.parametrize("correction", [0.0, 1.0])
def test_variance(dtype: DType, correction: float) -> None:
    x = random_array(np.random.default_rng(9), dtype, (3, 4, 5))
    for axes in ((2,), (0, 1)):
        found = run("var", x, attributes=VarAttributes(axes, correction))
        same(found, torch.var(tensor(x), axes, correction=int(correction)), 8)
    one = np.ones((2, 1), np.float32)
    assert np.isnan(run("var", one, attributes=VarAttributes((1,), 1.0))).all()


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_norms(dtype: DType) -> None:
    rng = np.random.default_rng(10)
    x, w, b = (random_array(rng, dtype, s) for s in ((3, 4, 5), (4, 5), (4, 5)))
    tx, tw, tb = map(tensor, (x, w, b))
    attributes = NormAttributes((1, 2), 1e-5)
    same(run("layer_norm", x, attributes=attributes), F.layer_norm(tx, (4, 5)), 8, 1e-5)
    same(run("layer_norm", x, w, attributes=attributes), F.layer_norm(tx, (4, 5), tw), 8, 1e-5)
    same(run("layer_norm", x, w, b, attributes=attributes), F.layer_norm(tx, (4, 5), tw, tb), 8, 1e-2)
    same(run("rms_norm", x, attributes=attributes), F.rms_norm(tx, (4, 5), eps=1e-5), 8, 1e-5)
    same(run("rms_norm", x, w, attributes=attributes), F.rms_norm(tx, (4, 5), tw, 1e-5), 8, 1e-2)


@pytest.mark.parametrize("dtype", [f32, f64, bf16], ids=str)
def test_products(dtype: DType) -> None:
    rng = np.random.default_rng(11)
    for a, b in (((3,), (3,)), ((2, 3), (3,)), ((3,), (4, 3, 2)), ((5, 1, 2, 3), (4, 3, 6)), ((2, 0), (0, 3))):
        x, y = random_array(rng, dtype, a), random_array(rng, dtype, b)
        same(run("matmul", x, y), torch.matmul(tensor(x), tensor(y)), 8, 1e-6)
    x, w, b = (random_array(rng, dtype, s) for s in ((2, 5, 3), (4, 3), (4,)))
    same(run("linear", x, w), F.linear(tensor(x), tensor(w)), 8, 1e-6)
    same(run("linear", x, w, b), F.linear(tensor(x), tensor(w), tensor(b)), 8, 1e-6)
    y = random_array(rng, dtype, (2, 3, 5))
    same(
        run("einsum", x, y, attributes=EinsumAttributes("bij,bjk->kb")),
        torch.einsum("bij,bjk->kb", tensor(x).double(), tensor(y).double()).to(tensor(x).dtype),
        8,
        1e-5,
    )


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(dtype: DType, causal: bool) -> None:
    rng = np.random.default_rng(12)
    q, k, v = (random_array(rng, dtype, s) for s in ((2, 6, 5, 8), (2, 6, 7, 8), (2, 6, 7, 4)))
    tq, tk, tv = map(tensor, (q, k, v))
    found = run("sdpa", q, k, v, attributes=SdpaAttributes(causal, 0.3))
    same(found, F.scaled_dot_product_attention(tq, tk, tv, is_causal=causal, scale=0.3), 16, 1e-2)
    found = run("sdpa", q, k[:, :2], v[:, :2], attributes=SdpaAttributes(causal, grouped=True))
    wanted = F.scaled_dot_product_attention(tq, tk[:, :2], tv[:, :2], is_causal=causal, enable_gqa=True)
    same(found, wanted, 16, 1e-2)


def test_attention_masks() -> None:
    rng = np.random.default_rng(13)
    q, k, v = (random_array(rng, f32, s) for s in ((2, 5, 8), (2, 7, 8), (2, 7, 4)))
    keep = rng.random((5, 7)) < 0.5
    keep[2] = False
    added = np.where(keep, random_array(rng, f32, (5, 7)), np.float32(-math.inf))
    for mask in (keep, added):
        found = run("sdpa", q, k, v, mask, attributes=SdpaAttributes())
        same(found, F.scaled_dot_product_attention(tensor(q), tensor(k), tensor(v), tensor(mask)), 16, 1e-6)
        assert (found[:, 2] == 0).all()
