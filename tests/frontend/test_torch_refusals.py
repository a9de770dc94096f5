"""What a capture of a torch function refuses, and that it says where."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_harness import check, run

from fusec.errors import CaptureError, DataDependentError, UnsupportedOpError
from fusec.frontend.torch import capture

torch.manual_seed(0)
X = torch.randn(3, 4)


def line_of(f, offset):
    return f.__code__.co_firstlineno + offset


def branch(x):
    if x.sum() > 0:
        return x
    return -x


def item(x):
    return x * x.max().item()


def nonzero(x):
    return x[x > 0]


def listed(x):
    return [v * 2 for v in x[0].tolist()]


@pytest.mark.parametrize(("f", "line"), [(branch, 1), (item, 1), (nonzero, 1), (listed, 1)])
def test_data_dependence_is_one_clear_error(f, line):
    with pytest.raises(DataDependentError, match=rf"test_torch_refusals.py:{line_of(f, line)}: .*torch.where"):
        capture(f, (X,), {})


def test_constants_of_the_function_are_not_data():
    check(lambda x: x * torch.tensor(3.0).item(), X)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x @ x,
        lambda x: x.view(5, 5),
        lambda x: x + torch.ones(7),
        lambda x: F.layer_norm(x, (3,)),
        lambda x: torch.cat([x, x[:, :2]], 0),
        lambda x: x.sum(5),
        lambda x: x.nothing(),
    ],
)
def test_mistakes_raise_what_eager_raises(f):
    with pytest.raises(Exception) as eager:  # noqa: PT011 - whatever it is
        f(X)
    with pytest.raises(type(eager.value)):
        capture(f, (X,), {})


def test_leaving_torch_is_an_error():
    with pytest.raises(CaptureError):
        capture(lambda x: x.numpy() + 1, (X,), {})


def test_training_batch_norm_updates_its_statistics():
    module, x = nn.BatchNorm1d(4), torch.randn(6, 4)
    plain = copy.deepcopy(module)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(run(capture(module, (x,), {}), (x,)), plain(x))
    torch.testing.assert_close(module.state_dict(), plain.state_dict())


def test_a_seed_set_inside_is_refused():
    def f(x):
        torch.manual_seed(3)
        return x + torch.rand(4)

    state = torch.get_rng_state()
    with pytest.raises(UnsupportedOpError, match="seeds the generator"):
        capture(f, (X,), {})
    torch.set_rng_state(state)


def test_assigned_attribute_is_refused_and_put_back():
    class Cache(nn.Module):
        def forward(self, x):
            self.last = x + 1
            return self.last

    module = Cache()
    with pytest.raises(UnsupportedOpError, match="'last'"):
        capture(module, (X,), {})
    assert not hasattr(module, "last")


def test_sparse_input_is_refused():
    with pytest.raises(UnsupportedOpError, match="dense"):
        capture(lambda x: x + x, (torch.eye(3).to_sparse(),), {})


@pytest.mark.parametrize(
    ("f", "kind"),
    [
        (lambda x: x.to_sparse().sum(), "sparse_coo"),
        (lambda x: x.to_sparse_csr() @ x.mT, "sparse_csr"),
        (lambda x: torch._nested_tensor_from_mask(x[None], x[None, :, 0] < 9).to_padded_tensor(0.0), "nested"),
    ],
)
def test_a_tensor_that_is_more_than_memory_is_refused_where_it_is_made(f, kind):
    with pytest.raises(UnsupportedOpError, match=rf"test_torch_refusals.py:\d+: .*memory and strides: {kind}"):
        capture(f, (X,), {})
