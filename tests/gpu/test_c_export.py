"""Functions exported to C, on a card: the header's calls give what fusec's own give, on arrays and on a stream of
PyTorch's; the examples run as programs of their own."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import fusec  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples" / "c"
ARCH = "cuda:sm_{}{}".format(*torch.cuda.get_device_capability())

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")]


class Exported:
    """An exported function, called from this process: a library around its header, as a program would have it."""

    def __init__(self, compiled: Any, folder: Path) -> None:
        name = compiled.export_c(folder).stem
        self._outputs = len(compiled.complete[-1].executable.program.outputs)
        count = len(compiled.specs)
        arrays = [*(f"a[{k}]" for k in range(count + self._outputs)), *(f"d[{k}]" for k in range(len(compiled.ranges)))]
        (folder / "library.c").write_text(
            f'#include "{name}.h"\nstatic {name}_model model;\n'
            f"int opened(const char *folder) {{ return {name}_open(&model, folder); }}\n"
            f"int called(void **a, int64_t *d, void *stream) "
            f"{{ (void)d; return {name}_run(&model, {', '.join(arrays)}, stream); }}\n"
            f"void closed(void) {{ {name}_close(&model); }}\n"
            "const char *said(void) { return fusec_gpu_error(); }\n"
        )
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "library.c", "-ldl", "-o", "library.so"], cwd=folder, check=True
        )
        self._library = ctypes.CDLL(str(folder / "library.so"))
        self._library.said.restype = ctypes.c_char_p
        assert self._library.opened(str(folder).encode()) == 0, self._library.said()

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], extents: Sequence[int]) -> int:
        """The status of a call on the current stream."""
        pointers = [t.data_ptr() for t in (*inputs, *outputs)]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        arrays = (ctypes.c_void_p * len(pointers))(*pointers)
        status: int = self._library.called(arrays, (ctypes.c_int64 * max(len(extents), 1))(*extents), stream)
        return status

    def close(self) -> None:
        self._library.closed()


@dataclass(frozen=True)
class Case:
    """A function with a range or none, its arguments' shapes for each call, and their dtype."""

    function: Callable[..., Any]
    shapes: Sequence[Sequence[Any]]
    calls: Sequence[Sequence[int]] = ((),)
    dtype: str = "float16"


def _mlp() -> Any:
    """Its weights lie on the CPU, as where there is no GPU."""
    torch.manual_seed(0)
    first, second = (torch.nn.Linear(64, 64).half().requires_grad_(False) for _ in range(2))

    def mlp(x: Any) -> Any:
        y = torch.nn.functional.gelu(first(torch.nn.functional.layer_norm(x, (64,))))
        return torch.softmax(second(y) + x, -1), y.float().sum(0)

    return mlp


def _attend(q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def _causal(q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _multiply(a: Any, b: Any) -> Any:
    return torch.relu(a @ b)


def _convolve(x: Any, w: Any) -> Any:
    """Of images and weights whose channels lie last."""
    found = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), padding=1)
    return torch.relu(found).permute(0, 2, 3, 1)


def _long(x: Any) -> Any:
    return torch.softmax(x, -1), x.sum(), x.amax(0)


CASES = {
    "rows": Case(_mlp(), [["R:1..512", 64]], [(1,), (3,), (40,), (512,), (33,)]),
    "attention": Case(_attend, [[2, 4, 256, 64]] * 3),
    "attention of odd lengths": Case(_causal, [[1, 3, "S:2..300", 64]] * 3, [(2,), (77,), (300,)]),
    "wgmma": Case(_multiply, [[2048, 2048]] * 2),
    "odd products": Case(_multiply, [[205, 77], [77, 131]], dtype="float32"),
    "convolution": Case(_convolve, [[16, 28, 28, 256], [256, 3, 3, 256]]),
    "split rows": Case(_long, [[3, 100_003]], dtype="float32"),
}


@pytest.mark.parametrize("name", CASES)
def test_calls_give_what_fusec_gives(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    specs = [fusec.TensorSpec(tuple(shape), case.dtype) for shape in case.shapes]
    compiled: Any = fusec.compile(case.function, *specs, library="torch", target=ARCH, fallback="error")
    exported = Exported(compiled, tmp_path)
    for extents in case.calls:
        given = dict(zip(compiled.ranges, extents, strict=True))
        shapes = [[given[n.partition(":")[0]] if isinstance(n, str) else n for n in shape] for shape in case.shapes]
        for shift in (0, 1):  # elements behind an aligned address
            torch.manual_seed(1)
            dtype = getattr(torch, case.dtype)
            memory = [torch.randn(int(np.prod(shape)) + shift, device="cuda").to(dtype) for shape in shapes]
            inputs = [m[shift:].view(shape) for m, shape in zip(memory, shapes, strict=True)]
            wanted = compiled(*inputs)
            wanted = wanted if isinstance(wanted, tuple) else (wanted,)
            outputs = [torch.full_like(w, float("nan")) for w in wanted]
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
                for _ in range(3):
                    assert exported(inputs, outputs, extents) == 0
                torch.cuda.current_stream().synchronize()
            for found, w in zip(outputs, wanted, strict=True):
                torch.testing.assert_close(found, w, rtol=0, atol=0)
    if compiled.ranges:
        beyond = [10**6] * len(compiled.ranges)
        assert exported(inputs, outputs, beyond) == 1
    exported.close()


def test_calls_in_a_cuda_graph(tmp_path: Path) -> None:
    """A call is captured like any launch; its scratch is taken in the graph."""
    compiled: Any = fusec.compile(_mlp(), fusec.TensorSpec((40, 64), "float16"), target=ARCH, fallback="error")
    exported = Exported(compiled, tmp_path)
    x = torch.randn(40, 64, device="cuda").half()
    outputs = [torch.zeros_like(w) for w in compiled(x)]
    assert exported([x], outputs, ()) == 0
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert exported([x], outputs, ()) == 0
    x.copy_(torch.randn(40, 64, device="cuda"))
    graph.replay()
    torch.cuda.synchronize()
    for found, wanted in zip(outputs, compiled(x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    exported.close()


def test_the_example_as_a_program(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("classify_gpu", EXAMPLES / "classify_gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(str(tmp_path), ARCH)
    command = ["cc", "-O2", "-I", str(tmp_path), str(EXAMPLES / "classify_gpu.c"), "-ldl", "-o", "classify_gpu"]
    subprocess.run(command, cwd=tmp_path, check=True)
    rows = np.random.default_rng(0).standard_normal((100, 64), np.float32)
    for count in (1, 37, 100):
        done = subprocess.run(
            ["./classify_gpu", "."], cwd=tmp_path, input=rows[:count].tobytes(), capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        found = np.array([line.split() for line in done.stdout.decode().splitlines()], np.float64)
        wanted = module.network.double()(torch.from_numpy(rows[:count]).double()).numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
        module.network.float()


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_the_encoder_is_served(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    sys.path.insert(0, str(EXAMPLES))
    try:
        import bert
    finally:
        sys.path.remove(str(EXAMPLES))
    model = bert.encoder(width=64, layers=1, heads=2, words=50)
    spec = fusec.TensorSpec(("B:1..4", "S:2..32"), "int64")
    fusec.compile(model, spec, spec, target=ARCH, fallback="error").export_c(tmp_path)
    command = ["c++", "-O2", "-std=c++17", "-I", ".", str(EXAMPLES / "serve_gpu.cpp"), "-ldl", "-o", "serve"]
    subprocess.run(command, cwd=tmp_path, check=True)
    for shape in ((1, 2), (3, 17), (4, 32)):
        ids = np.random.default_rng(0).integers(0, 50, shape)
        np.savetxt(tmp_path / "ids.txt", ids, "%d")
        with (tmp_path / "ids.txt").open() as lines:
            done = subprocess.run(
                ["./serve", ".", "64"], cwd=tmp_path, stdin=lines, capture_output=True, text=True, check=False
            )
        assert done.returncode == 0, done.stderr
        found = np.array([line.split() for line in done.stdout.splitlines()], np.float64)
        wanted = model(torch.from_numpy(ids), torch.ones(shape, dtype=torch.int64))[:, :, 0].numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
