"""How indices step along a vector, against values."""

from __future__ import annotations

import pytest

from fusec.ir.index import Index, floordiv, minimum, mod, symbol
from fusec.ir.indexing import evaluate
from fusec.ir.stepping import Step, stays_along, step_of

I = symbol("i", 0, 4095)  # noqa: E741
J = symbol("j", 0, 63)

EVEN: list[tuple[Index, int]] = [
    (I, 1),
    (I * 3 + 8, 3),
    (I + J * 64, 1),
    (mod(I, 96), 1),
    (floordiv(I, 96), 0),
    (mod(I, 96) + floordiv(I, 96) * 200, 1),
    (mod(I + 32, 64), 1),
    (J, 0),
    (minimum(J, 5), 0),
    (5, 0),
]
UNEVEN: list[Index] = [mod(I, 50), floordiv(I, 50), mod(I + 1, 96), mod(I * -1, 96), minimum(I, 50), mod(I * 2, 9)]


@pytest.mark.parametrize(("index", "along"), EVEN)
@pytest.mark.parametrize("length", [2, 4, 8])
def test_even_steps(index: Index, along: int, length: int) -> None:
    found = step_of(index, I, length)
    assert found is not None
    assert found.along == along
    for first in range(0, 512, length):
        for j in (0, 7):
            start = evaluate(index, {"i": first, "j": j})
            assert found.multiple == 0 or start % found.multiple == 0
            assert all(evaluate(index, {"i": first + v, "j": j}) == start + v * along for v in range(length))


@pytest.mark.parametrize("index", UNEVEN)
def test_uneven_steps(index: Index) -> None:
    assert step_of(index, I, 4) is None


def test_a_vector_may_lie_at_an_odd_place() -> None:
    assert step_of(I + 2, I, 4) == Step(1, 2)


@pytest.mark.parametrize(
    ("index", "count", "same"),
    [
        (floordiv(I, 128), 128, True),
        (floordiv(I, 128), 64, True),
        (floordiv(I, 128), 256, False),
        (floordiv(I + J * 192, 128), 64, True),
        (floordiv(I + J * 192, 128), 128, False),
        (floordiv(I, 48), 128, False),
        (I, 2, False),
        (J * 3, 128, True),
    ],
)
def test_neighbours_that_have_one_value(index: Index, count: int, same: bool) -> None:
    assert stays_along(index, I, count) is same
    values = [len({evaluate(index, {"i": first + v, "j": 5}) for v in range(count)}) for first in range(0, 1024, count)]
    assert all(n == 1 for n in values) or not same
