"""The machine's measured rates: kept per machine, used by the cost model, none of another machine's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fusec
from fusec import probing
from fusec.target import cpu
from fusec.target.cpu import cpu_target, host_cpu
from fusec.target.rates import usual_rates
from fusec.tuning import machines, probe


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a probe that takes little time."""
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path))
    for name, value in (("ROUNDS", 1), ("REPEATS", 1), ("SECONDS", 1e-4), ("LARGEST", 8 << 20), ("CALLS", 5)):
        monkeypatch.setattr(probe, name, value)
    for name, value in (("_CALLS", 5), ("_PAUSE", 0.0)):
        monkeypatch.setattr(probing, name, value)
    return tmp_path


def test_the_probe_finds_plausible_rates(quick: Path) -> None:
    target = host_cpu()
    rates = probe.measure_rates(target, 2)
    usual = usual_rates(target, 2)
    assert rates.measured
    assert set(rates.multiply) == set(usual.multiply)
    assert {b.threads for b in rates.bandwidth} == {1, 2}
    assert rates.multiply["f32"] < 2 * usual.multiply["f32"]
    assert all(1e8 < b.read < 1e13 for b in rates.bandwidth)
    assert 1e-8 <= rates.region < 1
    assert 1e-8 <= rates.far_start < 1


def test_a_profile_is_kept_for_this_machine_alone(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = host_cpu()
    assert machines.known_rates(target) is None
    measured = probing.measure_machine(2)
    assert 1e-8 < measured.call < 1e-2
    assert machines.known_rates(target) == measured
    assert len(list((quick / "machines").iterdir())) == 1
    assert machines.known_rates(cpu_target("cpu:znver5")) is None
    assert machines.known_rates(replace(target, cores=target.cores + 1)) is None
    monkeypatch.setattr(machines, "host_model", lambda: "another CPU")
    assert machines.known_rates(target) is None


def test_a_damaged_profile_counts_for_nothing(quick: Path) -> None:
    probing.measure_machine(2)
    (path,) = (quick / "machines").iterdir()
    path.write_text("{}")
    assert machines.known_rates(host_cpu()) is None


def test_programs_are_predicted_with_it(quick: Path) -> None:
    def twice(x: np.ndarray) -> np.ndarray:
        return x * 2

    x = np.zeros(100_000, np.float32)
    before = fusec.compile(twice, x).only.executable.program
    path = machines.profile_path(host_cpu())
    path.parent.mkdir()
    slow = replace(usual_rates(host_cpu(), 2), region=1.0, measured=True)
    path.write_text(slow.to_json())
    after = fusec.compile(twice, x)
    assert before.reports[0].predicted < 1e-3
    assert after.only.executable.program.reports[0].predicted > 1.0
    assert "bound by starting" in after.explain()
    other = fusec.compile(twice, x, target="cpu:x86-64-v3").only.executable.program
    assert other.reports[0].predicted < 1e-3


def test_the_model_of_a_cpu() -> None:
    model = cpu.host_model()
    assert "family" in model
    assert "stepping" in model
