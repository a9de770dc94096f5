"""What training asks for: writes of one element a row, dropout, gradients of convolutions."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_harness import check

import fusec
from fusec import torch_compile
from fusec.frontend.torch import capture


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize(("dim", "shape"), [(1, (6, 1)), (0, (1, 5)), (-1, (6, 1))])
def test_one_write_a_row_is_a_choice(dim, shape):
    x, index = torch.randn(6, 5), torch.randint(5, shape)
    check(lambda x, i: torch.scatter(x, dim, i, -1.0), x, index)
    check(lambda x, i, s: torch.scatter(x, dim, i, s) * 2, x, index, torch.randn(6, 5))
    check(lambda x, i: x.scatter_(dim, i, 2) + 1, x.clone(), index)


def test_other_writes_are_the_librarys():
    x = torch.randn(6, 5)
    check(lambda x, i: torch.scatter(x, 1, i, 3.0), x, torch.randint(5, (6, 2)), extern=1)
    check(lambda x, i: torch.scatter(x, 1, i, 3.0), x, torch.randint(5, (4, 1)), extern=1)
    check(lambda x, i: torch.scatter(x, 1, i, 3.0, reduce="add"), x, torch.randint(5, (6, 1)), extern=1)


def test_a_place_out_of_range_is_an_error():
    fast = fusec.jit(lambda x, i: torch.scatter(x, 1, i, -1.0))
    x = torch.randn(6, 5)
    torch.testing.assert_close(fast(x, torch.full((6, 1), 4))[:, 4], torch.full((6,), -1.0))
    for wrong in (5, -1):
        with pytest.raises(RuntimeError, match="out of bounds"):  # the library's own error
            fast(x, torch.full((6, 1), wrong))


def test_the_gradient_of_cross_entropy_is_compiled():
    x, target = torch.randn(7, 11, requires_grad=True), torch.tensor([1, 3, -100, 0, 10, 5, 5])
    (expected,) = torch.autograd.grad(F.cross_entropy(x, target), x)
    torch._dynamo.reset()
    with torch_compile.gathering() as graphs:
        fast = torch.compile(F.cross_entropy, backend=torch_compile.backend)
        (found,) = torch.autograd.grad(fast(x, target), x)
    torch.testing.assert_close(found, expected)
    assert [graph.kind for graph in graphs] == ["forward", "backward"]
    assert not any(note for graph in graphs for made in graph.captures for note in made.notes)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("p", [0.3, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_draws_what_eager_draws(p, dtype):
    def f(x):
        return torch.relu(F.dropout(x, p)) * 2 + F.dropout(x, p)

    x = torch.randn(40, 7, dtype=dtype, requires_grad=True)
    torch._dynamo.reset()
    fast = torch.compile(f, backend=torch_compile.backend)
    results = []
    for function in (f, fast, fusec.jit(f)):
        torch.manual_seed(3)
        y = function(x)
        results.append((y, torch.autograd.grad(y.sum(), x)[0], torch.rand(1)))
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])
    assert not torch.equal(fast(x), fast(x))
    targets = [op.attributes.target for op in capture(f, (x.detach(),), {}).graph.ops if op.name == "extern"]
    assert targets == ["aten.bernoulli.p"] * 2


@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": torch.ones(6, 6, dtype=torch.bool).tril()}],
    ids=lambda options: next(iter(options), "plain"),
)
def test_attention_with_dropout_draws_what_eager_draws(options):
    q, k, v = (torch.randn(2, 3, 6, 8) for _ in range(3))

    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.4, **options)

    torch.manual_seed(3)
    wanted, after = f(q, k, v), torch.rand(1)
    torch.manual_seed(3)
    fast = fusec.jit(f)
    torch.testing.assert_close(fast(q, k, v), wanted)
    assert torch.rand(1) == after
    (plan,) = fast.dispatcher.plans
    assert [op.attributes.target for op in plan.capture.graph.ops if op.name == "extern"] == ["aten.bernoulli.p"]


def test_bernoulli_in_place_has_a_probability_by_default():
    def f(x):
        return x.bernoulli_() + 1

    torch.manual_seed(1)
    wanted = f(torch.zeros(20))
    torch.manual_seed(1)
    torch.testing.assert_close(fusec.jit(f)(torch.zeros(20)), wanted)


def test_a_convolution_whose_input_needs_no_gradient():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    x, parameters = torch.randn(2, 3, 8, 8), list(net.parameters())
    torch._dynamo.reset()
    fast = torch.compile(net, backend=torch_compile.backend)
    expected = torch.autograd.grad(net(x).square().sum(), parameters)
    found = torch.autograd.grad(fast(x).square().sum(), parameters)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert net[1].num_batches_tracked == 2


def test_adam_under_torch_compile():
    a, b = (torch.nn.Parameter(torch.linspace(-1, 1, 6)) for _ in range(2))
    torch._dynamo.reset()
    with torch_compile.gathering() as graphs:
        for parameter, compiled in ((a, True), (b, False)):
            optimizer = torch.optim.Adam([parameter], lr=0.1)
            step = torch.compile(optimizer.step, backend=torch_compile.backend) if compiled else optimizer.step
            for n in range(3):
                parameter.grad = torch.cos(torch.arange(6.0) + n)
                step()
    torch.testing.assert_close(a, b)
    assert graphs
    assert not any(graph.cuts or graph.eager_calls for graph in graphs)


NORMS = {
    "layer": nn.LayerNorm(6),
    "layer without a bias": nn.LayerNorm(6, bias=False),
    "group": nn.GroupNorm(2, 6),
    "batch": nn.BatchNorm1d(6),
    "batch in use": nn.BatchNorm1d(6).eval(),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_of_half_types_keep_what_the_backward_reads_in_f32(name, dtype):
    norm, x = copy.deepcopy(NORMS[name]), (torch.randn(12, 6) * 3 + 5).to(dtype)
    norm.weight.data.uniform_(0.5, 2)
    turn = torch.randn(12, 6)

    def gradients(function, module, x):
        x = x.clone().requires_grad_()
        made = function(x)
        return made, *torch.autograd.grad((made * turn.to(made.dtype)).sum(), [x, *module.parameters()])

    wide = copy.deepcopy(norm).double()
    exact = gradients(wide, wide, x.double())
    other = copy.deepcopy(norm)
    expected = gradients(norm, norm, x)
    torch._dynamo.reset()
    with torch_compile.gathering() as graphs:
        found = gradients(torch.compile(other, backend=torch_compile.backend), other, x)
    assert not any(graph.cuts or graph.eager_calls for graph in graphs)
    for ours, theirs, right in zip(found, expected, exact, strict=True):
        assert ours.dtype == theirs.dtype
        assert (ours - right).abs().max() <= 2 * (theirs - right).abs().max() + 1e-6
    for ours, theirs in zip(other.buffers(), norm.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_norms_of_half_types_refuse_what_the_library_refuses():
    x, weight = torch.randn(4, 6, dtype=torch.bfloat16), torch.randn(6)
    fast = fusec.jit(lambda x, w, b: torch.native_layer_norm(x, [6], w, b, 1e-5))
    mean = torch.native_layer_norm(x, [6], weight, weight, 1e-5)[1]
    found = fast(x, weight, weight)[1]
    assert found.dtype == mean.dtype == torch.float32
    torch.testing.assert_close(found, mean)
    with pytest.raises(RuntimeError, match="mixed dtype"):
        fast(x, weight, weight.bfloat16())
