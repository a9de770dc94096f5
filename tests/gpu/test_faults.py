"""What goes wrong on a GPU is one clear error."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import fusec  # noqa: E402
from fusec.errors import FusecError, TargetError  # noqa: E402
from fusec.runtime.launch import DeviceKernel, device  # noqa: E402

pytestmark = pytest.mark.gpu


def test_out_of_memory_is_pytorchs_own_and_passes() -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    x = torch.ones(1, dtype=torch.uint8, device="cuda")
    huge = fusec.jit(lambda t: t.expand(total) + 1, fallback="error")
    with pytest.raises(torch.OutOfMemoryError):
        huge(x)
    assert (fusec.jit(lambda t: t + 1, fallback="error")(x) == 2).all()


def test_tensors_on_two_devices_name_the_line() -> None:
    def add(a: Any, b: Any) -> Any:
        return a + b

    with pytest.raises(FusecError, match=r"test_faults\.py:\d+"):
        fusec.jit(add, fallback="error")(torch.ones(4, device="cuda"), torch.ones(4))

    def apart(a: Any, b: Any) -> Any:
        return a + 1, b + 1

    with pytest.raises(FusecError, match="cpu, cuda:0"):
        fusec.jit(apart, fallback="error")(torch.ones(4, device="cuda"), torch.ones(4))


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(TargetError, match="no CUDA device 63 here"):
        fusec.jit(lambda t: t + 1, target="cuda:63", fallback="error", cache=False)(torch.ones(4, device="cuda"))


def test_code_that_is_none() -> None:
    kernel = DeviceKernel("nothing", b"\x7fELF and no more", (1, 1, 1), 32, 0, 1, (0,))
    with pytest.raises(FusecError, match="nothing: CUDA_ERROR"):
        device(0).row([(kernel, (0,))], 1)


LOST = """
import torch, fusec
from fusec.errors import DeviceError
x = torch.ones(1000, device="cuda")
f = fusec.jit(lambda t: t * 2 + 1, fallback="error")
g = fusec.jit(lambda t: (t * 2).sum(), fallback="error", graph=True)
f(x), g(x)
executable = f.dispatcher.plans[0].executable
run = executable.module.row([(executable.program.kernels[0].name, (0, 1))], 2, 0)
run(0, 16, 32)  # writes to address 32
try:
    torch.cuda.synchronize()
except RuntimeError:
    pass
for call in (f, g):
    try:
        call(x)
    except DeviceError as error:
        assert "can't be used by this process any more" in str(error), error
        print("told")
    except RuntimeError as error:
        print("pytorch:", str(error).splitlines()[0])
"""


def test_a_lost_device_is_told() -> None:
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["told", "told"], done.stdout + done.stderr[-1500:]
