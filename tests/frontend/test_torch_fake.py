"""Calls whose results PyTorch's own rules for fake tensors do not know."""

from __future__ import annotations

import pytest
import torch

import fusec
from fusec.errors import CaptureError, UnsupportedOpError


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("a", "b", "ends"),
    [
        ((6, 8), (3, 6, 8), (2, 3, 6)),
        ((3, 4, 8), (16, 8), (8, 8, 16)),
        ((8, 8), (6, 8), (2, 3, 8)),
        ((3, 5, 8), (3, 6, 8), ()),
    ],
)
def test_products_of_groups(dtype, a, b, ends):
    """Experts of mixtures, in the dtypes that PyTorch's rule for fake tensors refuses, too."""
    left, right = torch.randn(a).to(dtype), torch.randn(b).to(dtype).mT
    offsets = torch.tensor(ends, dtype=torch.int32) if ends else None
    compiled = fusec.jit(lambda x, y: torch._grouped_mm(x, y, offs=offsets))
    for _ in range(2):
        found, expected = compiled(left, right), torch._grouped_mm(left, right, offs=offsets)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
    assert not compiled.dispatcher.eager_calls


def test_products_of_groups_that_do_not_fit_are_eager_s_errors():
    x, y = torch.randn(6, 8), torch.randn(3, 8, 8)
    compiled = fusec.jit(lambda x, y, ends: torch._grouped_mm(x, y, offs=ends))
    with pytest.raises(RuntimeError, match="batch sizes"):
        compiled(x, y, torch.tensor([2, 6], dtype=torch.int32))


def test_a_call_that_gives_another_dtype_than_its_fake_is_refused():
    """As ``matmul`` of an empty f64 matrix and an f32 vector is in PyTorch 2.11."""
    library = torch.library.Library("fusec_tests_fake", "DEF")
    library.define("mixed(Tensor a, Tensor b) -> Tensor")
    library.impl("mixed", lambda a, b: (a * b).to(b.dtype), "CPU")
    library.impl("mixed", lambda a, b: torch.empty_like(a), "Meta")
    mixed = torch.ops.fusec_tests_fake.mixed
    compiled = fusec.jit(lambda a, b: mixed(a, b) + 1, warn=False)
    a, b = torch.ones(3, dtype=torch.float64), torch.full((3,), 2.0)
    for _ in range(2):
        assert compiled(a, b).dtype == torch.float32
    (reason,) = compiled.dispatcher.eager_calls
    assert "mixed gives [torch.float32] on a CPU, and PyTorch's fake tensors say [torch.float64]" in reason
    torch.testing.assert_close(compiled(b, b), torch.full((3,), 5.0))
    assert sum(compiled.dispatcher.eager_calls.values()) == 2


ADDRESSES = {
    "of one": lambda x, y: x * (x.data_ptr() != 0),
    "of two": lambda x, y: x + 1 if x.data_ptr() == y.data_ptr() else x - 1,
    "of a storage": lambda x, y: x * (x.untyped_storage().data_ptr() != 0),
    "of elements": lambda x, y: x.clone().apply_(lambda value: value + 1),  # PyTorch reads them where fakes have none
    "of the same": lambda x, y: x + 1 if x.is_set_to(x.view(3, 2).view(6)) else x - 1,
}


@pytest.mark.parametrize("name", ADDRESSES)
def test_addresses_are_those_of_the_call(name):
    function = ADDRESSES[name]
    compiled = fusec.jit(function, warn=False)
    for _ in range(2):
        x, y = torch.arange(6.0), torch.arange(6.0)
        torch.testing.assert_close(compiled(x, y), function(x, y))
    with pytest.raises(UnsupportedOpError if name == "of the same" else CaptureError):
        fusec.jit(function, fallback="error")(x, y)
