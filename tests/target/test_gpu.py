"""GPU records: names, and devices described by their properties."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from fusec.errors import TargetError
from fusec.target.gpu import (
    DATASHEETS,
    NAMED,
    gpu_target,
    is_gpu,
    require_device,
    target_of_properties,
    target_of_record,
)
from fusec.target.gpu_rates import READ

H200: dict[str, Any] = {
    "name": "NVIDIA H200",
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
    "L2_cache_size": 60 * 2**20,
    "shared_memory_per_block_optin": 232448,
    "total_memory": 150_754_820_096,
}


@pytest.mark.parametrize("name", NAMED)
def test_every_record_makes_sense(name: str) -> None:
    target = gpu_target(name)
    assert target.name == name
    assert is_gpu(name)
    assert target.backend == name.partition(":")[0]
    assert 32 <= target.warp_size <= 64
    assert 64 * 1024 <= target.shared_memory <= 228 * 1024
    assert 5e10 < target.half_flops / target.sms < 2e13
    assert target.single_flops < target.half_flops * 1.6
    assert 2e11 < target.bandwidth < 8e12
    assert 1e9 < target.clock < 3e9


def test_names_of_architectures_and_cards() -> None:
    assert gpu_target("cuda:sm_90").arch == gpu_target("cuda:H200").arch == 90
    assert gpu_target("cuda:h100-pcie").sms == 114
    assert gpu_target("cuda:h100").bandwidth < gpu_target("cuda:h200").bandwidth
    assert gpu_target("hip:mi300x").arch == "gfx942"
    with pytest.raises(TargetError, match=r"no GPU target 'cuda:h900'.*cuda:h200"):
        gpu_target("cuda:h900")


@pytest.mark.parametrize("name", NAMED)
def test_a_record_comes_back(name: str) -> None:
    """Also one of an older version, which had three of the rates."""
    target = gpu_target(name)
    record = asdict(target)
    assert target_of_record(record) == target
    rates = record.pop("rates")
    older = record | {"bandwidth": rates["read"], "half_flops": rates["tensor"], "single_flops": rates["simt"]}
    assert target_of_record(older).arch == target.arch
    assert target_of_record(older).rates.read > 1e11
    del record["sms"]
    with pytest.raises(KeyError):
        target_of_record(record)


def test_only_cards_with_wider_instructions_have_faster_products() -> None:
    assert [n for n in DATASHEETS if gpu_target(n).has_faster_matmuls] == [
        *("cuda:h100-pcie", "cuda:h100", "cuda:gh200", "cuda:h200", "cuda:b200")
    ]


def test_a_device_is_read() -> None:
    target = target_of_properties(SimpleNamespace(**H200))
    assert (target.name, target.sms, target.l2) == ("cuda:sm_90", 132, 60 * 2**20)
    assert target.shared_memory == 232448
    assert target.bandwidth == gpu_target("cuda:h200").bandwidth
    assert target.memory == H200["total_memory"]
    known = {**H200, "clock_rate": 990_000, "memory_clock_rate": 3_201_000, "memory_bus_width": 6144}
    slower = target_of_properties(SimpleNamespace(**known))
    assert slower.clock == 0.99e9
    assert slower.single_flops == pytest.approx(target.single_flops / 2)
    assert slower.bandwidth == pytest.approx(READ * 4.917e12, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "major", "minor", "sms", "gpu"),
    [
        ("NVIDIA H100 PCIe", 9, 0, 114, "cuda:h100-pcie"),
        ("NVIDIA H100 80GB HBM3", 9, 0, 132, "cuda:h100"),
        ("NVIDIA GH200 480GB", 9, 0, 132, "cuda:gh200"),
        ("NVIDIA A100-SXM4-40GB", 8, 0, 108, "cuda:a100-40gb"),
        ("NVIDIA A100 80GB PCIe", 8, 0, 108, "cuda:a100"),
        ("NVIDIA L4", 8, 9, 58, "cuda:l4"),
        ("NVIDIA L40S", 8, 9, 142, "cuda:l40s"),
        ("NVIDIA GeForce RTX 4070", 8, 9, 46, "cuda:l4"),
        ("NVIDIA B200", 10, 0, 148, "cuda:b200"),
        ("NVIDIA GeForce RTX 5090", 12, 0, 170, "cuda:b200"),
    ],
)
def test_the_most_similar_gpu(name: str, major: int, minor: int, sms: int, gpu: str) -> None:
    p = SimpleNamespace(**{**H200, "name": name, "major": major, "minor": minor, "multi_processor_count": sms})
    found = target_of_properties(p)
    record = DATASHEETS[gpu].target("x")
    assert found.arch == 10 * major + minor
    assert found.bandwidth == record.bandwidth
    assert found.half_flops == pytest.approx(record.half_flops * sms / record.sms)


def test_what_is_missing_is_said() -> None:
    with pytest.raises(TargetError, match="gfx942 is compiled here and not run"):
        require_device("hip", "gfx942", 0)
