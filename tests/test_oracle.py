"""The helper that compares results with eager and float64: it passes what is right and fails what is not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from op_samples import t
from oracle import ULPS, as_numpy, assert_close_to_oracle

from fusec.ir.builder import Builder
from fusec.ir.types import f32

EXACT = np.array([1.0, 2.0, 4.0])


def _f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_what_is_equal_passes() -> None:
    assert_close_to_oracle(_f32(1, 2, 4), EXACT, _f32(1, 2, 4))


def test_twice_the_error_of_eager_passes_and_more_does_not() -> None:
    eager = _f32(1, 2, 4.5)
    assert_close_to_oracle(_f32(1, 3, 4), EXACT, eager)
    with pytest.raises(AssertionError, match=r"error 1.1 at element 1 \(exact 2, got 3.0999999\); eager's is 0.5"):
        assert_close_to_oracle(_f32(1, 3.1, 4), EXACT, eager)
    with pytest.raises(AssertionError, match="error 1 at"):
        assert_close_to_oracle(_f32(1, 3, 4), EXACT, eager, slack=1.0)


def test_the_floor_is_two_ulp_of_the_greatest_magnitude() -> None:
    ulp = np.spacing(np.float32(4))
    assert_close_to_oracle(_f32(1, 2, 4 + ULPS * ulp), EXACT, _f32(1, 2, 4))
    with pytest.raises(AssertionError, match="eager's is 0, allowed"):
        assert_close_to_oracle(_f32(1, 2, 4 + (ULPS + 1) * ulp), EXACT, _f32(1, 2, 4))


def test_shape_and_dtype() -> None:
    with pytest.raises(AssertionError, match=r"shape \(1, 3\), eager has \(3,\)"):
        assert_close_to_oracle(_f32(1, 2, 4)[None], EXACT, _f32(1, 2, 4))
    with pytest.raises(AssertionError, match="dtype float64, eager has float32"):
        assert_close_to_oracle(EXACT, EXACT, _f32(1, 2, 4))


@pytest.mark.parametrize(("eager", "name"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_nan_and_infinity_are_where_eager_has_them(eager: float, name: str) -> None:
    assert_close_to_oracle(_f32(eager, 2), np.array([1.0, 2.0]), _f32(eager, 2))
    with pytest.raises(AssertionError, match=f"{name} is not where eager has it, at 1 of 2 elements"):
        assert_close_to_oracle(_f32(1, 2), np.array([1.0, 2.0]), _f32(eager, 2))
    with pytest.raises(AssertionError, match=f"{name} is not where eager has it"):
        assert_close_to_oracle(_f32(eager, 2), np.array([1.0, 2.0]), _f32(1, 2))


def test_an_infinity_of_the_other_sign_fails() -> None:
    with pytest.raises(AssertionError, match="inf is not where"):
        assert_close_to_oracle(_f32(np.inf), np.array([np.inf]), _f32(-np.inf))


def test_integers_must_be_equal() -> None:
    assert_close_to_oracle(np.array([1, 2]), np.array([1, 2]), np.array([1, 2]))
    with pytest.raises(AssertionError, match="1 of 2 elements differ"):
        assert_close_to_oracle(np.array([1, 3]), np.array([1, 2]), np.array([1, 2]))


def test_empty_and_0d() -> None:
    assert_close_to_oracle(_f32(), np.array([]), _f32())
    assert_close_to_oracle(np.float32(1), np.float64(1), np.float32(1))


def test_sequences() -> None:
    assert_close_to_oracle((_f32(1), _f32(2)), ([1.0], [2.0]), (_f32(1), _f32(2)))
    with pytest.raises(AssertionError, match="result 1: error 1"):
        assert_close_to_oracle((_f32(1), _f32(3)), ([1.0], [2.0]), (_f32(1), _f32(2)))
    with pytest.raises(AssertionError, match="1 results, eager has 2"):
        assert_close_to_oracle((_f32(1),), ([1.0],), (_f32(1), _f32(2)))


def test_a_graph_as_the_oracle_and_tensors_as_results() -> None:
    b = Builder("f")
    x = b.input(t(f32, 3), "x")
    graph = b.finish([b.emit("exp", x)])
    data = torch.tensor([0.5, 1.0, float("nan")])
    assert_close_to_oracle(data.exp(), graph, data.exp(), inputs=[data])
    with pytest.raises(AssertionError, match=r"error 0\.001"):
        assert_close_to_oracle(data.exp() + 1e-3, graph, data.exp(), inputs=[data])


def test_bfloat16_tensors() -> None:
    tensor = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    array = as_numpy(tensor)
    assert array.dtype == ml_dtypes.bfloat16
    assert array.tolist() == [1.5, -2.0]
    assert_close_to_oracle(tensor, np.array([1.5, -2.0]), tensor)
    with pytest.raises(AssertionError, match=r"error 0\.25"):
        assert_close_to_oracle(tensor + torch.tensor([0.25, 0], dtype=torch.bfloat16), np.array([1.5, -2.0]), tensor)
