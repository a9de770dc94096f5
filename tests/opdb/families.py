"""Which of PyTorch's ops belong to which family, and which are left out and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo

core.extract_test_fn = lambda: (
    None
)  # for each sample it reads the source of the whole stack to find the test's own skips

_ELEMENTWISE = """
    addcdiv addcmul clamp lerp masked_fill where to logaddexp2 zeros_like ones_like full_like fill zeros ones full
    new_full new_zeros new_ones scalar_tensor eye arange linspace clone contiguous
    nn.functional.gelu nn.functional.glu nn.functional.hardswish nn.functional.leaky_relu nn.functional.mse_loss
    nn.functional.l1_loss nn.functional.smooth_l1_loss nn.functional.huber_loss nn.functional.kl_div
    nn.functional.binary_cross_entropy nn.functional.binary_cross_entropy_with_logits nn.functional.soft_margin_loss
    nn.functional.margin_ranking_loss nn.functional.hinge_embedding_loss nn.functional.poisson_nll_loss
"""
_REDUCTION = """
    aminmax cumsum cumprod max min var_mean std_mean logsumexp logcumsumexp norm sum_to_size trace dist nansum
    cumulative_trapezoid trapezoid trapz diff cov corrcoef linalg.norm linalg.matrix_norm cummax cummin
    nn.functional.pairwise_distance nn.functional.cosine_similarity masked.logsumexp masked.cumsum masked.cumprod
"""
_VIEW = """
    T H mT mH alias_copy as_strided as_strided_copy atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to
    cat chunk column_stack constant_pad_nd diag diag_embed diagflat diagonal diagonal_copy diagonal_scatter dsplit
    dstack expand expand_as expand_copy flatten flip fliplr flipud hsplit hstack index_select gather __getitem__
    meshgrid movedim narrow narrow_copy nn.functional.pad nn.functional.pixel_shuffle nn.functional.pixel_unshuffle
    nn.functional.channel_shuffle nn.functional.embedding nn.functional.unfold permute permute_copy ravel repeat
    repeat_interleave reshape reshape_as roll rot90 select select_scatter slice slice_scatter split split_with_sizes
    split_with_sizes_copy squeeze squeeze_copy stack t t_copy take take_along_dim tensor_split tile transpose
    transpose_copy tril triu unbind unbind_copy unflatten unfold unfold_copy unsafe_chunk unsafe_split unsqueeze
    unsqueeze_copy view view_as view_copy vsplit vstack _chunk_cat block_diag linalg.diagonal index_fill
"""
_MATMUL = """
    __rmatmul__ addbmm addmm addmv addr baddbmm bmm dot einsum inner kron linalg.multi_dot linalg.vecdot
    linalg.matrix_power matmul mm mv nn.functional.bilinear nn.functional.linear outer tensordot vdot cdist cross
    linalg.cross
"""
_SOFTMAX = """
    softmax log_softmax nn.functional.softmin _softmax_backward_data torch.ops.aten._safe_softmax.default
    masked.softmax masked.log_softmax masked.softmin nn.functional.cross_entropy nn.functional.nll_loss
"""
_NORM = """
    native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit _batch_norm_with_update
    nn.functional.batch_norm nn.functional.group_norm nn.functional.instance_norm nn.functional.layer_norm
    nn.functional.local_response_norm nn.functional.normalize nn.functional.rms_norm masked.normalize renorm
"""
_CONVOLUTION = """
    nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d nn.functional.conv_transpose1d
    nn.functional.conv_transpose2d nn.functional.conv_transpose3d
"""
_POOLING = """
    nn.functional.avg_pool1d nn.functional.avg_pool2d nn.functional.avg_pool3d nn.functional.adaptive_avg_pool1d
    nn.functional.adaptive_avg_pool2d nn.functional.adaptive_avg_pool3d nn.functional.adaptive_max_pool1d
    nn.functional.adaptive_max_pool2d nn.functional.adaptive_max_pool3d nn.functional.max_pool1d
    nn.functional.max_pool2d nn.functional.max_pool3d nn.functional.max_unpool1d nn.functional.max_unpool2d
    nn.functional.max_unpool3d
"""
_RESAMPLING = """
    nn.functional.interpolate nn.functional.upsample_bilinear nn.functional.upsample_nearest _upsample_bilinear2d_aa
    nn.functional.grid_sample grid_sampler_2d grid_sampler_3d
"""
_ATTENTION = "nn.functional.scaled_dot_product_attention nn.functional.multi_head_attention_forward"

FAMILIES: dict[str, frozenset[str]] = {
    "elementwise": frozenset(_ELEMENTWISE.split()),
    "reduction": frozenset(_REDUCTION.split()),
    "view": frozenset(_VIEW.split()),
    "matmul": frozenset(_MATMUL.split()),
    "softmax": frozenset(_SOFTMAX.split()),
    "norm": frozenset(_NORM.split()),
    "convolution": frozenset(_CONVOLUTION.split()),
    "pooling": frozenset(_POOLING.split()),
    "resampling": frozenset(_RESAMPLING.split()),
    "attention": frozenset(_ATTENTION.split()),
}
NAMES = (*FAMILIES, "others")
"""``others``: functions of mathematical physics and writes through indices. No family that fusec is judged by."""

_OTHER_NAMES = """
    digamma erfinv i0 igamma igammac lgamma mvlgamma polygamma nextafter frexp hash_tensor
    scatter scatter_add index_add index_copy index_put nn.functional.gaussian_nll_loss
"""
_OTHERS = frozenset(_OTHER_NAMES.split())
_LEFT_OUT = {
    "jiterator": "written for CUDA's run-time compiler",
    "nn.functional.rrelu": "draws random numbers",
    "polar": "gives complex numbers, which no family asked for has",
    "complex": "gives complex numbers, which no family asked for has",
    "cdouble": "gives complex numbers, which no family asked for has",
    "cfloat": "gives complex numbers, which no family asked for has",
    "chalf": "gives complex numbers, which no family asked for has",
    "masked.median": "sorts: no family asked for",
}


def _unseeded(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


common_methods_invocations.wrapper_set_seed = _unseeded  # each run is seeded from outside, and fusec refuses to seed


def name_of(op: Any) -> str:
    """``softmax.with_dtype``: the op and its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def family_of(op: Any) -> str | None:
    """The family of one of op_db's entries; None for one that is not asked for."""
    if any(op.name.startswith(prefix) for prefix in _LEFT_OUT):
        return None
    for family, names in FAMILIES.items():
        if op.name in names:
            return family
    if op.name.startswith("special.") or op.name in _OTHERS:
        return "others"
    if isinstance(op, UnaryUfuncInfo | BinaryUfuncInfo):
        return "elementwise"
    return "reduction" if isinstance(op, ReductionOpInfo) else None


def chosen_ops() -> Iterator[tuple[str, Any]]:
    """Family and entry of each op that is run, in op_db's order."""
    for op in op_db:
        family = family_of(op)
        if family is not None:
            yield family, op
