"""Functions compiled for a GPU, called from C, on a driver that writes down what it is asked: each launch is the one
that fusec's own runtime makes on the same driver, with the same parameters, byte by byte."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import fusec  # noqa: E402
from fusec.c_pieces import C_TYPES  # noqa: E402
from fusec.codegen.gpu import module_from_bytes  # noqa: E402
from fusec.errors import ArtifactError  # noqa: E402
from fusec.ir.types import dtype_of  # noqa: E402
from fusec.runtime import launch  # noqa: E402
from fusec.runtime.launch import DeviceKernel, TensorMap  # noqa: E402
from fusec.runtime.program import Launch, root_of  # noqa: E402

EXAMPLE = Path(__file__).parents[1] / "examples" / "c"
FAKE = Path(__file__).with_name("fake_gpu.c")
TARGET = "cuda:sm_90"
STREAM = 77
C = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-x", "c"]
CPP = ["c++", "-std=gnu++17", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-missing-field-initializers"]

pytestmark = pytest.mark.skipif(shutil.which("cc") is None or shutil.which("c++") is None, reason="no C compiler")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fake libcuda."""
    folder = tmp_path_factory.mktemp("driver")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(FAKE)], check=True)
    return folder


def width(parameter: Any) -> int:
    """Bytes of a kernel's parameter; an address's or a size's are 8."""
    if isinstance(parameter, TensorMap):
        return 128 * parameter.count
    return len(parameter) if isinstance(parameter, bytes) else 8


def kernels_of(variant: Any, shift: int) -> list[tuple[Launch, DeviceKernel]]:
    """Each launch and the code that runs where inputs lie ``shift`` bytes after a multiple of 16."""
    program, executable = variant.executable.program, variant.executable
    module = executable.module.complete()
    inputs = {program.inputs[k] for k in executable.free_inputs}
    found = []
    for step in program.steps:
        if isinstance(step, Launch):
            is_odd = shift % 16 != 0 and any(root_of(program, slot)[0] in inputs for slot in step.arguments)
            found.append((step, module.kernel(step.kernel, not is_odd)))
    return found


@dataclass
class Ran:
    """What a program in C did: its status, what it printed, the driver's log, and the model's weights in memory."""

    status: int
    printed: dict[str, int]
    log: list[str]
    weights: bytes

    @property
    def launches(self) -> list[list[str]]:
        return [line.split()[1:] for line in self.log if line.startswith("launch ")]


def environment(folder: Path, driver: Path, **more: str) -> dict[str, str]:
    said = {"FAKE_GPU_LOG": str(folder / "log"), "FAKE_GPU_PARAMETERS": str(folder / "parameters")}
    return {**os.environ, "LD_LIBRARY_PATH": str(driver), **said, **more}


def main_in_c(name: str, inputs: Sequence[Any], outputs: Sequence[Any], dims: Sequence[int], shift: int) -> str:
    """Opens, calls on arrays (those of ``inputs`` read from files, ``shift`` bytes after a block begins), and says
    where they and the weights are."""
    lines = []
    for k, array in enumerate(inputs):
        sent = f"fusec_send(&model.gpu, bytes, {array.nbytes + 16}, &in[{k}])"
        lines.append(f'if (read_all("input{k}", {array.nbytes}) || {sent}) return 90;')
    for k, array in enumerate(outputs):
        lines.append(f"if (fusec_send(&model.gpu, NULL, {max(array.nbytes, 1)}, &out[{k}])) return 91;")
    given = ["&model"]
    given += [f"(const {C_TYPES[dtype_of(a.dtype).name]} *)(in[{k}] + {shift})" for k, a in enumerate(inputs)]
    given += [f"({C_TYPES[dtype_of(a.dtype).name]} *)out[{k}]" for k, a in enumerate(outputs)]
    lines.append(f"status = {name}_run({', '.join([*given, *map(str, dims), f'(void *){STREAM}'])});")
    lines += [f'printf("in{k} %llu\\n", (unsigned long long)(uintptr_t)in[{k}] + {shift});' for k in range(len(inputs))]
    lines += [f'printf("out{k} %llu\\n", (unsigned long long)(uintptr_t)out[{k}]);' for k in range(len(outputs))]
    body = "\n    ".join(lines)
    return f"""
#include "{name}.h"
static char *bytes, kept[1 << 20];
static int read_all(const char *path, size_t size) {{
  FILE *file = fopen(path, "rb");
  bytes = (char *)calloc(size + 16, 1);
  if (file == NULL || fread(bytes + {shift}, 1, size, file) != size) return 1;
  return fclose(file);
}}
int main(void) {{
  {name}_model model;
  char *in[8], *out[8];
  int status = {name}_open(&model, ".");
  if (status == FUSEC_OK) {{
    {body}
    printf("weights %llu\\n", (unsigned long long)(uintptr_t)model.weights);
    FILE *stream = fopen("{name}.weights", "rb");
    const size_t size = fread(kept, 1, sizeof kept, stream);
    fclose(stream);
    if (size != 0 && fusec_receive(&model.gpu, kept, model.weights, size, NULL)) return 92;
    stream = fopen("kept", "wb");
    fwrite(kept, 1, size, stream);
    fclose(stream);
    for (int k = 0; k < {len(inputs)}; k++) fusec_drop(&model.gpu, in[k]);
    for (int k = 0; k < {len(outputs)}; k++) fusec_drop(&model.gpu, out[k]);
    {name}_close(&model);
  }}
  fprintf(stderr, "%s; %s\\n", fusec_strerror(status), fusec_gpu_error());
  return status;
}}
"""


def run_in_c(
    compiled: Any,
    variant: Any,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    folder: Path,
    driver: Path,
    shift: int = 0,
    **more: str,
) -> tuple[Ran, str]:
    """Exports, builds as C and as C++, runs the latter. The call is one that the variant serves."""
    name = compiled.export_c(folder).stem
    dims = [inputs[k].shape[axis] for k, axis in where_extents_stand(compiled)]
    (folder / "main.c").write_text(main_in_c(name, inputs, outputs, dims, shift))
    for k, array in enumerate(inputs):
        (folder / f"input{k}").write_bytes(array.tobytes())
    lines = [" ".join([k.name, *(str(width(p)) for p in k.parameters)]) for _, k in kernels_of(variant, shift)]
    (folder / "parameters").write_text("".join(f"{line}\n" for line in lines))
    for command in (C, CPP):
        subprocess.run([*command, "main.c", "-ldl", "-o", "main"], cwd=folder, check=True)
    (folder / "log").write_text("")
    settings = environment(folder, driver, **more)
    done = subprocess.run(["./main"], cwd=folder, env=settings, capture_output=True, text=True, check=False)
    printed = {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines()}
    kept = (folder / "kept").read_bytes() if (folder / "kept").exists() else b""
    return Ran(done.returncode, printed, (folder / "log").read_text().splitlines(), kept), done.stderr.strip()


def where_extents_stand(compiled: Any) -> list[tuple[int, int]]:
    """For each named dimension, an input and its axis."""
    shapes = [spec.shape for spec in compiled.specs]
    places = [(n, k, axis) for k, shape in enumerate(shapes) for axis, n in enumerate(shape) if isinstance(n, str)]
    return [next((k, axis) for n, k, axis in places if n.partition(":")[0] == name) for name in compiled.ranges]


def addresses_in(ran: Ran, variant: Any, shift: int) -> list[list[int]]:
    """The addresses that each launch of the variant was given, as its parameters have them. Each is where it should be:
    inputs and outputs, bytes of weights as they were, scratch inside what was taken."""
    program, executable = variant.executable.program, variant.executable
    taken = [(int(line.split()[1], 16), int(line.split()[2])) for line in ran.log if line.startswith("take ")]
    known = {program.inputs[k]: ran.printed[f"in{a}"] for k, a in zip(executable.free_inputs, variant.arguments)}
    known |= {root_of(program, slot)[0]: ran.printed[f"out{k}"] for k, slot in enumerate(program.outputs)}
    found = []
    for (step, kernel), said in zip(kernels_of(variant, shift), ran.launches, strict=True):
        given = zip(kernel.parameters, said[6:], strict=True)
        values = {p: int.from_bytes(bytes.fromhex(h), "little") for p, h in given if isinstance(p, int)}
        own = []
        for position, slot in enumerate(step.arguments):
            root, offset = root_of(program, slot)
            record = program.slots[root]
            nbytes = int(offset) * record.type.dtype.itemsize
            if root in known:
                at = known[root] + nbytes
                assert values.get(position, at) == at
            elif root in executable.weights or record.kind == "constant":
                at = values[position]
                start = at - nbytes - ran.printed["weights"]
                data = np.array(record.value, record.type.dtype.numpy).tobytes()
                if root in executable.weights:
                    data = executable.arrays.to_bytes(executable.weights[root])[2]
                assert ran.weights[start : start + len(data)] == data
            else:
                at = values[position]
                known[root] = at - nbytes
                assert any(begin <= at - nbytes < begin + size for begin, size in taken)
            own.append(at)
        assert len(set(own)) == len(own)
        found.append(own)
    return found


@dataclass(frozen=True)
class Case:
    """A function, its specs, and a call: extents of its dimensions, and by how many bytes its inputs are off."""

    function: Callable[..., Any]
    specs: tuple[Any, ...]
    dims: Sequence[int] = ()
    shift: int = 0


def _mlp() -> Callable[..., Any]:
    torch.manual_seed(0)
    first, second = (torch.nn.Linear(64, 64).half().requires_grad_(False) for _ in range(2))

    def mlp(x: Any) -> Any:
        y = torch.nn.functional.gelu(first(torch.nn.functional.layer_norm(x, (64,))))
        return torch.softmax(second(y) + x, -1), y.float().sum(0)

    return mlp


MLP = _mlp()


def _attend(q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def _multiply(a: Any, b: Any) -> Any:
    return torch.relu(a @ b)


ROWS = fusec.TensorSpec(("R:1..512", 64), "float16")
HEADS = fusec.TensorSpec((2, 4, 256, 64), "float16")
SQUARE = fusec.TensorSpec((2048, 2048), "float16")
CASES = {
    "one row": Case(MLP, (ROWS,), [1]),
    "some rows": Case(MLP, (ROWS,), [40]),
    "many rows": Case(MLP, (ROWS,), [511]),
    "rows at odd addresses": Case(MLP, (ROWS,), [40], 2),
    "attention": Case(_attend, (HEADS,) * 3),
    "attention at odd addresses": Case(_attend, (HEADS,) * 3, (), 2),
    "wgmma": Case(_multiply, (SQUARE,) * 2),
    "wgmma at odd addresses": Case(_multiply, (SQUARE,) * 2, (), 2),
}


@cache
def compiled_of(function: Callable[..., Any], specs: tuple[Any, ...]) -> Any:
    """One for all calls of the function."""
    return fusec.compile(function, *specs, library="torch", target=TARGET, fallback="error")


@pytest.mark.parametrize("name", CASES)
def test_launches_are_those_of_the_runtime(
    name: str, tmp_path: Path, driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    compiled = compiled_of(case.function, case.specs)
    given = dict(zip(compiled.ranges, case.dims, strict=True))
    shapes = [[given[str(n).partition(":")[0]] if isinstance(n, str) else n for n in s.shape] for s in case.specs]
    inputs = [np.ones(shape, np.float16) for shape in shapes]
    variant = compiled.specialised(given)
    outputs = [made(variant, slot, given) for slot in variant.executable.program.outputs]
    ran, said = run_in_c(compiled, variant, inputs, outputs, tmp_path, driver, case.shift)
    assert (ran.status, said) == (0, "no error; CUDA_SUCCESS")
    assert "no context" not in ran.log
    assert ran.log[-1] == "release 0"
    assert [line for line in ran.log if line.startswith("free ")][-1] == "free 0"
    loads, unloads = ([line for line in ran.log if line.startswith(what)] for what in ("load ", "unload "))
    assert len(loads) == len(unloads) > 0

    addresses = addresses_in(ran, variant, case.shift)
    expected = run_by_fusec(variant, addresses, given, tmp_path, driver, monkeypatch)
    assert ran.launches == [line.split()[1:] for line in expected if line.startswith("launch ")]
    assert {line for line in expected if line.startswith(("load ", "attribute "))} <= set(ran.log)
    maps = [p for _, kernel in kernels_of(variant, case.shift) for p in kernel.parameters if isinstance(p, TensorMap)]
    assert maps or case.shift


def made(variant: Any, slot: int, extents: Mapping[str, int]) -> Any:
    """An array as an output is."""
    record = variant.executable.program.slots[slot].type
    shape = [n if isinstance(n, int) else extents[str(n)] for n in record.shape]
    return np.zeros(shape, record.dtype.numpy)


def run_by_fusec(
    variant: Any,
    addresses: Sequence[Sequence[int]],
    extents: Mapping[str, int],
    folder: Path,
    driver: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> list[str]:
    """The driver's log where fusec's own launcher runs the variant's kernels on these addresses."""
    own = folder / "libcuda.so.1"
    shutil.copy(driver / "libcuda.so.1", own)
    for key, value in environment(
        folder, driver, FAKE_GPU_LOG=str(folder / "expected"), FUSEC_CACHE_DIR=str(folder)
    ).items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(launch, "_DRIVER", str(own))
    monkeypatch.setattr("fusec.codegen.launches.require_device", lambda *_: None)
    launch.extension.cache_clear()
    launch.device.cache_clear()
    try:
        numbers: dict[object, int] = {}
        rows = []
        symbols = {kernel.name: kernel.sizes for kernel in variant.executable.program.kernels}
        steps = [step for step in variant.executable.program.steps if isinstance(step, Launch)]
        for step, own_addresses in zip(steps, addresses, strict=True):
            rows.append((step.kernel, [numbers.setdefault(a, len(numbers)) for a in own_addresses]))
        for kernel, own_numbers in rows:
            own_numbers += [numbers.setdefault(s.name, len(numbers)) for s in symbols[kernel]]
        given = [extents[key] if isinstance(key, str) else key for key in numbers]
        module = module_from_bytes(variant.executable.module.complete().to_bytes())
        module.row(rows, len(given), 0)(STREAM, *given)
    finally:
        launch.extension.cache_clear()
        launch.device.cache_clear()
    return (folder / "expected").read_text().splitlines()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"FAKE_GPU_ARCH": "80"}, "the GPU is of another architecture than the code; CUDA_SUCCESS"),
        ({"FAKE_GPU_FAIL": "cuInit 100"}, "there is no GPU that can be used"),
        ({"FAKE_GPU_FAIL": "cuDeviceGet 101"}, "there is no GPU that can be used"),
        ({"LD_LIBRARY_PATH": ""}, "there is no GPU that can be used"),
        ({"FAKE_GPU_FAIL": "cuModuleLoadData 209"}, "a kernel has failed; CUDA_ERROR"),
        ({"FAKE_GPU_FAIL": "cuMemAlloc_v2 2"}, "out of memory; CUDA_ERROR"),
        ({"FAKE_GPU_FAIL": "cuLaunchKernel 700"}, "a kernel has failed; CUDA_ERROR_ILLEGAL_ADDRESS"),
        ({"FAKE_GPU_FAIL": "cuMemAllocAsync 2"}, "out of memory; CUDA_ERROR"),
        ({"FAKE_GPU_FAIL": "cuTensorMapEncode 1"}, "a kernel has failed; CUDA_ERROR"),
    ],
)
def test_what_fails_is_told(settings: dict[str, str], said: str, tmp_path: Path, driver: Path) -> None:
    compiled = compiled_of(MLP, (ROWS,))
    variant = compiled.specialised({"R": 40})
    outputs = [made(variant, slot, {"R": 40}) for slot in variant.executable.program.outputs]
    ran, told = run_in_c(compiled, variant, [np.ones((40, 64), np.float16)], outputs, tmp_path, driver, **settings)
    assert ran.status != 0
    assert told.startswith(said)
    loaded, gone = (sum(line.startswith(what) for line in ran.log) for what in ("load ", "unload "))
    assert gone == loaded - ("cuModuleLoadData" in str(settings))
    assert not loaded or ran.log[-1] == "release 0"


def test_damaged_files_are_refused(tmp_path: Path, driver: Path) -> None:
    compiled: Any = fusec.compile(MLP, fusec.TensorSpec((4, 64), "float16"), target=TARGET, fallback="error")
    variant = compiled.only
    inputs = [np.ones((4, 64), np.float16)]
    outputs = [made(variant, slot, {}) for slot in variant.executable.program.outputs]
    ran, _ = run_in_c(compiled, variant, inputs, outputs, tmp_path, driver)
    assert ran.status == 0
    for file in ("mlp.cubins", "mlp.weights"):
        data = (tmp_path / file).read_bytes()
        for wrong in (data[:-1], data[:40] + bytes([data[40] ^ 1]) + data[41:], None):
            (tmp_path / file).unlink() if wrong is None else (tmp_path / file).write_bytes(wrong)
            done = subprocess.run(
                ["./main"], cwd=tmp_path, env=environment(tmp_path, driver), capture_output=True, text=True, check=False
            )
            wanted = "a file that belongs to the header" if wrong is None else "a file is damaged"
            assert done.stderr.startswith(wanted)
        (tmp_path / file).write_bytes(data)


def test_what_c_can_not_call_on_a_gpu(tmp_path: Path) -> None:
    x = fusec.TensorSpec((64, 64), "float16")
    with pytest.raises(ArtifactError, match="lies in the memory of an argument"):
        fusec.compile(lambda a: (torch.exp(a), a.T), x, library="torch", target=TARGET).export_c(tmp_path)
    with pytest.raises(ArtifactError, match="calls the library's aten"):
        fusec.compile(lambda a: torch.exp(a).sort()[0], x, library="torch", target=TARGET).export_c(tmp_path)
    with pytest.raises(ArtifactError, match="no GPU of the CUDA driver"):
        fusec.compile(lambda a: torch.exp(a), x, library="torch", target="hip:gfx942").export_c(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_example(tmp_path: Path, driver: Path) -> None:
    spec = importlib.util.spec_from_file_location("classify_gpu", EXAMPLE / "classify_gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "ROWS: 1 to 1024" in module.main(str(tmp_path)).read_text()
    (tmp_path / "parameters").write_text("")
    build = [*C, "-I", str(tmp_path), str(EXAMPLE / "classify_gpu.c"), "-ldl", "-o", "classify_gpu"]
    subprocess.run(build, cwd=tmp_path, check=True)
    rows = np.ones((100, 64), np.float32).tobytes()
    for given, lines, said in ((rows, 100, b""), (b"", 0, b"0 rows: a dimension is out of the range")):
        (tmp_path / "log").write_text("")
        done = subprocess.run(
            ["./classify_gpu", "."], cwd=tmp_path, env=environment(tmp_path, driver), input=given, capture_output=True
        )
        assert done.stderr.startswith(said)
        assert (done.returncode == 0) == (not said)
        assert len(done.stdout.splitlines()) == lines
        log = (tmp_path / "log").read_text().splitlines()
        assert any(line.startswith("launch ") for line in log) == (not said)
        assert log[-1] == "release 0"
