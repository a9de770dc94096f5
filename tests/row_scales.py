"""Whether PyTorch multiplies e4m3 with scales of rows on a CPU: 2.11 and older take one scale alone."""

from __future__ import annotations

import torch


def _has_row_scales() -> bool:
    a, s = torch.zeros(16, 16, dtype=torch.float8_e4m3fn), torch.ones(16, 1)
    try:
        torch._scaled_mm(a, a.t(), s, s.t(), out_dtype=torch.bfloat16)
    except RuntimeError:
        return False
    return True


ROW_SCALES = _has_row_scales()
