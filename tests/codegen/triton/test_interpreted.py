"""Emitted kernels in Triton's interpreter against the graph in float64."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))
from attention_cases import ATTENTION
from float8_cases import CASES as FLOAT8
from grouped_cases import GROUPED
from range_cases import CASES as RANGES
from scan_cases import CASES as SCANS
from scan_cases import CUT as CUT_SCANS
from scores_cases import SCORES
from sweeps import by_night
from triton_cases import CASES, CUT
from write_cases import CASES as WRITES


class Results(dict[str, Any]):
    """Name to error and kernels, or to what went wrong: each made when a test asks, so that tests in several processes
    make none twice."""

    def __init__(self, errors: IO[str]) -> None:
        super().__init__()
        script = str(Path(__file__).with_name("interpreted.py"))
        self.errors = errors
        self.process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )

    def __missing__(self, name: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(name, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        assert answer, Path(self.errors.name).read_text()
        self[name] = json.loads(answer)
        return self[name]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    with (tmp_path_factory.mktemp("interpreted") / "errors").open("w") as errors:
        made = Results(errors)
        with made.process:
            yield made


SELDOM = ("experts_in_blocks", "experts_f32", "grouped_apart_f32", "grouped_data_f32", "columns_of_results_uneven")
SELDOM_RANGES = ("experts", "joined", "softmax", "sum of any length", "gated", "causal attention", "layer norm")
"""Cases of seconds in the interpreter."""


def tolerance(text: str) -> float:
    return 0.02 if "bf16" in text else 3e-3 if "f16" in text else 3e-5 if "f32" in text else 1e-13


@pytest.mark.parametrize("name", by_night([*CASES, *CUT], *SELDOM))
def test_case(name: str, results: Results) -> None:
    found = results[name]
    assert isinstance(found, list), found
    error, kinds = found
    assert error < tolerance(CASES[name] if name in CASES else CUT[name][0]), found
    if name in GROUPED:
        _each_grouped_matmul_is_one(name, kinds.split("+"))
    elif name in CASES:
        assert "+" not in kinds, "several kernels"


def _each_grouped_matmul_is_one(name: str, kinds: list[str]) -> None:
    sorting = {"row", "scan"} if name.startswith("experts") else set()  # rows are counted, and sorted by expert
    assert set(kinds) <= {"grouped", "map"} | sorting
    assert kinds.count("grouped") == 2 or not sorting


@pytest.mark.parametrize("name", [*SCANS, *CUT_SCANS])
def test_scans(name: str, results: Results) -> None:
    found = results[name]
    assert isinstance(found, list), found
    error, kinds = found
    assert error < tolerance(SCANS[name] if name in SCANS else CUT_SCANS[name][0]), found
    assert kinds == "scan"


@pytest.mark.parametrize("name", list(FLOAT8))
def test_numbers_of_8_bits(name: str, results: Results) -> None:
    found = results[name]
    assert isinstance(found, list), found
    assert found[0] < (2**-3 if "bf16" in FLOAT8[name] else 1e-6), found


@pytest.mark.parametrize("name", list(WRITES))
def test_writes(name: str, results: Results) -> None:
    """Into an input, and by the kernel that makes what is written."""
    found = results[name]
    assert isinstance(found, list), found
    assert found[0] < tolerance(WRITES[name]), found


@pytest.mark.parametrize("name", list(ATTENTION))
def test_attention(name: str, results: Results) -> None:
    found = results[name]
    assert isinstance(found, list), found
    error, kinds = found
    assert error < tolerance(ATTENTION[name].text()), found
    assert kinds.endswith("attention")


@pytest.mark.parametrize(
    "name", by_night(SCORES, "documents, backward", "backward, keys, causal", "sigmoid, documents")
)
def test_scores(name: str, results: Results) -> None:
    found = results[name]
    assert isinstance(found, list), found
    error, kinds = found
    assert error < 2, found
    assert set(kinds.split("+")) == {"scores"}


@pytest.mark.parametrize("name", by_night(RANGES, *SELDOM_RANGES))
def test_ranges(name: str, results: Results) -> None:
    found = results[f"{name}, ranges"]
    assert isinstance(found, list), found
    error, _ = found
    assert error < 0.02, found
