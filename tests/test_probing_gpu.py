"""What is measured of a GPU, and where it is kept; the GPU is not here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fusec import probing_gpu
from fusec.target.gpu import gpu_target
from fusec.target.gpu_rates import GpuRates
from fusec.tuning.machines import gpu_profile_path, known_gpu_rates

TARGET = gpu_target("cuda:h200")


def test_a_rate_is_scaled_by_predicted_over_measured() -> None:
    found = probing_gpu.scaled(TARGET.rates, {"read": 0.5, "tensor": 2.0})
    assert found.measured
    assert found.read == TARGET.rates.read / 2
    assert found.tensor == 2 * TARGET.rates.tensor
    assert replace(found, read=TARGET.rates.read, tensor=TARGET.rates.tensor, measured=False) == TARGET.rates


def test_every_probed_rate_is_one() -> None:
    named = [rate for probe in probing_gpu.PROBES for rate in probe.rates]
    assert len(named) == len(set(named))
    assert probing_gpu.scaled(TARGET.rates, dict.fromkeys(named, 1.0)) == replace(TARGET.rates, measured=True)


class _Launches(probing_gpu.Timer):
    """A device on which a kernel takes 5 µs and each that follows 1; a host that takes 4 µs a call and 3 a launch."""

    def __init__(self) -> None:
        import torch

        self._torch, self._device = torch, "cpu"
        self._host = iter((7e-6, 10e-6))

    def seconds(self, call: Any, times: int = 1) -> float:
        return 5e-6 + (times - 1) * 1e-6

    def host(self, call: Any) -> float:
        return next(self._host)


def test_launches_are_told_apart_from_calls() -> None:
    found = _Launches().launches(TARGET.rates)
    assert (found.launch, found.follow, found.call, found.host_launch) == pytest.approx((5e-6, 1e-6, 4e-6, 3e-6))


def test_rates_are_kept_for_a_model_of_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path))
    rates = replace(TARGET.rates, read=1e12, measured=True)
    path = gpu_profile_path(TARGET, "NVIDIA H200")
    assert known_gpu_rates(TARGET, "NVIDIA H200") is None
    path.parent.mkdir(parents=True)
    path.write_text(rates.to_json())
    assert known_gpu_rates(TARGET, "NVIDIA H200") == rates
    assert known_gpu_rates(replace(TARGET, rates=rates), "NVIDIA H200") == rates
    assert known_gpu_rates(TARGET, "NVIDIA H100") is None
    path.write_text(rates.to_json().replace("1000000000000.0", "-1.0"))
    assert known_gpu_rates(TARGET, "NVIDIA H200") is None


def test_rates_come_back_from_text() -> None:
    assert GpuRates.from_json(TARGET.rates.to_json()) == TARGET.rates
    for text in ("{}", "[]", "{", TARGET.rates.to_json().replace("launch", "lunch")):
        with pytest.raises((ValueError, KeyError, TypeError)):
            GpuRates.from_json(text)
