"""A quick slice of PyTorch's own samples; all of them: ``python -m tests.opdb``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")  # which PyTorch's own test helpers import

from opdb.families import chosen_ops, name_of
from opdb.known import KNOWN
from opdb.run import Row, read_rows, run_row, verdict, write_rows
from opdb.tables import as_markdown, known_table

OPS: dict[str, tuple[str, Any]] = {name_of(op): (family, op) for family, op in chosen_ops()}
FORWARD = {
    "add": 4,
    "remainder": 3,
    "maximum": 3,
    "where": 3,
    "nn.functional.gelu": 3,
    "sum": 5,
    "var.unbiased": 1,
    "amax": 3,
    "transpose": 3,
    "cat": 4,
    "__getitem__": 6,
    "as_strided": 3,
    "matmul": 6,
    "nn.functional.linear": 3,
    "softmax": 4,
    "nn.functional.cross_entropy": 3,
    "nn.functional.layer_norm": 3,
    "nn.functional.scaled_dot_product_attention": 4,
}
"""Samples of each op."""


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", FORWARD)
def test_forward(name: str, dtype: str) -> None:
    family, op = OPS[name]
    row = run_row(family, op, dtype, "forward", FORWARD[name])
    assert row.states.total()
    assert verdict([row]) == []
    assert set(row.states) <= {"compiled", "random", "library"}


@pytest.mark.parametrize("name", ["maximum", "softmax", "amax", "nn.functional.silu", "exp"])
def test_special_values(name: str) -> None:
    family, op = OPS[name]
    assert verdict([run_row(family, op, "f32", "specials", 2)]) == []


@pytest.mark.parametrize("name", ["nn.functional.gelu", "softmax", "nn.functional.layer_norm", "matmul"])
@pytest.mark.parametrize("check", ["dynamo", "gradients"])
def test_through_torch_compile(name: str, check: str) -> None:
    family, op = OPS[name]
    row = run_row(family, op, "f32", check, 1)
    assert verdict([row]) == []
    assert set(row.states) == {"compiled"}


def test_what_is_known_names_a_row() -> None:
    for key in KNOWN:
        name, dtype, check = key.split()
        assert name in OPS or name == "native_group_norm"  # which PyTorch 2.11's op_db lacks
        assert (dtype, check) in {
            (d, c) for d in ("f32", "bf16") for c in ("forward", "specials", "dynamo", "gradients")
        }


def test_rows_are_kept_as_json(tmp_path: Path) -> None:
    row = Row("view", "cat", "f32", "forward", Counter(compiled=3, library=1), Counter({"library: sorts": 1}), 0.5)
    write_rows(tmp_path / "rows.json", [row])
    assert read_rows(tmp_path / "rows.json") == [row]


def test_a_share_is_of_the_samples_that_draw_nothing() -> None:
    row = Row("attention", "sdpa", "f32", "forward", Counter(compiled=9, random=5, library=1))
    assert "| attention | f32 | 1 | 15 | 9 | 5 | 1 | 0 | 0 | 90.0 |" in as_markdown([row])


def test_the_table_lists_what_is_known_to_differ() -> None:
    table = Path(__file__).parents[1] / "benchmarks" / "results" / "opdb.md"
    assert table.read_text().endswith(known_table())
