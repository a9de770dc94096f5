"""Compiling for a GPU that is not in this machine, and files that hold such programs."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import fusec  # noqa: E402
from fusec.cli.inspect import describe_file  # noqa: E402
from fusec.codegen.triton.module import TritonModule  # noqa: E402
from fusec.errors import ArtifactError, SignatureError  # noqa: E402
from fusec.loading import load  # noqa: E402
from fusec.runtime import artifact, launch  # noqa: E402
from fusec.runtime.executable import Executable  # noqa: E402

HERE = torch.cuda.is_available()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(64, 128)
        self.b = torch.nn.Linear(128, 32)

    def forward(self, x: Any) -> Any:
        return torch.softmax(self.b(torch.relu(self.a(x))) * torch.arange(32, device=x.device), -1)


def compiled(**options: Any) -> Any:
    net = Net().to(torch.bfloat16)
    return fusec.compile(net, fusec.TensorSpec((48, 64), "bfloat16"), target="cuda:sm_90", **options)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpu") / "net.fusec"
    compiled().save(path)
    return path


def test_everything_lies_on_the_gpu() -> None:
    program = compiled().only.executable.program
    assert {slot.type.device for slot in program.slots} == {"cuda:0"}
    assert program.target == "cuda:sm_90"


def resized(x: Any, w: Any) -> Any:
    return torch.nn.functional.interpolate(torch.nn.functional.conv2d(x, w, groups=8), scale_factor=2, mode="bilinear")


def test_what_is_the_library_s_on_a_cpu_alone_is_kernels(tmp_path: Path) -> None:
    specs = fusec.TensorSpec((2, 8, 12, 12)), fusec.TensorSpec((8, 1, 7, 7))
    on_cpu = fusec.compile(resized, *specs).explain()
    assert "aten.upsample_bilinear2d" in on_cpu
    made = fusec.compile(resized, *specs, target="cuda:sm_90")
    made.save(tmp_path / "f.fusec")
    for text in (made.explain(), describe_file(tmp_path / "f.fusec", graph=True)):
        assert "library calls" not in text
        assert "extern" not in text
    lines = describe_file(tmp_path / "f.fusec", graph=True).splitlines()
    assert next(line for line in lines if line.startswith("graph @")).count("@cuda:0") == 2


def test_specs_may_name_the_gpu() -> None:
    spec = fusec.TensorSpec((8, 16), "float16", device="cuda:1")
    made = fusec.compile(lambda x: torch.softmax(x, -1), spec, target="cuda:sm_90")
    assert made.only.executable.device == 1
    assert "f16[8, 16]@cuda:1" in repr(made)
    other = fusec.TensorSpec((8, 16), "float16", device="cuda")
    with pytest.raises(SignatureError, match="cuda:0, cuda:1"):
        fusec.compile(lambda x, y: torch.add(x, y), spec, other, target="cuda:sm_90")


def test_arguments_elsewhere_do_not_fit() -> None:
    with pytest.raises(SignatureError, match=r"array 0 is .*compiled was .*@cuda:0"):
        compiled()(torch.ones(48, 64, dtype=torch.bfloat16))


def test_a_file_says_what_it_holds(saved: Path) -> None:
    text = describe_file(saved, graph=True, kernels=True)
    assert "target cuda:sm_90" in text
    assert "needs sm_90 as device 0" in text
    assert "input 0: bf16[48, 64]@cuda:0" in text
    assert "gemm" in text
    names = zipfile.ZipFile(saved).namelist()
    assert any(name.endswith(".triton.py") for name in names)
    assert artifact.LAUNCHER in names or launch.build_of_extension() is None


def test_a_graph_stays_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "require_device", lambda *wanted: None)
    for graph in (True, False):
        compiled(graph=graph).save(tmp_path / "f.fusec")
        assert load(tmp_path / "f.fusec").only.executable.graph is graph


def scores(x: Any, w: Any) -> Any:
    return torch.softmax(torch.matmul(x, w), -1)


def test_a_range_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "require_device", lambda *wanted: None)
    specs = fusec.TensorSpec(("B", "S", 64), "bfloat16"), fusec.TensorSpec((64, 160), "bfloat16")
    made = fusec.compile(scores, *specs, dims={"B": (1, 8), "S": (2, 300)}, target="cuda:sm_90")
    made.save(tmp_path / "f.fusec")
    loaded = load(tmp_path / "f.fusec")
    assert loaded.ranges == {"B": (1, 8), "S": (2, 300)}
    assert [v.upto for v in made.ranged] == [64, None, 64, 1024, None]
    assert [v.upto for v in loaded.ranged] == [64, None, 64, 1024, None]
    tiles = [dict(v.executable.program.reports[0].schedule)["block"] for v in made.ranged]
    assert tiles[2] != tiles[4]
    assert made.specialised({"B": 2, "S": 32}) is made.ranged[2]
    assert made.specialised({"B": 2, "S": 33}) is made.ranged[3]
    assert made.specialised({"B": 1, "S": 300}) is made.ranged[1]
    for ours, theirs in zip(made.ranged, loaded.ranged, strict=True):
        modules: list[Any] = [x.executable.module for x in (ours, theirs)]
        for kernel in ours.executable.program.kernels:
            first, second = (m.kernel(kernel.name, True) for m in modules)
            assert [str(n) for n in first.grid] == [str(n) for n in second.grid]
            assert [s.name for s in first.sizes] == [s.name for s in second.sizes] == [s.name for s in kernel.sizes]
            assert first.code == second.code
    with pytest.raises(SignatureError, match="S is 301, compiled was S from 2 to 300"):
        loaded.specialised({"B": 4, "S": 301})


def test_the_code_for_odd_addresses_is_in_the_file(saved: Path) -> None:
    module = TritonModule.from_bytes(artifact.read(saved).read(artifact.CODE))
    assert module.binaries.keys() == module.unaligned.keys()
    for binary in (*module.binaries.values(), *module.unaligned.values()):
        assert binary.code.startswith(b"\x7fELF")


def test_weights_stay_on_the_cpu_until_they_are_needed(saved: Path) -> None:
    weights = artifact.decode_weights(artifact.read(saved).read(artifact.WEIGHTS))
    assert sorted(array.shape for _, array in weights.values()) == [(32,), (32, 128), (128,), (128, 64)]


@pytest.mark.skipif(HERE, reason="there is a card")
def test_a_file_for_a_gpu_is_refused_without_one(saved: Path) -> None:
    with pytest.raises(ArtifactError, match="it needs sm_90 as device 0: no GPU here"):
        fusec.load(saved)
    assert "does not run here: it needs sm_90" in describe_file(saved)


def rewritten(path: Path, target: Path, change: Any) -> Path:
    """A copy with members changed, whose manifest fits them."""
    with zipfile.ZipFile(path) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(found.pop("manifest.json"))
    change(found, manifest)
    artifact.write(target, {k: v for k, v in manifest.items() if k not in ("format", "members")}, found)
    return target


def _without_code(found: dict[str, bytes], manifest: Any) -> None:
    record = json.loads(found[artifact.CODE].split(b"\n", 1)[1])
    record["binaries"].popitem()
    found[artifact.CODE] = b"fusec-gpu\n" + json.dumps(record).encode()


def _cut(found: dict[str, bytes], manifest: Any) -> None:
    found[artifact.CODE] = found[artifact.CODE][:-9]


def _other_shape(found: dict[str, bytes], manifest: Any) -> None:
    manifest["inputs"][0]["type"][1] = [48, 65]


@pytest.mark.parametrize("change", [_without_code, _cut, _other_shape])
def test_records_that_do_not_fit_are_refused(
    saved: Path, tmp_path: Path, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = rewritten(saved, tmp_path / "x.fusec", change)
    monkeypatch.setattr(artifact, "require_device", lambda *wanted: None)
    with pytest.raises(ArtifactError, match=r"x\.fusec"):
        load(path)


def test_another_card_is_one_clear_error(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (8, 0))
    with pytest.raises(ArtifactError, match="it needs sm_90 as device 0: cuda:0 is sm_80"):
        fusec.load(saved)


def test_loading_needs_neither_triton_nor_a_compiler(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [n for n in sys.modules if n == "triton" or n.startswith("triton.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(artifact, "require_device", lambda *wanted: None)
    loaded = load(saved)
    executable = loaded.only.executable
    assert isinstance(executable, Executable)
    assert executable.module.to_bytes() == artifact.read(saved).read(artifact.CODE)
