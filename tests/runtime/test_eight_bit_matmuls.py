"""Matmuls of 8 bits by the library: as text, and as calls."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fusec.errors import FusecError  # noqa: E402
from fusec.ir.library_calls import Matrix  # noqa: E402
from fusec.runtime.eight_bit_matmuls import (  # noqa: E402
    EightBitMatmul,
    bind_eight_bit_matmul,
    eight_bit_matmul_from_text,
    eight_bit_matmul_to_text,
)
from tests.row_scales import ROW_SCALES  # noqa: E402

E4 = torch.float8_e4m3fn
LHS, RHS = Matrix(0, (32, 64), (64, 1), 0), Matrix(1, (64, 48), (1, 64), 0)
SCALED = EightBitMatmul(LHS, RHS, Matrix(2, (32, 1), (1, 1), 0), Matrix(3, (1, 48), (1, 1), 0), "bf16", (32, 48), True)
BYTES = EightBitMatmul(LHS, RHS, None, None, "i32", (4, 8, 48))


@pytest.mark.parametrize("matmul", [SCALED, BYTES])
def test_text_goes_both_ways(matmul: EightBitMatmul) -> None:
    assert eight_bit_matmul_from_text(eight_bit_matmul_to_text(matmul)) == matmul


@pytest.mark.parametrize("text", ["", "{}", eight_bit_matmul_to_text(BYTES).replace("i32", "i99")])
def test_other_text(text: str) -> None:
    with pytest.raises(FusecError, match="a library matmul can't be read"):
        eight_bit_matmul_from_text(text)


@pytest.mark.skipif(not ROW_SCALES, reason="PyTorch's CPU matmul of 8 bits has no scales of rows")
def test_rows_and_columns_have_scales() -> None:
    a, b = torch.randn(32, 64).to(E4), torch.randn(48, 64).to(E4)
    s, t = torch.rand(32, 1), torch.rand(1, 48)
    (found,) = bind_eight_bit_matmul(eight_bit_matmul_to_text(SCALED))(a, b, s, t)
    assert found.dtype is torch.bfloat16
    exact = a.double() @ b.double().t() * s * t
    assert float((found.double() - exact).abs().max()) <= 2**-8 * float(exact.abs().max())


def test_bytes_are_added_up_exactly_in_the_shape_asked_for() -> None:
    a = torch.randint(-128, 128, (32, 64), dtype=torch.int8)
    b = torch.randint(-128, 128, (48, 64), dtype=torch.int8)
    (found,) = bind_eight_bit_matmul(eight_bit_matmul_to_text(BYTES))(a, b)
    assert found.dtype is torch.int32
    assert torch.equal(found.view(32, 48).long(), a.long() @ b.long().t())


def test_operands_at_any_address() -> None:
    memory = torch.randn(32 * 64 + 1).to(E4)
    a, b = memory[1:].view(32, 64), torch.randn(48, 64).to(E4)
    whole = EightBitMatmul(LHS, RHS, None, None, "f32", (32, 48))
    (found,) = bind_eight_bit_matmul(eight_bit_matmul_to_text(whole))(a, b)
    assert float((found.double() - a.double() @ b.double().t()).abs().max()) < 1e-3
