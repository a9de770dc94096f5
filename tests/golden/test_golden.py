"""A slice of the golden set, and that the command sees what changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.golden.cases import CPUS, TARGETS, of_functions, random_graphs, without_lines
from tests.golden.compare import HASHES, compared, read_hashes, write_hashes
from tests.golden.texts import PLAN, hashes_of, texts_of

ROOT = Path(__file__).resolve().parents[2]
SLICE = (
    "function: map f32",
    "function: residual and rms norm bf16",
    "function: linear and gelu f32",
    "function: causal attention bf16",
    "random graph 3",
)
OUTDATED = "the emitted code changed: `python -m tests.golden --against DIR --diff` shows it, `--update` takes it over"


@pytest.mark.parametrize("name", SLICE)
def test_plans_and_sources_are_those_of_the_golden_set(name: str) -> None:
    pytest.importorskip("triton")
    known = read_hashes(HASHES)
    (case,) = (case for case in (*of_functions(), *random_graphs()) if case.name == name)
    text = case.text()
    found = {(name, target): hashes_of(texts_of(text, target)) for target in TARGETS}
    assert not compared({key: known[key] for key in found if key in known}, found), OUTDATED


@pytest.mark.nightly
def test_another_process_gives_the_same_texts(tmp_path: Path) -> None:
    """Whatever the seed of Python's hashes, which set the order of sets."""
    program = f"""
from tests.golden.cases import of_functions
from tests.golden.texts import hashes_of, texts_of
case = next(case for case in of_functions() if case.name == {SLICE[3]!r})
print(*(hashes_of(texts_of(case.text(), target)) for target in {CPUS!r}))
"""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": seed, "FUSEC_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = next(case for case in of_functions() if case.name == SLICE[3]).text()
    assert done.stdout.split() == [hashes_of(texts_of(text, target)) for target in CPUS]


def test_what_differs_is_named(tmp_path: Path) -> None:
    known = {("a", "cpu"): "1-2", ("b", "cpu"): "1-2", ("c", "cpu"): "1-2", ("d | e", "cpu"): "1"}
    write_hashes(tmp_path / "hashes.txt", known)
    assert read_hashes(tmp_path / "hashes.txt") == known
    found = {("a", "cpu"): "1-3", ("b", "cpu"): "2-2", ("d | e", "cpu"): "1", ("f", "cuda"): "1"}
    assert compared(known, found) == [
        "sources changed: a for cpu",
        "plan changed: b for cpu",
        "gone: c for cpu",
        "new: f for cuda",
    ]
    assert not compared(known, known)


def test_a_changed_kernel_changes_its_hash() -> None:
    text = "graph @g(%x: f32[64, 32]) {\n  %y = exp(%x) : f32[64, 32]\n  return %y\n}\n"
    one, other = (texts_of(t, "cpu:x86-64-v3") for t in (text, text.replace("exp", "tanh")))
    assert hashes_of(one) != hashes_of(other)
    assert hashes_of(one) == hashes_of(texts_of(text, "cpu:x86-64-v3"))
    assert len(one) == 2
    assert hashes_of({**one, PLAN: "other"}).partition("-")[2] == hashes_of(one).partition("-")[2]


def test_lines_of_source_do_not_count() -> None:
    text = "  %y = exp(%x) : f32[2]  // /home/one/model.py:12\n  return %y\n"
    assert without_lines(text) == "  %y = exp(%x) : f32[2]\n  return %y\n"
