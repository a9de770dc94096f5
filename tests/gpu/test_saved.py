"""Programs compiled for a card by name, saved, and loaded in a process that has no compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import fusec  # noqa: E402
from fusec.errors import ArtifactError, SignatureError  # noqa: E402

pytestmark = pytest.mark.gpu
ARCH = "sm_{}{}".format(*torch.cuda.get_device_capability())

RUN = """
import shutil, sys
sys.modules["triton"] = None
shutil.which = lambda name: None
import torch, fusec
loaded, x, wanted = (fusec.load(sys.argv[1]), *torch.load(sys.argv[2]))
torch.testing.assert_close(loaded(x.cuda()).cpu(), wanted, atol=0.02, rtol=0.02)
base = torch.empty(1 + x.numel(), dtype=x.dtype, device="cuda")
shifted = base[1:].view(x.shape).copy_(x)
torch.testing.assert_close(loaded(shifted).cpu(), wanted, atol=0.02, rtol=0.02)
"""


def net() -> Any:
    torch.manual_seed(0)
    parts = torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64), torch.nn.Softmax(-1)
    return torch.nn.Sequential(*parts).to(torch.bfloat16).eval()


def test_loaded_where_nothing_compiles(tmp_path: Path) -> None:
    module = net()
    x = torch.randn(40, 64).to(torch.bfloat16)
    fusec.compile(module, fusec.TensorSpec((40, 64), "bfloat16"), target=f"cuda:{ARCH}").save(tmp_path / "f.fusec")
    with torch.no_grad():
        torch.save([x, module(x)], tmp_path / "data.pt")
    environment = {"PATH": "", "FUSEC_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": ":".join(sys.path)}
    files = [str(tmp_path / "f.fusec"), str(tmp_path / "data.pt")]
    done = subprocess.run([sys.executable, "-c", RUN, *files], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_compiled_from_tensors_of_the_device(tmp_path: Path) -> None:
    module = net().cuda()
    x = torch.randn(40, 64, device="cuda").to(torch.bfloat16)
    made = fusec.compile(module, x, graph=True)
    made.save(tmp_path / "f.fusec")
    with torch.no_grad():
        wanted = module(x)
        module[0].weight.zero_()
    torch.testing.assert_close(made(x), wanted, atol=0.02, rtol=0.02)
    torch.testing.assert_close(fusec.load(tmp_path / "f.fusec")(x), wanted, atol=0.02, rtol=0.02)
    with pytest.raises(SignatureError, match="compiled was"):
        made(x.cpu())


def test_a_file_for_another_card(tmp_path: Path) -> None:
    other = "sm_80" if ARCH != "sm_80" else "sm_90"
    fusec.compile(net(), fusec.TensorSpec((40, 64), "bfloat16"), target=f"cuda:{other}").save(tmp_path / "f.fusec")
    with pytest.raises(ArtifactError, match=f"it needs {other} as device 0: cuda:0 is {ARCH}"):
        fusec.load(tmp_path / "f.fusec")
