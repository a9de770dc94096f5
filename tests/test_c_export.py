"""Compiled functions called from C programs that ``cc`` builds."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusec
from fusec.errors import ArtifactError
from fusec.target.cpu import CpuTarget

EXAMPLE = Path(__file__).parents[1] / "examples" / "c"
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def build(folder: Path, source: Path, name: str) -> Path:
    strict = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
    command = ["cc", *strict, "-I", str(folder), str(source), "-ldl", "-o", str(folder / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / name


@needs_cc
def test_the_example(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("classify", EXAMPLE / "classify.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    header = module.main(str(tmp_path))
    assert "ROWS: 1 to 64" in header.read_text()
    program = build(tmp_path, EXAMPLE / "classify.c", "classify")
    for rows in (1, 2, 13, 64):
        x = np.random.default_rng(rows).standard_normal((rows, 24)).astype(np.float32)
        done = subprocess.run([program, tmp_path], input=x.tobytes(), capture_output=True, check=True)
        found = np.array([line.split() for line in done.stdout.decode().splitlines()], np.float32)
        np.testing.assert_allclose(found, module.classify(x), rtol=2e-6, atol=1e-7)
    outside = subprocess.run([program, tmp_path], input=b"", capture_output=True, check=False)
    assert (outside.returncode, outside.stderr) == (1, b"0 rows: a dimension is out of the range that was compiled\n")


@needs_cc
def test_files_are_checked(tmp_path: Path) -> None:
    header = fusec.compile(lambda x: np.tanh(x) @ W, fusec.TensorSpec((4, 6), "f32")).export_c(tmp_path)
    name = header.stem
    source = f"""
#include "{name}.h"
int main(int count, char **arguments) {{
  {name}_model model;
  (void)count;
  int status = {name}_open(&model, arguments[1]);
  puts(fusec_strerror(status));
  if (status == FUSEC_OK) {name}_close(&model);
  return status == FUSEC_DAMAGED;
}}
"""
    (tmp_path / "main.c").write_text(source)
    program = build(tmp_path, tmp_path / "main.c", "main")

    def told() -> str:
        return subprocess.run([program, tmp_path], capture_output=True, check=False, text=True).stdout.strip()

    assert told() == "no error"
    for file in (tmp_path / f"{name}.weights", tmp_path / f"{name}_0.so"):
        data = bytearray(file.read_bytes())
        for wrong in (
            data[:-1],
            data + b"x",
            data[:40] + bytes([data[40] ^ 128]) + data[41:],
            data[8:16] + data[:8] + data[16:],
        ):
            file.write_bytes(wrong)
            assert told().startswith("a file is damaged"), file
        file.unlink()
        assert told().startswith("a file that belongs to the header")
        file.write_bytes(data)
    assert told() == "no error"


W = np.linspace(-1, 1, 30, dtype=np.float32).reshape(6, 5)


LOOKUP = """
#include "Lookup.h"
int main(int count, char **arguments) {
  Lookup_model model;
  static int64_t ids[12];
  static float sums[4 * 6], turned[4 * 3 * 6];
  (void)count;
  if (Lookup_open(&model, arguments[1]) != FUSEC_OK) return 100;
  for (int i = 0; i < 12; i++) ids[i] = i * 7 % 50;
  if (Lookup_run(&model, ids, sums, turned, 4, 3) != FUSEC_OK) return 101;
  for (int i = 0; i < 24; i++) printf("%.9g ", sums[i]);
  for (int i = 0; i < 72; i++) printf("%.9g ", turned[i]);
  ids[5] = 50;
  int status = Lookup_run(&model, ids, sums, turned, 4, 3);
  Lookup_close(&model);
  return status == FUSEC_BAD_INDEX ? 0 : 102;
}
"""


@needs_cc
def test_indices_are_checked_and_strides_are_kept(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Lookup(torch.nn.Embedding):  # type: ignore[misc, name-defined]
        def forward(self, ids: Any) -> Any:
            found = super().forward(ids)
            return found.mean(1) / ids.shape[0], torch.tanh(found).transpose(1, 2)

    lookup = Lookup(50, 6).requires_grad_(False)
    compiled = fusec.compile(lookup, fusec.TensorSpec(("B:2..9", "N:2..9"), "int64"), fallback="error")
    compiled.save(tmp_path / "f.fusec")
    fusec.load(tmp_path / "f.fusec").export_c(tmp_path)
    (tmp_path / "main.c").write_text(LOOKUP)
    program = build(tmp_path, tmp_path / "main.c", "lookup")
    done = subprocess.run([program, tmp_path], capture_output=True, text=True, check=True)
    numbers = torch.tensor([float(n) for n in done.stdout.split()])
    sums, turned = lookup((torch.arange(12) * 7 % 50).reshape(4, 3))
    torch.testing.assert_close(numbers[:24].reshape(4, 6), sums)
    torch.testing.assert_close(numbers[24:].reshape(4, 3, 6), turned.transpose(1, 2).contiguous())


PRODUCT = """
#include "product.h"
static long refused;
static int asked;
long __real_syscall(long number, long code, long feature);
long __wrap_syscall(long number, long code, long feature) {
  asked += number == 158 && code == 0x1023 && feature == 18;
  if (!refused) __real_syscall(number, code, feature); /* fails where AMX is emulated */
  return refused;
}
int amx_emulate(void);
int main(int count, char **arguments) {
  product_model model;
  static uint16_t a[16 * 64], out[16 * 32];
  (void)count;
  refused = -1;
  if (product_open(&model, arguments[1]) != FUSEC_NO_TILES || asked != 1) return 100;
  refused = 0;
  if (amx_emulate() != 0 || product_open(&model, arguments[1]) != FUSEC_OK || asked != 2) return 101;
  if (fread(a, sizeof a, 1, stdin) != 1 || product_run(&model, a, out) != FUSEC_OK) return 102;
  fwrite(out, sizeof out, 1, stdout);
  product_close(&model);
  return 0;
}
"""


@needs_cc
def test_amx_is_asked_for(tmp_path: Path, amx_everywhere: CpuTarget) -> None:
    """Once for each model that is opened; the answer is not kept, as a process may be allowed later."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 32, dtype=torch.bfloat16).requires_grad_(False)
    x = torch.randn(16, 64, dtype=torch.bfloat16)

    def product(x: Any) -> Any:
        return layer(x)

    fusec.compile(product, x, fallback="error", cache=False).export_c(tmp_path)
    (tmp_path / "main.c").write_text(PRODUCT)
    emulator = Path(__file__).parent / "amx" / "emulator.c"
    program = tmp_path / "main"
    command = ["cc", "-std=gnu11", "-O2", "-mfma", "-Wl,--wrap=syscall", "-I", tmp_path, tmp_path / "main.c", emulator]
    subprocess.run([*command, "-ldl", "-lm", "-o", program], check=True)
    done = subprocess.run(
        [program, tmp_path], input=x.view(torch.int16).numpy().tobytes(), capture_output=True, check=True
    )
    found = torch.frombuffer(bytearray(done.stdout), dtype=torch.bfloat16).reshape(16, 32)
    torch.testing.assert_close(found, product(x), rtol=2**-7, atol=2**-8)


LACKS = """
#include "double_it.h"
int main(int count, char **arguments) {
  double_it_model model;
  (void)count;
  return double_it_open(&model, arguments[1]);
}
"""


@needs_cc
def test_a_lesser_cpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def double_it(x: Any) -> Any:
        return x * 2

    compiled = fusec.compile(double_it, np.zeros((5, 4), np.float32), target="cpu:x86-64-v3", fallback="error")
    (tmp_path / "main.c").write_text(LACKS)
    for missing, status in (((), 0), (("sse9",), 6)):
        monkeypatch.setattr("fusec.c_cpu.required_features", lambda _, missing=missing: ("sse2", "avx2", *missing))
        compiled.export_c(tmp_path)
        assert (
            subprocess.run([build(tmp_path, tmp_path / "main.c", "main"), tmp_path], check=False).returncode == status
        )


def test_what_c_can_not_call(tmp_path: Path) -> None:
    x = fusec.TensorSpec((5, 4))
    with pytest.raises(ArtifactError, match=r"calls the library's numpy\.sort at test_c_export\.py:\d+"):
        fusec.compile(lambda a: np.sort(np.exp(a)), x).export_c(tmp_path)
    with pytest.raises(ArtifactError, match="result 1 lies in the memory of an argument"):
        fusec.compile(lambda a: (np.exp(a), a.T), x).export_c(tmp_path)
    assert not list(tmp_path.iterdir())
