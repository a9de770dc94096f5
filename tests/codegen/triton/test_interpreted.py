"""Emitted kernels in Triton's interpreter against the graph in float64."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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
from triton_cases import CASES, CUT
from write_cases import CASES as WRITES


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    script = str(Path(__file__).with_name("interpreted.py"))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def tolerance(text: str) -> float:
    return 0.02 if "bf16" in text else 3e-3 if "f16" in text else 3e-5 if "f32" in text else 1e-13


@pytest.mark.parametrize("name", [*CASES, *CUT])
def test_case(name: str, results: dict[str, Any]) -> None:
    found = results[name]
    assert isinstance(found, list), found
    error, _ = found
    assert error < tolerance(CASES[name] if name in CASES else CUT[name][0]), found


@pytest.mark.parametrize("name", [*SCANS, *CUT_SCANS])
def test_scans(name: str, results: dict[str, Any]) -> None:
    found = results[name]
    assert isinstance(found, list), found
    error, kinds = found
    assert error < tolerance(SCANS[name] if name in SCANS else CUT_SCANS[name][0]), found
    assert kinds == "scan"


@pytest.mark.parametrize("name", list(FLOAT8))
def test_numbers_of_8_bits(name: str, results: dict[str, Any]) -> None:
    found = results[name]
    assert isinstance(found, list), found
    assert found[0] < (2**-3 if "bf16" in FLOAT8[name] else 1e-6), found


@pytest.mark.parametrize("name", list(WRITES))
def test_writes(name: str, results: dict[str, Any]) -> None:
    """Into an input, and by the kernel that makes what is written."""
    found = results[name]
    assert isinstance(found, list), found
    assert found[0] < tolerance(WRITES[name]), found


@pytest.mark.parametrize("name", list(ATTENTION))
def test_attention(name: str, results: dict[str, Any]) -> None:
    found = results[name]
    assert isinstance(found, list), found
    error, kinds = found
    assert error < tolerance(ATTENTION[name].text()), found
    assert kinds.endswith("attention")


@pytest.mark.parametrize("name", list(SCORES))
def test_scores(name: str, results: dict[str, Any]) -> None:
    found = results[name]
    assert isinstance(found, list), found
    error, kinds = found
    assert error < 2, found
    assert set(kinds.split("+")) == {"scores"}


@pytest.mark.parametrize("name", list(RANGES))
def test_ranges(name: str, results: dict[str, Any]) -> None:
    found = results[f"{name}, ranges"]
    assert isinstance(found, list), found
    error, _ = found
    assert error < 0.02, found


def test_each_is_one_kernel(results: dict[str, Any]) -> None:
    found = {name: results[name] for name in CASES if name not in GROUPED}
    split = {name: r[1] for name, r in found.items() if isinstance(r, list) and "+" in r[1]}
    assert not split


@pytest.mark.parametrize("name", list(GROUPED))
def test_each_grouped_matmul_is_one_kernel(name: str, results: dict[str, Any]) -> None:
    assert set(results[name][1].split("+")) <= {"grouped", "map"}
