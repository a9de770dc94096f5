"""Rows that are known to differ from eager, each with the reason. One that comes out right fails the run."""

from __future__ import annotations

_BATCH_NORMS = ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update")
_REASONS: dict[str, tuple[str, ...]] = {
    "of two zeros of different sign, PyTorch's vector loop and its loop for what is left over take different ones": (
        "clamp f32 specials",
        "clamp bf16 specials",
        "nn.functional.softshrink f32 specials",
        "nn.functional.softshrink bf16 specials",
    ),
    "PyTorch's running mean is NaN after an infinity (inf - inf); the sum, and so fusec's mean, is infinite": (
        "native_group_norm f32 specials",
        "native_group_norm bf16 specials",
    ),
    "PyTorch multiplies by scale * weight and adds the rest, which is inf - inf where the weight is infinite": (
        *(f"{op} {dtype} specials" for op in _BATCH_NORMS for dtype in ("f32", "bf16")),
    ),
    "weights that are not finite, beside padding: some of PyTorch's kernels multiply them by 0, others skip it": (
        "nn.functional.conv2d f32 specials",
        "nn.functional.conv2d bf16 specials",
        "nn.functional.conv3d bf16 specials",
    ),
    "PyTorch's rule for fake tensors, by which results are laid out, forgets channels last": (
        *(f"nn.functional.max_unpool2d{end} {dtype} forward" for end in ("", ".grad") for dtype in ("f32", "bf16")),
    ),
    "rows of one element: PyTorch adds a bias of 0, which makes the zero positive": ("native_layer_norm f32 forward",),
    "PyTorch's vectors give NaN for gelu(inf); fusec gives inf": (
        "nn.functional.gelu f32 specials",
        "nn.functional.gelu bf16 specials",
    ),
    "PyTorch's vectors give NaN where the quotient by a denormal overflows; fusec's remainder is exact": (
        "__rmod__ f32 specials",
        "__rmod__ bf16 specials",
    ),
    "under a tracer PyTorch itself asks LAPACK for the singular vectors as well, whose values are less exact": (
        "linalg.norm f32 forward",
    ),
    "a maximum and the logarithm of a sum cancel: half an ulp of either is more than two ulp of the result": (
        "masked.logsumexp f32 forward",
    ),
    "scores of 1e6, one rounding of which moves a weight by 6 %: either result is as good": (
        "nn.functional.multi_head_attention_forward f32 forward",
    ),
    "a CPU's instructions for bf16 take denormals for 0: PyTorch uses them for some shapes, fusec for others": (
        "bmm.triton_optimized bf16 specials",
    ),
    "exp(inf) - inf: the last product of exp and the difference are one fused multiply-add, which gives -inf": (
        "nn.functional.poisson_nll_loss f32 specials",
        "nn.functional.poisson_nll_loss bf16 specials",
    ),
}

KNOWN: dict[str, str] = {key: reason for reason, keys in _REASONS.items() for key in keys}
"""By ``op dtype check``, as the run prints it."""
