# SPDX-License-Identifier: Apache-2.0
"""Rows in groups as PyTorch's operators: values and derivatives against loops over groups."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fusec.frontend.torch_grouped import of_groups, products, rows_in_order, sorted_rows, summed_rows

ENDS = torch.tensor([2, 2, 5], dtype=torch.int32)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_products_have_derivatives(transposed: bool, apart: bool) -> None:
    torch.manual_seed(0)
    rows = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    shape = (3, 5, 4) if transposed else (3, 4, 5)
    matrices = torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    def f(rows: Tensor, matrices: Tensor) -> Tensor:
        return products(rows, ENDS, transposed, *(matrices.unbind(0) if apart else (matrices,)))

    made = f(rows, matrices)
    one = matrices.mT if transposed else matrices
    torch.testing.assert_close(made[:2], rows[:2] @ one[0])
    torch.testing.assert_close(made[2:5], rows[2:5] @ one[2])
    assert not made[5:].any()
    assert torch.autograd.gradcheck(f, (rows, matrices))
    assert torch.autograd.gradgradcheck(f, (rows, matrices))


def conditions(index: Tensor, groups: int) -> list[Tensor]:
    return [index == group for group in range(groups)]


@pytest.mark.parametrize("coordinates", [(0,), (1,), (0, 1), (1, 0)])
def test_rows_are_read_and_added_where_they_were(coordinates: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    index = torch.tensor([[0, 2, 1], [3, 0, 0]])
    order = rows_in_order(*conditions(index, 3))
    assert order[2].tolist() == [3, 4, 5]
    assert order[3].tolist() == [0, 0, 0, 1, 2, 3]
    assert torch.equal(order[0][order[1]], torch.arange(6))
    x = torch.randn(*(index.shape[c] for c in coordinates), 2, dtype=torch.float64, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        return sorted_rows(x, order, 3, index.shape, 0, coordinates).square()

    places = torch.unravel_index(order[0], index.shape)
    read = x[tuple(places[c] for c in coordinates)]
    torch.testing.assert_close(f(x)[:5], read[:5].square())
    assert torch.autograd.gradcheck(f, (x,))
    rows = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    for coordinate in (0, 1):
        total = summed_rows(rows, order, 3, index.shape, coordinate)
        wanted = torch.zeros(index.shape[coordinate], 2, dtype=torch.float64)
        torch.testing.assert_close(total, wanted.index_add(0, places[coordinate][:5], rows[:5]))
        assert torch.autograd.gradcheck(lambda r, c=coordinate: summed_rows(r, order, 3, index.shape, c), (rows,))


def test_an_element_may_have_several_groups() -> None:
    index = torch.tensor([[0, 0], [1, 3], [2, 1]])
    held = [(index == group).any(-1) for group in range(3)]
    order = rows_in_order(*held, repeats=2)
    assert order[2].tolist() == [1, 3, 4]
    assert (order[0][:4] // 2).tolist() == [0, 1, 2, 2]


def test_what_each_group_has() -> None:
    order = rows_in_order(*conditions(torch.tensor([2, 0, 5, 2, 0]), 3))
    table = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    found = of_groups(table, order, 3)
    assert found.shape == (5, 1, 4)
    torch.testing.assert_close(found[:4, 0], table[[0, 0, 2, 2]])
    assert torch.autograd.gradcheck(lambda t: of_groups(t, order, 2)[:4], (table,))
