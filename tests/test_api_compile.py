"""Ahead-of-time compiling, files, and what a file may not do."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fusec
from fusec.cli.inspect import describe_file
from fusec.errors import ArtifactError, CaptureError, SignatureError
from fusec.notices import SettingWarning
from fusec.runtime import artifact
from fusec.target.cpu import cpu_target


def random(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def scores(x: Any, w: Any, *, scale: float = 2.0) -> Any:
    h = np.tanh(x @ w) * scale
    return {"h": h, "top": h.max(axis=1), "sum": h.sum(), "rows": x[1:], "n": 3, "name": "x", "pair": (h.T, None)}


def assert_same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            assert_same(found[key], wanted[key])
    elif isinstance(wanted, tuple | list):
        for a, b in zip(found, wanted, strict=True):
            assert_same(a, b)
    elif isinstance(wanted, np.ndarray | np.generic):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        assert getattr(found, "strides", ()) == getattr(wanted, "strides", ())
    else:
        assert found == wanted


def test_from_arrays_and_from_specs() -> None:
    x, w = random(5, 4), random(4, 6)
    for arguments in ((x, w), (fusec.TensorSpec((5, 4)), w)):
        compiled = fusec.compile(scores, *arguments, scale=3.0)
        assert_same(compiled(x, w, scale=3.0), scores(x, w, scale=3.0))
    assert "tanh" in compiled.explain()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, w: ((x,), {"scale": 3.0}), "compiled for the arguments"),
        (lambda x, w: ((x, w), {}), "compiled for the arguments"),
        (lambda x, w: ((x, w), {"scale": 4.0}), "compiled for the arguments"),
        (lambda x, w: ((x.astype("f8"), w), {"scale": 3.0}), r"array 0 is f64\[5, 4\], compiled was f32\[5, 4\]"),
        (lambda x, w: ((x[:3], w), {"scale": 3.0}), r"array 0 is f32\[3, 4\]"),
        (lambda x, w: ((x, w[:, ::-1]), {"scale": 3.0}), "array 1 has strides"),
        (lambda x, w: ((x, np.ma.array(w)), {"scale": 3.0}), "MaskedArray"),
    ],
)
def test_arguments_that_do_not_fit(change: Any, message: str) -> None:
    x, w = random(5, 4), random(4, 6)
    compiled = fusec.compile(scores, x, w, scale=3.0)
    args, kwargs = change(x, w)
    with pytest.raises(SignatureError, match=message):
        compiled(*args, **kwargs)


def test_named_dimensions() -> None:
    x, w = fusec.TensorSpec(("B", 4)), random(4, 6)
    compiled = fusec.compile(scores, x, w)
    for rows in (2, 7, 2):
        x = random(rows, 4)
        assert_same(compiled(x, w), scores(x, w))
    assert sorted(compiled.variants) == [(2,), (7,)]
    assert "B = 7" in compiled.explain()
    with pytest.raises(ArtifactError, match=r"named dimensions \(B\)"):
        compiled.save("never")
    with pytest.raises(SignatureError, match="B = 3"):
        fusec.compile(lambda a, b, c: a + b + c, fusec.TensorSpec(("B",)), fusec.TensorSpec(("B",)), random(1))(
            random(3), random(4), random(1)
        )


@pytest.mark.parametrize(
    "make",
    [
        lambda: fusec.TensorSpec((-1,)),
        lambda: fusec.TensorSpec((1.5,)),  # type: ignore[arg-type]
        lambda: fusec.TensorSpec(("not a name",)),
        lambda: fusec.TensorSpec((2,), "float31"),
        lambda: fusec.TensorSpec((2,), strides=(1, 2)),
    ],
)
def test_specs_that_can_not_be(make: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        make()


def test_capture_errors_come_out() -> None:
    def branches(x: Any) -> Any:
        return x if x.sum() > 0 else -x

    with pytest.raises(CaptureError, match=r"test_api_compile\.py"):
        fusec.compile(branches, random(3))


def test_a_file_gives_the_function_back(tmp_path: Path) -> None:
    x, w = random(5, 4), random(4, 6)
    compiled = fusec.compile(scores, x, w, scale=3.0)
    compiled.save(tmp_path / "f.fusec")
    loaded = fusec.load(tmp_path / "f.fusec")
    assert_same(loaded(x, w, scale=3.0), scores(x, w, scale=3.0))
    assert loaded.explain() == compiled.explain()
    with pytest.raises(SignatureError):
        loaded(x, w)
    first = (tmp_path / "f.fusec").read_bytes()
    loaded.save(tmp_path / "again.fusec")
    assert_same(fusec.load(tmp_path / "again.fusec")(x, w, scale=3.0), scores(x, w, scale=3.0))
    compiled.save(tmp_path / "f.fusec")
    assert len((tmp_path / "f.fusec").read_bytes()) == len(first)
    assert list(tmp_path.glob(".writing-*")) == []


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 4)])
def test_arrays_whose_strides_say_nothing(library: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    x: Any = np.ones(shape)
    if library == "torch":
        x = pytest.importorskip("torch").from_numpy(x)
    for argument in (x, x[::-1] if library == "numpy" else x.t().contiguous().t()):
        fusec.compile(lambda a: (a + 1.0, a.sum(0)), argument).save(tmp_path / "f.fusec")
        found, total = fusec.load(tmp_path / "f.fusec")(argument)
        assert tuple(found.shape) == shape
        assert tuple(total.shape) == shape[1:]


def test_weights_are_frozen_unless_told_not_to(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    x = torch.randn(4, 6)
    with torch.no_grad():
        before = model(x)
        frozen, live = fusec.compile(model, x), fusec.compile(model, x, freeze=False)
        frozen.save(tmp_path / "m.fusec")
        model[0].weight.mul_(2)
        model[2].bias.add_(1)
        after = model(x)
        torch.testing.assert_close(frozen(x), before)
        torch.testing.assert_close(live(x), after)
        torch.testing.assert_close(fusec.load(tmp_path / "m.fusec")(x), before)
        with pytest.raises(ArtifactError, match="freeze=True"):
            live.save(tmp_path / "live.fusec")


def test_half_precision_weights_are_saved(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    w = torch.randn(5, dtype=torch.bfloat16)
    v = torch.randn(3, 5).t()
    x = torch.randn(5, 3, dtype=torch.bfloat16)

    def function(x: Any) -> Any:
        return x * w[:, None] + v

    compiled = fusec.compile(function, x)
    compiled.save(tmp_path / "f.fusec")
    assert torch.equal(fusec.load(tmp_path / "f.fusec")(x), compiled(x))
    torch.testing.assert_close(compiled(x), function(x), rtol=0.02, atol=0.02)


def test_loading_needs_no_compiler(tmp_path: Path) -> None:
    x, w = random(5, 4), random(4, 6)
    fusec.compile(scores, x, w).save(tmp_path / "f.fusec")
    program = f"""
import sys, numpy as np, fusec
f = fusec.load({str(tmp_path / "f.fusec")!r})
x, w = np.ones((5, 4), np.float32), np.ones((4, 6), np.float32)
np.testing.assert_allclose(f(x, w)["h"], np.tanh(x @ w) * 2, rtol=1e-5)
assert "tvm" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_saving_without_a_linker_says_what_loading_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = random(5, 4), random(4, 6)
    monkeypatch.setenv("PATH", "")
    with pytest.warns(SettingWarning, match=r"no linker .*binutils"):
        fusec.compile(scores, x, w, cache=False).save(tmp_path / "f.fusec")
    assert "with apache-tvm>=" in describe_file(tmp_path / "f.fusec")
    np.testing.assert_allclose(fusec.load(tmp_path / "f.fusec")(x, w)["h"], scores(x, w)["h"], rtol=1e-5)
    monkeypatch.setattr("fusec.runtime.artifact.is_there", lambda module: module != "tvm")
    refused(tmp_path / "f.fusec", "saved without a linker and needs apache-tvm.*: pip install fusec")


# What a file may not do


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "f.fusec"
    w = random(4, 6)
    fusec.compile(lambda x: np.tanh(x @ w), random(5, 4)).save(path)
    return path


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewrite(path: Path, target: Path, change: Any, *, honest: bool = True) -> Path:
    """A copy with members changed; with ``honest`` the manifest's sizes and hashes are made to fit."""
    found = members(path)
    manifest = json.loads(found.pop("manifest.json"))
    change(found, manifest)
    if honest:
        listed = manifest.pop("members")
        del listed
        artifact.write(target, {k: v for k, v in manifest.items() if k != "format"}, found)
        if manifest["format"] != artifact.FORMAT:
            text = members(target)
            text["manifest.json"] = json.dumps(
                {**json.loads(text["manifest.json"]), "format": manifest["format"]}
            ).encode()
            write_zip(target, text)
    else:
        write_zip(target, {"manifest.json": json.dumps(manifest).encode(), **found})
    return target


def write_zip(target: Path, contents: dict[str, bytes]) -> None:
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)


def refused(path: Path, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        fusec.load(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    refused(tmp_path / "absent", "there is no file")
    (tmp_path / "empty").write_bytes(b"")
    refused(tmp_path / "empty", "not a whole fusec file")
    (tmp_path / "text").write_text("hello")
    refused(tmp_path / "text", "not a whole fusec file")
    write_zip(tmp_path / "zip", {})
    refused(tmp_path / "zip", "without a manifest")
    write_zip(tmp_path / "list", {"manifest.json": b"[]"})
    refused(tmp_path / "list", "not one of fusec's")
    write_zip(tmp_path / "words", {"manifest.json": b"{"})
    refused(tmp_path / "words", "can't be read")


def test_truncated_and_flipped_files(saved: Path, tmp_path: Path) -> None:
    whole = saved.read_bytes()
    for length in (len(whole) // 3, len(whole) - 1, len(whole) - 30):
        (tmp_path / "cut").write_bytes(whole[:length])
        refused(tmp_path / "cut", r"cut")
    generator = np.random.default_rng(0)
    for place in generator.integers(0, len(whole), 60):
        data = bytearray(whole)
        data[place] ^= 0x55
        (tmp_path / "flipped").write_bytes(bytes(data))
        try:
            loaded = fusec.load(tmp_path / "flipped")
        except ArtifactError:
            continue
        x = random(5, 4)  # a bit that no one reads, such as a time stamp
        np.testing.assert_allclose(loaded(x), fusec.load(saved)(x))


@pytest.mark.parametrize("name", ["kernels.bin", "weights.safetensors", "program.json", "graph.ir"])
def test_a_changed_member_is_noticed(saved: Path, tmp_path: Path, name: str) -> None:
    def change(found: dict[str, bytes], manifest: Any) -> None:
        data = bytearray(found[name])
        data[len(data) // 2] ^= 1
        found[name] = bytes(data)

    refused(rewrite(saved, tmp_path / "x", change, honest=False), f"{name} is not what the manifest says")


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "stages/../../x.ir", "other.py", "kernels/a.so"])
def test_names_are_checked(saved: Path, tmp_path: Path, name: str) -> None:
    refused(rewrite(saved, tmp_path / "x", lambda f, m: f.update({name: b""})), "a member may not be called")


def test_members_and_manifest_must_agree(saved: Path, tmp_path: Path) -> None:
    def drop(found: dict[str, bytes], manifest: Any) -> None:
        del found["graph.ir"]

    def extra(found: dict[str, bytes], manifest: Any) -> None:
        found["stages/zz.ir"] = b""

    refused(rewrite(saved, tmp_path / "x", drop, honest=False), "graph.ir")
    refused(rewrite(saved, tmp_path / "x", extra, honest=False), "zz.ir")
    with zipfile.ZipFile(tmp_path / "twice", "w") as archive:
        archive.writestr("manifest.json", b"{}")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("manifest.json", b"{}")
    refused(tmp_path / "twice", "same name")


def test_other_formats_and_machines(saved: Path, tmp_path: Path) -> None:
    def future(found: Any, manifest: Any) -> None:
        manifest["format"] = 99

    def arm(found: Any, manifest: Any) -> None:
        manifest["requires"]["architecture"] = "aarch64"

    def better(found: Any, manifest: Any) -> None:
        manifest["requires"]["features"].append("avx1024")

    refused(rewrite(saved, tmp_path / "x", future), f"format 99, this fusec reads format {artifact.FORMAT}")
    refused(rewrite(saved, tmp_path / "x", arm), "it needs an aarch64 machine, this one is x86_64")
    refused(rewrite(saved, tmp_path / "x", better), "needs a CPU with avx1024.*x86-64-v3")


def _program(change: Any) -> Any:
    def apply(found: dict[str, bytes], manifest: Any) -> None:
        program = json.loads(found["program.json"])
        change(program, manifest)
        found["program.json"] = json.dumps(program).encode()

    return apply


@pytest.mark.parametrize(
    "change",
    [
        lambda p, m: p["slots"].pop(),
        lambda p, m: p["outputs"].append(99),
        lambda p, m: p["slots"][0].__setitem__(1, "weird"),
        lambda p, m: p["slots"][0][2].__setitem__(1, [50, 40]),
        lambda p, m: p["slots"][0][2].__setitem__(1, [-5, 4]),
        lambda p, m: p["slots"][0][2].__setitem__(0, "f33"),
        lambda p, m: p["steps"].append(["launch", "absent", []]),
        lambda p, m: p["steps"].append(["run", "rm"]),
        lambda p, m: p["kernels"].clear(),
        lambda p, m: p.pop("name"),
        lambda p, m: m["inputs"][0]["type"].__setitem__(1, [500, 400]),
        lambda p, m: m["inputs"].clear(),
        lambda p, m: m.pop("call"),
        lambda p, m: m.__setitem__("library", "pickle"),
        lambda p, m: m["pieces"][0]["result"]["leaves"][0].__setitem__(0, 7),
        lambda p, m: m["pieces"][0].__setitem__("arguments", [3]),
    ],
)
def test_records_that_do_not_fit_are_refused(saved: Path, tmp_path: Path, change: Any) -> None:
    refused(rewrite(saved, tmp_path / "x", _program(change)), r".")


def test_weights_that_do_not_fit_are_refused(saved: Path, tmp_path: Path) -> None:
    def shorter(found: dict[str, bytes], manifest: Any) -> None:
        weights = artifact.decode_weights(found["weights.safetensors"])
        cut = {n: (d, (max(0, a.size - 8),), a.tobytes()[: max(0, a.nbytes - 8)]) for n, (d, a) in weights.items()}
        found["weights.safetensors"] = artifact.encode_weights(cut)

    def lying(found: dict[str, bytes], manifest: Any) -> None:
        data = found["weights.safetensors"]
        found["weights.safetensors"] = data.replace(b'"data_offsets": [0, ', b'"data_offsets": [9, ')

    refused(rewrite(saved, tmp_path / "x", shorter), r".")
    refused(rewrite(saved, tmp_path / "x", lying), r".")


def test_weights_are_what_safetensors_reads(saved: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    data = members(saved)["weights.safetensors"]
    ours = {name: array for name, (_, array) in artifact.decode_weights(data).items()}
    theirs = safetensors.load(data)
    assert sorted(ours) == sorted(theirs)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])


def test_mutated_files_are_refused_or_right(all_cases: bool) -> None:
    """A slice of ``python tests/fuzz_artifact.py 10000``."""
    script = Path(__file__).parent / "fuzz_artifact.py"
    count = "150" if all_cases else "60"
    done = subprocess.run([sys.executable, script, count, "77"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_weights_are_packed_for_a_cpu_whose_code_does_not_run_here(tmp_path: Path) -> None:
    """The code for AMX may use instructions that this CPU lacks, also where it packs."""
    layer = torch.nn.Linear(100, 70).bfloat16().eval().requires_grad_(False)
    x = torch.randn(33, 100).bfloat16()
    path = tmp_path / "layer.fusec"
    fusec.compile(layer, x, target="cpu:sapphirerapids").save(path)
    if cpu_target("cpu:sapphirerapids").runs_here:
        torch.testing.assert_close(fusec.load(path)(x), layer(x))
    else:
        with pytest.raises(ArtifactError, match="needs a CPU with amx_bf16"):
            fusec.load(path)


def test_arrays_of_another_library_are_named_and_not_printed() -> None:
    torch = pytest.importorskip("torch")
    compiled = fusec.compile(lambda x: np.sin(x), np.ones((64, 64), np.float32))
    with pytest.raises(SignatureError) as raised:
        compiled(torch.ones(64, 64))
    assert str(raised.value).endswith("these are (torch.Tensor)")
