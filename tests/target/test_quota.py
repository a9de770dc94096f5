"""A control group's quota of processor time, of either version, its own or of a group around it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fusec.target.quota import usable_processors


def version_1(folder: str, quota: str) -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": "100000\n"}


def usable(folder: Path, own: str, files: dict[str, str]) -> int:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "own").write_text(own)
    return usable_processors(folder, folder / "own")


@pytest.mark.parametrize(
    ("own", "files", "wanted"),
    [
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "20000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {}, 8),
        ("0::/pod/app\n", {"pod/app/cpu.max": "max 100000\n", "pod/cpu.max": "400000 100000\n"}, 4),
        ("0::/pod/app\n", {"pod/app/cpu.max": "200000 100000\n", "pod/cpu.max": "400000 100000\n"}, 2),
        ("0::/a/path/of/the/host\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "what\n"}, 8),
        ("4:cpu,cpuacct:/app\n", version_1("cpu,cpuacct/app", "150000"), 2),
        ("2:cpu:/\n3:memory:/\n", version_1("cpu", "-1"), 8),
        ("2:cpuset:/\n", version_1("cpu", "100000"), 8),
        ("2:cpu:/\n0::/\n", {**version_1("cpu", "500000"), "unified/cpu.max": "300000 100000"}, 3),
    ],
)  # fmt: skip
def test_usable_processors(
    own: str, files: dict[str, str], wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert usable(tmp_path, own, files) == wanted


def test_without_control_groups(tmp_path: Path) -> None:
    assert usable_processors(tmp_path, tmp_path / "missing") == len(os.sched_getaffinity(0))
    assert 1 <= usable_processors() <= len(os.sched_getaffinity(0))
