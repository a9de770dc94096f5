# SPDX-License-Identifier: Apache-2.0
"""PyTorch's settings for the whole process: those that a function asks for are guarded, those that it changes refused.

The modes that any plan depends on (gradients, autocast, the default dtype) are in :mod:`fusec.frontend.torch_guards`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

_NAMED = (
    ("cublas_allow_bf16_reduced_precision_reduction", "cublas_allow_bf16_reduced_precision_reduction"),
    ("cublas_allow_fp16_accumulation", "cublas_allow_fp16_accumulation"),
    ("cublas_allow_fp16_reduced_precision_reduction", "cublas_allow_fp16_reduced_precision_reduction"),
    ("cublas_allow_tf32", "cublas_allow_tf32"),
    ("cudnn_allow_tf32", "cudnn_allow_tf32"),
    ("cudnn_benchmark", "cudnn_benchmark"),
    ("cudnn_deterministic", "cudnn_deterministic"),
    ("cudnn_enabled", "cudnn_enabled"),
    ("cudnn_sdp_enabled", "sdp_use_cudnn"),
    ("deterministic_fill_uninitialized_memory", "deterministic_fill_uninitialized_memory"),
    ("flash_sdp_enabled", "sdp_use_flash"),
    ("float32_matmul_precision", "float32_matmul_precision"),
    ("math_sdp_allow_fp16_bf16_reduction", "math_sdp_allow_fp16_bf16_reduction"),
    ("math_sdp_enabled", "sdp_use_math"),
    ("mem_efficient_sdp_enabled", "sdp_use_mem_efficient"),
    ("mkldnn_deterministic", "mkldnn_deterministic"),
    ("mkldnn_enabled", "mkldnn_enabled"),
    ("nnpack_enabled", "nnpack_enabled"),
    ("warnAlways", "warnAlways"),
)
"""Settings by the names of what gives and sets them, after ``torch._C._get_`` and ``torch._C._set_``."""

Read = Callable[[], object]


def _settings() -> Iterator[tuple[str, Read, Callable[[Any], object]]]:
    """Name, what gives it, what sets it; only those that this version of PyTorch has."""
    c: Any = torch._C
    for given, put in _NAMED:
        if hasattr(c, f"_get_{given}") and hasattr(c, f"_set_{put}"):
            yield given, getattr(c, f"_get_{given}"), getattr(c, f"_set_{put}")
    yield "default dtype", torch.get_default_dtype, c._set_default_dtype
    yield "number of threads", torch.get_num_threads, torch.set_num_threads
    yield "autocast cache", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled
    yield "autocast dtype", partial(torch.get_autocast_dtype, "cpu"), partial(torch.set_autocast_dtype, "cpu")
    yield "deterministic algorithms", _deterministic, _set_deterministic
    yield "detection of anomalies", _anomaly, _set_anomaly


def _deterministic() -> tuple[bool, bool]:
    c: Any = torch._C
    return c._get_deterministic_algorithms(), c._get_deterministic_algorithms_warn_only()


def _set_deterministic(wanted: tuple[bool, bool]) -> None:
    c: Any = torch._C
    c._set_deterministic_algorithms(wanted[0], warn_only=wanted[1])


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _set_anomaly(wanted: tuple[bool, bool]) -> None:
    torch.set_anomaly_enabled(*wanted)


_ALL = tuple(_settings())

ASKED: dict[object, tuple[str, Read | None]] = {
    **{read: (f"PyTorch's {name}", read) for name, read, _ in _ALL if not isinstance(read, partial)},
    torch._C._get_deterministic_algorithms: ("PyTorch's deterministic algorithms", _deterministic),
    torch._C._get_deterministic_algorithms_warn_only: ("PyTorch's deterministic algorithms", _deterministic),
    torch.is_anomaly_enabled: ("PyTorch's detection of anomalies", _anomaly),
    torch.is_anomaly_check_nan_enabled: ("PyTorch's detection of anomalies", _anomaly),
    torch.default_generator.initial_seed: ("PyTorch's seed", torch.default_generator.initial_seed),
    torch.default_generator.set_state: ("the state of PyTorch's random numbers", None),
    **dict.fromkeys((torch.empty, torch.empty_like), ("PyTorch's deterministic algorithms", _deterministic)),
}
"""By the functions written in C that tell of a setting (of new memory: what it is filled with): its name, and what
gives it; None for one that changes it."""


@contextmanager
def kept(changed: list[str]) -> Iterator[None]:
    """Runs a body, and then puts back what it changed; appends the names of it."""
    before = [read() for _, read, _ in _ALL]
    try:
        yield
    finally:
        for (name, read, put), value in zip(_ALL, before, strict=True):
            if read() != value:
                put(value)
                changed.append(name)
