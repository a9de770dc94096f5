"""The library's convolutions, where oneDNN fails for images that have their channels last."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys, torch, torch.nn.functional as F
from fusec.ir.library_calls import LibraryConvolution, convolution_to_text
from fusec.runtime.convolutions import bind_convolution

for x_shape, w_shape, stride, padding, dilation in eval(sys.argv[1]):
    for dtype in (torch.bfloat16, torch.float32, torch.float16):
        torch.manual_seed(0)
        x, w = torch.randn(x_shape).to(dtype), torch.randn(w_shape).to(dtype)
        b = torch.randn(w_shape[0]).to(dtype)
        convolution = F.conv2d if x.dim() == 4 else F.conv3d
        exact = convolution(x.double(), w.double(), b.double(), stride, padding, dilation)
        shape = (exact.shape[0], *exact.shape[2:], exact.shape[1])
        call = bind_convolution(convolution_to_text(LibraryConvolution(None, None, stride, padding, dilation, shape)))
        (found,) = call(x.movedim(1, -1).contiguous(), w, b)
        assert found.is_contiguous()
        torch.testing.assert_close(found.movedim(-1, 1).double(), exact, rtol=0.03, atol=0.1)
"""
ONE_WINDOW = [
    ((3, 1, 13, 3), (17, 1, 5, 2), (1, 3), (1, 0), (1, 1)),
    ((2, 1, 2, 1), (17, 1, 5, 5), (1, 3), (2, 2), (1, 1)),
    ((2, 1, 1, 6, 6), (5, 1, 2, 2, 3), (2, 3, 1), (1, 2, 0), (1, 3, 1)),
    ((1, 1, 1, 5, 5), (4, 1, 2, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
]
IN_PADDING = [
    ((2, 3, 7, 1), (8, 3, 4, 2), (3, 2), (1, 3), (1, 2)),
    ((3, 3, 7, 1), (1, 3, 4, 1), (3, 3), (1, 2), (1, 2)),
    ((2, 3, 2, 5), (4, 3, 1, 1), (4, 1), (5, 0), (3, 1)),
]


@pytest.mark.nightly
@pytest.mark.parametrize("shapes", [ONE_WINDOW, IN_PADDING], ids=["one-window", "in-padding"])
def test_what_one_dnn_gets_wrong_with_channels_last(shapes):
    """In a process whose new memory holds what is no zero: a crash, and memory of others, are seen."""
    fresh = {**os.environ, "MALLOC_PERTURB_": "128", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, repr(shapes)]
    done = subprocess.run(command, env=fresh, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
