"""Several GPUs in one process: any may be current, and each function runs where its arguments are."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
    pytest.skip("fewer than two CUDA devices", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402

import fusec  # noqa: E402
from fusec.errors import FusecError, SignatureError  # noqa: E402

pytestmark = pytest.mark.gpu
DEVICES = ("cuda:0", "cuda:1")


def mlp(x: Any, w: Any, v: Any) -> Any:
    return F.softmax(F.relu(x @ w) @ v, -1)


def arguments(device: str) -> tuple[Any, ...]:
    return tuple(
        torch.randn(*shape, dtype=torch.bfloat16, device=device) / 8 for shape in ((48, 128), (128, 256), (256, 64))
    )


def close(found: Any, wanted: Any) -> None:
    assert found.device == wanted.device
    torch.testing.assert_close(found, wanted, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("current", [0, 1])
def test_whatever_device_is_current(graph: bool, current: int) -> None:
    run = fusec.jit(mlp, graph=graph, fallback="error")
    with torch.cuda.device(current):
        for _ in range(3):
            for device in DEVICES:
                args = arguments(device)
                close(run(*args), mlp(*args))
        assert torch.cuda.current_device() == current


@pytest.mark.parametrize("graph", [False, True])
def test_the_current_stream_of_the_tensors_device(graph: bool) -> None:
    run = fusec.jit(mlp, graph=graph, fallback="error")
    args = arguments("cuda:1")
    run(*args)
    stream = torch.cuda.Stream("cuda:1")
    torch.cuda.synchronize("cuda:1")
    with torch.cuda.stream(stream), torch.cuda.device(0):
        pass
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        changed = args[0] * 3
        found = run(changed, *args[1:])
    assert not stream.query()
    stream.synchronize()
    close(found, mlp(changed, *args[1:]))


def test_threads_on_their_own_devices() -> None:
    run = fusec.jit(mlp, graph=True, fallback="error")
    wrong: list[BaseException] = []

    def work(device: str) -> None:
        try:
            for _ in range(20):
                args = arguments(device)
                close(run(*args), mlp(*args))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(device,)) for device in DEVICES * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


def test_tensors_of_both_in_one_call() -> None:
    a, b = (torch.ones(4, 4, device=device) for device in DEVICES)
    with pytest.raises((FusecError, RuntimeError), match="device"):
        fusec.jit(lambda x, y: x + y, fallback="error")(a, b)
    with pytest.raises(FusecError, match="cuda:0, cuda:1"):
        fusec.jit(lambda x, y: (x + 1, y + 1), fallback="error")(a, b)


def test_a_program_compiled_for_the_second(tmp_path: Path) -> None:
    x, w, v = arguments("cuda:1")
    made = fusec.compile(lambda x: mlp(x, w, v), x)
    made.save(tmp_path / "f.fusec")
    loaded = fusec.load(tmp_path / "f.fusec")
    close(made(x), mlp(x, w, v))
    close(loaded(x), mlp(x, w, v))
    with pytest.raises(SignatureError, match="cuda:1"):
        loaded(x.to("cuda:0"))


def test_measured_on_the_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path))
    args = arguments("cuda:1")
    run = fusec.jit(mlp, tune="quick", fallback="error")
    close(run(*args), mlp(*args))
    assert torch.cuda.current_device() == 0
