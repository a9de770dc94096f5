"""``graph=True``: results are the caller's own, addresses and streams may change, and memory is given back."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402

import fusec  # noqa: E402
from fusec.runtime import launch  # noqa: E402

pytestmark = pytest.mark.gpu


def rand(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


def mlp(x: Any, w: Any, v: Any) -> Any:
    return F.softmax(F.relu(x @ w) @ v, -1)


WEIGHTS = (128, 256), (256, 64)


def weights() -> tuple[Any, Any]:
    return rand(*WEIGHTS[0]) / 11, rand(*WEIGHTS[1]) / 16


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, atol=0.02, rtol=0.02)


def fast() -> Any:
    return fusec.jit(mlp, graph=True, fallback="error")


def test_results_that_are_held_are_never_overwritten() -> None:
    run, (w, v) = fast(), weights()
    inputs = [rand(32, 128) for _ in range(20)]
    outputs = [run(x, w, v) for x in inputs]
    assert len({o.data_ptr() for o in outputs}) == 20
    for x, y in zip(inputs, outputs, strict=True):
        close(y, mlp(x, w, v))


def test_weights_change_in_place_or_are_replaced() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    net = net.to("cuda", torch.bfloat16).requires_grad_(False)
    run = fusec.jit(net, graph=True, fallback="error")
    x = rand(32, 128)
    close(run(x), net(x))
    net[0].weight.mul_(2)
    close(run(x), net(x))
    net[2].weight = torch.nn.Parameter(rand(64, 256) / 16, requires_grad=False)
    close(run(x), net(x))


def test_streams_of_the_caller() -> None:
    run, (w, v) = fast(), weights()
    x = rand(32, 128)
    run(x, w, v)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    results = []
    for k, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            y = x * (k + 1)
            results.append((y, run(y, w, v)))
    assert not streams[0].query()  # nothing waited
    torch.cuda.synchronize()
    for y, found in results:
        close(found, mlp(y, w, v))


def test_inside_anothers_capture() -> None:
    run, (w, v) = fast(), weights()
    x = rand(32, 128)
    run(x, w, v)
    outer = torch.cuda.CUDAGraph()
    with torch.cuda.graph(outer):
        found = run(x, w, v)
    x.copy_(rand(32, 128))
    outer.replay()
    close(found, mlp(x, w, v))
    close(run(x, w, v), mlp(x, w, v))


def test_misaligned_inputs() -> None:
    run, (w, v) = fast(), weights()
    base = rand(1 + 32 * 128)
    x = base[1:].view(32, 128)
    close(run(x, w, v), mlp(x, w, v))
    y = rand(32, 128)
    close(run(y, w, v), mlp(y, w, v))


def test_threads() -> None:
    run, (w, v) = fast(), weights()
    run(rand(32, 128), w, v)
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(30):
                    x = rand(32, 128)
                    close(run(x, w, v), mlp(x, w, v))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


def test_memory_is_given_back() -> None:
    run, (w, v) = fast(), weights()
    x = rand(4096, 128)
    run(x, w, v)
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(10):
        run(x, w, v)
    assert torch.cuda.memory_allocated() == before
    graphs = launch.extension().graphs()
    kept = [fast() for _ in range(10)]
    for other in kept:
        other(x, w, v)
    assert launch.extension().graphs() == graphs + 10
    del other, kept
    gc.collect()
    torch.cuda.synchronize()
    assert launch.extension().graphs() == graphs
    assert torch.cuda.memory_allocated() == before


def test_library_calls_between_kernels() -> None:
    run = fusec.jit(lambda x: torch.sort(x * 2 + 1, -1)[0].relu().sum(-1), graph=True)
    x = torch.randn(64, 300, device="cuda")
    torch.testing.assert_close(run(x), torch.sort(x * 2 + 1, -1)[0].relu().sum(-1))
    torch.testing.assert_close(run(x + 1), torch.sort((x + 1) * 2 + 1, -1)[0].relu().sum(-1))
